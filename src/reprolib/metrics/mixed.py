"""Do judges favour what they made? Estimates of self-preference, from the naive one to those that allow for affinity.

Tables are long: judge, author, item (of one author), value in points; rows of one judge and item are repetitions. A row
is *own* if judge == author. A judge may like an author without being it (*affinity*): then judge x author cells are the
evidence, not rows. On complete tables (each judge, each item) all estimates in points agree. NaN: not identified.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from reprolib.errors import ParameterError, pick
from reprolib.metrics.resampling import Array, Estimate, bootstrap_each, cluster_sums


def raw_gaps(table: pd.DataFrame) -> pd.Series:
    """Mean score of a judge's own items less that of all others, by judge; NaN where one side is missing."""
    means = table.groupby(["judge", table["judge"] == table["author"]])["value"].mean().unstack()
    return means.reindex(columns=[False, True]).diff(axis=1)[True].rename("gap")


def fixed_effects(table: pd.DataFrame) -> float:
    """Coefficient of own beside an intercept for each judge and item; on complete tables the mean of `raw_gaps`."""
    return naive_model(table).value


def naive_model(table: pd.DataFrame) -> Estimate:
    """`fixed_effects` with every row as evidence, t interval: far too sure.

    On complete tables: crossed random judge and item intercepts in closed form, as own is orthogonal to both.
    """
    columns = _design(table, ["judge"]).assign(value=table["value"])
    within = columns - columns.groupby(table["item"]).transform("mean")
    return _own(within.pop("value"), within, "judge and item intercepts, rows", lost=table["item"].nunique())


def cell_model(table: pd.DataFrame) -> Estimate:
    """Least squares of judge x author cell means on own, judge, author; t((M - 1)^2 - 1) for M models: 80 for ten.

    On complete tables it is the whole mixed model (judge, author, judge x author, item, judge x item) in closed form.
    """
    cells = table.groupby(["judge", "author"], as_index=False)["value"].mean()
    return _own(cells["value"], _design(cells, ["judge", "author"]).assign(constant=1), "least squares of cell means")


def permutation_p(table: pd.DataFrame, *, draws: int = 9_999, seed: int = 0, alternative: str = "two-sided") -> float:
    """p of "a judge's own author is like any other": trace of the centred cells under other matchings of the two.

    All M! matchings up to 5,040, else `draws` random and the true one, so that p >= 1 / M!; NaN if a cell is missing.
    """
    sides = {"two-sided": np.abs, "greater": np.positive, "less": np.negative}
    m, rng = len(cells := _centred(table)), np.random.default_rng(seed)
    others = [*itertools.permutations(range(m))][1:] if m < 8 else rng.permuted([range(m)] * draws, axis=1)
    traces = pick("alternative", alternative, sides)(cells[range(m), [range(m), *others]].sum(axis=1))
    return float((traces >= traces[0] - 1e-9).mean()) if np.isfinite(cells).all() else math.nan


def judge_contrasts(table: pd.DataFrame) -> Estimate:
    """Mean over M judges of M / (M - 1) times the diagonal of the centred cells; t(M - 1). NaN if a cell is missing.

    Centring ties the diagonal together (correlation (M - 1)^-2), so that the plain t is too sure; M - 2 makes it exact.
    """
    m = len(contrasts := np.diag(_centred(table)))
    contrasts, freedom = contrasts * m / max(m - 1, 1), m - 1 if m > 2 else 0
    return _t_interval(contrasts.mean(), contrasts.std() / math.sqrt(max(m - 2, 1)), freedom, m, "t over judges")


def mixed_model(table: pd.DataFrame) -> Estimate:
    """REML with random judge, author, judge x author, item, for incomplete tables; t as in `cell_model`, if converged.

    Complete tables give `cell_model`, its error too if no variance is estimated as zero. Repetitions are averaged first
    (judge x item is the residual: exact if they are equally many). Minutes for 3,000 pairs of judge and item.
    """
    import statsmodels.formula.api as smf  # takes a second

    pairs = table.groupby(["judge", "author", "item"], as_index=False)["value"].mean()
    pairs["own"], pairs["cell"] = (pairs["judge"] == pairs["author"]) * 1.0, pairs.groupby(["judge", "author"]).ngroup()
    components = {name: f"0 + C({name})" for name in ("judge", "author", "cell", "item")}
    model = smf.mixedlm("value ~ own", pairs, groups=np.zeros(len(pairs)), re_formula="0", vc_formula=components)
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(np.linalg.LinAlgError):
        fit = model.fit(method="bfgs")  # a variance of zero is no failure: gradients fail there, Powell mostly does not
        fit = fit if fit.converged else model.fit(method="powell")
    freedom = _freedom(pairs) if fit.converged else 0
    return _t_interval(fit.params["own"], fit.bse["own"], freedom, len(pairs), "REML, crossed intercepts")


