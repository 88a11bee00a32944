"""Preference leakage (Li et al., arXiv 2502.01534): from printed rates and released judgments to tidy tables.

PLS and rates are in percent here, as the paper prints them; `metrics.leakage` works with shares.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from reprolib.errors import EvidenceError
from reprolib.evidence import PAIRWISE, check_table, published
from reprolib.evidence.public import public_study
from reprolib.metrics import allowed_by_rounding
from reprolib.metrics.leakage import TIE_RULES, TieRule, pls_of_shares, two_game_verdict
from reprolib.metrics.resampling import Array, Estimate, Statistic, bootstrap, cluster_sums, multinomial_bootstrap
from reprolib.metrics.style import HABITS, predict_author, style_counts

BENCHMARKS = ("Arena-Hard", "AlpacaEval 2.0")
_ROW, _SHARES = ["benchmark", "student", "author_a", "author_b"], ["win_a", "tie", "win_b"]


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
        short = {"Arena-Hard": "arena_hard", "AlpacaEval 2.0": "alpaca_eval", "Average": "average"}
        authors = "_".join(a.split("-")[0].lower() for a in (self.author_a, self.author_b))
        return f"{short[self.benchmark]}.{self.student.split('-')[0].lower()}.{authors}"


def table1(*, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> list[Cell]:
    """Table 1 recomputed from the raw rates: 12 cells, then the 6 averages over the two benchmarks.

    Intervals are parametric bootstraps over the benchmark's questions, judges taken as independent: conservative, since
    both read the same answers. AlpacaEval's rates are length-controlled, so its intervals are approximate.
    """
    rates, score = published.load("leakage_raw_rates"), partial(_mean_pls, tie_rule=tie_rule)
    cells = []
    for row in published.load("leakage_table1").itertuples():
        benchmarks = BENCHMARKS if row.benchmark == "Average" else (row.benchmark,)
        rows = pd.concat([_related_judges(rates, b, row) for b in benchmarks])
        estimate = multinomial_bootstrap(rows[_SHARES], rows.n, score, draws=draws, seed=seed)
        if row.benchmark == "Average":
            estimate = replace(estimate, n=int(sum(set(rows.n))))  # the questions of both benchmarks
        wins = rows[["win_a", "win_b"]].to_numpy().ravel()
        inputs = allowed_by_rounding(lambda x: score(_with_ties(x)), wins)
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
    gap = [100, -100]  # of the two benchmarks' mean shares, in points
    return _over_cells(lambda pls: (pls.mean(axis=-1) * gap).sum(axis=-1), tie_rule, draws, seed)


def leaking_pairs(*, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> Estimate:
    """How many of the six (student, pair) rows of Table 1 have a positive average PLS, with its interval."""
    return _over_cells(lambda pls: (pls.mean(axis=-2) > 0).sum(axis=-1), tie_rule, draws, seed)


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
        return "{}.{}_{}".format(*(x.split("-")[0].lower() for x in (self.judge, self.author_a, self.author_b)))


def human_gaps(*, draws: int = 10_000, seed: int = 0) -> list[HumanGap]:
    """Each related judge's win rate for its own student less the human majority's, in points.

    The intervals take judge and humans as independent samples of the same 100 questions: conservative.
    """
    study = published.load("leakage_human_study")
    gaps = []
    for (a, b), judged in study.groupby(["author_a", "author_b"], sort=False):
        win_a = judged.set_index("judge").win_a
        for judge, own in ((a, win_a), (b, 100 - win_a)):
            shares = [[own[judge], 100 - own[judge]], [own["human"], 100 - own["human"]]]
            estimate = multinomial_bootstrap(
                shares, int(judged.n.iloc[0]), lambda s: 100 * (s[..., 0, 0] - s[..., 1, 0]), draws=draws, seed=seed
            )
            gaps.append(HumanGap(judge, a, b, own["human"], own[judge], estimate))
    return gaps


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
    shares = {names[key]: share(stored).scaled(100) for key, stored in values["separability"].items()}
    rows = [(name, e.value, e.low, e.high) for name, e in shares.items()]
    frame = pd.DataFrame(rows, columns=["features", "value", "low", "high"])
    return frame.sort_values("value", ascending=False, ignore_index=True)


def lab_table(lab: Path, *, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """PLS of a run of your own: `lab` holds `pairwise.parquet`, where each author is named after its teacher.

    A judge is related to the student whose teacher bears its name. Both orders of a pair collapse to one verdict
    (`metrics.leakage.two_game_verdict`); questions (`cluster_id`) are resampled, both judges together.
    Columns: condition, pair, n (questions), n_unparsed, pls, low, high (%).
    """
    path = lab / "pairwise.parquet"
    if not path.is_file():
        hint = "give the folder a leakage lab run wrote"
        raise EvidenceError(f"lab={str(lab)!r} holds no pairwise.parquet", hint=hint)
    games = check_table(pd.read_parquet(path), PAIRWISE, origin=str(path))
    rows = []
    for (condition, a, b), judged in games.groupby(["condition", "author_a", "author_b"]):
        related = judged[judged.judge.isin([a, b])]
        if related.judge.nunique() < 2:
            continue  # a judge of its own student is missing: PLS needs both
        sums = _verdict_sums(related, a, b)
        estimate = bootstrap(
            sums, lambda s: pls_of_shares(s.reshape(*s.shape[:-1], 2, 3), tie_rule=tie_rule), draws=draws, seed=seed
        ).scaled(100)
        unparsed = int((related.verdict == "unparsed").sum())
        rows.append((condition, f"{a} & {b}", estimate.n, unparsed, estimate.value, estimate.low, estimate.high))
    return pd.DataFrame(rows, columns=["condition", "pair", "n", "n_unparsed", "pls", "low", "high"])


def _related_judges(rates: pd.DataFrame, benchmark: str, cell: Any) -> pd.DataFrame:
    """The rows of judge a and judge b, in this order, for the pair (a, b) of one benchmark."""
    keys = [(benchmark, cell.student, cell.author_a, cell.author_b, judge) for judge in (cell.author_a, cell.author_b)]
    return rates.set_index([*_ROW, "judge"]).loc[keys].reset_index()


def _over_cells(statistic: Statistic, tie_rule: TieRule, draws: int, seed: int) -> Estimate:
    """A statistic of the PLS (shares) of Table 1's single cells: shape (..., 2 benchmarks, 6 rows) becomes (...)."""
    rates, printed = published.load("leakage_raw_rates"), published.load("leakage_table1")
    pairs = printed[printed.benchmark == "Average"]
    rows = pd.concat([_related_judges(rates, b, row) for b in BENCHMARKS for row in pairs.itertuples()])

    def score(shares: Array) -> Any:
        return statistic(pls_of_shares(shares.reshape(*shares.shape[:-2], 2, 6, 2, 3), tie_rule=tie_rule))

    return multinomial_bootstrap(rows[_SHARES], rows.n, score, draws=draws, seed=seed)


