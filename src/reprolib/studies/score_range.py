"""Score range bias on SummEval: one summary, one aspect, the same five levels under four labels (0-4 ... 3-7).

Fujinuma, "Contrastive Decoding Mitigates Score Range Bias in LLM-as-a-Judge", arXiv 2510.18196. A judge is asked once
and its logits of the ten digits are kept: every decoding rule of the chapters is a function of that record.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from reprolib.evidence import DIRECT
from reprolib.evidence.recorded import Manifest, read_record, records
from reprolib.metrics.correlation import Coefficient, CrossTable, cross_table
from reprolib.metrics.resampling import Array, Statistic, bootstrap_each
from reprolib.metrics.scoring import BETAS, calibrated, contrast, expected, greedy, in_range, penalised
from reprolib.project import evidence_dir

STUDY = "score_range"
ITEMS = Path("recorded", STUDY, "items.parquet")  # below evidence/
RANGES = {"0-4": 0, "1-5": 1, "2-6": 2, "3-7": 3}  # name to lowest score; five levels each
DIGITS = tuple("0123456789")
SYSTEMS = 16  # summaries an article
DEV = 10  # articles for tuning, the first in the paper's order


class Judged(NamedTuple):
    """A judge's passes of one aspect over all four ranges; articles (the first axis after ranges) in `shuffled` order.

    `logits` and `seen` (digit occurs in the prompt): (4, articles, 16, 10); `logsumexp`: (4, articles, 16); `human`
    (experts' mean, 1 to 5): (articles, 16).
    """

    logits: Array
    seen: np.ndarray[Any, np.dtype[np.bool_]]
    logsumexp: Array
    human: Array
    manifests: list[Manifest]

    def levels(self, penalty: float = 1.0) -> Array:
        """Logits of each range's five levels, under a repetition penalty: shape (4, articles, 16, 5)."""
        logits = penalised(self.logits, self.seen, penalty)
        return np.stack([in_range(one, low) for one, low in zip(logits, RANGES.values(), strict=True)])

    def first(self, articles: int) -> Judged:
        """The first so many articles, to match another judge's."""
        cut = {name: getattr(self, name)[:, :articles] for name in ("logits", "seen", "logsumexp")}
        return self._replace(human=self.human[:articles], **cut)


@cache
def shuffled() -> tuple[int, ...]:
    """Article numbers in the paper's order: the released development set is the first ten of this shuffle.

    >>> shuffled()[:10]
    (42, 41, 91, 9, 65, 50, 1, 70, 15, 78)
    """
    order = list(range(100))
    random.Random(42).shuffle(order)
    return tuple(order)


def recorded_judges(*, aspect: str = "coherence", prompt_set: str = "own") -> list[str]:
    """Judges with a pass of this aspect in all four ranges."""
    known = {name for study, name in records() if study == STUDY}
    judges = sorted({name.split("_")[0] for name in known})
    return [judge for judge in judges if known.issuperset(record_names(judge, aspect, prompt_set).values())]


def load(judge: str, *, aspect: str = "coherence", prompt_set: str = "own") -> Judged:
    """The record of a judge in all four ranges, cut to the articles that all have; EvidenceError if one is missing."""
    kept = [read_record(STUDY, name, DIRECT) for name in record_names(judge, aspect, prompt_set).values()]
    rows, people = min(len(record.table) for record in kept), items()[["item_id", aspect]]
    table = pd.concat([record.table[:rows] for record in kept]).merge(people, on="item_id", how="left")

    def grid(columns: list[str]) -> Any:
        return table[columns].to_numpy().reshape(len(RANGES), -1, SYSTEMS, len(columns))

    logits, seen = (grid([f"{name}_{digit}" for digit in DIGITS]) for name in ("logit", "seen"))
    human = grid([aspect])[0, ..., 0]
    manifests = [record.manifest for record in kept]
    return Judged(logits.astype(float), seen.astype(bool), grid(["logsumexp"])[..., 0], human, manifests)


def methods(
    judged: Judged, assistant: Judged, *, other: Judged | None = None, penalty: float = 1.0,
    betas: Sequence[float] = BETAS, seed: int = 0,
) -> dict[str, Array]:  # fmt: skip
    """Scores (0 to 4) by every decoding rule, shape (rules, ranges, articles, 16); a rule is chosen on the dev set.

    `other` is an assistant of another family. The repetition penalty acts on greedy decoding alone, as in the released
    code. "system mean" knows nothing but which system wrote the summary: a yardstick, not a judge.
    """
    main, helper = judged.levels(), assistant.levels()
    frozen = np.broadcast_to(helper[:, :DEV].mean(axis=(1, 2), keepdims=True), helper.shape)
    order = np.random.default_rng(seed).permutation(helper[0, ..., 0].size)
    exchanged = helper.reshape(len(helper), -1, 5)[:, order].reshape(helper.shape)
    center = np.stack([calibrated(levels) for levels in main])

    def contrasts(helper: Array, sign: float = 1.0) -> Array:
        return np.stack([greedy(contrast(main, helper, sign * beta)) for beta in betas])

    found = {"greedy": greedy(judged.levels(penalty))[None], "contrastive": contrasts(helper)}
    found |= {"assistant frozen": contrasts(frozen), "assistant of another item": contrasts(exchanged)}
    if other is not None:
        found["assistant of another family"] = contrasts(other.levels())
    found |= {"assistant added": contrasts(helper, -1.0), "expected score": expected(main)[None]}
    found |= {"batch calibration": greedy(center)[None], "calibrated, expected": expected(center)[None]}
    for name, same in [
        ("average over ranges", expected(main).mean(axis=0)),
        ("system mean", judged.human[DEV:].mean(axis=0)),
    ]:
        found[name] = np.broadcast_to(same, main.shape[:-1])[None]
    return found


def agreement(scores: Mapping[str, Array], human: Array, kind: Coefficient = "spearman") -> Statistic:
    """Correlation with humans on the test articles, from article weights: shape (..., articles) to (..., methods, 4).

    `scores` as `methods` returns them, `human` (articles, 16). A tuned method chooses its rule anew, for each range, on
    the weighted development articles (the first `DEV`).
    """
    tables = [
        [[cross_table(s, human) for s in {s.tobytes(): s for s in rules[:, r]}.values()] for r in range(len(RANGES))]
        for rules in scores.values()
    ]  # of rules that give the same scores, the first

    def tuned(rules: list[CrossTable], weights: Array) -> Array:
        parts = slice(DEV), slice(DEV, None)
        dev, test = (np.stack([t.correlation(kind)(weights[..., p] @ t.sums[p]) for t in rules]) for p in parts)
        return np.take_along_axis(test, np.nan_to_num(dev, nan=-1).argmax(axis=0)[None], axis=0)[0]

    return lambda weights: np.stack(
        [np.stack([tuned(rules, weights) for rules in ranges], axis=-1) for ranges in tables], axis=-2
    )


def evaluate(
    scores: Mapping[str, Array], human: Array, *, kind: Coefficient = "spearman", draws: int, seed: int
) -> pd.DataFrame:
    """`agreement` and its gain over the first method, as estimates: a row a method and range (or "mean").

    All is paired: one draw of articles serves every method, tuning included.
    """
    by_range = agreement(scores, human, kind)

    def everything(weights: Array) -> Array:
        found = by_range(weights)
        found = np.concatenate([found, found.mean(axis=-1, keepdims=True)], axis=-1)
        both = np.stack([found, found - found[..., :1, :]], axis=-3)
        return both.reshape(*both.shape[:-3], -1)

    estimates = bootstrap_each(np.eye(len(human)), everything, draws=draws, seed=seed)
    index = pd.MultiIndex.from_product([scores, [*RANGES, "mean"]], names=["method", "range"])
    half = len(estimates) // 2
    frame = pd.DataFrame({"estimate": estimates[:half], "gain": estimates[half:]}, index=index).reset_index()
    return frame.assign(**{end: [getattr(e, end) for e in frame["estimate"]] for end in ("value", "low", "high")})


def items() -> pd.DataFrame:
    """Item-level numbers of SummEval, committed without any text: ids, the experts' mean scores, words, digits seen."""
    return pd.read_parquet(evidence_dir() / ITEMS)


def record_names(judge: str, aspect: str, prompt_set: str) -> dict[str, str]:
    """What the record of a judge's pass is called, by range."""
    wording = [] if prompt_set == "own" else [prompt_set]
    return {scale: "_".join([judge, aspect, scale, *wording]) for scale in RANGES}
