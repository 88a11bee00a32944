"""Where numbers come from: what papers print, what others released, what this project recorded.

`PAIRWISE`: a row a judged pair and order; `author_a` wrote text A; `order` 0 showed A first, 1 B first; `verdict` names
the text, whatever its position. `DIRECT`: a row a scored item. Failures and ties are rows like any other.
"""

import importlib.util
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pandas as pd

from reprolib.errors import EvidenceError, pick
from reprolib.project import evidence_dir


class Schema(NamedTuple):
    """Columns of a table, those that name a row, the values allowed in some, and those in percent, 0 to 100."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    allowed: Mapping[str, tuple[object, ...]] = {}
    rates: tuple[str, ...] = ()


_RUN = ("judge", "condition", "arm", "repetition")
PAIRWISE = Schema(
    "pairwise",
    ("study", "pair_id", "cluster_id", *_RUN, "order", "author_a", "author_b", "verdict", "n_tokens", "prompt_digest"),
    ("study", "pair_id", *_RUN, "order"),
    {"order": (0, 1), "verdict": ("A", "B", "tie", "unparsed")},
)
DIRECT = Schema(
    "direct",
    ("study", "item_id", "cluster_id", "author", *_RUN, "scale_low", "scale_high", "value", "prompt_digest"),
    ("study", "item_id", "author", *_RUN, "scale_low", "scale_high"),
)


def check_table(table: pd.DataFrame, schema: Schema, *, origin: str) -> pd.DataFrame:
    """The table itself if it follows the schema (further columns are welcome), else EvidenceError with the line."""
    if missing := ", ".join(c for c in schema.columns if c not in table):
        hint = f"a {schema.name} table has {', '.join(schema.columns)}"
        raise EvidenceError(f"{origin} lacks the column {missing}", hint=hint)
    rules = [(c, table[c].isin(some), f"allowed: {', '.join(map(str, some))}") for c, some in schema.allowed.items()]
    rules += [(c, pd.to_numeric(table[c], errors="coerce").between(0, 100), "a rate is 0 to 100") for c in schema.rates]
    for column, fine, allowed in rules:
        if not fine.all():
            row = int(fine.to_numpy().argmin())
            raise EvidenceError(f"{origin} line {row + 2}: {column} is {table[column].iloc[row]}", hint=allowed)
    if (twice := table.duplicated(list(schema.key))).any():
        message = f"{origin} holds a row twice: line {int(twice.to_numpy().argmax()) + 2} repeats a row"
        raise EvidenceError(message, hint=f"unique: {', '.join(schema.key)}")
    return table


def published(name: str) -> pd.DataFrame:
    """The published table `name`, checked against `evidence/published/tables.toml`, else EvidenceError.

    Rates are in percent, 0 to 100; every row carries `source` and `locator`.

    >>> published("leakage_table1").query("benchmark == 'Arena-Hard'").pls.tolist()
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


def recipes() -> dict[str, Path]:
    """The files `evidence/recipes/NAME.py` by name: modules for one page or one file of evidence, not a library."""
    return {path.stem: path for path in sorted((evidence_dir() / "recipes").glob("*.py"))}


@cache
def recipe(name: str) -> ModuleType:
    """The module `evidence/recipes/NAME.py`, imported once; ParameterError if there is none."""
    spec: Any = importlib.util.spec_from_file_location(f"reprolib.recipes.{name}", pick("recipe", name, recipes()))
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