def ordinal_model(table: pd.DataFrame) -> Estimate:
    """Log-odds of a higher score for own items: ordered logit of integers (else ParameterError) on own, judge, author.

    The error is clustered by judge x author and inflated to the degrees of freedom of `cell_model`; t interval.
    """
    from statsmodels.miscmodels.ordinal_model import OrderedModel

    if (table["value"] % 1 != 0).any():
        raise ParameterError("scores are not integers", hint="an ordinal model needs levels, not means")
    cell, freedom = table.groupby(["judge", "author"]).ngroup().to_numpy(), _freedom(table)
    model = OrderedModel(table["value"].to_numpy(), _design(table, ["judge", "author"]), distr="logit")
    fit = model.fit(method="bfgs", maxiter=500, disp=False, cov_type="cluster", cov_kwds={"groups": cell})
    error = fit.bse["own"] * math.sqrt(cell.max() / max(freedom, 1))
    return _t_interval(fit.params["own"], error, freedom, len(table), "ordered logit, clustered by cell")


def label_effects(table: pd.DataFrame, *, draws: int = 10_000, seed: int = 0) -> dict[str, Estimate]:
    """What a claimed source does to a score, in points; bootstrap over items, NaN if a judge lacks an arm or a side.

    `table`: judge, item, own (bool), arm (self, other, none, any more), value; repetitions are averaged. Differences
    are within a judge and item, averaged over own and over other items, then over these two and over judges.
    gap: self - other. self_inflation: self - none, other_deflation: other - none (below 0 if it deflates), also on own
    and on other items alone. truth: true labels less false ones (half of the gap on own items less that on others).
    actual_source: own items less others, under the two labels. A further arm X: X - none.
    """
    wide = table.pivot_table(values="value", index=["judge", "own", "item"], columns="arm")
    arms = ["self", "other", "none", *sorted(set(wide) - {"self", "other", "none"})]
    this, that, none, *more = wide.reindex(columns=arms).to_numpy().T
    each = np.stack([this - that, this - none, that - none, this + that, *(x - none for x in more)], axis=1)
    judge, own, item = (wide.index.get_level_values(name) for name in ("judge", "own", "item"))
    stratum = np.eye(2 * judge.nunique())[2 * pd.factorize(judge)[0] + own.astype(int)]
    parts = np.stack([np.nan_to_num(each), np.isfinite(each)], axis=-1)  # sums and counts
    sums = cluster_sums(np.einsum("ns,neh->nseh", stratum, parts).reshape(len(wide), -1), item)
    at = {"gap": (0, 0), "self_inflation": (0, 1), "other_deflation": (0, 2), "truth": (3, 0), "actual_source": (3, 3)}
    for j, arm in ((1, "self"), (2, "other")):
        at |= {f"{arm}_on_own": (1, j), f"{arm}_on_other": (2, j)}
    at |= {arm: (0, j) for j, arm in enumerate(arms[3:], start=4)}
    rows, columns = np.array(list(at.values())).T

    def effects(sums: Array) -> Any:
        by_judge = sums.reshape(*sums.shape[:-1], -1, 2, each.shape[1], 2)
        with np.errstate(invalid="ignore", divide="ignore"):
            other, own = np.moveaxis((by_judge[..., 0] / by_judge[..., 1]).mean(axis=-3), -2, 0)
        return np.stack([(own + other) / 2, own, other, (own - other) / 2], axis=-2)[..., rows, columns]

    return dict(zip(at, bootstrap_each(sums, effects, draws=draws, seed=seed), strict=True))


def equivalent(estimate: Estimate, margin: float) -> bool:
    """Whether the whole interval lies within `margin` of zero: too small to matter, rather than not found."""
    return bool(-margin < estimate.low and estimate.high < margin)


def _design(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    levels = pd.get_dummies(table[by], columns=by, drop_first=True, dtype=float)
    return levels.assign(own=(table["judge"] == table["author"]) * 1.0)


def _centred(table: pd.DataFrame) -> Array:
    """Cell means of judges (rows) and the authors of the same names, less row and column means."""
    cells = table.pivot_table(values="value", index="judge", columns="author")
    x = cells.loc[(both := cells.index.intersection(cells.columns)), both].to_numpy()
    return np.asarray(x - x.mean(axis=0) - x.mean(axis=1, keepdims=True) + x.mean())


def _freedom(table: pd.DataFrame) -> int:
    cells = table[["judge", "author"]].drop_duplicates()
    return len(cells) - int(np.linalg.matrix_rank(_design(cells, ["judge", "author"]).assign(constant=1)))


def _own(y: pd.Series, design: pd.DataFrame, rule: str, *, lost: int = 0) -> Estimate:
    import statsmodels.api as sm

    fit = sm.OLS(y, design).fit()
    freedom, known = int(fit.df_resid) - lost, fit.model.rank > np.linalg.matrix_rank(design.drop(columns="own"))
    error = math.sqrt(fit.ssr * fit.cov_params(scale=1.0).loc["own", "own"] / max(freedom, 1))
    return _t_interval(fit.params["own"] if known else math.nan, error, freedom, len(y), rule)


def _t_interval(value: Any, error: float, freedom: int, n: int, rule: str) -> Estimate:
    half = stats.t.ppf(0.975, freedom) * error if freedom > 0 else math.nan
    return Estimate(float(value), float(value - half), float(value + half), n, f"{rule}; t({freedom}), 95%")
