"""Planted effects come back."""

import numpy as np
import pandas as pd
import pytest

from reprolib.evidence import recipe
from reprolib.metrics.overlap import LABELS
from reprolib.studies import overlap as study


class TestEffects:
    def test_the_simulated_judge_gives_back_what_was_planted(self):
        table = recipe("simulations").simulated_pairs(weight=2.5, position=-0.8, seed=3)
        found = study.effect(table, length=False, draws=300)
        assert found.low < -2.5 < found.high
        assert study.effect(table, y="pi", length=False, draws=100).value == pytest.approx(0)
        logit = recipe("overlap").verdict_slope(table)
        assert logit.low < -2.4 < logit.high

    def test_constant_position_and_difference_alone_give_the_papers_picture(self):
        table = recipe("simulations").simulated_pairs(seed=3)
        shares = table.groupby(table.overlap // 0.1).label.value_counts(normalize=True).unstack(fill_value=0)
        assert shares.Generated.is_monotonic_decreasing
        assert shares.Human.max() < 0.25
        ties = shares[LABELS[2]] + shares[LABELS[3]]
        assert ties.iloc[-1] - ties.iloc[0] > 0.3

    def test_an_excess_that_was_planted_is_found_and_none_where_there_is_none(self):
        models = recipe("simulations").simulated_pairs(weight=1.0, seed=1).assign(human=False, cell="models")
        for weight, planted in ((3.0, -2.0), (1.0, 0.0)):
            both = pd.concat([recipe("simulations").simulated_pairs(weight=weight, seed=2), models])
            found = study.effect(both, "excess", length=False, draws=300)
            assert found.low < planted < found.high
            assert found.high - found.low < 0.5

    def test_length_is_held_fixed(self):
        rng = np.random.default_rng(0)
        table = recipe("simulations").simulated_pairs(seed=0)
        table["log_ratio"] = 2 * table.overlap + rng.normal(0, 0.1, len(table))
        table["theta"] = -1.5 * table.overlap + 3 * table.log_ratio
        assert study.effect(table, draws=100).value == pytest.approx(-1.5)
        assert study.effect(table, length=False, draws=100).value > 3
