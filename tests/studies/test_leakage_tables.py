import numpy as np
import pandas as pd
import pytest
from scipy import stats

from reprolib.evidence import published
from reprolib.studies import leakage as tables

# Least-squares fits of the mixing series, done with other code: slope per 10 points of share, intercept, R2.
FITS = {
    ("manual", "AlpacaEval 2.0"): (1.61, 1.5, 0.978), ("manual", "Arena-Hard"): (1.99, 9.9, 0.942),
    ("synthetic", "AlpacaEval 2.0"): (2.06, -3.0, 0.978), ("synthetic", "Arena-Hard"): (3.16, -3.7, 0.981),
}  # fmt: skip


@pytest.fixture(scope="module")
def noise():
    return tables.table1(draws=20_000, seed=5)


def test_noise_of_table_1_has_the_width_of_an_independent_bootstrap(noise):
    # 95 % intervals from 20,000 draws of other code, in the order of Table 1
    ends = [(21.3, 36.3), (-10.4, 7.4), (3.2, 22.7), (30.1, 44.0), (-9.2, 11.3), (15.9, 34.6),
            (13.6, 23.2), (-3.8, 6.4), (14.6, 24.8), (13.7, 23.4), (-2.7, 7.2), (13.5, 23.5)]  # fmt: skip
    assert noise.sd[:12].tolist() == pytest.approx([(high - low) / 3.92 for low, high in ends], abs=0.1)
    assert noise.n.tolist() == [500] * 6 + [805] * 6 + [1305] * 6


def test_known_rows_keep_their_own_noise_and_the_factor_scales_the_others_only(noise):
    table = published("leakage_table2")
    once, twice = (tables.with_noise(table, noise, known="relation == 'same model'", factor=f) for f in (1, 2))
    arena = once[once.benchmark == "Arena-Hard"].sd
    assert arena.iloc[0] == pytest.approx(noise.sd.iloc[0])
    assert arena.iloc[1:].tolist() == pytest.approx([np.sqrt(np.mean(noise.sd[:6] ** 2))] * 4)
    assert (twice.sd / once.sd).tolist()[:10] == pytest.approx([1, 1] + [2] * 8)


def test_averages_are_those_of_the_two_scores_and_carry_both_noises(noise):
    cells = tables.with_noise(published("leakage_table2"), noise, known="relation == 'same model'")
    average = cells[cells.benchmark == "Average"]
    assert average.value.tolist() == pytest.approx([23.55, 19.25, 22.3, 8.85, 2.75])
    assert average.printed.tolist() == [23.6, 19.3, 22.3, 8.9, 2.8]
    assert average.sd.iloc[0] == pytest.approx(np.hypot(*noise.sd.iloc[[0, 6]]) / 2)
    assert average.n.tolist() == [1305] * 5


def cells(values, sd):
    frame = pd.DataFrame({"row": list("abcdefg")[: len(values)], "value": values, "sd": sd, "n": 500, "wobble": 0.01})
    return frame.assign(benchmark="Arena-Hard")


def test_a_difference_adds_the_variances():
    found = tables.compare(cells([10, 4, 1], [3.0, 4.0, 9.0]), {"a": 1, "b": -1}, key="row", benchmark="Arena-Hard")
    assert (found.value, found.high - found.value, found.n) == pytest.approx((6, 1.959964 * 5, 500))


def test_a_side_is_taken_only_beyond_what_another_seed_could_move():
    def one(value):
        return tables.compare(cells([value, 0], [1.0, 1.0]), {"a": 1}, key="row", benchmark="Arena-Hard")

    assert one(2.5).jitter == pytest.approx(0.0196, abs=1e-4)
    assert [tables.side(one(v)) for v in (2.5, 1.98, 0, -1.98, -2.5)] == ["above", "open", "open", "open", "below"]


def test_how_often_an_order_returns_matches_the_normal_distribution():
    rows, levels = cells([10, 4], [3.0, 4.0]), [{"a": 1}, {"b": 1}]
    share = tables.order_share(rows, levels, key="row", draws=40_000, seed=1)
    assert share == pytest.approx(stats.norm.cdf(6 / 5), abs=0.01)
    assert tables.order_share(cells([10, 4], [0, 0]), levels[::-1], key="row", draws=10, seed=1) == 0


def test_the_four_mixing_fits_match_other_code(noise):
    mixing = tables.with_noise(published("leakage_mixing"), noise, known="share == 100")
    for (filler, benchmark), (slope, intercept, r2) in FITS.items():
        rows = mixing[(mixing.filler == filler) & (mixing.benchmark == benchmark)]
        fit, other = tables.line(rows, rows.share), stats.linregress(rows.share, rows.value)
        assert (fit.at(0, 10).value, fit.at(1, 0).value) == pytest.approx((slope, intercept), abs=0.05)
        assert fit.at(1, 10).value == pytest.approx(other.intercept + 10 * other.slope)
        assert fit.r2 == pytest.approx(r2, abs=5e-4)
        assert fit.scatter / np.sqrt(((rows.share - 52) ** 2).sum()) == pytest.approx(other.stderr)


def test_intervals_of_a_line_cover_as_often_as_they_say():
    rng, x, sd = np.random.default_rng(3), np.array([10, 30, 50, 70, 100]), np.array([4.0, 4, 4, 4, 3])
    fits = [tables.line(cells(2 + 0.3 * x + rng.normal(0, sd), sd), x) for _ in range(1_500)]
    held = [f.at(1, 10).low < 5 < f.at(1, 10).high for f in fits]
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)
    assert np.mean([f.misfit for f in fits]) == pytest.approx(3, abs=0.2)  # chi-square on 3 degrees of freedom


def test_a_common_slope_within_groups_matches_statsmodels():
    import statsmodels.formula.api as smf

    rows = published("leakage_size").query("benchmark == 'Arena-Hard'").rename(columns={"pls": "value"})
    rows = rows.assign(doublings=np.log2(rows.billions), sd=4.5, n=500, wobble=0.0)
    fit = tables.line(rows, rows.doublings, groups=rows.series)
    other = smf.ols("value ~ doublings + series", rows).fit()
    assert fit.at(0, 0, 1).value == pytest.approx(other.params["doublings"])
    assert (fit.r2, fit.scatter**2) == pytest.approx((other.rsquared, other.mse_resid))
