"""Pure functions on numbers and tidy tables; here, what a printed number can stand for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt


def printed_interval(value: float, decimals: int) -> tuple[float, float]:
    """The numbers that print as `value` with this many decimals.

    >>> printed_interval(18.4, 1)
    (18.35, 18.45)
    """
    exact, half = Decimal(repr(float(value))), Decimal(5).scaleb(-decimals - 1)
    return float(exact - half), float(exact + half)


def allowed_by_rounding(
    function: Callable[[npt.NDArray[np.float64]], float], inputs: Sequence[float], *, decimals: int = 1
) -> tuple[float, float]:
    """Smallest and largest value of `function` when each input was rounded to `decimals` before.

    It tries all 2 ** len(inputs) corners: exact for functions monotone in each input, as all win rates and PLS are.

    >>> [round(x, 2) for x in allowed_by_rounding(lambda x: x[0] - x[1], [42.0, 18.2])]
    [23.7, 23.9]
    """
    corners = itertools.product(*(printed_interval(x, decimals) for x in inputs))
    values = [float(function(np.array(corner))) for corner in corners]
    return min(values), max(values)
