"""Tables of numbers that a paper or its repository prints, as CSV files with a source in every row."""

from __future__ import annotations

import tomllib
from typing import Any

import pandas as pd

from reprolib.errors import EvidenceError
from reprolib.project import evidence_dir

_ORIGIN = ["source", "locator"]


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
    if not path.is_file():
        raise EvidenceError(f"{path.name} is described in tables.toml but missing", hint="restore it from git")
    table = pd.read_csv(path)
    _check(table, tables[name], path.name)
    return table


def describe() -> dict[str, Any]:
    """What is in `tables.toml`: for each table its `about`, `key`, `rates` and `other` columns."""
    return tomllib.loads((evidence_dir() / "published" / "tables.toml").read_text())


def _check(table: pd.DataFrame, wants: dict[str, Any], file: str) -> None:
    columns = [*wants["key"], *wants["rates"], *wants["other"], *_ORIGIN]
    if missing := [c for c in columns if c not in table]:
        raise EvidenceError(f"{file} lacks the column {', '.join(missing)}", hint=f"it must have {', '.join(columns)}")
    if empty := [c for c in columns if table[c].isna().any()]:
        hint = f"line {_line(table[empty].isna())}"
        raise EvidenceError(f"{file} has an empty cell in {', '.join(empty)}", hint=hint)
    for column in wants["rates"]:
        outside = ~pd.to_numeric(table[column], errors="coerce").between(0, 100)
        if outside.any():
            given = table.loc[outside, column].iloc[0]
            raise EvidenceError(f"{file} line {_line(outside)}: {column} is {given}", hint="a rate is 0 to 100 percent")
    if (twice := table.duplicated(wants["key"])).any():
        raise EvidenceError(f"{file} line {_line(twice)} repeats a row", hint=f"unique: {', '.join(wants['key'])}")


def _line(flags: pd.DataFrame | pd.Series[bool]) -> int:
    """Line of the file (the header is line 1) at the first flagged row."""
    rows = flags.any(axis=1) if isinstance(flags, pd.DataFrame) else flags
    return int(rows.to_numpy().argmax()) + 2
