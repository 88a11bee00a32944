"""Tables of numbers that a paper or its repository prints, as CSV files with a source in every row."""

import tomllib
from typing import Any

import pandas as pd

from reprolib.errors import EvidenceError, pick
from reprolib.evidence import Schema, check_table
from reprolib.project import evidence_dir


def load(name: str) -> pd.DataFrame:
    """The published table `name`, checked against `evidence/published/tables.toml`, else EvidenceError.

    Rates are in percent, 0 to 100; every row carries `source` and `locator`.

    >>> load("leakage_table1").query("benchmark == 'Arena-Hard'").pls.tolist()
    [28.7, -1.5, 13.1, 37.1, 1.0, 25.4]
    """
    about, path = pick("published table", name, describe()), evidence_dir() / "published" / f"{name}.csv"
    key, rates = tuple(about["key"]), tuple(about["rates"])
    schema = Schema(name, (*key, *rates, *about["other"], "source", "locator"), key, rates=rates)
    table = check_table(pd.read_csv(path), schema, origin=path.name)
    if empty := [c for c in schema.columns if table[c].isna().any()]:
        raise EvidenceError(f"{path.name} has an empty cell in {', '.join(empty)}", hint="every cell needs a value")
    return table


def describe() -> dict[str, Any]:
    """What is in `tables.toml`: for each table its `about`, `key`, `rates` and `other` columns."""
    return tomllib.loads((evidence_dir() / "published" / "tables.toml").read_text())
