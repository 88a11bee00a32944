"""The one statistics engine: every interval of the project comes from here.

A statistic is a function of *sums* over clusters (a cluster is what was sampled: a question, an article). A draw
re-weights the clusters, so resampling never re-scores anything, both arms of a comparison see the same draws, and the
same seed gives the same draws to every method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from reprolib.errors import ParameterError

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Any]
Method = Literal["percentile", "bca"]
_CHUNK = 1_000  # draws held in memory at once: 1,000 x 805 clusters are 6 MB


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; `rule` says in one line how both were made.

    `n` counts the units that the interval is about; `undefined` counts draws whose statistic was 0/0; `jitter` is the
    standard error of the interval's ends from the finite number of draws: another seed moves them by about that much.
    """

    value: float
    low: float
    high: float
    n: int
    rule: str = ""
    seed: int | None = None
    undefined: int = 0
    jitter: float = 0.0

    def scaled(self, factor: float) -> Estimate:
        """The same estimate in another unit, such as percent for shares."""
        return replace(self, **{f: getattr(self, f) * factor for f in ("value", "low", "high", "jitter")})

    def text(self, decimals: int = 1) -> str:
        """Value and interval, such as ``28.7 [21.4, 36.2]``."""
        value, low, high = (f"{x:z.{decimals}f}" for x in (self.value, self.low, self.high))  # z: no "-0.0"
        return f"{value} [{low}, {high}]"


