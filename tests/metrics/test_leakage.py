import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ParameterError
from reprolib.metrics.leakage import (
    leakage_log_odds,
    pls,
    pls_of_shares,
    two_game_verdict,
    win_rate,
)

rates = st.floats(0.5, 99.5)
triples = st.tuples(st.integers(1, 500), st.integers(0, 500), st.integers(1, 500))


def two_step_definition(a, b, c, d):
    """The paper's wording, step by step: excess over the mean of both judges, relative to it."""
    mean_i, mean_j = (a + b) / 2, (c + d) / 2
    return ((a - mean_i) / mean_i + (c - mean_j) / mean_j) / 2


@given(rates, rates, rates, rates)
def test_closed_form_equals_the_two_step_definition_and_stays_in_range(a, b, c, d):
    value = float(pls(a, b, c, d))
    assert value == pytest.approx(two_step_definition(a, b, c, d), abs=1e-12)
    assert -1 <= value <= 1


@given(triples, triples)
def test_swapping_the_two_judges_negates_the_score(judge_i, judge_j):
    assert float(pls_of_shares([judge_i, judge_j])) == pytest.approx(-float(pls_of_shares([judge_j, judge_i])))


@given(triples, triples)
def test_swapping_the_names_of_students_and_judges_changes_nothing(judge_i, judge_j):
    renamed = [judge_j[::-1], judge_i[::-1]]
    assert float(pls_of_shares(renamed)) == pytest.approx(float(pls_of_shares([judge_i, judge_j])))


@given(st.integers(1, 499), st.integers(1, 499))
def test_without_ties_the_score_is_the_gap_over_the_product(wins_i, wins_j):
    # a + d = b + c = 1, so PLS = (a - b) / (s (2 - s)) with s = a + b
    a, b = wins_i / 500, wins_j / 500
    shares = [[a, 0, 1 - a], [b, 0, 1 - b]]
    assert float(pls_of_shares(shares)) == pytest.approx((a - b) / ((a + b) * (2 - a - b)), abs=1e-12)


@given(triples)
def test_tie_rules_agree_without_ties_and_halves_add_up(triple):
    wins, ties, losses = triple
    assert len({round(float(win_rate(wins, 0, losses, tie_rule=r)), 12) for r in ("strict", "half", "drop")}) == 1
    both = win_rate(wins, ties, losses, tie_rule="half") + win_rate(losses, ties, wins, tie_rule="half")
    assert float(both) == pytest.approx(1)


def test_equal_students_and_a_bias_of_b_nats_give_the_logistic_score():
    beta = 0.37  # what 18.4 % corresponds to
    p = 1 / (1 + np.exp(-beta))
    assert float(pls(p, 1 - p, p, 1 - p)) == pytest.approx(2 * p - 1)
    assert float(leakage_log_odds(beta, -beta)) == pytest.approx(beta)


def test_undefined_is_nan_not_zero():
    assert np.isnan(pls(0, 0, 50, 50))
    assert np.isnan(win_rate(0, 0, 0))
    assert np.isnan(win_rate(0, 10, 0, tie_rule="drop"))


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [("A", "A", "A"), ("B", "B", "B"), ("A", "B", "tie"), ("A", "tie", "tie"), ("tie", "tie", "tie"),
     ("unparsed", "unparsed", "tie"), ("A", "unparsed", "tie")],
)  # fmt: skip
def test_a_win_needs_both_games(first, second, verdict):
    assert two_game_verdict(first, second) == verdict


def test_unknown_tie_rule_names_the_allowed_ones():
    with pytest.raises(ParameterError, match="strict, half, drop"):
        win_rate(1, 1, 1, tie_rule="third")
