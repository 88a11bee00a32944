"""Judges beside people, with and without a remedy: what others released, and records of pairs judged here.

A pair is two answers to one request, with the majority of three people (PandaLM, Wang et al., arXiv 2306.05087). The
remedies are ours, after the names of Table 7 in Li et al., arXiv 2502.01534, whose wording is not known to us.
"""

from __future__ import annotations

import json
import tomllib
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reprolib.errors import EvidenceError, pick
from reprolib.evidence import PAIRWISE, download
from reprolib.evidence.public import public_study
from reprolib.evidence.recorded import Record, ask, store_folder, verdicts, write_record
from reprolib.project import evidence_dir

if TYPE_CHECKING:
    from reprolib.inference.judge import Judge

STUDY = "mitigation"
NAMES = ("1", "2")
ENDINGS = ("baseline", "origin", "length")  # judged without writing anything first
STAGES = {"base": 200, "reasoned": 50, "rewritten": 30}  # how many pairs, unless told
LIMITS = {"reasoned": 120, "rewritten": 160}  # tokens of what the judge writes itself
SEED = 20260318
LLMBAR_SETS = ("Natural", "Neighbor", "GPTInst", "GPTOut", "Manual")
LLMBAR_JUDGES = {"gpt4": "GPT-4", "chatgpt": "ChatGPT", "chatgpt_0301": "ChatGPT-0301", "palm2": "PaLM 2",
                 "llama2": "LLaMA 2", "falcon": "Falcon"}  # fmt: skip
_PANDALM = ["pandalm_people", "pandalm_gpt35", "pandalm_pandalm"]
_LLMBAR = {f"llmbar_{part.lower()}_{judge}": (part, judge) for part, judge in product(LLMBAR_SETS, LLMBAR_JUDGES)}
_SIDES = {1: "A", 2: "B", 0: "tie"}
_TEXTS = ["instruction", "input", "response1", "response2"]


@public_study("mitigation_released", sources=[*_PANDALM, *_LLMBAR])
def released(paths: dict[str, Path]) -> dict[str, Any]:
    """Verdicts of people and judges as codes, a value a pair: A, B, tie (t), or none that could be read (x).

    `pandalm`: three people and two judges on pairs in one order. `llmbar`: an expert label and, by judge, a verdict an
    order (A and B are texts: "AB" is A when A stood first, B when B did); the judge writes an explanation first.
    """
    pairs = people(paths["pandalm_people"])
    given = pd.DataFrame(json.loads(paths["pandalm_people"].read_text()))
    columns = {f"person {k}": given[f"annotator{k}"].map(_SIDES) for k in (1, 2, 3)}
    for judge, key in (("gpt35", "gpt_result"), ("pandalm", "pandalm_result")):
        said = pd.DataFrame(json.loads(paths[f"pandalm_{judge}"].read_text()))
        names = {"1": "A", "2": "B", "0": "tie", "Tie": "tie"}
        columns[judge] = said.set_index("idx").loc[given["idx"], key].astype(str).map(names).fillna("x").tolist()
    verdicts = {name: "".join(v[0] for v in column) for name, column in columns.items()}
    models = sorted({*pairs["author_a"], *pairs["author_b"]})
    codes = {side: [models.index(m) for m in pairs[f"author_{side}"]] for side in "ab"}
    words = {f"words_{side}": pairs[f"words_{side}"].tolist() for side in "ab"}
    questions = pairs["cluster_id"].str[1:].astype(int).tolist()
    pandalm = {"models": models, "author_a": codes["a"], "author_b": codes["b"], "question": questions, **words}
    llmbar: dict[str, dict[str, Any]] = {part: {} for part in LLMBAR_SETS}
    for name, (part, judge) in _LLMBAR.items():
        rows = json.loads(paths[name].read_text())
        games = [[row["results"][0][f"swap = {swap}"]["winner"] for swap in (False, True)] for row in rows]
        found: dict[str, Any] = {"human": "".join("AB"[row["label"] - 1] for row in rows)}
        found |= {f"words_{s}": [len(row[f"output_{k}"].split()) for row in rows] for k, s in ((1, "a"), (2, "b"))}
        if llmbar[part].setdefault("pairs", found) != found:
            raise EvidenceError(f"{name} judges other pairs than the other files of {part}", hint="check sources.toml")
        llmbar[part][judge] = " ".join("".join({"1": "A", "2": "B"}.get(w, "x") for w in pair) for pair in games)
    return {"pandalm": pandalm | {"verdicts": verdicts}, "llmbar": llmbar}


