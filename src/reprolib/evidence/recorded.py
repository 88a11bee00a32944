"""Judgments that this project made: tables of ids and numbers, each with a manifest, under `evidence/recorded/`."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pooch

from reprolib.errors import EvidenceError
from reprolib.evidence import Schema, check_table
from reprolib.project import evidence_dir, write_text

if TYPE_CHECKING:
    from reprolib.inference.judge import Judge


class Manifest(NamedTuple):
    """How a record was made; `prompts` and `items`: SHA-256 over the rows' prompt digests and keys; `timed` rows took
    `seconds`, the rest were judged by runs before.
    """

    study: str
    judge: str
    origin: str
    weights: str
    dtype: str
    rows: int
    sha256: str
    prompts: str
    items: str
    versions: dict[str, str]
    hardware: str
    seconds: float
    date: str
    command: str
    timed: int = 0


class Record(NamedTuple):
    """A recorded table and how it was made."""

    table: pd.DataFrame
    manifest: Manifest


def records() -> list[tuple[str, str]]:
    """Study and judge of every record, sorted."""
    return sorted((path.parent.name, path.stem) for path in _folder().glob("*/*.json"))


def ask(
    judge: Judge, asked: pd.DataFrame, labels: Sequence[str], *, study: str, command: str, keep: str = "logp_|in_label"
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Judge the rows of `asked`: a table for `write_record`, and the fields of its manifest.

    `asked` holds `prompt`, and ids and numbers, the row's name first. The table has, for the prompt, what begins with
    `keep` in `Judge.label_logprobs`, logsumexp, n_tokens, prompt_digest; and study, judge, repetition (0). What a
    stopped run did is kept in `store_folder`.
    """
    from reprolib.inference.store import Store

    started, rows, store = time.monotonic(), asked.reset_index(drop=True), Store(store_folder(study))
    common: dict[str, Any] = {"items": rows.iloc[:, 0].tolist(), "store": store, "progress": True}
    scores = judge.label_logprobs(rows.pop("prompt").tolist(), labels, min_mass=0, **common)
    about = {"study": study, "judge": judge.weights.name}
    kept = scores.filter(regex=f"^({keep}|logsumexp$|n_tokens$|prompt_digest$)")
    made = judge.made(scores.attrs["run"], started=started, command=command)
    return pd.concat([rows, kept], axis=1).assign(**about, repetition=0), made | about


def verdicts(table: pd.DataFrame, labels: Sequence[str], *, least: float = 0.0) -> np.ndarray[Any, Any]:
    """A verdict a row: "A" or "B", the text that the likelier of the two labels names in this `order`, or "tie".

    "unparsed" where both labels together hold less than `least` of the probability: the likeliest answer is another.
    """
    first, second = (table[f"logp_{label}"] for label in labels)
    margin = (first - second) * (1 - 2 * table["order"])
    return np.select([table["in_label_mass"] < least, margin > 0, margin < 0], ["unparsed", "A", "B"], "tie")


def write_record(table: pd.DataFrame, schema: Schema, *, study: str, judge: str, **made: Any) -> Record:
    """Write a table of judgments and its manifest, whole or not at all; `made`: the other fields."""
    check_table(table, schema, origin=f"the new record {study}/{judge}")
    path = _folder(study) / f"{judge}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".parquet.part")
    table.to_parquet(fresh, index=False)
    names = {"items": table[list(schema.key)].astype(str).agg("|".join, axis=1), "prompts": table["prompt_digest"]}
    digests: Any = {field: hashlib.sha256("\n".join(values).encode()).hexdigest() for field, values in names.items()}
    digests["sha256"] = pooch.file_hash(fresh)
    manifest = Manifest(study=study, judge=judge, rows=len(table), **digests, **made)
    fresh.replace(path)
    write_text(path.with_suffix(".json"), json.dumps(manifest._asdict(), indent=2) + "\n")
    return Record(table, manifest)


def read_record(study: str, judge: str, schema: Schema) -> Record:
    """The record of `judge` in `study`; EvidenceError if there is none, or manifest, table or schema do not agree."""
    if (study, judge) not in records():
        raise EvidenceError(f"no record {study}/{judge}", hint=f"recorded: {', '.join(map('/'.join, records()))}")
    path = _folder(study) / f"{judge}.parquet"
    manifest = Manifest(**json.loads(path.with_suffix(".json").read_text()))
    if not path.is_file() or pooch.file_hash(path) != manifest.sha256:
        raise EvidenceError(f"{path.name} of {study} is not the table its manifest describes", hint="restore both")
    return Record(check_table(pd.read_parquet(path), schema, origin=f"{study}/{judge}"), manifest)


def store_folder(study: str) -> Path:
    """Where the unfinished judgments of a study are kept; git ignores it."""
    return _folder(study) / ".store"


def _folder(study: str = "") -> Path:
    return evidence_dir() / "recorded" / study
