"""Judgments that this project made: a Parquet table and a JSON manifest that says how, under `evidence/recorded/`.

The table holds ids and numbers only; the manifest pins it by SHA-256, and the model by weight digest and data type.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pooch

from reprolib.errors import EvidenceError
from reprolib.evidence import Schema, check_table
from reprolib.project import evidence_dir, write_text


@dataclass(frozen=True)
class Manifest:
    """How a record was made; `prompts` and `items` are SHA-256 over the rows' prompt digests and over their keys.

    `seconds` is the time of the command that finished it, which computed `timed` of the rows (the rest: runs before).
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


def write_record(table: pd.DataFrame, schema: Schema, *, study: str, judge: str, **made: Any) -> Record:
    """Write a table of judgments and its manifest; both appear whole or not at all.

    `made` says how: the manifest's fields from `origin` on. EvidenceError if the table breaks `schema`.
    """
    table = check_table(table, schema, origin=f"the new record {study}/{judge}")
    path = _folder() / study / f"{judge}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".parquet.part")
    table.to_parquet(fresh, index=False)
    keys = table[list(schema.key)].astype(str).agg("|".join, axis=1)
    made |= {"sha256": pooch.file_hash(fresh), "items": _digest(keys), "prompts": _digest(table["prompt_digest"])}
    manifest = Manifest(study=study, judge=judge, rows=len(table), **made)
    fresh.replace(path)
    write_text(path.with_suffix(".json"), json.dumps(asdict(manifest), indent=2) + "\n")
    return Record(table, manifest)


def read_record(study: str, judge: str, schema: Schema) -> Record:
    """The record of `judge` in `study`; EvidenceError if there is none, or manifest, table or schema do not agree."""
    path = _folder() / study / f"{judge}.parquet"
    if not path.is_file() or not path.with_suffix(".json").is_file():
        known = ", ".join("/".join(pair) for pair in records()) or "none yet"
        raise EvidenceError(f"no record {study}/{judge}", hint=f"recorded: {known}")
    try:
        manifest = Manifest(**json.loads(path.with_suffix(".json").read_text()))
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"the manifest of {study}/{judge} is damaged: {error}", hint="restore it") from error
    if pooch.file_hash(path) != manifest.sha256:
        raise EvidenceError(f"{path.name} of {study} is not the table its manifest describes", hint="restore both")
    return Record(check_table(pd.read_parquet(path), schema, origin=f"{study}/{judge}"), manifest)


def store_folder(study: str) -> Path:
    """Where the unfinished judgments of a study are kept; git ignores it."""
    return _folder() / study / ".store"


def _folder() -> Path:
    return evidence_dir() / "recorded"


def _digest(values: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(values).encode()).hexdigest()
