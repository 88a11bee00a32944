"""Preference leakage (Li et al., arXiv 2502.01534): from printed rates and released judgments to tidy tables.

In the paper's order: Table 1 and the human study; Tables 2 and 3 and Figure 2; recognition (Table 5), question types
(Figure 3), leaderboards (Table 4); the released judgments. PLS and rates are in percent, as the paper prints them;
`metrics.leakage` works with shares. Win rates are released for Table 1 only: a score of another table gets the sampling
noise of Table 1's cells on the same benchmark, an assumption. All results there are weighted sums of scores, so their
normal intervals need no resampling.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import optimize, stats

from reprolib.evidence import published
from reprolib.evidence.public import public_study
from reprolib.metrics import allowed_by_rounding
from reprolib.metrics.leakage import TIE_RULES, TieRule, pls_of_shares
from reprolib.metrics.resampling import Array, Estimate, Statistic, bootstrap, cluster_sums, multinomial_bootstrap
from reprolib.metrics.style import HABITS, predict_author, style_counts

SLUGS = {"Arena-Hard": "arena_hard", "AlpacaEval 2.0": "alpaca_eval", "Average": "average"}
PAIR = "GPT-4o & Gemini-1.5"  # the teachers of every score in Tables 2 and 3 and Figure 2
_ROW, _SHARES = ["benchmark", "student", "author_a", "author_b"], ["win_a", "tie", "win_b"]
_Z = float(stats.norm.ppf(0.975))


class Cell(NamedTuple):
    """One cell of Table 1, all in percent: what the paper prints, ours, and what the rounding of the inputs allows."""

    benchmark: str
    student: str
    author_a: str
    author_b: str
    printed: float
    estimate: Estimate
    inputs: tuple[float, float]

    @property
    def pair(self) -> str:
        """The two teachers, such as ``GPT-4o & Gemini-1.5``."""
        return f"{self.author_a} & {self.author_b}"

    @property
    def slug(self) -> str:
        """The end of the claim's id, such as ``arena_hard.mistral.gpt_gemini``."""
        return f"{SLUGS[self.benchmark]}.{_slug('{}.{}_{}', self.student, self.author_a, self.author_b)}"


