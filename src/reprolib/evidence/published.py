"""Tables of numbers that a paper or its repository prints, as CSV files with a source in every row."""

from __future__ import annotations

import tomllib
from typing import Any

import pandas as pd

from reprolib.errors import EvidenceError
from reprolib.evidence import Schema, check_table
from reprolib.project import evidence_dir


def load(name: str) -> pd.DataFrame:
    """The published table `name`, checked against its description in `evidence/published/tables.toml`.

    Rates are in percent, 0 to 100; every row carries `source` and `locator`. Raises EvidenceError for an unknown
    table, a missing column or cell, a rate outside 0..100, or a duplicate row.

    >>> load("leakage_table1").query("benchmark == 'Arena-Hard'").pls.tolist()
    [28.7, -1.5, 13.1, 37.1, 1.0, 25.4]
    """
    tables = describe()
    if name not in tables:
        raise EvidenceError(f"no published table {name!r}", hint=f"allowed: {', '.join(sorted(tables))}")
    path = evidence_dir() / "published" / f"{name}.csv"
    key, rates, other = (tuple(tables[name][part]) for part in ("key", "rates", "other"))
    schema = Schema(name, (*key, *rates, *other, "source", "locator"), key, rates=rates)
    table = check_table(pd.read_csv(path), schema, origin=path.name)
    if empty := [c for c in schema.columns if table[c].isna().any()]:
        line = int(table[empty].isna().any(axis=1).to_numpy().argmax()) + 2
        raise EvidenceError(f"{path.name} has an empty cell in {', '.join(empty)}", hint=f"line {line}")
    return table


def describe() -> dict[str, Any]:
    """What is in `tables.toml`: for each table its `about`, `key`, `rates` and `other` columns."""
    return tomllib.loads((evidence_dir() / "published" / "tables.toml").read_text())
