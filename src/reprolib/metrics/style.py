"""What gives an author away: habits of format, and, of those who choose from one pool, the sets that they choose.

Sets are rows of a membership matrix, shape (n sets, items), bool; `authors` names who chose each, shape (n,).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats
from scipy.spatial.distance import pdist, squareform

from reprolib.errors import ParameterError
from reprolib.metrics.resampling import Array

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


def predict_author(
    data: Sequence[str] | pd.DataFrame, authors: Sequence[str], groups: Sequence[Any], *,
    ablated: Sequence[str] | pd.DataFrame | None = None,
) -> Any:  # fmt: skip
    """Whether a logistic regression names each text's author, never trained on a text of the same group (5 folds).

    `data`: texts, which become TF-IDF of words, marks and runs of white space; or their `style_counts`, in logarithms.
    With `ablated`, the same texts without some feature, the model learns from `data` and is asked about those.
    """
    from sklearn import feature_extraction, linear_model, model_selection, pipeline, preprocessing

    steps: list[Any] = [preprocessing.FunctionTransformer(np.log1p), preprocessing.StandardScaler()]
    change: Any = np.asarray
    if not isinstance(data, pd.DataFrame):
        tokens = feature_extraction.text.CountVectorizer(token_pattern=r"\w+|[^\w\s]|\s+", min_df=2)
        change = tokens.fit(data).transform  # to counts: nothing is learnt here
        steps = [feature_extraction.text.TfidfTransformer(sublinear_tf=True)]
    model, folds = pipeline.make_pipeline(*steps, linear_model.LogisticRegression()), model_selection.GroupKFold(5)
    learnt, asked = change(data), change(data if ablated is None else ablated)
    right, names = np.zeros(len(authors), dtype=bool), np.asarray(authors)
    for train, test in folds.split(names, groups=groups):
        right[test] = model.fit(learnt[train], names[train]).predict(asked[test]) == names[test]
    return right


def jaccard_matrix(sets: npt.ArrayLike) -> Array:
    """Jaccard index of each pair of sets, 0 to 1, shape (n, n); of any sizes (two empty sets count as equal)."""
    return np.asarray(1 - squareform(pdist(np.asarray(sets, dtype=bool), "jaccard")))


def mean_jaccard(matrix: npt.ArrayLike, authors: npt.ArrayLike) -> tuple[pd.Series, float]:
    """Mean Jaccard index over pairs of sets: within each author (NaN for a single set), and between authors."""
    one, two = np.triu_indices(len(authors := np.asarray(authors)), k=1)
    same, pairs = authors[one] == authors[two], pd.Series(np.asarray(matrix)[one, two])
    within = pairs[same].groupby(authors[one][same]).mean().reindex(np.unique(authors))
    return within, float(pairs[~same].mean())


def jaccard_chance(items: int, size: int) -> float:
    """Expected Jaccard index of two random sets of `size` out of `items`: exact, 0.0538 for 20 out of 200."""
    return float(stats.hypergeom(items, size, size).expect(lambda both: both / (2 * size - both)))


def knn_correct(matrix: npt.ArrayLike, authors: npt.ArrayLike, k: int) -> npt.NDArray[np.bool_]:
    """Whether the `k` sets nearest to each one (it left out) name its author; shape (n,). `matrix`: Jaccard indices.

    Sets as near as the k-th share the seats left, in fractions. Of authors with equal votes the one with the nearest
    set wins, then the one whose other sets are nearer on average, then the last by name; row order has no say.
    """
    near, own = np.array(matrix, dtype=float), np.unique(authors, return_inverse=True)[1]
    if not 1 <= k < len(own):
        raise ParameterError(f"k is {k} with {len(own)} sets", hint="it must be at least 1 and less than the sets")
    of = np.eye(own.max() + 1)[own]
    np.fill_diagonal(near, 0)
    with np.errstate(invalid="ignore"):
        average = np.nan_to_num((near @ of) / (of.sum(axis=0) - of))
    np.fill_diagonal(near, -1)
    last = np.sort(near, axis=1)[:, [-k]]
    closer, level = near > last, near == last
    seats = closer + level * (k - closer.sum(axis=1, keepdims=True)) / level.sum(axis=1, keepdims=True)
    nearest = np.stack([near[:, own == a].max(axis=1) for a in range(own.max() + 1)], axis=1)
    return np.asarray(np.lexsort((average.round(9), nearest, (seats @ of).round(9)), axis=-1)[:, -1] == own)
