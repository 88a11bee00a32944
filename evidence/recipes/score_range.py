"""Score range bias: SummEval's summaries as prompts, the record of a judge, and the released development set."""

from __future__ import annotations

import json
import pickle
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reprolib.errors import EvidenceError, ParameterError
from reprolib.evidence import DIRECT, download
from reprolib.evidence.public import public_study
from reprolib.evidence.recorded import Record, ask, write_record
from reprolib.project import evidence_dir
from reprolib.studies.score_range import DEV, DIGITS, ITEMS, RANGES, STUDY, record_names, shuffled

if TYPE_CHECKING:
    from reprolib.inference.judge import Judge

ASPECTS = ("coherence", "consistency", "relevance")


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
    asked = prompts(aspect=aspect, scale=scale, articles=int(articles), prompt_set=prompt_set)
    rows, low = asked[["item_id", "cluster_id", "author", "prompt"]], RANGES[scale]
    table, made = ask(judge, rows, DIGITS, study=STUDY, command=command, keep="logit_|top_")
    logits = table[[f"logit_{digit}" for digit in DIGITS]].astype("float32")
    seen = {f"seen_{digit}": [digit in row[0]["content"] for row in asked["prompt"]] for digit in DIGITS}
    table = table.assign(
        **logits, **seen, condition=aspect, arm=prompt_set, scale_low=low, scale_high=low + 4,
        value=low + logits.iloc[:, low : low + 5].to_numpy().argmax(1),
        prompt_digest=table["prompt_digest"].str[:16], top_logits=table["top_logits"].map(np.float32),
    )  # fmt: skip
    if not (evidence_dir() / ITEMS).is_file():
        _write_items()
    made["judge"] = record_names(judge.weights.name, aspect, prompt_set)[scale]
    return write_record(table, DIRECT, **made)


@public_study("score_range_dev", sources=["summeval", "summeval_dev"])
def development_set(paths: dict[str, Path]) -> dict[str, Any]:
    """The released development set: articles, items, its share of SummEval, and how many are `shuffled`'s first."""
    released = pd.DataFrame(json.loads(paths["summeval_dev"].read_text()))
    ours = summaries().set_index("cluster_id").loc[list(shuffled()[:DEV]), ["article", "summary"]]
    known, articles = set(ours.itertuples(index=False, name=None)), released["doc_id"].nunique()
    found = sum(pair in known for pair in zip(released["source"], released["system_output"], strict=True))
    return {"articles": articles, "items": len(released), "share": 100 * articles / len(shuffled()), "found": found}


def _write_items() -> None:
    table = summaries()
    words = {f"{kind}_words": table[kind].str.split().str.len() for kind in ("article", "summary")}
    seen = {f"seen_{d}": table["article"].str.contains(d) | table["summary"].str.contains(d) for d in DIGITS}
    table.drop(columns=["article", "summary"]).assign(**words, **seen).to_parquet(evidence_dir() / ITEMS, index=False)
