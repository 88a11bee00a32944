"""A lab of preference leakage: a run of your own, or a simulated one in which everything is planted.

No language model takes part in the simulation: generators have habits, and judges find their own familiar. A text is a
row of habits (0 or 1); a student copies the habit rates of a mixture of its teacher's and neutral texts; a judge's
log-odds for text A are the difference in quality plus `weight` times how much likelier A's habits are under its own
generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from reprolib.errors import EvidenceError
from reprolib.evidence import PAIRWISE, check_table
from reprolib.metrics.leakage import (
    TieRule,
    leakage_log_odds,
    order_averaged_margin,
    pls_of_shares,
    two_game_verdict,
)
from reprolib.metrics.resampling import Array, Estimate, bootstrap, cluster_sums

HABITS = ("double spaces", "bullets", "bold", "a favourite word")
NEUTRAL = np.array([0.10, 0.30, 0.30, 0.10])  # how often each habit occurs in other people's texts
GENERATORS = {"gen_a": np.array([0.60, 0.35, 0.50, 0.10]), "gen_b": np.array([0.10, 0.50, 0.30, 0.40])}


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


def _verdict_sums(games: pd.DataFrame, author_a: str, author_b: str) -> Array:
    """Per question: wins of a, ties, wins of b under judge a, then the same under judge b; shape (questions, 6)."""
    keys = ["cluster_id", "pair_id", "judge", "arm", "repetition"]
    verdict = games.groupby(keys).verdict.agg(lambda v: two_game_verdict(*(v if len(v) == 2 else ("tie", "unparsed"))))
    table = verdict.reset_index()
    index = table.verdict.map({"A": 0, "tie": 1, "B": 2}) + 3 * (table.judge == author_b)
    return cluster_sums(np.eye(6)[index], table.cluster_id)


def _familiarity(plant: Plant, generator: str) -> Array:
    """Log-odds of each habit under the judge's own generator; a family judge shares half of it with neutral texts."""
    own = GENERATORS[generator]
    rates = (own + NEUTRAL) / 2 if plant.relation == "family" else own
    return np.asarray(np.log(rates / (1 - rates)))
