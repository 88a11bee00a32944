import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.metrics import allowed_by_rounding, printed_interval
from reprolib.metrics.leakage import pls


@given(st.floats(-1000, 1000), st.integers(0, 3))
def test_a_number_lies_in_the_interval_of_its_own_print(x, decimals):
    low, high = printed_interval(float(f"{x:.{decimals}f}"), decimals)
    assert low - 1e-9 <= x <= high + 1e-9
    assert high - low == pytest.approx(10**-decimals)


@given(st.lists(st.floats(1, 99), min_size=4, max_size=4))
def test_the_true_value_is_always_allowed_by_its_rounded_inputs(exact):
    rounded = [float(f"{x:.1f}") for x in exact]
    low, high = allowed_by_rounding(lambda x: float(pls(*x)), rounded)
    assert low - 1e-9 <= float(pls(*exact)) <= high + 1e-9


def test_corners_are_exact_for_a_monotone_function():
    assert allowed_by_rounding(lambda x: float(np.prod(x)), [2.0, 3.0]) == pytest.approx((1.95 * 2.95, 2.05 * 3.05))
