"""Preference leakage (Li et al., arXiv 2502.01534): from printed rates and released judgments to tidy tables.

PLS and rates are in percent. Win rates are released for Table 1 only: the scores of other tables get the sampling noise
of its cells on the same benchmark, an assumption; what follows are weighted sums, so intervals are normal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from reprolib.errors import EvidenceError
from reprolib.evidence import PAIRWISE, check_table, published
from reprolib.metrics import allowed_by_rounding
from reprolib.metrics.leakage import TieRule, pls_of_shares, two_game_verdict
from reprolib.metrics.resampling import Array, Estimate, Statistic, bootstrap, cluster_sums, multinomial_bootstrap

SLUGS = {"Arena-Hard": "arena_hard", "AlpacaEval 2.0": "alpaca_eval", "Average": "average"}
PAIR = "GPT-4o & Gemini-1.5"  # the teachers of every score in Tables 2 and 3 and Figure 2
ROW, SHARES = ["benchmark", "student", "author_a", "author_b"], ["win_a", "tie", "win_b"]
RELATED = "judge == author_a or judge == author_b"
_Z = float(stats.norm.ppf(0.975))


def related_judges() -> pd.DataFrame:
    """The raw rates behind Table 1, in its order: benchmark, student and pair, then judge a and judge b; 24 rows."""
    return published("leakage_raw_rates").query(RELATED)


def table1(*, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """Table 1 recomputed from the raw rates, all in percent: 12 cells, then the 6 averages over the two benchmarks.

    Columns: benchmark, student, author_a, author_b, pair, printed, estimate (and its value, low, high, n, jitter, sd),
    inputs (the least and most that the rounding of the rates allows). The index ends the claims' ids. Judges count as
    independent: conservative. AlpacaEval's rates are length-controlled, so its intervals are approximate.
    """

    def mean(wins: Array) -> float:  # win_a and win_b of each row in turn; the rest are ties
        a, b = np.moveaxis(wins.reshape(-1, 2, 2), -1, 0)
        return 100 * float(pls_of_shares(np.stack([a, 100 - a - b, b], axis=-1), tie_rule=tie_rule).mean())

    related, table = related_judges(), published("leakage_table1").rename(columns={"pls": "printed"})
    groups = pd.concat([related, related.assign(benchmark="Average")]).groupby(ROW)
    cells = [groups.get_group(key) for key in table[ROW].itertuples(index=False, name=None)]
    table["inputs"] = [allowed_by_rounding(mean, rows[["win_a", "win_b"]].to_numpy().ravel()) for rows in cells]
    found = [resample_pls(rows=rows, tie_rule=tie_rule, draws=draws, seed=seed) for rows in cells]
    asked = [int(rows.n.unique().sum()) for rows in cells]  # the questions of one benchmark, or of both
    found = [replace(estimate, n=n) for estimate, n in zip(found, asked, strict=True)]
    return with_estimates(table, found, ["benchmark", "student"])


def with_estimates(table: pd.DataFrame, found: Sequence[Estimate], named_by: list[str]) -> pd.DataFrame:
    """Estimates and their parts beside their rows, under the end of the claim's id: arena_hard.mistral.gpt_gemini."""
    short = table[[*named_by, "author_a", "author_b"]].replace(SLUGS).map(lambda name: name.split("-")[0].lower())
    slug = short[named_by].agg(".".join, axis=1) + "." + short.author_a + "_" + short.author_b
    parts = pd.DataFrame(found)[["value", "low", "high", "n", "jitter"]]
    table = table.drop(columns=["source", "locator", "n"], errors="ignore").join(parts)
    pair, sd = table.author_a + " & " + table.author_b, (table.high - table.low) / 2 / _Z
    return table.assign(pair=pair, sd=sd, estimate=found).set_index(pd.Index(slug))


def resample_pls(
    statistic: Statistic = lambda pls: pls.mean(axis=-1), *, rows: pd.DataFrame | None = None,
    pooled: bool = False, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0,
) -> Estimate:  # fmt: skip
    """A statistic of the PLS (%) of Table 1's single cells, in its order: shape (..., 12) becomes (...).

    Of other cells if `rows` gives them, the raw rates of judge a and judge b in turn; of all as one cell if `pooled`.
    """
    rows = related_judges() if rows is None else rows

    def score(shares: Array) -> Any:
        cells = shares.reshape(*shares.shape[:-2], -1, 2, 3)
        cells = np.average(cells, axis=-3, weights=rows.n[::2], keepdims=True) if pooled else cells
        return statistic(100 * pls_of_shares(cells, tie_rule=tie_rule))

    return multinomial_bootstrap(rows[SHARES], rows.n, score, draws=draws, seed=seed)


