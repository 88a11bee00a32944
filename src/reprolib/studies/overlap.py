"""Do judges dislike human summaries, or just differences? Overlap bias (Fang et al. 2026), released and recorded data.

Each pair is shown in both orders. With A the generated (or, of two models', the larger model's) summary, `theta` is the
mean over both orders of the log-odds of A, and `pi` its log-odds when shown first less when shown second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from reprolib.evidence import PAIRWISE
from reprolib.evidence.recorded import Record, read_record
from reprolib.metrics.overlap import LABELS, Overlap, slope, tie_label
from reprolib.metrics.resampling import Estimate

STUDY = "overlap"
JUDGES = {"gpt4": "GPT-4", "gpt35": "GPT-3.5", "llama": "Llama 2"}  # of the released choices
REWRITER = "qwen2.5-coder-1.5b"  # wrote the rephrased summaries of the record


def released_pairs(values: dict[str, Any]) -> pd.DataFrame:
    """The public study "overlap", a row a pair: shares 0 to 1, log-odds in nats, `overlap`, `label`, `cluster_id`."""
    table = pd.concat([pd.DataFrame(block).rename_axis("article").reset_index() for block in values["pairs"]])
    labels = [LABELS[k] for k in table["label"]]
    return _described(table.assign(label=labels, cluster_id=table["data"] + table["article"].astype(str)))


def recorded_pairs(judge: str, *, arm: str = "") -> tuple[pd.DataFrame, Record]:
    """The record of `judge` in the form of `released_pairs`, with `condition` and `in_label_mass`, and the record."""
    kept = read_record(STUDY, judge, PAIRWISE)
    rows = kept.table[kept.table["arm"] == arm]
    rows = rows.assign(odds=(rows["logp_summary_1"] - rows["logp_summary_2"]) * (1 - 2 * rows["order"]))
    same = ["cluster_id", "condition", "author_a", "author_b", *Overlap._fields, "words_a", "words_b"]
    wide = rows.pivot(index=same, columns="order", values=["odds", "verdict", "in_label_mass"])
    first, second = (wide["odds"][k].astype(float) for k in (0, 1))
    table = pd.DataFrame({"theta": (first + second) / 2, "pi": first - second})
    table["chosen"] = (expit(first) + expit(second)) / 2
    table["in_label_mass"] = wide["in_label_mass"].astype(float).mean(axis=1)
    table["label"] = [tie_label(*pair) for pair in wide["verdict"].to_numpy()]
    table = table.reset_index().rename(columns={"author_a": "a", "author_b": "b"})
    return _described(table.assign(data="cnn", judge=judge)), kept


def _described(table: pd.DataFrame) -> pd.DataFrame:
    cell = table["judge"] + " " + table["data"] + " " + table["a"] + " " + table["b"]
    ratio = np.log(table["words_a"] / table["words_b"])
    mean, human = table[[*Overlap._fields]].mean(axis=1), table["b"] == "human"
    return table.assign(overlap=mean, log_ratio=ratio, human=human, cell=cell).reset_index(drop=True)


def effect(
    pairs: pd.DataFrame, of: str = "human", *, y: str = "theta", by: str = "overlap", length: bool = True,
    draws: int = 2_000, seed: int = 0,
) -> Estimate:  # fmt: skip
    """Slope of `y` on overlap (per unit): pairs with a human text ("human"), without ("models"), or their "excess".

    A constant for each judge, data set and pair of authors (held as in the sample); beside overlap the logarithm of the
    ratio of lengths, if `length`; rows without `y` are left out; bootstrap of articles.
    """
    rows = pairs[pairs[y].notna() & ((of == "excess") | (pairs["human"] == (of == "human")))]
    names = [y, by, "log_ratio"][: 2 + length]
    x = rows[names].sub(rows.groupby("cell")[names].transform("mean")).to_numpy(dtype=float)
    design, at = x[:, 1:], 0
    if of == "excess":
        design, at = np.hstack([design, design * rows[["human"]].to_numpy()]), design.shape[1]
    return slope(x[:, 0], design, rows["cluster_id"], at=at, draws=draws, seed=seed)