def cluster_sums(rows: npt.ArrayLike, clusters: npt.ArrayLike) -> Array:
    """Add up the rows of each cluster: shape (rows, k) becomes (clusters, k), clusters in sorted order.

    >>> cluster_sums([[1, 0], [0, 1], [1, 1]], ["q1", "q1", "q2"]).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return pd.DataFrame(np.asarray(rows, dtype=float)).groupby(np.asarray(clusters), dropna=False).sum().to_numpy()


def bootstrap(
    sums: npt.ArrayLike, statistic: Statistic, *,
    draws: int = 10_000, seed: int = 0, method: Method = "percentile", level: float = 0.95,
) -> Estimate:  # fmt: skip
    """Cluster bootstrap of a statistic of sums.

    `sums` has one row of sufficient statistics a cluster, shape (clusters, k), see `cluster_sums`; `statistic` maps
    shape (..., k) to (...), NaN meaning undefined. `method` is "percentile", or "bca" (bias-corrected and accelerated;
    Efron 1987). Raises ParameterError for fewer than two clusters or a level outside (0, 1).

    >>> wins = np.repeat([[1.0, 1.0], [0.0, 1.0]], 50, axis=0)
    >>> bootstrap(wins, lambda s: s[..., 0] / s[..., 1], draws=2000, seed=1).text(2)
    '0.50 [0.40, 0.60]'
    """
    (found,) = bootstrap_each(
        sums, lambda s: np.asarray(statistic(s))[..., None], draws=draws, seed=seed, method=method, level=level
    )
    return found


def bootstrap_each(
    sums: npt.ArrayLike, statistic: Statistic, *,
    draws: int = 10_000, seed: int = 0, method: Method = "percentile", level: float = 0.95,
) -> list[Estimate]:  # fmt: skip
    """`bootstrap` of several statistics on the same draws: `statistic` maps shape (..., k) to (..., m)."""
    table = np.asarray(sums, dtype=float)
    ends = _ends(len(table), level)
    values, rng = np.asarray(statistic(table.sum(axis=0))), np.random.default_rng(seed)
    sizes = [min(_CHUNK, draws - start) for start in range(0, draws, _CHUNK)]
    weights = (rng.multinomial(len(table), np.full(len(table), 1 / len(table)), size=size) for size in sizes)
    samples = np.concatenate([np.asarray(statistic(w @ table)) for w in weights])
    left_out = np.asarray(statistic(table.sum(axis=0) - table)) if method == "bca" else samples[:0]
    rule = f"{method} cluster bootstrap, {draws} draws, {level:.0%}"
    found = []
    for value, sample, jackknife in zip(values, samples.T, left_out.T, strict=True):
        moved = _bca_quantiles(value, sample[np.isfinite(sample)], jackknife, ends) if len(jackknife) else ends
        found.append(_estimate(float(value), sample, moved, len(table), rule, seed))
    return found


def multinomial_bootstrap(
    shares: npt.ArrayLike, n: int | Sequence[int], statistic: Statistic, *,
    draws: int = 10_000, seed: int = 0, level: float = 0.95,
) -> Estimate:  # fmt: skip
    """Parametric bootstrap for printed rates, when the judgments themselves are not released.

    Each row of `shares` (shape (rows, categories), any positive scale) is redrawn as `n` (one number, or one a row)
    independent multinomial judgments; rows are independent of each other, which widens the interval of a difference
    between judges that read the same answers. `statistic` maps shares of shape (..., rows, categories), each row
    summing to 1, to shape (...). The estimate's n is the smallest.

    >>> multinomial_bootstrap([[60, 40]], 100, lambda s: s[..., 0, 0], seed=1).text(2)
    '0.60 [0.50, 0.69]'
    """
    table = np.asarray(shares, dtype=float)
    sizes = np.broadcast_to(np.asarray(n), len(table))
    ends = _ends(int(sizes.min()), level)
    table = table / table.sum(axis=-1, keepdims=True)
    rng = np.random.default_rng(seed)
    redrawn = [rng.multinomial(size, row, size=draws) / size for size, row in zip(sizes, table, strict=True)]
    sample = np.asarray(statistic(np.stack(redrawn, axis=1)))
    rule = f"parametric bootstrap, rows independent, {draws} draws, {level:.0%}"
    return _estimate(float(statistic(table)), sample, ends, int(sizes.min()), rule, seed)


def wilson(successes: int, n: int, *, level: float = 0.95) -> Estimate:
    """Share of successes with its Wilson score interval (Wilson 1927), between 0 and 1.

    >>> wilson(398, 483).text(3)
    '0.824 [0.788, 0.855]'
    """
    _ends(n, level, least=1)
    interval = stats.binomtest(int(successes), int(n)).proportion_ci(level, method="wilson")
    return Estimate(successes / n, float(interval.low), float(interval.high), n, f"Wilson, {level:.0%}")


def _ends(n: int, level: float, *, least: int = 2) -> tuple[float, ...]:
    """The two quantiles of an interval of `level` about `n` units."""
    if n < least:
        raise ParameterError(f"{n} units to resample", hint=f"an interval needs at least {least}")
    if not 0 < level < 1:
        raise ParameterError(f"level is {level}", hint="give a share between 0 and 1, such as 0.95")
    return (1 - level) / 2, (1 + level) / 2


def _estimate(value: float, sample: Array, ends: tuple[float, ...], n: int, rule: str, seed: int) -> Estimate:
    """An estimate from the draws that are defined; its jitter is that of the less certain end."""
    defined = sample[np.isfinite(sample)]
    if not len(defined):
        return Estimate(value, math.nan, math.nan, n, rule, seed, len(sample))
    low, high = (float(end) for end in np.quantile(defined, ends))
    error = np.sqrt(np.multiply(ends, np.subtract(1, ends)) / len(defined))
    jitter = float(np.ptp(np.quantile(defined, np.clip([ends - error, ends + error], 0, 1)), axis=0).max()) / 2
    return Estimate(value, low, high, n, rule, seed, len(sample) - len(defined), jitter)


def _bca_quantiles(value: float, sample: Array, jackknife: Array, ends: tuple[float, ...]) -> tuple[float, ...]:
    # Ties count half, so that a discrete statistic is not called biased.
    below = np.mean(sample < value) + np.mean(sample == value) / 2
    bias = stats.norm.ppf(np.clip(below, 1e-6, 1 - 1e-6))
    acceleration = np.nan_to_num(stats.skew(-jackknife)) / 6 / math.sqrt(len(jackknife))
    z = bias + stats.norm.ppf(ends)
    return tuple(stats.norm.cdf(bias + z / (1 - acceleration * z)))
