"""The one statistics engine: every interval of the project, at 95 %, comes from here.

A statistic is a function of *sums* over clusters (a cluster is what was sampled: a question, an article). A draw
re-weights the clusters: resampling never re-scores, and one seed gives every statistic the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from reprolib.errors import ParameterError

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Any]
_ENDS = np.array([0.025, 0.975])  # of every interval
_CHUNK = 1_000  # draws held in memory at once: 1,000 x 805 clusters are 6 MB


@dataclass(frozen=True)
class Estimate:
    """A value with its interval."""

    value: float
    low: float
    high: float
    n: int  # units behind it
    rule: str = ""  # how value and interval were made
    seed: int | None = None
    undefined: int = 0  # draws whose statistic was 0/0
    jitter: float = 0.0  # standard error of the interval's ends: another seed moves them by about that much

    def scaled(self, factor: float) -> Estimate:
        """The same estimate in another unit, such as percent for shares."""
        return replace(self, **{f: getattr(self, f) * factor for f in ("value", "low", "high", "jitter")})

    def text(self, decimals: int = 1) -> str:
        """Value and interval, such as ``28.7 [21.4, 36.2]``."""
        value, low, high = (f"{x:z.{decimals}f}" for x in (self.value, self.low, self.high))  # z: no "-0.0"
        return f"{value} [{low}, {high}]"


def cluster_sums(rows: npt.ArrayLike, clusters: npt.ArrayLike) -> Array:
    """Add up the rows of each cluster: shape (rows, k) becomes (clusters, k), clusters in sorted order."""
    return pd.DataFrame(np.asarray(rows, dtype=float)).groupby(np.asarray(clusters), dropna=False).sum().to_numpy()


def bootstrap(sums: npt.ArrayLike, statistic: Statistic, *, draws: int = 10_000, seed: int = 0) -> Estimate:
    """Percentile cluster bootstrap of a statistic of sums.

    `sums` has one row of sufficient statistics a cluster, shape (clusters, k), see `cluster_sums`; `statistic` maps
    shape (..., k) to (...), NaN meaning undefined. Raises ParameterError for fewer than two clusters.

    >>> wins = np.repeat([[1.0, 1.0], [0.0, 1.0]], 50, axis=0)
    >>> bootstrap(wins, lambda s: s[..., 0] / s[..., 1], draws=2000, seed=1).text(2)
    '0.50 [0.40, 0.60]'
    """
    return bootstrap_each(sums, lambda s: np.asarray(statistic(s))[..., None], draws=draws, seed=seed)[0]


def bootstrap_each(sums: npt.ArrayLike, statistic: Statistic, *, draws: int = 10_000, seed: int = 0) -> list[Estimate]:
    """`bootstrap` of several statistics on the same draws: `statistic` maps shape (..., k) to (..., m)."""
    table, rng = np.asarray(sums, dtype=float), np.random.default_rng(seed)
    n = len(table)
    sizes = [min(_CHUNK, draws - start) for start in range(0, draws, _CHUNK)]
    weights = (rng.multinomial(n, np.full(n, 1 / n), size=size) for size in sizes)
    samples = np.concatenate([np.asarray(statistic(w @ table)) for w in weights])
    values, rule = np.asarray(statistic(table.sum(axis=0))), f"percentile cluster bootstrap, {draws} draws, 95%"
    return [_estimate(value, sample, n, rule, seed) for value, sample in zip(values, samples.T, strict=True)]


def multinomial_bootstrap(
    shares: npt.ArrayLike, n: int | Sequence[int], statistic: Statistic, *, draws: int = 10_000, seed: int = 0
) -> Estimate:
    """Parametric bootstrap for printed rates, when the judgments themselves are not released.

    Each row of `shares` (shape (rows, categories), any positive scale) is redrawn as `n` (one number, or one a row)
    multinomial judgments, independent of the other rows: conservative for judges that read the same answers.
    `statistic` maps shares, rows summing to 1, from shape (..., rows, categories) to (...). The least n is reported.

    >>> multinomial_bootstrap([[60, 40]], 100, lambda s: s[..., 0, 0], seed=1).text(2)
    '0.60 [0.50, 0.69]'
    """
    table = np.asarray(shares, dtype=float)
    table, sizes = table / table.sum(axis=-1, keepdims=True), np.broadcast_to(n, len(table))
    rng = np.random.default_rng(seed)
    redrawn = [rng.multinomial(size, row, size=draws) / size for size, row in zip(sizes, table, strict=True)]
    rule = f"parametric bootstrap, rows independent, {draws} draws, 95%"
    return _estimate(statistic(table), np.asarray(statistic(np.stack(redrawn, axis=1))), int(sizes.min()), rule, seed)


def wilson(successes: int, n: int) -> Estimate:
    """Share of successes, 0 to 1, with its Wilson score interval (Wilson 1927).

    >>> wilson(398, 483).text(3)
    '0.824 [0.788, 0.855]'
    """
    interval = stats.binomtest(int(successes), int(n)).proportion_ci(method="wilson")
    return Estimate(successes / n, float(interval.low), float(interval.high), n, "Wilson, 95%")


def _estimate(value: float, sample: Array, n: int, rule: str, seed: int) -> Estimate:
    """An estimate from the draws that are defined; its jitter is that of the less certain end."""
    if n < 2:
        raise ParameterError(f"{n} units to resample", hint="an interval needs at least 2")
    defined = sample[np.isfinite(sample)]
    if not len(defined):
        return Estimate(float(value), np.nan, np.nan, n, rule, seed, len(sample))
    low, high = (float(end) for end in np.quantile(defined, _ENDS))
    error = np.sqrt(_ENDS * (1 - _ENDS) / len(defined))
    jitter = float(np.ptp(np.quantile(defined, np.clip([_ENDS - error, _ENDS + error], 0, 1)), axis=0).max()) / 2
    return Estimate(float(value), low, high, n, rule, seed, len(sample) - len(defined), jitter)
