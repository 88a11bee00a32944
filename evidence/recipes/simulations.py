"""Simulated judges, students and studies, in which everything is planted: no evidence about any model.

`Plant`, `margins`, `measure`: preference leakage. A text is a row of habits (0 or 1); a student copies the habit rates
of a mixture of its teacher's and neutral texts; a judge adds to the difference in quality how much likelier text A's
habits are under its own generator. `planted`: error bias. `simulated_pairs`: overlap bias. `simulated_ratings`: label
bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import special
from scipy.special import expit

from reprolib.evidence.public import public_study
from reprolib.metrics import mixed
from reprolib.metrics.leakage import leakage_log_odds
from reprolib.metrics.overlap import tie_label
from reprolib.metrics.resampling import Array, Estimate, bootstrap
from reprolib.studies.leakage import pls_estimate

HABITS = ("double spaces", "bullets", "bold", "a favourite word")
NEUTRAL = np.array([0.10, 0.30, 0.30, 0.10])  # how often each habit occurs in other people's texts
GENERATORS = {"gen_a": np.array([0.60, 0.35, 0.50, 0.10]), "gen_b": np.array([0.10, 0.50, 0.30, 0.40])}


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
    return pls_estimate(verdict_counts(plant, games).reshape(-1, 6), "strict", draws, seed), nats


def _familiarity(plant: Plant) -> Array:
    """Log-odds of each habit under each judge's own generator, shape (2, habits)."""
    rates = np.stack([*GENERATORS.values()])
    return np.asarray(special.logit((rates + NEUTRAL) / 2 if plant.relation == "family" else rates))


def planted(pairs: int = 8_000, *, advantage: float = 0.0, lean: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Simulated pairs: quality q is N(advantage, 1), people pick with chance expit(3 q), margin q + lean + N(0, 1)."""
    rng = np.random.default_rng(seed)
    quality = rng.normal(advantage, 1, pairs)
    margin, human = quality + lean + rng.normal(0, 1, pairs), rng.random(pairs) < expit(3 * quality)
    return pd.DataFrame({"question": np.arange(pairs) // 4, "margin": margin, "human": human.astype(float)})


def simulated_pairs(
    *, weight: float = 2.5, position: float = -0.8, articles: int = 562, summaries: int = 12, seed: int = 0
) -> pd.DataFrame:
    """A simulated judge that dislikes nothing but difference, drawn as the paper draws: one choice an order.

    Log-odds of the generated summary: `weight` (1 - overlap), plus small effects of article and summary, plus
    `position` where it is shown first and minus it where second: the same at every overlap. Overlap is uniform.
    """
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(articles), summaries)
    s = rng.uniform(size=len(cluster))
    theta = weight * (1 - s) + (1 - s) * (rng.normal(0, 0.3, articles)[cluster] + rng.normal(0, 0.3, len(cluster)))
    drawn = [np.where(rng.uniform(size=len(s)) < expit(theta + lean), "A", "B") for lean in (position, -position)]
    table = pd.DataFrame({"overlap": s, "theta": theta, "pi": 2 * position, "cluster_id": cluster})
    table["label"] = [tie_label(*pair) for pair in zip(*drawn, strict=True)]
    return table.assign(log_ratio=0.0, human=True, cell="simulated")


def simulated_ratings(
    *, models: int, sets: int, repetitions: int = 1, beta: float = 0.0, affinity: float = 0.15, judge_sd: float = 0.6,
    author_sd: float = 0.25, set_sd: float = 0.25, cell_sd: float = 0.25, noise: float = 0.5, seed: int,
) -> pd.DataFrame:  # fmt: skip
    """A simulated complete table; `affinity` is the SD of judge x author, `cell_sd` of judge x item, `noise` rows."""
    rng, shape = np.random.default_rng(seed), {"j": models, "a": models, "s": sets, "r": repetitions}
    spread = {"j": judge_sd, "a": author_sd, "ja": affinity, "as": set_sd, "jas": cell_sd, "jasr": noise}
    parts = [rng.normal(0, sd, [n if axis in at else 1 for axis, n in shape.items()]) for at, sd in spread.items()]
    judge, author, number, repetition = np.indices(list(shape.values())).reshape(4, -1)
    value = 4 + beta * (judge == author) + sum(parts, np.zeros(1)).ravel()
    table = pd.DataFrame({"judge": judge, "author": author}).map("model {:02d}".format)
    return table.assign(item=author * sets + number, repetition=repetition, value=value)


@public_study("label_simulation", sources=[], on_page=False)
def simulation(_paths: dict[str, Path]) -> dict[str, Any]:
    """Simulated studies: how often four analyses reject "no self-preference" at 5 percent (two-sided).

    `rates`: by models, affinity (SD, points), beta (the planted effect) and method; `rejected` of `studies`. Thirty
    sets a model, three repetitions averaged; other spreads are those of `simulated_ratings`. Permutations: 199 draws.
    """
    studies, rates = 200, list[dict[str, Any]]()
    scenarios = [(10, 0.0, 0.0), (10, 0.15, 0.0), (10, 0.3, 0.0), (10, 0.15, 0.1), (10, 0.15, 0.2), (3, 0.15, 0.2)]
    for models, affinity, beta in scenarios:
        hits = dict.fromkeys(("rows", "cells", "judges", "permutation"), 0)
        for seed in range(studies):
            how: dict[str, Any] = {"beta": beta, "affinity": affinity, "noise": 0.5 / 3**0.5, "seed": seed}
            table = simulated_ratings(models=models, sets=30, **how)
            found = (mixed.naive_model(table), mixed.cell_model(table), mixed.judge_contrasts(table))
            for name, e in zip(hits, found, strict=False):
                hits[name] += not e.low <= 0 <= e.high
            hits["permutation"] += mixed.permutation_p(table, draws=199, seed=seed) <= 0.05
        about = {"models": models, "affinity": affinity, "beta": beta, "studies": studies}
        rates += [{**about, "method": name, "rejected": int(n)} for name, n in hits.items()]
    return {"rates": rates}