def people(path: Path) -> pd.DataFrame:
    """PandaLM's test pairs in file order: texts, who wrote them, words, votes of three people and their majority.

    `human`: "A" or "B" where at least two people prefer that answer, else "tie" (two see none better) or "split".
    `cluster_id` names the request: a pair shares it with 1 to 10 others.
    """
    rows = pd.DataFrame(json.loads(path.read_text()))
    rows[_TEXTS] = rows[_TEXTS].astype(str)  # six answers are True or False
    request = pd.factorize(rows["instruction"] + "\n" + rows["input"])[0]
    votes = rows[["annotator1", "annotator2", "annotator3"]]
    counts = [(votes == k).sum(axis=1) for k in (1, 2, 0)]
    authors = rows["cmp_key"].str.split("_", expand=True)
    return pd.DataFrame(
        {
            "pair_id": "pandalm:" + rows["idx"].astype(str), "cluster_id": [f"q{k:03}" for k in request],
            "author_a": authors[0], "author_b": authors[1],
            "human": np.select([count >= 2 for count in counts], ["A", "B", "tie"], "split"),
            "votes_a": counts[0], "votes_b": counts[1],
            "task": (rows["instruction"] + "\n" + rows["input"]).str.strip(),
            "text_a": rows["response1"], "text_b": rows["response2"],
            "words_a": rows["response1"].str.split().str.len(), "words_b": rows["response2"].str.split().str.len(),
        }
    )  # fmt: skip


def sampled_pairs(n: int) -> pd.DataFrame:
    """The first `n` pairs, in a fixed random order, of those on which people decide: a smaller sample is part of a
    larger one.
    """
    pairs = people(download.fetch(["pandalm_people"])["pandalm_people"])
    decided = pairs[pairs["human"].isin(["A", "B"])]
    return decided.iloc[np.random.default_rng(SEED).permutation(len(decided))[:n]].reset_index(drop=True)


def prompts(pairs: pd.DataFrame, endings: tuple[str, ...] = ENDINGS) -> pd.DataFrame:
    """Both orders of every pair with every ending, neighbours sharing a prefix: `condition`, `order`, chat `prompt`."""
    words = wording()
    rows = pairs.merge(pd.DataFrame(product((0, 1), endings), columns=["order", "condition"]), how="cross")
    shown = np.where(rows[["order"]] == 0, rows[["text_a", "text_b"]], rows[["text_b", "text_a"]])
    begin = [words["beginning"].lstrip().format(task=t, first=a, second=b) for t, (a, b) in zip(rows["task"], shown)]  # noqa: B905
    return rows.assign(prompt=[_chat(b + words["endings"][e]) for b, e in zip(begin, rows["condition"], strict=True)])


def wording() -> dict[str, Any]:
    """The project's prompts: `beginning`, `endings` by condition, `conclude` and `rewrite`."""
    return tomllib.loads((evidence_dir() / "prompts" / "mitigation.toml").read_text())


def record(judge: Judge, *, command: str, stage: str = "base", pairs: int | str = 0) -> Record:
    """Judge the first `pairs` sampled pairs in both orders and write the record; what a stopped run did is kept.

    Stages: `base` (baseline and two instructions, `ENDINGS`), `reasoned` (the judge compares the answers in writing,
    then names one), `rewritten` (the judge rewrites both answers and judges those); `cut`: what it wrote was stopped by
    one of `LIMITS`. The verdict is the likelier name, or
    "unparsed" where the likeliest next token is neither.
    """
    from reprolib.inference.store import Store

    n, words = int(pairs) or pick("stage", stage, STAGES), wording()
    written: dict[str, Any] = {"store": Store(store_folder(STUDY)), "progress": True}
    sample = sampled_pairs(n).assign(cut=False)
    if stage == "rewritten":
        asked = [
            _chat(words["rewrite"].strip().format(text=t)) for t in sample[["text_a", "text_b"]].to_numpy().ravel()
        ]
        new = judge.generate(asked, max_new_tokens=LIMITS[stage], **written)
        sample[["text_a", "text_b"]] = new["text"].str.strip().to_numpy().reshape(-1, 2)
        sample["cut"] = ~new["stopped"].to_numpy().reshape(-1, 2).all(axis=1)
        sample[["words_a", "words_b"]] = sample[["text_a", "text_b"]].map(lambda text: len(text.split()))
    table = prompts(sample, {"reasoned": ("reason",), "rewritten": ("baseline",)}.get(stage, ENDINGS))
    if stage == "reasoned":
        said = judge.generate(table["prompt"].tolist(), max_new_tokens=LIMITS[stage], **written)
        table["cut"] = ~said["stopped"]
        turns = [[{"role": "assistant", "content": t.strip() or "."}, *_chat(words["conclude"])] for t in said["text"]]
        table["prompt"] = [[*first, *more] for first, more in zip(table["prompt"], turns, strict=True)]
    if stage != "base":
        table["condition"] = stage
    table, made = ask(
        judge, table.drop(columns=["task", "text_a", "text_b"]), NAMES, study=STUDY, command=command,
        keep="logp_|in_label|logit_|top_logits",
    )  # fmt: skip
    likeliest = table.pop("top_logits").str[0] <= table.pop("logit_1").combine(table.pop("logit_2"), max)
    verdict = np.where(likeliest, verdicts(table, NAMES), "unparsed")
    table = table.assign(arm="", verdict=verdict, prompt_digest=table["prompt_digest"].str[:16])
    return write_record(table, PAIRWISE, **made | {"judge": f"{made['judge']}_{stage}"})


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
