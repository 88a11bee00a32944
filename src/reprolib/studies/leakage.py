"""Preference leakage (Li et al., arXiv 2502.01534): from printed rates and released judgments to tidy tables.

PLS and rates are in percent. Win rates are released for Table 1 only: the scores of other tables get the sampling noise
of its cells on the same benchmark, an assumption; what follows are weighted sums, so intervals are normal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import optimize, stats

from reprolib.errors import EvidenceError
from reprolib.evidence import PAIRWISE, check_table, public, published
from reprolib.metrics import allowed_by_rounding
from reprolib.metrics.leakage import TieRule, pls_of_shares, two_game_verdict
from reprolib.metrics.resampling import Array, Estimate, Statistic, bootstrap, cluster_sums, multinomial_bootstrap

SLUGS = {"Arena-Hard": "arena_hard", "AlpacaEval 2.0": "alpaca_eval", "Average": "average"}
PAIR = "GPT-4o & Gemini-1.5"  # the teachers of every score in Tables 2 and 3 and Figure 2
_ROW, _SHARES = ["benchmark", "student", "author_a", "author_b"], ["win_a", "tie", "win_b"]
_RELATED = "judge == author_a or judge == author_b"
_Z = float(stats.norm.ppf(0.975))


def table1(*, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """Table 1 recomputed from the raw rates, all in percent: 12 cells, then the 6 averages over the two benchmarks.

    Columns: benchmark, student, author_a, author_b, pair, printed, estimate (and its value, low, high, n, jitter, sd),
    inputs (the least and most that the rounding of the rates allows). The index ends the claims' ids. Judges count as
    independent: conservative. AlpacaEval's rates are length-controlled, so its intervals are approximate.
    """

    def mean(wins: Array) -> float:  # win_a and win_b of each row in turn; the rest are ties
        a, b = np.moveaxis(wins.reshape(-1, 2, 2), -1, 0)
        return 100 * float(pls_of_shares(np.stack([a, 100 - a - b, b], axis=-1), tie_rule=tie_rule).mean())

    related, table = _related_judges(), published("leakage_table1").rename(columns={"pls": "printed"})
    groups = pd.concat([related, related.assign(benchmark="Average")]).groupby(_ROW)
    cells = [groups.get_group(key) for key in table[_ROW].itertuples(index=False, name=None)]
    table["inputs"] = [allowed_by_rounding(mean, rows[["win_a", "win_b"]].to_numpy().ravel()) for rows in cells]
    found = [resample_pls(rows=rows, tie_rule=tie_rule, draws=draws, seed=seed) for rows in cells]
    asked = [int(rows.n.unique().sum()) for rows in cells]  # the questions of one benchmark, or of both
    found = [replace(estimate, n=n) for estimate, n in zip(found, asked, strict=True)]
    return _with_estimates(table, found, ["benchmark", "student"])


def resample_pls(
    statistic: Statistic = lambda pls: pls.mean(axis=-1), *, rows: pd.DataFrame | None = None,
    pooled: bool = False, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0,
) -> Estimate:  # fmt: skip
    """A statistic of the PLS (%) of Table 1's single cells, in its order: shape (..., 12) becomes (...).

    Of other cells if `rows` gives them, the raw rates of judge a and judge b in turn; of all as one cell if `pooled`.
    """
    rows = _related_judges() if rows is None else rows

    def score(shares: Array) -> Any:
        cells = shares.reshape(*shares.shape[:-2], -1, 2, 3)
        cells = np.average(cells, axis=-3, weights=rows.n[::2], keepdims=True) if pooled else cells
        return statistic(100 * pls_of_shares(cells, tie_rule=tie_rule))

    return multinomial_bootstrap(rows[_SHARES], rows.n, score, draws=draws, seed=seed)


def third_judge(*, tie_rule: TieRule = "strict") -> pd.DataFrame:
    """The placebo: PLS (%) when the judge related to one student is replaced by the judge related to neither.

    Columns: those of a cell, judge_k (the third), both (PLS of judges a and b), a_alone (a against k), b_alone (k
    against b), k_sum (the printed sum of judge k's rates: 100 unless a digit is wrong).
    """
    rates = published("leakage_raw_rates")
    a, b = (rates[rates.judge == rates[author]] for author in ("author_a", "author_b"))
    k = rates.drop([*a.index, *b.index])

    def score(i: pd.DataFrame, j: pd.DataFrame) -> Any:
        return 100 * pls_of_shares(np.stack([i[_SHARES], j[_SHARES]], axis=1), tie_rule=tie_rule)

    scores = {"both": score(a, b), "a_alone": score(a, k), "b_alone": score(k, b), "k_sum": k[_SHARES].sum(axis=1)}
    return k[_ROW].assign(pair=k.author_a + " & " + k.author_b, judge_k=k.judge, **scores)


def human_gaps(*, draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """How much more often than the human majority a related judge prefers its own student: 100 questions, in points.

    Columns: as in `table1`, judged and human (win rates of the judge's own student, %), judge. The intervals take judge
    and humans as independent samples: conservative.
    """
    study, pair = published("leakage_human_study").rename(columns={"win_a": "judged"}), ["author_a", "author_b"]
    people = study[study.judge == "human"].set_index(pair).judged.rename("human")
    gaps = study.query(_RELATED).join(people, on=pair).reset_index(drop=True)
    own = ["judged", "human"]
    gaps[own] = gaps[own].where(gaps.judge == gaps.author_a, 100 - gaps[own])
    found = [
        multinomial_bootstrap(rates, n, lambda s: 100 * (s[..., 0, 0] - s[..., 1, 0]), draws=draws, seed=seed)
        for rates, n in zip(np.stack([gaps[own], 100 - gaps[own]], axis=-1), gaps.n, strict=True)
    ]
    return _with_estimates(gaps, found, ["judge"])


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
    return _weighted(rows[key].map(weights).fillna(0).to_numpy(), rows)


def side(estimate: Estimate) -> str:
    """Where the whole interval lies, whatever the seed: "above" zero, "below", or "open"."""
    low, high = estimate.low - 2 * estimate.jitter, estimate.high + 2 * estimate.jitter
    return "above" if low > 0 else "below" if high < 0 else "open"


def order_share(rows: pd.DataFrame, levels: Sequence[Mapping[str, float]], *, key: str, draws: int, seed: int) -> float:
    """How often (0 to 1) the levels, weighted sums of rows, would fall in this order if the values were the truth."""
    weights = np.stack([rows[key].map(level).fillna(0) for level in levels])
    redrawn = np.random.default_rng(seed).normal(rows.value, rows.sd, size=(draws, len(rows)))
    return float(np.all(np.diff(redrawn @ weights.T) < 0, axis=1).mean())


class Line(NamedTuple):
    """A least-squares line through noisy scores."""

    weights: Array
    cells: pd.DataFrame
    r2: float
    misfit: float  # chi-square under the assumed noise: far above `df`, no line; far below, too much noise
    df: int
    scatter: float  # residual SD (points), on `df` degrees of freedom

    def at(self, *inputs: float) -> Estimate:
        """Prediction for a row of the design: (1, 10) is x = 10, (0, 1) the slope, (1, 0) the intercept."""
        return _weighted(np.asarray(inputs, dtype=float) @ self.weights, self.cells)


def line(cells: pd.DataFrame, x: npt.ArrayLike, *, groups: Sequence[str] | None = None) -> Line:
    """Fit value on an intercept a group (one if no groups are given, else in order of appearance) and x."""
    group = pd.factorize(pd.Series(groups if groups is not None else [""] * len(cells)))[0]
    design = np.column_stack([np.eye(group.max() + 1)[group], np.asarray(x, dtype=float)])
    y, sd = cells.value.to_numpy(), cells.sd.to_numpy()
    weights, df = np.linalg.pinv(design), len(y) - design.shape[1]
    residual = float(((y - design @ weights @ y) ** 2).sum())
    misfit = float(np.linalg.lstsq(design / sd[:, None], y / sd)[1][0])
    return Line(weights, cells, 1 - residual / float(((y - y.mean()) ** 2).sum()), misfit, df, (residual / df) ** 0.5)


def recognition_bounds(accuracy: float, *, own: float = 1 / 3) -> tuple[float, float, float]:
    """What an accuracy (share) on texts of which a share `own` is the judge's own says about recognition.

    The yes-rate r that reaches it blindly (r * own + (1 - r) * (1 - own)); least and most excess of yes on own texts.

    >>> [round(x, 2) for x in recognition_bounds(0.5)]  # a coin, or an excess of -1/4 to 1/4
    [0.5, -0.25, 0.25]
    """
    no_to_others = np.clip([(accuracy - own) / (1 - own), accuracy / (1 - own)], 0, 1)
    excess = (accuracy - (1 - own) * no_to_others) / own - (1 - no_to_others)
    return (1 - own - accuracy) / (1 - 2 * own), float(excess.min()), float(excess.max())


def type_scores(*, pooled: bool = True, draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """The printed PLS (%) of each question type, with the noise that its number of questions brings.

    Noise is redrawn from each benchmark's overall rates: it *assumes* that types do not differ. The benchmarks are
    `pooled`, or scored apart and averaged: the paper does not say. Columns: type, arena_hard, alpaca_eval (questions),
    value, low, high, sd, mix (the score that the type's mix of benchmarks alone would give).
    """
    rates = _related_judges().query("student == 'Mistral-7B' and author_a == 'GPT-4o' and author_b == 'Gemini-1.5'")
    table = published("leakage_question_types").rename(columns={"pls": "value"}).sort_values("value")
    names = ["arena_hard", "alpaca_eval"]
    counts = public.result("leakage_types").values["counts"]
    table[names] = [[of_benchmark[name] for of_benchmark in counts] for name in table.type]
    rows = [rates.assign(n=np.repeat(n, 2)) for n in table[names].to_numpy()]
    drawn = [resample_pls(rows=of_type, pooled=pooled, draws=draws, seed=seed) for of_type in rows]
    found = pd.DataFrame(drawn, index=table.index)
    half = (found.high - found.low) / 2
    table = table.assign(sd=half / 1.96, low=table.value - half, high=table.value + half, mix=found.value)
    return table.drop(columns=["label", "source", "locator"])


def between_sd(values: Sequence[float], sds: Sequence[float]) -> Estimate:
    """Standard deviation of groups beyond sampling noise (Paule & Mandel 1982), with its Q-profile interval."""
    y, s = np.asarray(values, dtype=float), np.asarray(sds, dtype=float)

    def excess(tau: float, target: float) -> float:
        w = 1 / (s**2 + tau**2)
        return float(w @ (y - w @ y / w.sum()) ** 2) - target

    targets = [len(y) - 1, *stats.chi2.ppf([0.975, 0.025], len(y) - 1)]
    sd, low, high = (optimize.brentq(excess, 0, 100 * np.ptp(y), (t,)) if excess(0, t) > 0 else 0.0 for t in targets)
    return Estimate(sd, low, high, len(y), "standard deviation between groups, Q-profile, 95%")


def rank_gaps(table: pd.DataFrame, *, by: str = "lc_win_rate") -> pd.Series[int]:
    """Arena position less AlpacaEval position (by `by`) among the rows: positive where AlpacaEval ranks higher."""
    order = table.sort_values([by, "alpaca_rank"], ascending=[False, True]).index  # ties keep the printed order
    return table.arena_row.rank().astype(int) - pd.Series(range(1, len(table) + 1), index=order)


def beside_all_groups(gaps: pd.Series[int], members: pd.Series[bool]) -> tuple[Estimate, float]:
    """Members' mean gap, with the shifts an exact test against all groups of that size allows; share that reach it."""
    size, value = int(members.sum()), float(gaps[members].mean())
    means = np.array([sum(group) / size for group in combinations(gaps, size)])
    low, high = value - np.quantile(means, [0.975, 0.025])
    reached = float((means >= value - 1e-9).mean())
    return Estimate(value, low, high, size, f"against every group of {size}, 95%"), reached


def score_excess(table: pd.DataFrame, members: pd.Series[bool]) -> Estimate:
    """Log-odds by which the members' length-controlled win rates exceed other models' at equal Arena score."""
    import statsmodels.api as sm  # takes a second

    design = sm.add_constant(np.column_stack([table.score, members.astype(float)]))
    fit = sm.OLS(stats.logistic.ppf(table.lc_win_rate / 100), design).fit()
    low, high = fit.conf_int()[2]
    return Estimate(fit.params[2], low, high, int(members.sum()), "regression on Arena score, t interval, 95%")


def lab_table(lab: Path, *, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """PLS of a run of your own: `lab` holds `pairwise.parquet`, where each author is named after its teacher.

    A judge is related to the student whose teacher bears its name; pairs without both related judges are left out. Both
    orders collapse to one verdict; questions (`cluster_id`) are resampled, both judges together.
    Columns: condition, pair, n (questions), n_unparsed, pls, low, high (%).
    """
    path = lab / "pairwise.parquet"
    if not path.is_file():
        message = f"lab={str(lab)!r} holds no pairwise.parquet"
        raise EvidenceError(message, hint="give the folder a leakage lab run wrote")
    games = check_table(pd.read_parquet(path), PAIRWISE, origin=str(path))
    rows = []
    related = games[(games.judge == games.author_a) | (games.judge == games.author_b)]
    for (condition, a, b), judged in related.groupby(["condition", "author_a", "author_b"]):
        if judged.judge.nunique() == 2:
            asked = judged.groupby(["cluster_id", "pair_id", "judge", "arm", "repetition"])
            verdict = asked.verdict.agg(lambda verdicts: two_game_verdict(*verdicts)).reset_index()
            column = verdict.verdict.map({"A": 0, "tie": 1, "B": 2}) + 3 * (verdict.judge == b)
            e = pls_estimate(cluster_sums(np.eye(6)[column], verdict.cluster_id), tie_rule, draws, seed)
            rows.append((condition, f"{a} & {b}", e.n, (judged.verdict == "unparsed").sum(), e.value, e.low, e.high))
    return pd.DataFrame(rows, columns=["condition", "pair", "n", "n_unparsed", "pls", "low", "high"])


def pls_estimate(sums: Array, tie_rule: TieRule, draws: int, seed: int) -> Estimate:
    """PLS (%) of questions' (A wins, tie, B wins) by judge a, then judge b, shape (questions, 6), resampled."""
    return bootstrap(
        sums, lambda s: 100 * pls_of_shares(s.reshape(*s.shape[:-1], 2, 3), tie_rule=tie_rule), draws=draws, seed=seed
    )


def _related_judges() -> pd.DataFrame:
    """The raw rates behind Table 1, in its order: benchmark, student and pair, then judge a and judge b; 24 rows."""
    return published("leakage_raw_rates").query(_RELATED)


def _with_estimates(table: pd.DataFrame, found: Sequence[Estimate], named_by: list[str]) -> pd.DataFrame:
    """Estimates and their parts beside their rows, under the end of the claim's id: arena_hard.mistral.gpt_gemini."""
    short = table[[*named_by, "author_a", "author_b"]].replace(SLUGS).map(lambda name: name.split("-")[0].lower())
    slug = short[named_by].agg(".".join, axis=1) + "." + short.author_a + "_" + short.author_b
    parts = pd.DataFrame(found)[["value", "low", "high", "n", "jitter"]]
    table = table.drop(columns=["source", "locator", "n"], errors="ignore").join(parts)
    pair, sd = table.author_a + " & " + table.author_b, (table.high - table.low) / 2 / _Z
    return table.assign(pair=pair, sd=sd, estimate=found).set_index(pd.Index(slug))


def _weighted(weights: Array, cells: pd.DataFrame) -> Estimate:
    value, half = float(weights @ cells.value), _Z * float(np.sqrt(weights**2 @ cells.sd**2))
    rule, jitter = "normal, noise of Table 1's cells assumed, 95%", half * float(cells.wobble.max())
    return Estimate(value, value - half, value + half, int(cells.n.min()), rule, jitter=jitter)