def _mean_pls(shares: Any, tie_rule: TieRule) -> Any:
    """PLS in percent of each two rows (judge a, judge b), averaged: shape (..., 2m, 3) becomes (...)."""
    pairs = np.asarray(shares).reshape(*np.shape(shares)[:-2], -1, 2, 3)
    return 100 * pls_of_shares(pairs, tie_rule=tie_rule).mean(axis=-1)


def _with_ties(wins: Array) -> Array:
    """Rows (win_a, tie, win_b) in percent from win_a and win_b alone."""
    a, b = wins.reshape(-1, 2).T
    return np.stack([a, 100 - a - b, b], axis=-1)


def _verdict_sums(games: pd.DataFrame, author_a: str, author_b: str) -> Array:
    """Per question: wins of a, ties, wins of b under judge a, then the same under judge b; shape (questions, 6)."""
    keys = ["cluster_id", "pair_id", "judge", "arm", "repetition"]
    verdict = games.groupby(keys).verdict.agg(lambda v: two_game_verdict(*(v if len(v) == 2 else ("tie", "unparsed"))))
    table = verdict.reset_index()
    index = table.verdict.map({"A": 0, "tie": 1, "B": 2}) + 3 * (table.judge == author_b)
    return cluster_sums(np.eye(6)[index], table.cluster_id)


def _share(flags: Sequence[bool] | np.ndarray, clusters: Any) -> dict[str, float]:
    """Share of true flags with its interval, clusters resampled; plain numbers, ready for JSON."""
    values = np.asarray(flags, dtype=float)
    sums = cluster_sums(np.stack([values, np.ones_like(values)], axis=1), np.asarray(clusters))
    estimate = bootstrap(sums, lambda s: s[..., 0] / s[..., 1], draws=2_000, seed=0)
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": len(values)}
