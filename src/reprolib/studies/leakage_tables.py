"""Preference leakage, Tables 2 and 3 and Figure 2: printed scores (PLS, %) and the noise they must carry.

Win rates are released for Table 1 only. A score of another table gets the sampling noise of Table 1's cells on the
same benchmark: an assumption. All results are weighted sums of scores, so their normal intervals need no resampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from reprolib.metrics.resampling import Array, Estimate
from reprolib.studies.leakage import table1

PAIR = "GPT-4o & Gemini-1.5"  # the teachers of every score here
SLUGS = {"Arena-Hard": "arena_hard", "AlpacaEval 2.0": "alpaca_eval", "Average": "average"}
_Z = float(stats.norm.ppf(0.975))


@cache
def table1_noise(*, draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """Sampling noise of Table 1's 12 single cells: benchmark, student, pair, n (questions), sd, jitter (points)."""
    cells = [(c, c.estimate) for c in table1(draws=draws, seed=seed) if c.benchmark != "Average"]
    rows = [(c.benchmark, c.student, c.pair, e.n, (e.high - e.low) / 2 / _Z, e.jitter) for c, e in cells]
    return pd.DataFrame(rows, columns=["benchmark", "student", "pair", "n", "sd", "jitter"])


def with_noise(
    table: pd.DataFrame, noise: pd.DataFrame, *, known: str, student: str = "Mistral-7B", factor: float = 1.0
) -> pd.DataFrame:
    """A table of printed scores with their noise: key columns, benchmark, value, sd, n, wobble, printed, low, high.

    Rows that the query `known` finds are cells of Table 1 (of `student` and `PAIR`) and get that cell's own SD from
    `noise` (`table1_noise`); all others the root mean square over the benchmark's six cells, times `factor`. The value
    of an "Average" row is the mean of the two printed scores; `printed` is what the source has for it, if anything.
    """
    assumed = factor * noise.groupby("benchmark").sd.agg(lambda sd: np.sqrt((sd**2).mean()))
    own = noise[(noise.student == student) & (noise.pair == PAIR)].set_index("benchmark")
    key = [c for c in table if c not in ("benchmark", "pls", "source", "locator")]
    cells = table[table.benchmark != "Average"].drop(columns=["source", "locator"]).rename(columns={"pls": "value"})
    cells["sd"] = cells.benchmark.map(own.sd).where(cells.eval(known), cells.benchmark.map(assumed))
    cells["n"] = cells.benchmark.map(own.n)
    cells["wobble"] = (noise.jitter / noise.sd / _Z).max()  # of an SD, relative, from finitely many draws
    mean = cells.groupby(key, sort=False).agg(
        benchmark=("benchmark", lambda b: "Average"), value=("value", "mean"),
        sd=("sd", lambda sd: np.sqrt((sd**2).sum()) / len(sd)), n=("n", "sum"), wobble=("wobble", "max"),
    )  # fmt: skip
    printed = table.rename(columns={"pls": "printed"})[[*key, "benchmark", "printed"]]
    cells = pd.concat([cells, mean.reset_index()]).merge(printed, how="left")
    return cells.assign(low=cells.value - _Z * cells.sd, high=cells.value + _Z * cells.sd)


def compare(cells: pd.DataFrame, weights: Mapping[str, float], *, key: str, benchmark: str) -> Estimate:
    """A weighted sum of the rows of one benchmark (or "Average"), such as ``{"SFT": 1, "DPO": -1}``, in points."""
    rows = cells[cells.benchmark == benchmark]
    return _weighted(rows[key].map(weights).fillna(0).to_numpy(), rows)


def side(estimate: Estimate) -> str:
    """Where the whole interval lies, whatever the seed: "above" zero, "below", or "open"."""
    low, high = estimate.low - 2 * estimate.jitter, estimate.high + 2 * estimate.jitter
    return "above" if low > 0 else "below" if high < 0 else "open"


def order_share(rows: pd.DataFrame, levels: Sequence[Mapping[str, float]], *, key: str, draws: int, seed: int) -> float:
    """How often (0 to 1) the levels, weighted sums of rows, would fall in this order if the values were the truth."""
    weights = np.stack([rows[key].map(level).fillna(0) for level in levels])
    redrawn = np.random.default_rng(seed).normal(rows.value, rows.sd, size=(draws, len(rows)))
    return float(np.all(np.diff(redrawn @ weights.T) < 0, axis=1).mean())


class Line(NamedTuple):
    """A least-squares line through noisy scores; `scatter` is its residual SD (points), on `df` degrees of freedom.

    `misfit` is the best line's chi-square under the assumed noise: far above `df`, no line; far below, too much noise.
    """

    weights: Array
    cells: pd.DataFrame
    r2: float
    misfit: float
    df: int
    scatter: float

    def at(self, *inputs: float) -> Estimate:
        """Prediction for a row of the design: (1, 10) is x = 10, (0, 1) the slope, (1, 0) the intercept."""
        return _weighted(np.asarray(inputs, dtype=float) @ self.weights, self.cells)


def line(cells: pd.DataFrame, x: npt.ArrayLike, *, groups: Sequence[str] | None = None) -> Line:
    """Fit value on an intercept a group (one if no groups are given, else in order of appearance) and x."""
    group = pd.factorize(pd.Series(groups if groups is not None else [""] * len(cells)))[0]
    design = np.column_stack([np.eye(group.max() + 1)[group], np.asarray(x, dtype=float)])
    y, sd = cells.value.to_numpy(), cells.sd.to_numpy()
    weights, df = np.linalg.pinv(design), len(y) - design.shape[1]
    residual = float(((y - design @ weights @ y) ** 2).sum())
    misfit = float(np.linalg.lstsq(design / sd[:, None], y / sd)[1][0])
    return Line(weights, cells, 1 - residual / float(((y - y.mean()) ** 2).sum()), misfit, df, (residual / df) ** 0.5)


def _weighted(weights: Array, cells: pd.DataFrame) -> Estimate:
    value, half = float(weights @ cells.value), _Z * float(np.sqrt(weights**2 @ cells.sd**2))
    rule, jitter = "normal, noise of Table 1's cells assumed, 95%", half * float(cells.wobble.max())
    return Estimate(value, value - half, value + half, int(cells.n.min()), rule, jitter=jitter)
