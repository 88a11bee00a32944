"""Correlations from cross tables are those of scipy, ties, constants and resampled articles included."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from reprolib.errors import ParameterError
from reprolib.metrics.correlation import COEFFICIENTS, cross_table, swap_test
from reprolib.metrics.resampling import bootstrap

SCIPY = {
    "pearson": lambda x, y: stats.pearsonr(x, y)[0],
    "spearman": lambda x, y: stats.spearmanr(x, y)[0],
    "kendall": lambda x, y: stats.kendalltau(x, y)[0],
    "kendall_c": lambda x, y: stats.kendalltau(x, y, variant="c")[0],
}


def scores(seed: int, articles: int = 6, items: int = 16) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    human = rng.integers(3, 16, size=(articles, items)) / 3
    return np.clip(np.rint(human - 1 + rng.normal(0, 1.5, human.shape)), 0, 4), human


@pytest.mark.parametrize("kind", COEFFICIENTS)
@pytest.mark.parametrize("seed", range(5))
def test_pooled_and_within_articles_as_scipy(kind: str, seed: int) -> None:
    x, y = scores(seed)
    table = cross_table(x, y)
    assert table.pooled(kind) == pytest.approx(SCIPY[kind](x.ravel(), y.ravel()), abs=1e-12)
    assert table.within(kind) == pytest.approx([SCIPY[kind](a, b) for a, b in zip(x, y, strict=True)], abs=1e-12)


@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_continuous_scores_and_repeated_articles_as_scipy(kind: str) -> None:
    x, y = scores(7)
    x = x + np.random.default_rng(1).normal(0, 0.1, x.shape)
    table, drawn = cross_table(x, y), [0, 0, 3, 5, 5, 5]
    weights = np.bincount(drawn, minlength=6).astype(float)
    expected = SCIPY[kind](x[drawn].ravel(), y[drawn].ravel())
    assert float(table.correlation(kind)(weights @ table.sums)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_a_constant_side_is_undefined_and_not_zero(kind: str) -> None:
    x, y = scores(0)
    x[2] = 3
    found = cross_table(x, y).within(kind)
    assert np.isnan(found[2])
    assert np.isfinite(np.delete(found, 2)).all()
    assert np.isnan(cross_table(np.full_like(x, 2), y).pooled(kind))


def test_an_unknown_coefficient_is_refused() -> None:
    with pytest.raises(ParameterError, match="allowed: pearson, spearman"):
        cross_table([[0, 1]], [[0, 1]]).pooled("tau")  # type: ignore[arg-type]


def test_the_bootstrap_interval_covers_a_correlation_made_of_many_articles() -> None:
    x, y = scores(3, articles=300)
    table = cross_table(x, y)
    found = bootstrap(table.sums, table.correlation(), draws=1000, seed=1)
    assert found.low < table.pooled() < found.high
    assert 0.03 < found.high - found.low < 0.08  # 4,800 summaries: about 4 / sqrt(4,800)


def test_swapping_methods_tells_a_better_one_and_not_a_copy() -> None:
    x, y = scores(4, articles=40)
    worse = np.random.default_rng(5).permuted(x, axis=1)
    assert swap_test([x, x], [worse, x], y, draws=500, seed=2) < 0.01
    assert swap_test([x], [x], y, draws=500, seed=2) == 1
