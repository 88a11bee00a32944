import numpy as np
import pytest
from scipy import stats

from reprolib.errors import ParameterError
from reprolib.metrics.resampling import Estimate, bootstrap, cluster_sums, multinomial_bootstrap, wilson

RNG = np.random.default_rng(7)
SKEWED = RNG.exponential(size=60)
MEAN_ROWS = np.stack([SKEWED, np.ones(60)], axis=1)


def mean(sums):
    return sums[..., 0] / sums[..., 1]


def test_interval_of_a_mean_agrees_with_scipy():
    theirs = stats.bootstrap((SKEWED,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    ours = bootstrap(MEAN_ROWS, mean, draws=20_000, seed=1)
    width = theirs.high - theirs.low
    assert ours.value == pytest.approx(SKEWED.mean())
    assert ours.low == pytest.approx(theirs.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.03 * width)


def test_same_seed_gives_the_same_interval_and_another_seed_another():
    first, again, other = (bootstrap(MEAN_ROWS, mean, draws=500, seed=s) for s in (3, 3, 4))
    assert first == again
    assert first.low != other.low


def test_two_statistics_of_one_seed_see_the_same_draws():
    double = bootstrap(MEAN_ROWS, lambda s: 2 * mean(s), draws=500, seed=3)
    single = bootstrap(MEAN_ROWS, mean, draws=500, seed=3)
    assert double.low == pytest.approx(2 * single.low)


def test_copies_of_a_row_in_one_cluster_do_not_narrow_the_interval():
    clusters = np.arange(60)
    once = bootstrap(cluster_sums(MEAN_ROWS, clusters), mean, draws=2_000, seed=1)
    tenfold = bootstrap(
        cluster_sums(np.repeat(MEAN_ROWS, 10, axis=0), np.repeat(clusters, 10)), mean, draws=2_000, seed=1
    )
    naive = bootstrap(np.repeat(MEAN_ROWS, 10, axis=0), mean, draws=2_000, seed=1)
    assert (tenfold.low, tenfold.high) == pytest.approx((once.low, once.high))
    assert naive.high - naive.low < 0.5 * (once.high - once.low)


def test_undefined_draws_are_counted():
    rare = np.stack([[1.0] + [0.0] * 9, [1.0] + [0.0] * 9], axis=1)
    with np.errstate(invalid="ignore"):
        estimate = bootstrap(rare, mean, draws=1_000, seed=1)
    assert estimate.undefined == pytest.approx(1_000 * 0.9**10, abs=60)  # the only defined row is missed


def test_multinomial_interval_of_a_share_agrees_with_the_binomial():
    estimate = multinomial_bootstrap([[40, 60]], 200, lambda s: s[..., 0, 0], draws=20_000, seed=1)
    low, high = stats.binom(200, 0.4).ppf([0.025, 0.975]) / 200
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.006)


def test_jitter_tells_how_far_another_seed_moves_the_ends():
    lows = [bootstrap(MEAN_ROWS, mean, draws=1_000, seed=s).low for s in range(40)]
    estimate = bootstrap(MEAN_ROWS, mean, draws=1_000, seed=99)
    assert 0.4 * np.std(lows) < estimate.jitter < 3 * np.std(lows)


def test_wilson_matches_a_hand_computation():
    # (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n) with p = 8/10, z = 1.96
    estimate = wilson(8, 10)
    assert (estimate.low, estimate.high) == pytest.approx((0.4902, 0.9433), abs=5e-4)


def test_too_few_units_are_refused():
    with pytest.raises(ParameterError, match="at least 2"):
        bootstrap([[1.0, 1.0]], mean)


def test_scaled_estimate_moves_everything_but_the_count():
    estimate = Estimate(0.5, 0.4, 0.6, 10, jitter=0.01).scaled(100)
    assert (estimate.value, estimate.low, estimate.high, estimate.jitter, estimate.n) == (50, 40, 60, 1, 10)
