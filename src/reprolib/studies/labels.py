"""Label bias (Chae et al., arXiv 2608.18091): sets of constraints that models chose, and what judges make of them.

Records of this project: every model chooses sets of 20 of 200 constraints, by a list it writes ("list") or by its odds
of taking each one alone ("pointwise"), and rates every set on four dimensions from 1 to 7, blind or under a label.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

from reprolib.evidence import DIRECT
from reprolib.evidence.recorded import Record, read_record, records
from reprolib.metrics.resampling import Array
from reprolib.project import evidence_dir

STUDY = "label_bias"
SIZE = 20  # constraints of a set
DIMENSIONS = ("originality", "dimensionality", "coherence", "tellability")


@cache
def pool() -> pd.DataFrame:
    """The project's own 200 constraints, indexed by id (1 to 200): element, category, text."""
    return pd.read_csv(evidence_dir() / "prompts" / "constraints.csv", index_col="id")


def judges(stage: str) -> list[str]:
    """Judges with a record of a stage: select, blind, label or json."""
    end = f"_{stage}"
    return [name.removesuffix(end) for study, name in records() if study == STUDY and name.endswith(end)]


def read(judge: str, stage: str) -> Record:
    """The record of one stage of a judge, as recorded; EvidenceError if there is none."""
    return read_record(STUDY, f"{judge}_{stage}", DIRECT)


def sets(arm: str = "") -> pd.DataFrame:
    """Every chosen set, of one way of choosing or of all: item_id, author, arm, `ids` (list of constraints)."""
    rows = pd.concat([read(judge, "select").table for judge in judges("select")])
    rows = rows[rows["author"].ne("") & rows["arm"].isin([arm] if arm else rows["arm"])]
    table = rows.groupby(["item_id", "author", "arm"], sort=False)["value"].agg(lambda ids: ids.astype(int).tolist())
    return table.rename("ids").reset_index()


def membership(chosen: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which constraints each of `sets` holds: shape (sets, 200)."""
    return np.stack([pool().index.isin(ids) for ids in chosen["ids"]])


def expected_score(logits: npt.ArrayLike) -> Array:
    """The mean rating, 1 to 7, under the softmax over the scale: logits of the ten digits, shape (..., 10) to (...).

    >>> expected_score(np.zeros(10)).tolist()
    4.0
    """
    return np.asarray(special.softmax(np.asarray(logits, dtype=float)[..., 1:8], axis=-1) @ np.arange(1, 8))


def blind(arm: str = "", *, dimension: str = "mean") -> pd.DataFrame:
    """Blind ratings by every judge: judge, author, item (a set), value on one dimension or the "mean" of the four."""
    return _ratings("blind", arm, dimension)


def labelled(*, dimension: str = "mean") -> pd.DataFrame:
    """Ratings under a label: judge, author, item, `arm` (the label), `own` (the judge chose the set), value."""
    table = _ratings("label", "", dimension)
    return table.assign(own=table["judge"] == table["author"])


def _ratings(stage: str, arm: str, dimension: str) -> pd.DataFrame:
    rows = pd.concat([read(judge, stage).table for judge in judges(stage)])
    rows = rows[rows["condition"].isin([*DIMENSIONS] if dimension == "mean" else [dimension])]
    rows = rows[rows["item_id"].str.contains(f":{arm}")]
    table = rows.groupby(["judge", "author", "item_id", "arm"], sort=False)["value"].mean().reset_index()
    return table.rename(columns={"item_id": "item"})
