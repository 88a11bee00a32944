"""Judgments that this project made: tables of ids and numbers, each with a manifest, under `evidence/recorded/`."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pooch

from reprolib.errors import EvidenceError
from reprolib.evidence import Schema, check_table
from reprolib.project import evidence_dir, write_text


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


def write_record(table: pd.DataFrame, schema: Schema, *, study: str, judge: str, **made: Any) -> Record:
    """Write a table of judgments and its manifest, whole or not at all; `made`: the manifest's fields from `origin`."""
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
