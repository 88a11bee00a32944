import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import expit

from reprolib.errors import ParameterError
from reprolib.evidence import recipe
from reprolib.metrics.leakage import METHODS, calibrated, error_bias, error_sums, estimate

planted = recipe("simulations").planted

PEOPLE = np.repeat([1.0, 0.0], [700, 300])  # the target is better in most pairs: error bias must not depend on that
SETTINGS = {"draws": 500, "seed": 1}


def bias(judged, human):
    return float(error_bias(error_sums(judged, human).sum(axis=0)))


def remedy(pairs, method):
    return calibrated(pairs["margin"], pairs["human"], pairs["question"], method=method)


def test_judges_without_a_side_have_no_error_bias():
    coin = np.random.default_rng(1).random(len(PEOPLE)) < 0.5
    assert abs(bias(coin, PEOPLE)) < 3 * 100 * np.sqrt(0.25 / 700 + 0.25 / 300)
    first_shown = np.full(len(PEOPLE), 0.5)  # picks the target in one of the two orders
    assert bias(first_shown, PEOPLE) == 0
    wrong_in_a_tenth = np.where(np.arange(1000) % 10 == 0, 1 - PEOPLE, PEOPLE)
    assert bias(wrong_in_a_tenth, PEOPLE) == pytest.approx(0)
    assert bias(PEOPLE, PEOPLE) == 0


def test_the_extremes_are_a_hundred_points():
    assert bias(np.ones(1000), PEOPLE) == 100
    assert bias(np.zeros(1000), PEOPLE) == -100


def test_error_bias_is_undefined_where_people_never_prefer_one_of_the_two():
    assert np.isnan(bias([1, 0], [1, 1]))
    assert np.isnan(bias([1, 0], [0, 0]))


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, np.nan]), st.sampled_from([0.0, 1.0, np.nan])), min_size=1))
def test_error_bias_is_equal_opportunity_self_preference(pairs):
    judged, human = np.array(pairs).T
    known = np.isfinite(judged + human)
    own, other = judged[known & (human == 1)], 1 - judged[known & (human == 0)]
    expected = 100 * (own.mean() - other.mean()) if len(own) and len(other) else np.nan
    assert bias(judged, human) == pytest.approx(expected, nan_ok=True)
    assert bias(1 - judged, 1 - human) == pytest.approx(-expected, nan_ok=True)  # seen from the other answer


def test_interval_resamples_questions_and_a_remedy_that_changes_nothing_changes_nothing():
    pairs = planted(400, lean=1.0)
    judged = pairs["margin"] > 0
    found = estimate(judged, pairs["human"], pairs["question"], **SETTINGS)
    assert found.n == 100
    assert found.low < found.value == bias(judged, pairs["human"]) < found.high
    same = estimate(judged, pairs["human"], pairs["question"], before=judged.astype(float), **SETTINGS)
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_a_change_is_of_the_size_and_on_pairs_with_both_verdicts():
    human, questions = np.array([1, 1, 0, 0, 0.0, 1.0]), np.arange(6)
    before, after = np.array([1, 1, 1, 1, np.nan, 0.0]), np.array([0, 1, 0, 0, 1, np.nan])
    change = estimate(after, human, questions, before=before, **SETTINGS)
    assert change.value == 50 - 100  # from +100 to -50


@pytest.mark.parametrize(("advantage", "lean"), [(0.0, 0.5), (0.7, 0.0), (-0.5, 1.0)])
def test_planted_pairs_have_the_error_bias_of_their_distribution(advantage, lean):
    """Against numerical integration over quality."""

    def mean(f):
        return integrate.quad(lambda q: f(q) * stats.norm.pdf(q - advantage), -9, 9)[0]

    people, picks = (lambda q: expit(3 * q)), (lambda q: stats.norm.cdf(q + lean))
    false_target = mean(lambda q: picks(q) * (1 - people(q))) / mean(lambda q: 1 - people(q))
    false_other = mean(lambda q: (1 - picks(q)) * people(q)) / mean(people)
    pairs = planted(40_000, advantage=advantage, lean=lean, seed=3)
    assert bias(remedy(pairs, "none"), pairs["human"]) == pytest.approx(100 * (false_target - false_other), abs=2)


def test_without_a_true_advantage_every_calibration_removes_a_lean():
    pairs = planted(lean=1.0)
    assert bias(remedy(pairs, "none"), pairs["human"]) > 40
    for method in METHODS[1:]:
        assert abs(bias(remedy(pairs, method), pairs["human"])) < 4, method


def test_the_label_free_form_also_removes_a_true_advantage_and_the_logistic_form_adds_to_it():
    pairs = planted(advantage=0.7, lean=0.5)
    found = {method: bias(remedy(pairs, method), pairs["human"]) for method in METHODS}
    assert found["label-free"] < -10
    assert abs(found["label-using"]) < 3
    assert found["logistic"] > 40
    agree = {method: (remedy(pairs, method) == pairs["human"]).mean() for method in METHODS}
    assert agree["logistic"] > agree["label-using"] > agree["label-free"]


def test_a_fair_judge_of_unequal_answers_has_an_error_bias():
    pairs = planted(advantage=0.7, lean=0.0)
    assert bias(remedy(pairs, "none"), pairs["human"]) > 10


@pytest.mark.parametrize("method", METHODS[1:])
def test_calibration_never_sees_the_question_it_decides(method):
    pairs = planted(80, lean=0.5, seed=5)
    before, own = remedy(pairs, method), pairs["question"] == 7
    rng = np.random.default_rng(0)
    assert own.sum() > 1
    for pair in pairs.index[own]:
        changed = pairs.copy()
        changed.loc[own, "human"] = 1 - changed.loc[own, "human"]
        changed.loc[own & (changed.index != pair), "margin"] += rng.normal(0, 50)
        assert remedy(changed, method)[pair] == before[pair]


def test_calibration_does_see_the_other_questions():
    pairs = planted(80, seed=5)
    away = pairs.assign(margin=pairs["margin"].where(pairs["question"] == 7, 99.0))
    assert not remedy(away, "label-free")[pairs["question"] == 7].any()
    with pytest.raises(ParameterError, match="label-using"):
        remedy(pairs, "labelusing")
