"""Habits of format that a student inherits from its teacher, and how well they tell two students apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
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
    """How often each habit of `HABITS` occurs: one row a text, one column a habit."""
    rows = [{name: len(re.findall(habit, text, re.MULTILINE)) for name, habit in HABITS.items()} for text in texts]
    return pd.DataFrame(rows)


def predict_author(data: Sequence[str] | pd.DataFrame, authors: Sequence[str], groups: Sequence[Any]) -> Any:
    """Whether a logistic regression names each text's author, never trained on a text of the same group (5 folds).

    `data`: texts, which become TF-IDF of words, marks and runs of white space; or their `style_counts`, in logarithms.
    """
    from sklearn import feature_extraction, linear_model, model_selection, pipeline, preprocessing

    steps: list[Any] = [preprocessing.FunctionTransformer(np.log1p), preprocessing.StandardScaler()]
    table: Any = data
    if not isinstance(data, pd.DataFrame):
        tokens = feature_extraction.text.CountVectorizer(token_pattern=r"\w+|[^\w\s]|\s+", min_df=2)
        table = tokens.fit_transform(data)  # counts: nothing is learnt here
        steps = [feature_extraction.text.TfidfTransformer(sublinear_tf=True)]
    model, folds = pipeline.make_pipeline(*steps, linear_model.LogisticRegression()), model_selection.GroupKFold(5)
    return np.equal(model_selection.cross_val_predict(model, table, authors, groups=groups, cv=folds), authors)
