"""Decoding rules agree with each other where the definitions say so, and with hand-made cases elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from reprolib.metrics import scoring

RNG = np.random.default_rng(0)
MAIN, ASSISTANT = RNG.normal(20, 3, size=(200, 5)), RNG.normal(15, 3, size=(200, 5))


def test_beta_zero_and_a_constant_assistant_are_greedy() -> None:
    greedy = scoring.greedy(MAIN)
    assert (scoring.greedy(scoring.contrast(MAIN, ASSISTANT, 0.0)) == greedy).all()
    constant = np.repeat(ASSISTANT[:, :1], 5, axis=1)
    assert (scoring.greedy(scoring.contrast(MAIN, constant, 2.0)) == greedy).all()


def test_a_constant_added_to_all_logits_changes_nothing() -> None:
    assert (scoring.greedy(MAIN + 7) == scoring.greedy(MAIN)).all()
    assert scoring.expected(MAIN + 7) == pytest.approx(scoring.expected(MAIN))
    moved = scoring.contrast(MAIN, ASSISTANT + 7, 0.5)
    assert (scoring.greedy(moved) == scoring.greedy(scoring.contrast(MAIN, ASSISTANT, 0.5))).all()


def test_the_papers_rule_depends_on_the_ratio_alone_and_its_grid_holds_18_rules() -> None:
    for strength in scoring.LAMBDAS:
        for t in scoring.TEMPERATURES:
            paper = special.log_softmax(MAIN, -1) - strength * special.log_softmax(ASSISTANT / t, -1)
            ratio = scoring.contrast(MAIN, ASSISTANT, strength / t)
            assert (paper.argmax(-1) == scoring.greedy(ratio)).all()
            assert special.softmax(paper, -1) == pytest.approx(special.softmax(ratio, -1))
    assert len(scoring.LAMBDAS) * len(scoring.TEMPERATURES) == 24
    assert len(scoring.BETAS) == 18
    assert (min(scoring.BETAS), max(scoring.BETAS)) == (0.002, 2.0)


def test_batch_calibration_removes_a_favourite_that_all_items_share() -> None:
    favourite = np.array([0.0, 50.0, 0.0, 0.0, 0.0])
    assert set(scoring.greedy(MAIN + favourite)) == {1.0}
    assert scoring.calibrated(MAIN + favourite) == pytest.approx(scoring.calibrated(MAIN))


def test_the_spread_of_hand_made_scores() -> None:
    human = np.array([0, 1, 2, 3, 4])
    found = scoring.spread(np.array([2, 2, 2, 2, 2]), human)
    assert found["modal_level"] == 2
    assert (found["modal_share"], found["entropy"], found["shift"]) == (1, 0, 0)
    assert found["wasserstein"] == pytest.approx(stats.wasserstein_distance([2] * 5, human))
    smoothed = np.array([0.5, 0.5, 5.5, 0.5, 0.5]) / 7.5
    assert found["kl"] == pytest.approx(float(np.sum(0.2 * np.log2(0.2 / smoothed))))
    same = scoring.spread(human, human)
    assert (same["kl"], same["wasserstein"], same["entropy"]) == pytest.approx((0, 0, np.log2(5)))


def test_slots_and_digits_are_told_apart_but_for_a_trend() -> None:
    lows = np.arange(4)
    by_slot = np.tile([0.0, 3, 1, 0, 2], (4, 1))
    assert scoring.slot_and_digit(by_slot, lows)["slot"] == pytest.approx(1)
    assert scoring.slot_and_digit(by_slot, lows)["digit"] < 0.8
    favourite_digit = np.array([0, 0, 4.0, 0, 1, 0, 3, 0])
    by_digit = np.stack([favourite_digit[low : low + 5] for low in lows])
    found = scoring.slot_and_digit(by_digit, lows)
    assert found["digit"] == pytest.approx(1)
    assert found["slot"] < 0.8
    trend = np.tile(np.arange(5.0), (4, 1))
    assert scoring.slot_and_digit(trend, lows) == pytest.approx({"slot": 1, "digit": 1, "both": 1})
