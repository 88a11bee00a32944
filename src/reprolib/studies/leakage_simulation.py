"""A simulation of preference leakage with everything planted: generators have habits, judges find their own familiar.

No language model takes part. A text is a row of habits (0 or 1); a student copies the habit rates of a mixture of its
teacher's and neutral texts; a judge's log-odds for text A are the difference in quality plus `weight` times how much
likelier A's habits are under its own generator. Tables come out in the schema of a real lab run (`tables.PAIRWISE`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from reprolib.metrics.leakage import leakage_log_odds, order_averaged_margin, pls_of_shares
from reprolib.metrics.resampling import Array, Estimate, bootstrap

HABITS = ("double spaces", "bullets", "bold", "a favourite word")
NEUTRAL = np.array([0.10, 0.30, 0.30, 0.10])  # how often each habit occurs in other people's texts
GENERATORS = {"gen_a": np.array([0.60, 0.35, 0.50, 0.10]), "gen_b": np.array([0.10, 0.50, 0.30, 0.40])}


@dataclass(frozen=True)
class Plant:
    """What is planted.

    `weight`: nats of preference per nat of familiarity (0: no leakage). `mixing`: share of the training texts that the
    teacher wrote, 0 to 1. `relation`: "same" judge as the teacher, "inherited" (the student learnt from a student of
    the judge) or "family" (the judge shares half of the teacher's habits). `stripped`: share of habits removed before
    judging, 0 to 1. `quality_gap`: student A's advantage in nats; `spread`: its SD over questions. `position_bias` and
    `noise` act on each game; a game within `tie_band` of even is a tie.
    """

    weight: float = 0.5
    mixing: float = 1.0
    relation: Literal["same", "inherited", "family"] = "same"
    stripped: float = 0.0
    quality_gap: float = 0.0
    spread: float = 1.0
    position_bias: float = 0.3
    noise: float = 0.3
    tie_band: float = 0.3
    questions: int = 500
    training_texts: int = 1_000


def student_rates(plant: Plant, generator: str, rng: np.random.Generator) -> Array:
    """Habit rates a student has after training, fitted to finitely many texts (add-one smoothing); shape (habits,)."""
    rates = GENERATORS[generator]
    for _ in range(2 if plant.relation == "inherited" else 1):
        mixture = plant.mixing * rates + (1 - plant.mixing) * NEUTRAL
        rates = (rng.binomial(plant.training_texts, mixture) + 1) / (plant.training_texts + 2)
    return rates * (1 - plant.stripped)


def planted_log_odds(plant: Plant) -> float:
    """The leakage in nats that `metrics.leakage.leakage_log_odds` must recover, from the plant alone.

    >>> planted_log_odds(Plant(weight=0.0)), round(planted_log_odds(Plant(weight=0.5)), 3)
    (0.0, 0.525)
    """
    share = plant.mixing ** (2 if plant.relation == "inherited" else 1) * (1 - plant.stripped)
    apart = share * (GENERATORS["gen_a"] - GENERATORS["gen_b"])
    return float(plant.weight / 2 * apart @ (_familiarity(plant, "gen_a") - _familiarity(plant, "gen_b")))


def margins(plant: Plant, *, seed: int) -> Array:
    """Log-odds of each game for text A, in nats: shape (2 judges, questions, 2 orders), judge of gen_a first.

    One seed gives the same questions and the same luck to every plant, so that plants differ by what is planted.
    """
    rng = np.random.default_rng(seed)
    rates = [student_rates(plant, generator, rng) for generator in GENERATORS]
    has = [rng.random((plant.questions, len(HABITS))) < r for r in rates]
    quality = plant.quality_gap + plant.spread * rng.standard_normal(plant.questions)
    noise = plant.noise * rng.standard_normal((2, plant.questions, 2))
    habit = np.stack([(has[0] * 1.0 - has[1]) @ _familiarity(plant, generator) for generator in GENERATORS])
    base = quality + plant.weight * habit
    return np.asarray(base[..., None] + plant.position_bias * np.array([1, -1]) + noise)


def verdict_counts(plant: Plant, games: Array) -> Array:
    """One-hot (A wins, tie, B wins) of each question and judge, a win taking both games: shape (questions, 2, 3)."""
    a, b = (games > plant.tie_band).all(axis=-1), (games < -plant.tie_band).all(axis=-1)
    return np.stack([a, ~(a | b), b], axis=-1).swapaxes(0, 1).astype(float)


def measure(plant: Plant, *, draws: int, seed: int) -> tuple[Estimate, Estimate]:
    """PLS in percent and leakage in nats of one simulated lab, with intervals from resampling its questions."""
    games = margins(plant, seed=seed)
    verdicts = verdict_counts(plant, games).reshape(plant.questions, 6)
    score = bootstrap(verdicts, lambda s: 100 * pls_of_shares(s.reshape(*s.shape[:-1], 2, 3)), draws=draws, seed=seed)
    logp = -np.logaddexp(0, -games), -np.logaddexp(0, games)
    rows = np.column_stack([order_averaged_margin(*logp).T, np.ones(plant.questions)])
    nats = bootstrap(rows, lambda s: leakage_log_odds(s[..., 0], s[..., 1]) / s[..., 2], draws=draws, seed=seed)
    return score, nats


def pairwise_table(plant: Plant, *, seed: int, condition: str = "simulated") -> pd.DataFrame:
    """The games as a lab run would store them: schema `tables.PAIRWISE` with logp_A and logp_B."""
    games = margins(plant, seed=seed)
    judge, question, order = (axis.ravel() for axis in np.indices(games.shape))
    margin = games.ravel()
    verdict = np.select([margin > plant.tie_band, margin < -plant.tie_band], ["A", "B"], "tie")
    return pd.DataFrame({
        "study": "leakage_simulation", "pair_id": question, "cluster_id": question,
        "judge": np.array(list(GENERATORS))[judge], "condition": condition, "arm": "none", "repetition": 0,
        "order": order, "author_a": "gen_a", "author_b": "gen_b", "verdict": verdict, "n_tokens": 0,
        "prompt_digest": "simulated", "logp_A": -np.logaddexp(0, -margin), "logp_B": -np.logaddexp(0, margin),
    })  # fmt: skip


def _familiarity(plant: Plant, generator: str) -> Array:
    """Log-odds of each habit under the judge's own generator; a family judge shares half of it with neutral texts."""
    own = GENERATORS[generator]
    rates = (own + NEUTRAL) / 2 if plant.relation == "family" else own
    return np.asarray(np.log(rates / (1 - rates)))
