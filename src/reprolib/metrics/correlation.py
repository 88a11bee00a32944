"""Agreement of a judge with humans: correlations as functions of cross tables, so that articles can be resampled.

A cross table counts how many summaries have both a level of the judge's score and one of the humans'. Articles' tables
add up; Pearson's, Spearman's and Kendall's coefficients follow from the sum (ties as in scipy.stats).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from reprolib.errors import ParameterError
from reprolib.metrics.resampling import Array, Statistic

Coefficient = Literal["pearson", "spearman", "kendall", "kendall_c"]
COEFFICIENTS: tuple[Coefficient, ...] = get_args(Coefficient)


class CrossTable(NamedTuple):
    """Counts by cluster and cell, shape (clusters, cells); a cell is a level of x and one of y, as indices."""

    sums: Array
    at_x: npt.NDArray[np.intp]
    at_y: npt.NDArray[np.intp]
    x: Array
    y: Array

    def correlation(self, kind: Coefficient = "spearman") -> Statistic:
        """The coefficient, -1 to 1, of summed counts: shape (..., cells) to (...), NaN where x or y is constant.

        "kendall" is tau-b, which scipy and the paper's code compute; "kendall_c" is Stuart's tau-c. ParameterError for
        another kind.
        """
        if kind not in COEFFICIENTS:
            raise ParameterError(f"coefficient is {kind!r}", hint=f"allowed: {', '.join(COEFFICIENTS)}")
        return self._product_moment(kind) if kind in ("pearson", "spearman") else self._tau(kind)

    def pooled(self, kind: Coefficient = "spearman") -> float:
        """The coefficient over all clusters."""
        return float(self.correlation(kind)(self.sums.sum(axis=0)))

    def within(self, kind: Coefficient = "spearman") -> Array:
        """The coefficient in each cluster, shape (clusters,); NaN where either side is constant."""
        return np.asarray(self.correlation(kind)(self.sums))

    def _product_moment(self, kind: str) -> Statistic:
        to_y = np.eye(len(self.y))[self.at_y]
        starts = np.flatnonzero(np.diff(self.at_x, prepend=-1))  # cells are in order of x

        def statistic(sums: Array) -> Any:
            in_x, in_y, x, y = np.add.reduceat(sums, starts, axis=-1), sums @ to_y, self.x, self.y
            if kind == "spearman":  # midranks among the counted items
                x, y = (side.cumsum(-1) - side / 2 for side in (in_x, in_y))
            n = sums.sum(-1, keepdims=True)
            with np.errstate(invalid="ignore", divide="ignore"):
                dx, dy = (v - (v * c).sum(-1, keepdims=True) / n for v, c in ((x, in_x), (y, in_y)))
                both = (sums * dx[..., self.at_x] * dy[..., self.at_y]).sum(-1)
                spread = (in_x * dx**2).sum(-1), (in_y * dy**2).sum(-1)
                return np.where(np.minimum(*spread) > 1e-12, both / np.sqrt(spread[0] * spread[1]), np.nan)

        return statistic

    def _tau(self, kind: str) -> Statistic:
        def statistic(sums: Array) -> Any:
            counts = np.zeros((*sums.shape[:-1], len(self.x), len(self.y)))
            counts[..., self.at_x, self.at_y] = sums
            below = counts.cumsum(-2) - counts  # items with a lower x, by their level of y
            lower, higher = below.cumsum(-1) - below, below.sum(-1, keepdims=True) - below.cumsum(-1)
            margin = (counts * (lower - higher)).sum((-1, -2))
            in_x, in_y, n = counts.sum(-1), counts.sum(-2), counts.sum((-1, -2))
            pairs, *tied = ((c * (c - 1) / 2) for c in (n[..., None], in_x, in_y))
            free_x, free_y = (pairs[..., 0] - side.sum(-1) for side in tied)
            with np.errstate(invalid="ignore", divide="ignore"):
                tau = margin / np.sqrt(free_x * free_y)
                if kind == "kendall_c":
                    m = np.minimum((in_x > 0).sum(-1), (in_y > 0).sum(-1))
                    tau = 2 * margin * m / (n**2 * (m - 1))
            return np.where((free_x > 0) & (free_y > 0), tau, np.nan)

        return statistic


def cross_table(x: npt.ArrayLike, y: npt.ArrayLike) -> CrossTable:
    """The cross table, of the cells that occur, of two arrays of scores of shape (clusters, items).

    >>> cross_table([[0, 0, 1]], [[1, 2, 2]]).sums.tolist()
    [[1.0, 1.0, 1.0]]
    """
    x, y = np.asarray(x), np.asarray(y)
    (rows, at_x), (columns, at_y) = (np.unique(side, return_inverse=True) for side in (x, y))
    cells, at = np.unique(at_x.ravel() * len(columns) + at_y.ravel(), return_inverse=True)
    sums = np.zeros((len(x), len(cells)))
    np.add.at(sums, (np.arange(len(x))[:, None], at.reshape(x.shape)), 1)
    return CrossTable(sums, cells // len(columns), cells % len(columns), rows.astype(float), columns.astype(float))


def swap_test(
    a: npt.ArrayLike, b: npt.ArrayLike, y: npt.ArrayLike, kind: Coefficient = "spearman", *, draws: int, seed: int
) -> float:
    """Two-sided p of "a and b agree equally with y", in the mean over conditions: they swap within random clusters.

    Shapes: `a`, `b` (conditions, clusters, items), `y` (clusters, items).
    """
    kept = np.random.default_rng(seed).integers(0, 2, size=(draws, len(np.asarray(y)))).astype(float)
    kept[0] = 1  # the order observed
    gap = np.zeros(draws)
    for x in np.stack([a, b], axis=1):
        table = cross_table(np.vstack(x), np.vstack([y, y]))
        statistic, (sums_a, sums_b) = table.correlation(kind), np.split(table.sums, 2)
        gap += statistic(kept @ sums_a + (1 - kept) @ sums_b) - statistic(kept @ sums_b + (1 - kept) @ sums_a)
    return float((np.abs(gap) >= abs(gap[0]) - 1e-12).mean())
