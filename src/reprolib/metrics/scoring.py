"""From a judge's logits of digits to a score, in one way or another, and how its scores spread over the scale.

Scores are levels 0 to 4, whatever digits name them: level = digit - lowest digit of the range. Sources: Fujinuma, arXiv
2510.18196 (contrastive decoding); Liu et al. 2023, G-Eval (expected score); Zhou et al. 2024 (batch calibration).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from reprolib.metrics.resampling import Array

LEVELS = np.arange(5)
LAMBDAS, TEMPERATURES = (0.01, 0.1, 0.5, 1.0), (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)  # the paper's grid of 24 cells
# Under argmax only lambda / t matters: log-softmax of the assistant at temperature t subtracts a constant, and a/t.
BETAS = tuple(sorted({round(strength / t, 10) for strength in LAMBDAS for t in TEMPERATURES}))


def in_range(logits: npt.ArrayLike, low: int) -> Array:
    """The five logits of a range, by level: shape (..., 10 digits) to (..., 5)."""
    return np.asarray(logits, dtype=float)[..., low : low + 5]


def greedy(levels: npt.ArrayLike) -> Array:
    """The likeliest level, 0 to 4: shape (..., 5) to (...). Of equal logits the lowest level wins."""
    return np.asarray(np.argmax(levels, axis=-1), dtype=float)


def expected(levels: npt.ArrayLike) -> Array:
    """The mean level under the softmax over the range, between 0 and 4: shape (..., 5) to (...).

    >>> expected([0.0, 0.0, 0.0, 0.0, 0.0]).tolist()
    2.0
    """
    return np.asarray(special.softmax(levels, axis=-1) @ LEVELS)


def contrast(main: npt.ArrayLike, assistant: npt.ArrayLike, beta: float) -> Array:
    """Contrastive logits, main - beta * assistant; beta is lambda / t of the paper's rule, lambda * t of its code's.

    The paper subtracts lambda times the assistant's log-probabilities at temperature t from the main model's; terms
    that are equal for all levels change neither argmax nor softmax. Shapes (..., 5).
    """
    return np.asarray(main, dtype=float) - beta * np.asarray(assistant, dtype=float)


def calibrated(levels: npt.ArrayLike) -> Array:
    """Batch calibration: each level's logit less its mean over all items. No labels and no assistant are needed."""
    levels = np.asarray(levels, dtype=float)
    return levels - levels.mean(axis=tuple(range(levels.ndim - 1)), keepdims=True)


def penalised(logits: npt.ArrayLike, seen: npt.ArrayLike, penalty: float) -> Array:
    """Logits under a repetition penalty: those of tokens seen in the prompt shrink (transformers' logits processor).

    >>> penalised([21.0, -21.0, 20.5], [True, True, False], 1.05).tolist()
    [20.0, -22.05, 20.5]
    """
    logits = np.asarray(logits, dtype=float)
    return np.where(seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)


def histogram(scores: npt.ArrayLike) -> Array:
    """Share of each level among scores that lie between 0 and 4, rounded to levels (halves to the even one)."""
    return np.bincount(np.rint(scores).astype(int).ravel(), minlength=5) / np.size(scores)


def spread(scores: npt.ArrayLike, human: npt.ArrayLike, *, smoothing: float = 0.5) -> dict[str, float]:
    """How a judge uses the scale, beside the humans: both arrays hold levels, 0 to 4.

    modal_level; modal_share (0 to 1); entropy (bits, at most 2.32); kl: of the humans' histogram from the judge's, in
    bits, `smoothing` items added to each level; wasserstein and shift (mean judge less mean human), in levels.
    """
    ours, theirs = histogram(scores), histogram(human)
    q, p = ((h * np.size(scores) + smoothing) / (np.size(scores) + 5 * smoothing) for h in (ours, theirs))
    return {
        "modal_level": float(ours.argmax()), "modal_share": float(ours.max()),
        "entropy": float(stats.entropy(ours, base=2)), "kl": float(stats.entropy(p, q, base=2)),
        "wasserstein": float(np.abs(np.cumsum(ours - theirs)).sum()), "shift": float((ours - theirs) @ LEVELS),
    }  # fmt: skip


def slot_and_digit(means: npt.ArrayLike, lows: npt.ArrayLike) -> dict[str, float]:
    """Do favourites follow the place on the scale, or the digit that names it? Shares of variance explained, 0 to 1.

    `means` holds each range's mean logits by level, shape (ranges, 5), `lows` the ranges' lowest digits. Least squares
    of the means, centred within ranges, on the level ("slot"), on the digit, and on both. A linear trend counts for
    either: digit = level + lowest digit, so that no set of ranges can tell the two trends apart.
    """
    means = np.asarray(means, dtype=float)
    y = (means - means.mean(axis=1, keepdims=True)).ravel()
    digits = np.add.outer(np.asarray(lows), LEVELS)
    per_range = np.kron(np.eye(len(means)), np.ones((5, 1)))
    sides = {"slot": np.tile(np.eye(5), (len(means), 1)), "digit": np.eye(10)[digits.ravel()]}
    sides["both"] = np.hstack(list(sides.values()))

    def explained(design: Array) -> float:
        full = np.hstack([design, per_range])
        return float(1 - ((y - full @ np.linalg.pinv(full) @ y) ** 2).sum() / (y**2).sum())

    return {name: explained(design) for name, design in sides.items()}