def table1(*, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> list[Cell]:
    """Table 1 recomputed from the raw rates: 12 cells, then the 6 averages over the two benchmarks.

    Intervals are parametric bootstraps over the benchmark's questions, judges taken as independent: conservative, since
    both read the same answers. AlpacaEval's rates are length-controlled, so its intervals are approximate.
    """

    def mean(wins: Array) -> float:  # win_a and win_b of each row in turn; the rest are ties
        a, b = wins.reshape(-1, 2).T
        shares = np.stack([a, 100 - a - b, b], axis=-1).reshape(-1, 2, 3)
        return 100 * float(pls_of_shares(shares, tie_rule=tie_rule).mean())

    related, cells = _related_judges(), []
    for row in published.load("leakage_table1").itertuples():
        keys = _ROW[1:] if row.benchmark == "Average" else _ROW
        rows = related[(related[keys] == [getattr(row, key) for key in keys]).all(axis=1)]
        estimate = _bootstrap_pls(rows, lambda pls: pls.mean(axis=-1), tie_rule, draws, seed)
        estimate = replace(estimate, n=int(rows.n.unique().sum()))  # the questions of one benchmark, or of both
        inputs = allowed_by_rounding(mean, rows[["win_a", "win_b"]].to_numpy().ravel())
        cells.append(Cell(row.benchmark, row.student, row.author_a, row.author_b, row.pls, estimate, inputs))
    return cells


def cells_frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """Cells as a table for a figure: row (its label), benchmark, value, low, high, printed (%)."""
    both = [(c, c.estimate) for c in cells]
    rows = [(f"{c.student}: {c.pair}", c.benchmark, e.value, e.low, e.high, c.printed) for c, e in both]
    return pd.DataFrame(rows, columns=["row", "benchmark", "value", "low", "high", "printed"])


def tie_rules(*, draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """Every cell of Table 1 but the averages under each tie rule: the columns of `cells_frame`, and tie_rule."""
    frames = [cells_frame(table1(tie_rule=rule, draws=draws, seed=seed)).assign(tie_rule=rule) for rule in TIE_RULES]
    return pd.concat(frames).query("benchmark != 'Average'").reset_index(drop=True)


def benchmark_gap(*, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> Estimate:
    """Mean PLS of the six Arena-Hard cells less that of the six AlpacaEval cells, in points."""

    def gap(pls: Array) -> Any:
        return pls[..., :6].mean(axis=-1) - pls[..., 6:].mean(axis=-1)

    return _bootstrap_pls(_related_judges(), gap, tie_rule, draws, seed)


def leaking_pairs(*, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> Estimate:
    """How many of the six (student, pair) rows of Table 1 have a positive average PLS, with its interval."""

    def count(pls: Array) -> Any:
        return (pls[..., :6] + pls[..., 6:] > 0).sum(axis=-1)

    return _bootstrap_pls(_related_judges(), count, tie_rule, draws, seed)


def third_judge(*, tie_rule: TieRule = "strict") -> pd.DataFrame:
    """The placebo: PLS (%) when the judge related to one student is replaced by the judge related to neither.

    Columns: benchmark, student, pair, judge_a, judge_b, judge_k, both (PLS of judges a and b), a_alone (a against k),
    b_alone (k against b), k_sum (the printed sum of judge k's rates: 100 unless a digit is wrong).
    """
    rates = published.load("leakage_raw_rates")
    rows = []
    for (benchmark, student, a, b), judged in rates.groupby(_ROW, sort=False):
        (k,) = set(judged.judge) - {a, b}
        by_judge = judged.set_index("judge")[_SHARES]
        pairs = [by_judge.loc[[i, j]] for i, j in ((a, b), (a, k), (k, b))]
        scores = (100 * float(pls_of_shares(pair, tie_rule=tie_rule)) for pair in pairs)
        rows.append((benchmark, student, f"{a} & {b}", a, b, k, *scores, by_judge.loc[k].sum()))
    names = ["benchmark", "student", "pair", "judge_a", "judge_b", "judge_k", "both", "a_alone", "b_alone", "k_sum"]
    return pd.DataFrame(rows, columns=names)


def unbalanced_rows() -> pd.DataFrame:
    """Rows of the raw rates whose win, tie and loss do not sum to 100 (by more than rounding allows), with `total`."""
    rates = published.load("leakage_raw_rates")
    rates["total"] = rates[_SHARES].sum(axis=1).round(1)
    return rates[(rates.total - 100).abs() > 0.15 + 1e-9]


class HumanGap(NamedTuple):
    """How much more often than humans a judge prefers its own student, on the 100 questions of the human study (%)."""

    judge: str
    author_a: str
    author_b: str
    human: float
    judged: float
    estimate: Estimate

    @property
    def slug(self) -> str:
        """The end of the claim's id, such as ``gemini.gpt_gemini``."""
        return _slug("{}.{}_{}", self.judge, self.author_a, self.author_b)


def human_gaps(*, draws: int = 10_000, seed: int = 0) -> list[HumanGap]:
    """Each related judge's win rate for its own student less the human majority's, in points.

    The intervals take judge and humans as independent samples of the same 100 questions: conservative.
    """

    def gap(shares: Array) -> Any:
        return 100 * (shares[..., 0, 0] - shares[..., 1, 0])

    gaps = []
    for (a, b), judged in published.load("leakage_human_study").groupby(["author_a", "author_b"], sort=False):
        win_a = judged.set_index("judge").win_a
        for judge, own in ((a, win_a), (b, 100 - win_a)):
            shares = [[own[judge], 100 - own[judge]], [own["human"], 100 - own["human"]]]
            estimate = multinomial_bootstrap(shares, int(judged.n.iloc[0]), gap, draws=draws, seed=seed)
            gaps.append(HumanGap(judge, a, b, own["human"], own[judge], estimate))
    return gaps


@cache
def table1_noise(*, draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """Sampling noise of Table 1's 12 single cells: benchmark, student, pair, n (questions), sd, jitter (points)."""
    cells = [(c, c.estimate) for c in table1(draws=draws, seed=seed) if c.benchmark != "Average"]
    rows = [(c.benchmark, c.student, c.pair, e.n, (e.high - e.low) / 2 / _Z, e.jitter) for c, e in cells]
    return pd.DataFrame(rows, columns=["benchmark", "student", "pair", "n", "sd", "jitter"])


def with_noise(
    table: pd.DataFrame, noise: pd.DataFrame, *, known: str, student: str = "Mistral-7B", factor: float = 1.0
) -> pd.DataFrame:
    """A table of printed scores with their noise: key columns, benchmark, value, sd, n, wobble, printed, low, high.

    Rows that the query `known` finds are cells of Table 1 (of `student` and `PAIR`) and get that cell's own SD from
    `noise` (`table1_noise`); all others the root mean square over the benchmark's six cells, times `factor`. The value
    of an "Average" row is the mean of the two printed scores; `printed` is what the source has for it, if anything.
    """
    assumed = factor * noise.groupby("benchmark").sd.agg(lambda sd: np.sqrt((sd**2).mean()))
    own = noise[(noise.student == student) & (noise.pair == PAIR)].set_index("benchmark")
    key = [c for c in table if c not in ("benchmark", "pls", "source", "locator")]
    cells = table[table.benchmark != "Average"].drop(columns=["source", "locator"]).rename(columns={"pls": "value"})
    cells["sd"] = cells.benchmark.map(own.sd).where(cells.eval(known), cells.benchmark.map(assumed))
    cells["n"] = cells.benchmark.map(own.n)
    cells["wobble"] = (noise.jitter / noise.sd / _Z).max()  # of an SD, relative, from finitely many draws
    mean = cells.groupby(key, sort=False).agg(
        benchmark=("benchmark", lambda b: "Average"), value=("value", "mean"),
        sd=("sd", lambda sd: np.sqrt((sd**2).sum()) / len(sd)), n=("n", "sum"), wobble=("wobble", "max"),
    )  # fmt: skip
    printed = table.rename(columns={"pls": "printed"})[[*key, "benchmark", "printed"]]
    cells = pd.concat([cells, mean.reset_index()]).merge(printed, how="left")
    return cells.assign(low=cells.value - _Z * cells.sd, high=cells.value + _Z * cells.sd)


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
    """A least-squares line through noisy scores; `scatter` is its residual SD (points), on `df` degrees of freedom.

    `misfit` is the best line's chi-square under the assumed noise: far above `df`, no line; far below, too much noise.
    """

    weights: Array
    cells: pd.DataFrame
    r2: float
    misfit: float
    df: int
    scatter: float

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


@public_study("leakage_types", sources=["leakage_gemini_judgments", "leakage_arena_types", "leakage_alpaca_types"])
def question_types(paths: dict[str, Path]) -> dict[str, Any]:
    """Questions by type (off-list labels are "Others") on Arena-Hard, AlpacaEval; Gemini-1.5's wins for its own."""
    names = dict(published.load("leakage_question_types")[["label", "type"]].to_numpy())
    pairs, *lists = (json.loads(path.read_text()) for path in paths.values())
    labels = [{q["question"]: q["categorization"]["question category"] for q in questions} for questions in lists]
    own = [labels[1][p["instruction"]] for p in pairs if p["preference"] == 1.0]
    *counts, wins = (Counter(names.get(x, "Others") for x in found) for found in (*(f.values() for f in labels), own))
    off_list = sum(x not in names for found in labels for x in found.values())
    return {"counts": counts, "off_list": off_list, "gemini_student_wins": wins}


def type_scores(*, pooled: bool = True, draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """The printed PLS (%) of each question type, with the noise that its number of questions brings.

    Noise is redrawn from each benchmark's overall rates: it *assumes* that types do not differ. The benchmarks are
    `pooled`, or scored apart and averaged: the paper does not say. Columns: type, arena_hard, alpaca_eval (questions),
    value, low, high, sd, mix (the score that the type's mix of benchmarks alone would give).
    """
    of_types = "student == 'Mistral-7B' and author_a == 'GPT-4o' and author_b == 'Gemini-1.5'"
    shares = _related_judges().query(of_types)[_SHARES]
    table = published.load("leakage_question_types").rename(columns={"pls": "value"}).sort_values("value")
    table[["arena_hard", "alpaca_eval"]] = [[c[t] for c in question_types().values["counts"]] for t in table.type]

    def noise(n: Array) -> Estimate:
        def score(drawn: Array) -> Any:
            parts = drawn.reshape(*drawn.shape[:-2], 2, 2, 3)  # benchmark, judge, verdict
            whole = np.einsum("...bjv,b->...jv", parts, n / n.sum())
            return 100 * (pls_of_shares(whole) if pooled else pls_of_shares(parts).mean(axis=-1))

        return multinomial_bootstrap(shares, np.repeat(n, 2).astype(int).tolist(), score, draws=draws, seed=seed)

    drawn = [noise(n) for n in table[["arena_hard", "alpaca_eval"]].to_numpy()]
    half = np.array([(e.high - e.low) / 2 for e in drawn])
    found = {"sd": half / 1.96, "low": table.value - half, "high": table.value + half, "mix": [e.value for e in drawn]}
    return table.assign(**found).drop(columns=["label", "source", "locator"])


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


@public_study("leakage_gemini_judgments", sources=["leakage_gemini_judgments"])
def gemini_judgments(paths: dict[str, Path]) -> dict[str, Any]:
    """What 805 released judgments of Gemini-1.5-flash say about two Mistral students, taught by Gemini and by LLaMA.

    The file names neither student; habits and rates say that output 1 is the Gemini student (an inference).
    """
    items = json.loads(paths["leakage_gemini_judgments"].read_text())
    gemini, llama = ([item[f"output_{k}"] for item in items] for k in (1, 2))
    llama_wins = np.array([item["preference"] == 2.0 for item in items])
    second_wins = ["'model': 'model_2', 'rank': 1" in item["preference_raw_completion"] for item in items]
    longer_wins = np.array([len(b) > len(a) for a, b in zip(gemini, llama, strict=True)]) == llama_wins
    texts, authors = gemini + llama, ["Gemini-1.5"] * len(items) + ["LLaMA-3.3"] * len(items)
    answers = {"Gemini-1.5": gemini, "LLaMA-3.3": llama}
    questions = [item["instruction"] for item in items] * 2
    counts = style_counts(texts)
    habits = {author: counts[np.equal(authors, author)] for author in answers}
    correct = {
        "tokens": predict_author(texts, authors, questions),
        "counts": predict_author(counts, authors, questions),
        "counts_without_double_spaces": predict_author(counts.drop(columns="double_spaces"), authors, questions),
        "double_space_rule": (counts.double_spaces > 0) == np.equal(authors, "Gemini-1.5"),
    }
    return {
        "n": len(items),
        "gemini_student_wins": int((~llama_wins).sum()),
        "second_shown_wins": sum(second_wins),
        "longer_wins": int(longer_wins.sum()),
        "llama_student_rate": _share(llama_wins, np.arange(len(items))),
        "separability": {name: _share(right, questions) for name, right in correct.items()},
        "characters": {author: float(np.mean([*map(len, own)])) for author, own in answers.items()},
        "habits": {author: {h: float(c[h].mean()) for h in HABITS} for author, c in habits.items()},
        "has_double_space": {author: float((c.double_spaces > 0).mean()) for author, c in habits.items()},
    }


def share(values: dict[str, float]) -> Estimate:
    """A share that `gemini_judgments` stored, as an estimate again (between 0 and 1)."""
    rule = "percentile cluster bootstrap over questions, 2000 draws, 95%"
    return Estimate(values["value"], values["low"], values["high"], int(values["n"]), rule, seed=0)


def separability_frame(values: dict[str, Any]) -> pd.DataFrame:
    """How well each kind of feature names the student of an answer: features, value, low, high (%)."""
    names = {
        "tokens": "words, marks and spaces",
        "counts": "nine format counts",
        "counts_without_double_spaces": "format counts without double spaces",
        "double_space_rule": "double-space rule alone",
    }
    shares = 100 * pd.DataFrame(values["separability"]).T[["value", "low", "high"]].rename(index=names)
    return shares.rename_axis("features").sort_values("value", ascending=False).reset_index()


def _related_judges() -> pd.DataFrame:
    """The raw rates behind Table 1, in its order: benchmark, student and pair, then judge a and judge b; 24 rows."""
    rates = published.load("leakage_raw_rates")
    return rates[(rates.judge == rates.author_a) | (rates.judge == rates.author_b)]


def _bootstrap_pls(rows: pd.DataFrame, statistic: Statistic, tie_rule: TieRule, draws: int, seed: int) -> Estimate:
    """A statistic of the PLS (%) of each two rows (judge a, judge b): shape (..., rows / 2) becomes (...)."""

    def score(shares: Array) -> Any:
        return statistic(100 * pls_of_shares(shares.reshape(*shares.shape[:-2], -1, 2, 3), tie_rule=tie_rule))

    return multinomial_bootstrap(rows[_SHARES], rows.n, score, draws=draws, seed=seed)


def _slug(form: str, *names: str) -> str:
    return form.format(*(name.split("-")[0].lower() for name in names))


def _weighted(weights: Array, cells: pd.DataFrame) -> Estimate:
    value, half = float(weights @ cells.value), _Z * float(np.sqrt(weights**2 @ cells.sd**2))
    rule, jitter = "normal, noise of Table 1's cells assumed, 95%", half * float(cells.wobble.max())
    return Estimate(value, value - half, value + half, int(cells.n.min()), rule, jitter=jitter)


def _share(flags: Sequence[bool] | np.ndarray, clusters: Any) -> dict[str, float]:
    """Share of true flags with its interval, clusters resampled; plain numbers, ready for JSON."""
    values = np.asarray(flags, dtype=float)
    sums = cluster_sums(np.stack([values, np.ones_like(values)], axis=1), np.asarray(clusters))
    estimate = bootstrap(sums, lambda s: s[..., 0] / s[..., 1], draws=2_000, seed=0)
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": len(values)}
