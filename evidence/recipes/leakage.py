"""What released files say about preference leakage (Li et al.): types of the questions, judgments of one judge."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from reprolib.evidence import published
from reprolib.evidence.public import public_study
from reprolib.metrics.resampling import bootstrap, cluster_sums
from reprolib.metrics.style import predict_author, style_counts


@public_study("leakage_types", sources=["leakage_gemini_judgments", "leakage_arena_types", "leakage_alpaca_types"])
def question_types(paths: dict[str, Path]) -> dict[str, Any]:
    """Questions by type (off-list labels are "Others") on Arena-Hard, AlpacaEval; Gemini-1.5's wins for its own."""
    names = dict(published("leakage_question_types")[["label", "type"]].to_numpy())
    pairs, *lists = (json.loads(path.read_text()) for path in paths.values())
    labels = [{q["question"]: q["categorization"]["question category"] for q in questions} for questions in lists]
    own = [labels[1][p["instruction"]] for p in pairs if p["preference"] == 1.0]
    *counts, wins = (Counter(names.get(x, "Others") for x in found) for found in (*(f.values() for f in labels), own))
    off_list = sum(x not in names for found in labels for x in found.values())
    return {"counts": counts, "off_list": off_list, "gemini_student_wins": wins}


@public_study("leakage_gemini_judgments", sources=["leakage_gemini_judgments"])
def gemini_judgments(paths: dict[str, Path]) -> dict[str, Any]:
    """What 805 released judgments of Gemini-1.5-flash say about two Mistral students, taught by Gemini and by LLaMA.

    The file names neither student; habits and rates say that output 1 is the Gemini student (an inference). Shares are
    estimates in percent, questions resampled; `separability`: how often each kind of feature names an answer's student.
    """
    items = pd.DataFrame(json.loads(paths["leakage_gemini_judgments"].read_text()))
    llama_wins = items.preference == 2.0
    second_wins = items.preference_raw_completion.str.contains("'model': 'model_2', 'rank': 1", regex=False)
    texts, questions = [*items.output_1, *items.output_2], [*items.instruction] * 2
    authors = ["Gemini-1.5"] * len(items) + ["LLaMA-3.3"] * len(items)
    counts = style_counts(texts)
    spaced = counts.double_spaces > 0
    named = {
        "words, marks and spaces": predict_author(texts, authors, questions),
        "nine format counts": predict_author(counts, authors, questions),
        "format counts without double spaces": predict_author(counts.drop(columns="double_spaces"), authors, questions),
        "double-space rule alone": spaced == np.equal(authors, "Gemini-1.5"),
    }

    def share(flags: npt.ArrayLike, clusters: npt.ArrayLike) -> dict[str, Any]:
        sums = cluster_sums(np.column_stack([flags, np.ones(np.size(flags))]), clusters)
        estimate = bootstrap(sums, lambda s: 100 * s[..., 0] / s[..., 1], draws=2_000, seed=0)
        rule = "percentile cluster bootstrap over questions, 2000 draws, 95%"
        return asdict(replace(estimate, n=np.size(flags), rule=rule))

    return {
        "second_shown_wins": 100 * float(second_wins.mean()),
        "longer_wins": 100 * float(((items.output_2.str.len() > items.output_1.str.len()) == llama_wins).mean()),
        "llama_student_rate": share(llama_wins, items.index),
        "separability": {name: share(right, questions) for name, right in named.items()},
        "has_double_space": (100 * spaced.groupby(np.array(authors)).mean()).to_dict(),
    }
