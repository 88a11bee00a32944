"""Score range bias on SummEval: one summary, one aspect, the same five levels under four labels (0-4 ... 3-7).

Fujinuma, "Contrastive Decoding Mitigates Score Range Bias in LLM-as-a-Judge", arXiv 2510.18196. A judge is asked once
and its logits of the ten digits are kept: every decoding rule of the chapters is a function of that record.
"""

from __future__ import annotations

import json
import pickle
import random
import re
import time
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from reprolib.errors import EvidenceError, ParameterError
from reprolib.evidence import DIRECT, download
from reprolib.evidence.public import public_study
from reprolib.evidence.recorded import Manifest, Record, read_record, records, store_folder, write_record
from reprolib.metrics.correlation import Coefficient, CrossTable, cross_table
from reprolib.metrics.resampling import Array, Statistic, bootstrap_each
from reprolib.metrics.scoring import BETAS, calibrated, contrast, expected, greedy, in_range, penalised
from reprolib.project import evidence_dir

if TYPE_CHECKING:
    from reprolib.inference.judge import Judge

STUDY = "score_range"
RANGES = {"0-4": 0, "1-5": 1, "2-6": 2, "3-7": 3}  # name to lowest score; five levels each
ASPECTS = ("coherence", "consistency", "relevance")
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


