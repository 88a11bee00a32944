"""Overlap of two texts, and what a judge's two answers about them say. Pure functions of texts and log-odds.

Overlap is the mean of BLEU-1, BLEU-4, ROUGE-1 and ROUGE-2 (Fang et al. 2026), which leave library, tokens, case and
smoothing open: `READINGS` holds the choices. Identical texts of four tokens or more have overlap 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from reprolib.metrics.resampling import Array, Estimate, bootstrap, cluster_sums

LABELS = ("Generated", "Human", "Tied, chose first", "Tied, chose last", "other")
_FOUR = (0.25, 0.25, 0.25, 0.25)
_TOKENS = {"words": r"\w+|[^\w\s]", "13a": r"\d+(?:[.,]\d+)*|[^\W\d_]+|\S"}  # 13a: translation's, 1,000 is one
READINGS: dict[str, dict[str, Any]] = {
    "base": {},
    "BLEU cased": {"cased": True},
    "BLEU of Treebank tokens": {"tokens": "treebank"},
    "BLEU unsmoothed": {"smoothing": "method0"},
    "BLEU smoothed by length": {"smoothing": "method4"},
    "BLEU-4 as 4-gram precision alone": {"four": (0, 0, 0, 1)},
    "BLEU cased, 13a tokens, exponential": {"tokens": "13a", "cased": True, "smoothing": "method3"},
    "ROUGE recall": {"rouge": "recall"},
    "ROUGE of stems": {"stem": True},
}


class Overlap(NamedTuple):
    """The four measures, each 0 to 1."""

    bleu1: float
    bleu4: float
    rouge1: float
    rouge2: float


def overlap(
    text: str, reference: str, *, tokens: str = "words", cased: bool = False, smoothing: str = "method1",
    four: tuple[float, ...] = _FOUR, rouge: str = "fmeasure", stem: bool = False,
) -> Overlap:  # fmt: skip
    """Overlap of `text` with `reference`; BLEU's precision counts in `text`, so swapping the two is another number.

    BLEU's `tokens` (words, treebank, 13a), case, `smoothing` (nltk's names; Chen & Cherry 2014) and weights of BLEU-4;
    the part of ROUGE (fmeasure, recall, precision), and whether it compares stems.

    >>> round(sum(overlap("the cat sat on the mat", "the cat lay on the mat")) / 4, 2)
    0.63
    """
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    words, smooth = _tokeniser(tokens, cased), getattr(SmoothingFunction(), smoothing)
    if smoothing == "method0":  # nltk's own warns of each pair without a common 4-gram
        smooth = lambda p_n, **_: [max(p.numerator / p.denominator, 1e-300) for p in p_n]  # noqa: E731
    bleu = sentence_bleu([words(reference)], words(text), weights=[(1.0,), four], smoothing_function=smooth)
    scores = _rouge(stem).score(reference, text)
    return Overlap(*bleu, *(float(getattr(scores[name], rouge)) for name in ("rouge1", "rouge2")))


def tie_label(shown_first: str, shown_second: str) -> str:
    """A pair's label by the paper's rule: the choice with A (generated) shown first, then second; B is the human text.

    >>> [tie_label(*pair) for pair in ("AA", "BB", "AB", "BA", "A?")]
    ['Generated', 'Human', 'Tied, chose first', 'Tied, chose last', 'other']
    """
    return dict(zip(("AA", "BB", "AB", "BA"), LABELS, strict=False)).get(shown_first + shown_second, LABELS[4])


def expected_shares(first: npt.ArrayLike, second: npt.ArrayLike, *, temperature: float = 1.0) -> Array:
    """Chances of the first four `LABELS`, shape (..., 4), when each order's choice is drawn on its own.

    `first`, `second`: log-odds of A with A shown first, and second; divided by `temperature`.

    >>> expected_shares(0, 0).tolist()  # a coin
    [0.25, 0.25, 0.25, 0.25]
    """
    p, q = (expit(np.asarray(x, dtype=float) / temperature) for x in (first, second))
    return np.stack([p * q, (1 - p) * (1 - q), p * (1 - q), (1 - p) * q], axis=-1)


def slope(
    y: npt.ArrayLike, design: npt.ArrayLike, clusters: npt.ArrayLike, *, at: int, draws: int = 2_000, seed: int = 0
) -> Estimate:
    """Least-squares coefficient `at` of `y` (n,) on `design` (n, k), with a bootstrap over whole clusters (articles).

    >>> x = np.arange(40) % 7
    >>> slope(3 + 2 * x, np.stack([np.ones(40), x], axis=1), np.arange(40) // 2, at=1, draws=100).text(1)
    '2.0 [2.0, 2.0]'
    """
    x, k = np.asarray(design, dtype=float), np.shape(design)[1]
    rows = np.einsum("ni,nj->nij", x, np.column_stack([x, np.asarray(y, dtype=float)]))

    def coefficient(sums: Array) -> Any:
        table = sums.reshape(*sums.shape[:-1], k, k + 1)
        return (np.linalg.pinv(table[..., :k], hermitian=True) @ table[..., k:])[..., at, 0]

    return bootstrap(cluster_sums(rows.reshape(len(x), -1), clusters), coefficient, draws=draws, seed=seed)


@cache
def _tokeniser(tokens: str, cased: bool) -> Callable[[str], list[str]]:
    from nltk.tokenize import TreebankWordTokenizer

    cut = TreebankWordTokenizer().tokenize if tokens == "treebank" else re.compile(_TOKENS[tokens]).findall
    return cut if cased else lambda text: cut(text.lower())


@cache
def _rouge(stem: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1", "rouge2"], use_stemmer=stem)
