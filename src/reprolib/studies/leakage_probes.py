"""Preference leakage beyond Table 1: recognition (Table 5), categories (Figure 3), leaderboards (Table 4)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

from reprolib.evidence import published
from reprolib.evidence.public import public_study
from reprolib.metrics.leakage import pls_of_shares
from reprolib.metrics.resampling import Array, Estimate, multinomial_bootstrap


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
    rates = published.load("leakage_raw_rates").query("student == 'Mistral-7B' and judge != 'LLaMA-3.3'")
    rates = rates[(rates.author_a == "GPT-4o") & (rates.author_b == "Gemini-1.5")]  # judges of Arena-Hard come first
    table = published.load("leakage_question_types").rename(columns={"pls": "value"}).sort_values("value")
    table[["arena_hard", "alpaca_eval"]] = [[c[t] for c in question_types().values["counts"]] for t in table.type]

    def noise(n: Array) -> Estimate:
        def score(shares: Array) -> Any:
            parts = shares.reshape(*shares.shape[:-2], 2, 2, 3)  # benchmark, judge, verdict
            whole = np.einsum("...bjv,b->...jv", parts, n / n.sum())
            return 100 * (pls_of_shares(whole) if pooled else pls_of_shares(parts).mean(axis=-1))

        sizes = np.repeat(n, 2).astype(int).tolist()
        return multinomial_bootstrap(rates[["win_a", "tie", "win_b"]], sizes, score, draws=draws, seed=seed)

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
