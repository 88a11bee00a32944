"""Habits of format that a student inherits from its teacher, and how well they tell two students apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

# One pattern a habit: what is counted in a Markdown answer.
HABITS = {
    "headings": r"^#{1,6} ",
    "bold": r"\*\*[^*\n]+\*\*",
    "bullets": r"^\s*[*+-] ",
    "numbered": r"^\s*\d+[.)] ",
    "code_fences": r"^```",
    "table_rows": r"^\|.*\|\s*$",
    "paragraph_breaks": r"\n\s*\n",
    "exclamations": r"!",
    "double_spaces": r"[.!?:]  (?=\S)",
}


def style_counts(texts: Sequence[str]) -> pd.DataFrame:
    """How often each habit of `HABITS` occurs: one row a text, one column a habit.

    >>> style_counts(["**Two** points.  Listed:\\n* one\\n* two"]).loc[0, ["bold", "bullets", "double_spaces"]].tolist()
    [1, 2, 1]
    """
    rows = [{name: len(re.findall(habit, text, re.MULTILINE)) for name, habit in HABITS.items()} for text in texts]
    return pd.DataFrame(rows)


def predict_author(
    data: Sequence[str] | pd.DataFrame, authors: Sequence[str], groups: Sequence[Any], *, folds: int = 5
) -> npt.NDArray[np.bool_]:
    """Whether a logistic regression names each text's author, never trained on a text of the same group.

    `data`: texts, which become TF-IDF of words, punctuation marks and runs of white space; or their `style_counts`,
    which enter as log(1 + count). Groups are questions. Returns one flag a text.
    """
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    if isinstance(data, pd.DataFrame):
        table: Any = data
        model = make_pipeline(FunctionTransformer(np.log1p), StandardScaler(), LogisticRegression())
    else:
        tokens = CountVectorizer(token_pattern=r"\w+|[^\w\s]|\s+", min_df=2)
        table = tokens.fit_transform(data)  # counts: nothing is learnt here
        model = make_pipeline(TfidfTransformer(sublinear_tf=True), LogisticRegression())
    predicted = cross_val_predict(model, table, np.asarray(authors), groups=groups, cv=GroupKFold(folds))
    return np.asarray(predicted == np.asarray(authors))
