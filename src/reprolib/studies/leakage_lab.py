"""A lab of preference leakage: a run of your own, or a simulated one in which everything is planted.

In the simulation a text is a row of habits (0 or 1); a student copies the habit rates of a mixture of its teacher's and
neutral texts; a judge adds to the difference in quality how much likelier text A's habits are under its own generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from scipy import special

from reprolib.errors import EvidenceError
from reprolib.evidence import PAIRWISE, check_table
from reprolib.metrics.leakage import TieRule, leakage_log_odds, pls_of_shares, two_game_verdict
from reprolib.metrics.resampling import Array, Estimate, bootstrap, cluster_sums

HABITS = ("double spaces", "bullets", "bold", "a favourite word")
NEUTRAL = np.array([0.10, 0.30, 0.30, 0.10])  # how often each habit occurs in other people's texts
GENERATORS = {"gen_a": np.array([0.60, 0.35, 0.50, 0.10]), "gen_b": np.array([0.10, 0.50, 0.30, 0.40])}


def lab_table(lab: Path, *, tie_rule: TieRule = "strict", draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """PLS of a run of your own: `lab` holds `pairwise.parquet`, where each author is named after its teacher.

    A judge is related to the student whose teacher bears its name; pairs without both related judges are left out. Both
    orders collapse to one verdict; questions (`cluster_id`) are resampled, both judges together.
    Columns: condition, pair, n (questions), n_unparsed, pls, low, high (%).
    """
    path = lab / "pairwise.parquet"
    if not path.is_file():
        raise EvidenceError(
            f"lab={str(lab)!r} holds no pairwise.parquet", hint="give the folder a leakage lab run wrote"
        )
    games = check_table(pd.read_parquet(path), PAIRWISE, origin=str(path))
    rows = []
    related = games[(games.judge == games.author_a) | (games.judge == games.author_b)]
    for (condition, a, b), judged in related.groupby(["condition", "author_a", "author_b"]):
        if judged.judge.nunique() == 2:
            asked = judged.groupby(["cluster_id", "pair_id", "judge", "arm", "repetition"])
            verdict = asked.verdict.agg(lambda verdicts: two_game_verdict(*verdicts)).reset_index()
            column = verdict.verdict.map({"A": 0, "tie": 1, "B": 2}) + 3 * (verdict.judge == b)
            e = _score(cluster_sums(np.eye(6)[column], verdict.cluster_id), tie_rule, draws, seed)
            rows.append((condition, f"{a} & {b}", e.n, (judged.verdict == "unparsed").sum(), e.value, e.low, e.high))
    return pd.DataFrame(rows, columns=["condition", "pair", "n", "n_unparsed", "pls", "low", "high"])


@dataclass(frozen=True)
class Plant:
    """What is planted; log-odds are in nats.

    A judge is the student's teacher, the teacher's teacher ("inherited") or shares half of its habits ("family").
    """

    weight: float = 0.5  # nats of preference per nat of familiarity; 0: no leakage
    mixing: float = 1.0  # share of the training texts that the teacher wrote, 0 to 1
    relation: Literal["same", "inherited", "family"] = "same"
    stripped: float = 0.0  # share of habits removed before judging, 0 to 1
    quality_gap: float = 0.0  # student A's advantage
    spread: float = 1.0  # its SD over questions
    position_bias: float = 0.3  # for the text shown first, in each game
    noise: float = 0.3  # of each game
    tie_band: float = 0.3  # a game this close to even is a tie
    questions: int = 500
    training_texts: int = 1_000


def planted_log_odds(plant: Plant) -> float:
    """The leakage in nats that `metrics.leakage.leakage_log_odds` must recover, from the plant alone.

    >>> planted_log_odds(Plant(weight=0.0)), round(planted_log_odds(Plant(weight=0.5)), 3)
    (0.0, 0.525)
    """
    share = plant.mixing ** (2 if plant.relation == "inherited" else 1) * (1 - plant.stripped)
    return float(plant.weight / 2 * share * np.subtract(*GENERATORS.values()) @ np.subtract(*_familiarity(plant)))


def margins(plant: Plant, *, seed: int) -> Array:
    """Log-odds of each game for text A, in nats: shape (2 judges, questions, 2 orders), judge of gen_a first.

    One seed gives the same questions and the same luck to every plant, so that plants differ by what is planted.
    """
    rng, students = np.random.default_rng(seed), []
    for rates in GENERATORS.values():
        for _ in range(2 if plant.relation == "inherited" else 1):  # add-one smoothing of finitely many texts
            mixture = plant.mixing * rates + (1 - plant.mixing) * NEUTRAL
            rates = (rng.binomial(plant.training_texts, mixture) + 1) / (plant.training_texts + 2)
        students.append(rates * (1 - plant.stripped))
    has_a, has_b = (rng.random((plant.questions, len(HABITS))) < rates for rates in students)
    quality = plant.quality_gap + plant.spread * rng.standard_normal(plant.questions)
    noise = plant.noise * rng.standard_normal((2, plant.questions, 2))
    base = quality + plant.weight * _familiarity(plant) @ (has_a * 1.0 - has_b).T
    return np.asarray(base[..., None] + plant.position_bias * np.array([1, -1]) + noise)


def verdict_counts(plant: Plant, games: Array) -> Array:
    """One-hot (A wins, tie, B wins) of each question and judge, a win taking both games: shape (questions, 2, 3)."""
    a, b = (games > plant.tie_band).all(axis=-1), (games < -plant.tie_band).all(axis=-1)
    return np.stack([a, ~(a | b), b], axis=-1).swapaxes(0, 1).astype(float)


def measure(plant: Plant, *, draws: int, seed: int) -> tuple[Estimate, Estimate]:
    """PLS in percent and leakage in nats of one simulated lab, with intervals from resampling its questions."""
    games = margins(plant, seed=seed)
    rows = np.column_stack([*games.mean(axis=-1), np.ones(plant.questions)])
    nats = bootstrap(rows, lambda s: leakage_log_odds(s[..., 0], s[..., 1]) / s[..., 2], draws=draws, seed=seed)
    return _score(verdict_counts(plant, games).reshape(-1, 6), "strict", draws, seed), nats


def _familiarity(plant: Plant) -> Array:
    """Log-odds of each habit under each judge's own generator, shape (2, habits)."""
    rates = np.stack([*GENERATORS.values()])
    return np.asarray(special.logit((rates + NEUTRAL) / 2 if plant.relation == "family" else rates))


def _score(sums: Array, tie_rule: TieRule, draws: int, seed: int) -> Estimate:
    """PLS (%) of the questions' (A wins, tie, B wins) under judge a, then under judge b: shape (questions, 6)."""
    return bootstrap(
        sums, lambda s: 100 * pls_of_shares(s.reshape(*s.shape[:-1], 2, 3), tie_rule=tie_rule), draws=draws, seed=seed
    )
