"""Are recorded judgments still what their model says? Judge a few rows again and show the largest difference.

The record that every machine can check is of our own making: 64 everyday questions, each with a sound answer (text A)
and a flawed one (text B), judged in both orders by SmolLM2-135M-Instruct, whose weights come in a Python wheel.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from reprolib.errors import EvidenceError
from reprolib.evidence import PAIRWISE
from reprolib.evidence.recorded import Record, read_record, write_record
from reprolib.project import evidence_dir

if TYPE_CHECKING:
    from reprolib.inference.judge import Judge
    from reprolib.inference.tokens import Prompt

STUDY = "evidence_check"
LABELS = ("1", "2")
PROMPT = """Two people answered the same question. Say which answer helps more.

Question: {question}

Answer 1: {first}

Answer 2: {second}

Which answer helps more? Reply with 1 or 2 and nothing else."""


class Recheck(NamedTuple):
    """How far `rows` re-judged rows are from the record: `largest` absolute difference in label log-probabilities."""

    largest: float
    rows: int
    seed: int


def items() -> pd.DataFrame:
    """The 64 questions: `pair_id`, `question`, `text_a` (sound), `text_b` (flawed)."""
    return pd.read_json(evidence_dir() / "recorded" / STUDY / "items.jsonl", lines=True, dtype=False)


def prompts() -> pd.DataFrame:
    """128 rows: each question with text A first (order 0) and with text B first (order 1), and its chat `prompt`."""
    rows = []
    for item in items().itertuples():
        for order, (first, second) in enumerate([(item.text_a, item.text_b), (item.text_b, item.text_a)]):
            text = PROMPT.format(question=item.question, first=first, second=second)
            rows.append({"pair_id": item.pair_id, "order": order, "prompt": [{"role": "user", "content": text}]})
    return pd.DataFrame(rows)


def record(judge: Judge, *, command: str) -> Record:
    """Judge all prompts and write the record: a `pairwise` table with `logp_1`, `logp_2` and `in_label_mass`."""
    started, asked = time.monotonic(), prompts()
    scores = judge.label_logprobs(asked["prompt"].tolist(), LABELS, items=asked["pair_id"].tolist())
    numbers = scores[["logp_1", "logp_2", "in_label_mass", "logsumexp", "n_tokens", "prompt_digest"]]
    verdict = np.where((scores["logp_1"] > scores["logp_2"]) == (asked["order"] == 0), "A", "B")
    fixed: dict[str, Any] = {"study": STUDY, "judge": judge.weights.name, "condition": "plain", "arm": ""}
    fixed |= {"repetition": 0, "author_a": "sound", "author_b": "flawed", "cluster_id": asked["pair_id"]}
    fixed["verdict"] = np.where(scores["logp_1"] == scores["logp_2"], "tie", verdict)
    table = pd.concat([asked[["pair_id", "order"]], numbers], axis=1).assign(**fixed)
    made = judge.made(scores.attrs["run"], started=started, command=command)
    return write_record(table, PAIRWISE, study=STUDY, judge=judge.weights.name, **made)


def recheck(judge: Judge, *, k: int = 8, seed: int = 0) -> Recheck:
    """Judge `k` random rows of this study's record again; EvidenceError as `largest_difference`, or for no record."""
    kept = read_record(STUDY, judge.weights.name, PAIRWISE)
    asked = prompts().merge(kept.table, on=["pair_id", "order"], validate="one_to_one")
    return largest_difference(judge, kept, asked["prompt"].tolist(), LABELS, k=k, seed=seed)


def largest_difference(
    judge: Judge, record: Record, asked: Sequence[Prompt], labels: Sequence[str], *, k: int = 8, seed: int = 0
) -> Recheck:
    """Judge `k` rows of any record again, chosen by `seed`; `asked` holds the prompt of every row, in order.

    Raises EvidenceError: other weights or data type than the record's, or a prompt that is not the recorded one.
    """
    if (judge.weights.digest, judge.weights.dtype) != (record.manifest.weights, record.manifest.dtype):
        hint = f"load {record.manifest.origin} in {record.manifest.dtype}"
        raise EvidenceError(f"{judge.weights.name} is not the model of the record", hint=hint)
    rows = np.sort(np.random.default_rng(seed).choice(len(record.table), size=min(k, len(record.table)), replace=False))
    then = record.table.iloc[rows]
    now = judge.label_logprobs([asked[row] for row in rows], labels, min_mass=0)
    if any(not new.startswith(old) for new, old in zip(now["prompt_digest"], then["prompt_digest"], strict=True)):
        hint = "template, tokenizer or prompt text changed since the record was made"
        raise EvidenceError("a prompt is not the recorded one", hint=hint)
    columns = [f"logp_{label}" for label in labels]
    return Recheck(float(np.abs(now[columns].to_numpy() - then[columns].to_numpy()).max()), len(rows), seed)
