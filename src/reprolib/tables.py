"""The two tables that pass between parts, and the check at every door.

`pairwise`: one row a judged pair and order. `author_a` wrote text A, `author_b` text B; `order` 0 showed A first,
1 showed B first; `verdict` names the text (A or B), whatever its position. `direct`: one row a scored item.
Failures and ties are rows like any other: never dropped, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from reprolib.errors import EvidenceError


@dataclass(frozen=True)
class Schema:
    """Columns of a table, the ones that name a row, and the values allowed in some of them."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    allowed: dict[str, tuple[object, ...]]


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
    {},
)


def check_table(table: pd.DataFrame, schema: Schema, *, origin: str) -> pd.DataFrame:
    """The table itself, if it follows the schema; further columns (`logp_*`, `logit_*`, ...) are welcome.

    Raises EvidenceError naming `origin`: a missing column, a value that is not allowed, a row given twice.
    """
    if missing := [c for c in schema.columns if c not in table]:
        hint = f"a {schema.name} table has {', '.join(schema.columns)}"
        raise EvidenceError(f"{origin} lacks the column {', '.join(missing)}", hint=hint)
    for column, allowed in schema.allowed.items():
        if not (fine := table[column].isin(allowed)).all():
            given = table.loc[~fine, column].iloc[0]
            raise EvidenceError(f"{origin}: {column} is {given!r}", hint=f"allowed: {', '.join(map(str, allowed))}")
    if table.duplicated(list(schema.key)).any():
        raise EvidenceError(f"{origin} holds a row twice", hint=f"unique: {', '.join(schema.key)}")
    return table