def with_noise(
    table: pd.DataFrame, source: pd.DataFrame, *, known: str, student: str = "Mistral-7B", factor: float = 1.0
) -> pd.DataFrame:
    """A table of printed scores with their noise: key columns, benchmark, value, sd, n, wobble, printed, low, high.

    Rows that the query `known` finds are cells of Table 1 (of `student` and `PAIR`) and get that cell's own SD from
    `source` (`table1`); others the root mean square over the benchmark's six cells, times `factor`. An average's value
    is the mean of the two printed scores; `printed` is what the paper has for it, if anything.
    """
    source = source[source.benchmark != "Average"]
    own = source[(source.student == student) & (source.pair == PAIR)].set_index("benchmark")
    assumed = factor * source.groupby("benchmark").sd.agg(lambda sd: np.sqrt((sd**2).mean()))
    table = table.drop(columns=["source", "locator"]).rename(columns={"pls": "printed"})
    cells = table[table.benchmark != "Average"].assign(value=table.printed, n=lambda t: t.benchmark.map(own.n))
    cells["sd"] = cells.benchmark.map(own.sd).where(cells.eval(known), cells.benchmark.map(assumed))
    key = table.columns.drop(["benchmark", "printed"]).tolist()
    both = cells.groupby(key, sort=False)
    mean = both[["value", "n"]].agg({"value": "mean", "n": "sum"}).assign(benchmark="Average")
    mean["sd"] = both.sd.agg(np.linalg.norm) / both.size()
    cells = pd.concat([cells.drop(columns="printed"), mean.reset_index()]).merge(table, how="left")
    wobble = (source.jitter / source.sd / _Z).max()  # of an SD, relative, from finitely many draws
    return cells.assign(wobble=wobble, low=cells.value - _Z * cells.sd, high=cells.value + _Z * cells.sd)


def compare(cells: pd.DataFrame, weights: Mapping[str, float], *, key: str, benchmark: str) -> Estimate:
    """A weighted sum of the rows of one benchmark (or "Average"), such as ``{"SFT": 1, "DPO": -1}``, in points."""
    rows = cells[cells.benchmark == benchmark]
    return weighted(rows[key].map(weights).fillna(0).to_numpy(), rows)


def weighted(weights: Array, cells: pd.DataFrame) -> Estimate:
    """The sum of the rows' values by these weights, in points; the rows' noise is independent."""
    value, half = float(weights @ cells.value), _Z * float(np.sqrt(weights**2 @ cells.sd**2))
    rule, jitter = "normal, noise of Table 1's cells assumed, 95%", half * float(cells.wobble.max())
    return Estimate(value, value - half, value + half, int(cells.n.min()), rule, jitter=jitter)


def side(estimate: Estimate) -> str:
    """Where the whole interval lies, whatever the seed: "above" zero, "below", or "open"."""
    low, high = estimate.low - 2 * estimate.jitter, estimate.high + 2 * estimate.jitter
    return "above" if low > 0 else "below" if high < 0 else "open"


def lab_table(lab: Path, *, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """PLS of a run of your own: `lab` holds `pairwise.parquet`, or records; each author is named after its teacher.

    A judge is related to the student whose teacher bears its name; pairs without both related judges are left out. Both
    games collapse to one verdict; questions (`cluster_id`) are resampled, both judges together.
    Columns: condition (and the arm, if it has a name), pair, n (questions), n_unparsed, pls, low, high (%).
    """
    records = [path.with_suffix(".parquet") for path in sorted(lab.glob("*.json"))]
    if not (paths := [*lab.glob("pairwise.parquet")] or records):
        message = f"lab={str(lab)!r} holds no pairwise.parquet and no record"
        raise EvidenceError(message, hint="give the folder a leakage lab run wrote, under evidence/recorded")
    games = pd.concat([check_table(pd.read_parquet(path), PAIRWISE, origin=str(path)) for path in paths])
    rows = []
    related = games[(games.judge == games.author_a) | (games.judge == games.author_b)]
    for (condition, arm, a, b), judged in related.groupby(["condition", "arm", "author_a", "author_b"]):
        if judged.judge.nunique() == 2:
            asked = judged.groupby(["cluster_id", "pair_id", "judge", "repetition"])
            verdict = asked.verdict.agg(lambda verdicts: two_game_verdict(*verdicts)).reset_index()
            column = verdict.verdict.map({"A": 0, "tie": 1, "B": 2}) + 3 * (verdict.judge == b)
            e = pls_estimate(cluster_sums(np.eye(6)[column], verdict.cluster_id), tie_rule, draws, seed)
            unparsed, name = (judged.verdict == "unparsed").sum(), ", ".join(filter(None, (condition, arm)))
            rows.append((name, f"{a} & {b}", e.n, unparsed, e.value, e.low, e.high))
    return pd.DataFrame(rows, columns=["condition", "pair", "n", "n_unparsed", "pls", "low", "high"])


def pls_estimate(sums: Array, tie_rule: TieRule, draws: int, seed: int) -> Estimate:
    """PLS (%) of questions' (A wins, tie, B wins) by judge a, then judge b, shape (questions, 6), resampled."""
    return bootstrap(
        sums, lambda s: 100 * pls_of_shares(s.reshape(*s.shape[:-1], 2, 3), tie_rule=tie_rule), draws=draws, seed=seed
    )
