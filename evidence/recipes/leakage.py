"""Preference leakage (Li et al., arXiv 2502.01534): what released files say, and what one chapter each computes.

The results of two public studies are made here: types of the questions, judgments of one judge. The other functions
serve one page each: the third judge, humans, recognition, types of questions, leaderboards, mixing and sizes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import optimize, stats

from reprolib.evidence import public, published
from reprolib.evidence.public import public_study
from reprolib.metrics.leakage import TieRule, pls_of_shares
from reprolib.metrics.resampling import Array, Estimate, bootstrap, cluster_sums, multinomial_bootstrap
from reprolib.metrics.style import predict_author, style_counts
from reprolib.studies.leakage import RELATED, ROW, SHARES, related_judges, resample_pls, weighted, with_estimates


@public_study("leakage_types", sources=["leakage_gemini_judgments", "leakage_arena_types", "leakage_alpaca_types"])
def question_types(paths: dict[str, Path]) -> dict[str, Any]:
    """Questions by type (off-list labels are "Others") on Arena-Hard, AlpacaEval; Gemini-1.5's wins for its own."""
    names = dict(published("leakage_question_types")[["label", "type"]].to_numpy())
    pairs, *lists = (json.loads(path.read_text()) for path in paths.values())
    labels = [{q["question"]: q["categorization"]["question category"] for q in questions} for questions in lists]
    own = [labels[1][p["instruction"]] for p in pairs if p["preference"] == 1.0]
    *counts, wins = (Counter(names.get(x, "Others") for x in found) for found in (*(f.values() for f in labels), own))
    off_list = sum(x not in names for found in labels for x in found.values())
    return {"counts": counts, "off_list": off_list, "gemini_student_wins": wins}


@public_study("leakage_gemini_judgments", sources=["leakage_gemini_judgments"])
def gemini_judgments(paths: dict[str, Path]) -> dict[str, Any]:
    """What 805 released judgments of Gemini-1.5-flash say about two Mistral students, taught by Gemini and by LLaMA.

    The file names neither student; habits and rates say that output 1 is the Gemini student (an inference). Shares are
    estimates in percent, questions resampled; `separability`: how often each kind of feature names an answer's student.
    """
    items = pd.DataFrame(json.loads(paths["leakage_gemini_judgments"].read_text()))
    llama_wins = items.preference == 2.0
    second_wins = items.preference_raw_completion.str.contains("'model': 'model_2', 'rank': 1", regex=False)
    texts, questions = [*items.output_1, *items.output_2], [*items.instruction] * 2
    authors = ["Gemini-1.5"] * len(items) + ["LLaMA-3.3"] * len(items)
    counts = style_counts(texts)
    spaced = counts.double_spaces > 0
    named = {
        "words, marks and spaces": predict_author(texts, authors, questions),
        "nine format counts": predict_author(counts, authors, questions),
        "format counts without double spaces": predict_author(counts.drop(columns="double_spaces"), authors, questions),
        "double-space rule alone": spaced == np.equal(authors, "Gemini-1.5"),
    }

    def share(flags: npt.ArrayLike, clusters: npt.ArrayLike) -> dict[str, Any]:
        sums = cluster_sums(np.column_stack([flags, np.ones(np.size(flags))]), clusters)
        estimate = bootstrap(sums, lambda s: 100 * s[..., 0] / s[..., 1], draws=2_000, seed=0)
        rule = "percentile cluster bootstrap over questions, 2000 draws, 95%"
        return asdict(replace(estimate, n=np.size(flags), rule=rule))

    return {
        "second_shown_wins": 100 * float(second_wins.mean()),
        "longer_wins": 100 * float(((items.output_2.str.len() > items.output_1.str.len()) == llama_wins).mean()),
        "llama_student_rate": share(llama_wins, items.index),
        "separability": {name: share(right, questions) for name, right in named.items()},
        "has_double_space": (100 * spaced.groupby(np.array(authors)).mean()).to_dict(),
    }


def third_judge(*, tie_rule: TieRule = "strict") -> pd.DataFrame:
    """The placebo: PLS (%) when the judge related to one student is replaced by the judge related to neither.

    Columns: those of a cell, judge_k (the third), both (PLS of judges a and b), a_alone (a against k), b_alone (k
    against b), k_sum (the printed sum of judge k's rates: 100 unless a digit is wrong).
    """
    rates = published("leakage_raw_rates")
    a, b = (rates[rates.judge == rates[author]] for author in ("author_a", "author_b"))
    k = rates.drop([*a.index, *b.index])

    def score(i: pd.DataFrame, j: pd.DataFrame) -> Any:
        return 100 * pls_of_shares(np.stack([i[SHARES], j[SHARES]], axis=1), tie_rule=tie_rule)

    scores = {"both": score(a, b), "a_alone": score(a, k), "b_alone": score(k, b), "k_sum": k[SHARES].sum(axis=1)}
    return k[ROW].assign(pair=k.author_a + " & " + k.author_b, judge_k=k.judge, **scores)


def human_gaps(*, draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """How much more often than the human majority a related judge prefers its own student: 100 questions, in points.

    Columns: as in `table1`, judged and human (win rates of the judge's own student, %), judge. The intervals take judge
    and humans as independent samples: conservative.
    """
    study, pair = published("leakage_human_study").rename(columns={"win_a": "judged"}), ["author_a", "author_b"]
    people = study[study.judge == "human"].set_index(pair).judged.rename("human")
    gaps = study.query(RELATED).join(people, on=pair).reset_index(drop=True)
    own = ["judged", "human"]
    gaps[own] = gaps[own].where(gaps.judge == gaps.author_a, 100 - gaps[own])
    found = [
        multinomial_bootstrap(rates, n, lambda s: 100 * (s[..., 0, 0] - s[..., 1, 0]), draws=draws, seed=seed)
        for rates, n in zip(np.stack([gaps[own], 100 - gaps[own]], axis=-1), gaps.n, strict=True)
    ]
    return with_estimates(gaps, found, ["judge"])


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
        return weighted(np.asarray(inputs, dtype=float) @ self.weights, self.cells)


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
    rates = related_judges().query("student == 'Mistral-7B' and author_a == 'GPT-4o' and author_b == 'Gemini-1.5'")
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
