"""Tables of numbers that a paper or its repository prints, as CSV files with a source in every row."""

import tomllib

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
    folder = evidence_dir() / "published"
    about = pick("published table", name, tomllib.loads((folder / "tables.toml").read_text()))
    key, rates = tuple(about["key"]), tuple(about["rates"])
    schema = Schema(name, (*key, *rates, *about["other"], "source", "locator"), key, rates=rates)
    table = check_table(pd.read_csv(folder / f"{name}.csv"), schema, origin=f"{name}.csv")
    if empty := [c for c in schema.columns if table[c].isna().any()]:
        raise EvidenceError(f"{name}.csv has an empty cell in {', '.join(empty)}", hint="every cell needs a value")
    return table
