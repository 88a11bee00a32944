import numpy as np
import pandas as pd
import pytest

from reprolib.evidence import published
from reprolib.studies import leakage as tables


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