class _DataOnly(pickle.Unpickler):
    """The released file is a pickle of dicts, lists, strings and numbers; anything else in it is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise EvidenceError(f"the file asks for {module}.{name}", hint="it is not the plain data that was released")


def summaries() -> pd.DataFrame:
    """The 1,600 released summaries, in file order: item_id, cluster_id (article, 0 to 99), author (system).

    With the texts `article` and `summary`; coherence, consistency, fluency, relevance: means of three experts, 1 to 5.
    """
    with download.fetch(["summeval"])["summeval"].open("rb") as file:
        data = _DataOnly(file).load().values()
    rows = [
        {"cluster_id": number, "author": system, "article": item["src"], "summary": text["sys_summ"], **text["scores"]}
        for number, item in enumerate(data)
        for system, text in item["sys_summs"].items()
    ]
    table = pd.DataFrame(rows)
    return table.assign(item_id=table["cluster_id"].map("{:02d}".format) + "-" + table["author"])


@cache
def shuffled() -> tuple[int, ...]:
    """Article numbers in the paper's order: the released development set is the first ten of this shuffle.

    >>> shuffled()[:10]
    (42, 41, 91, 9, 65, 50, 1, 70, 15, 78)
    """
    order = list(range(100))
    random.Random(42).shuffle(order)
    return tuple(order)


def prompts(*, aspect: str, scale: str, articles: int = 100, prompt_set: str = "own") -> pd.DataFrame:
    """`summaries` of the first `articles` in `shuffled` order, each with its chat `prompt`, range before the article.

    `prompt_set` "own" is this project's wording, "original" the paper's released one (fetched; sent as one user
    message). Raises ParameterError for an aspect, range or prompt set that does not exist.
    """
    allowed = {"aspect": (aspect, ASPECTS), "scale": (scale, RANGES), "prompt_set": (prompt_set, ("own", "original"))}
    for name, (given, known) in allowed.items():
        if given not in known:
            raise ParameterError(f"{name} is {given!r}", hint=f"allowed: {', '.join(known)}")
    if prompt_set == "own":
        own = tomllib.loads((evidence_dir() / "prompts" / "score_range.toml").read_text())
        text, fill = own["template"], {"aspect": aspect, **own[aspect]}
    else:
        text, fill = download.fetch([name := f"range_prompt_{aspect}"])[name].read_text(), {}
    for place, value in {**fill, "min_range": str(RANGES[scale]), "max_range": str(RANGES[scale] + 4)}.items():
        text = text.replace(f"{{{place}}}", value)
    before, between, after = re.split(r"\{\{\w+\}\}", text)
    table = summaries().set_index("cluster_id", drop=False).loc[list(shuffled()[:articles])].reset_index(drop=True)
    texts = before + table["article"] + between + table["summary"] + after
    return table.assign(prompt=[[{"role": "user", "content": text}] for text in texts])


def record(
    judge: Judge, *, command: str, aspect: str = "coherence", scale: str = "1-5", articles: int | str = 100,
    prompt_set: str = "own",
) -> Record:  # fmt: skip
    """One pass of a judge: 16 summaries of each of the first `articles`, kept as the digits' logits, resumable.

    Writes a `direct` table with logit_0 .. logit_9, seen_0 .. seen_9, logsumexp, the 20 likeliest tokens, and the
    in-range greedy score as value.
    """
    from reprolib.inference.store import Store

    started, low = time.monotonic(), RANGES.get(scale, 0)
    asked = prompts(aspect=aspect, scale=scale, articles=int(articles), prompt_set=prompt_set)
    common: dict[str, Any] = {"items": asked["item_id"].tolist(), "store": Store(store_folder(STUDY))}
    scores = judge.label_logprobs(asked["prompt"].tolist(), DIGITS, min_mass=0, progress=True, **common)
    logits = scores[[f"logit_{digit}" for digit in DIGITS]].astype("float32")
    fixed = {"study": STUDY, "judge": judge.weights.name, "condition": aspect, "arm": prompt_set, "repetition": 0}
    fixed |= {
        "scale_low": low,
        "scale_high": low + 4,
        "value": low + logits.iloc[:, low : low + 5].to_numpy().argmax(1),
    }
    fixed |= {name: scores[name] for name in ("n_tokens", "logsumexp", "top_ids")}
    fixed |= {"prompt_digest": scores["prompt_digest"].str[:16], "top_logits": scores["top_logits"].map(np.float32)}
    fixed |= {f"seen_{digit}": [digit in row[0]["content"] for row in asked["prompt"]] for digit in DIGITS}
    table = pd.concat([asked[["item_id", "cluster_id", "author"]], logits], axis=1).assign(**fixed)
    if not _items().is_file():
        _write_items()
    made = judge.made(scores.attrs["run"], started=started, command=command)
    return write_record(table, DIRECT, study=STUDY, judge=_name(judge.weights.name, aspect, scale, prompt_set), **made)


def recorded_judges(*, aspect: str = "coherence", prompt_set: str = "own") -> list[str]:
    """Judges with a pass of this aspect in all four ranges."""
    known = {name for study, name in records() if study == STUDY}
    judges = sorted({name.split("_")[0] for name in known})
    return [judge for judge in judges if all(_name(judge, aspect, scale, prompt_set) in known for scale in RANGES)]


def load(judge: str, *, aspect: str = "coherence", prompt_set: str = "own") -> Judged:
    """The record of a judge in all four ranges, cut to the articles that all have; EvidenceError if one is missing."""
    kept = [read_record(STUDY, _name(judge, aspect, scale, prompt_set), DIRECT) for scale in RANGES]
    rows = min(len(record.table) for record in kept)
    table = pd.concat([record.table[:rows] for record in kept]).merge(
        items()[["item_id", aspect]], on="item_id", how="left"
    )

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
        dev, test = (
            np.stack([t.correlation(kind)(weights[..., part] @ t.sums[part]) for t in rules])
            for part in (slice(DEV), slice(DEV, None))
        )
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
    return pd.read_parquet(_items())


@public_study("score_range_dev", sources=["summeval", "summeval_dev"])
def development_set(paths: dict[str, Path]) -> dict[str, Any]:
    """The released development set: articles, items, its share of SummEval, and how many are `shuffled`'s first."""
    released = pd.DataFrame(json.loads(paths["summeval_dev"].read_text()))
    ours = summaries().set_index("cluster_id").loc[list(shuffled()[:DEV]), ["article", "summary"]]
    known, articles = set(ours.itertuples(index=False, name=None)), released["doc_id"].nunique()
    found = sum(pair in known for pair in zip(released["source"], released["system_output"], strict=True))
    return {"articles": articles, "items": len(released), "share": 100 * articles / len(shuffled()), "found": found}


def _items() -> Path:
    return evidence_dir() / "recorded" / STUDY / "items.parquet"


def _write_items() -> None:
    table = summaries()
    words = {f"{kind}_words": table[kind].str.split().str.len() for kind in ("article", "summary")}
    seen = {f"seen_{d}": table["article"].str.contains(d) | table["summary"].str.contains(d) for d in DIGITS}
    table.drop(columns=["article", "summary"]).assign(**words, **seen).to_parquet(_items(), index=False)


def _name(judge: str, aspect: str, scale: str, prompt_set: str) -> str:
    return "_".join([judge, aspect, scale, *([] if prompt_set == "own" else [prompt_set])])
