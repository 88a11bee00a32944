"""Are recorded judgments still what their model says? Judge a few rows again and show the largest difference.

The record that every machine can check is of our own making: 64 everyday questions, each with a sound answer (text A)
and a flawed one (text B), judged in both orders by SmolLM2-135M-Instruct, whose weights come in a Python wheel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from reprolib.errors import EvidenceError
from reprolib.evidence import PAIRWISE
from reprolib.evidence.recorded import Record, ask, read_record, verdicts, write_record
from reprolib.project import evidence_dir

if TYPE_CHECKING:
    from reprolib.inference.judge import Judge

STUDY = "evidence_check"
LABELS = ("1", "2")


def prompts() -> pd.DataFrame:
    """128 rows: the chat `prompt` of each question (`pair_id`) in `order` 0 (`text_a` first) and 1 (`text_b` first)."""
    folder = evidence_dir() / "recorded" / STUDY
    form = (folder / "prompt.txt").read_text().rstrip("\n")
    items = pd.read_json(folder / "items.jsonl", lines=True, dtype=False)
    asked = items.merge(pd.DataFrame({"order": [0, 1]}), how="cross")
    shown = np.where(asked[["order"]] == 0, asked[["text_a", "text_b"]], asked[["text_b", "text_a"]])
    texts = [form.format(question=q, first=a, second=b) for q, (a, b) in zip(asked.question, shown, strict=True)]
    return asked.assign(prompt=[[{"role": "user", "content": text}] for text in texts])


def record(judge: Judge, *, command: str) -> Record:
    """Judge all prompts and write the record: a `pairwise` table with `logp_1`, `logp_2` and `in_label_mass`."""
    asked = prompts()[["pair_id", "order", "prompt"]]
    table, made = ask(judge, asked, LABELS, study=STUDY, command=command)
    same = {"condition": "plain", "arm": "", "author_a": "sound", "author_b": "flawed", "cluster_id": table["pair_id"]}
    return write_record(table.assign(verdict=verdicts(table, LABELS), **same), PAIRWISE, **made)


def recheck(judge: Judge, *, kept: Record | None = None, k: int = 8, seed: int = 0) -> float:
    """Largest absolute difference of a label's log-probability when `k` random rows are judged again.

    `kept` is the judge's own record unless given. EvidenceError: no record, another model's, or another prompt's.
    """
    table, about = kept or read_record(STUDY, judge.weights.name, PAIRWISE)
    if (own := judge.weights).digest != about.weights or own.dtype != about.dtype:
        raise EvidenceError(f"{own.name} is not the model of the record", hint=f"load {about.origin} in {about.dtype}")
    rows = np.sort(np.random.default_rng(seed).choice(len(table), size=min(k, len(table)), replace=False))
    then = prompts().merge(table, on=["pair_id", "order"], validate="one_to_one").iloc[rows]
    now = judge.label_logprobs(then["prompt"].tolist(), LABELS, min_mass=0)
    if any(not new.startswith(old) for new, old in zip(now["prompt_digest"], then["prompt_digest"], strict=True)):
        raise EvidenceError("a prompt is not the recorded one", hint="template, tokenizer or prompt text changed")
    return float(np.abs(now[["logp_1", "logp_2"]].to_numpy() - then[["logp_1", "logp_2"]].to_numpy()).max())
