"""Overlap against closed forms, labels and shares against counting, slopes against statsmodels."""

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from reprolib.metrics.overlap import LABELS, READINGS, expected_shares, overlap, slope, tie_label

TEXT = "The committee met on Monday, heard 1,200 people and decided nothing at all."


@pytest.mark.parametrize("reading", READINGS)
def test_identical_texts_overlap_fully_under_every_reading(reading):
    assert overlap(TEXT, TEXT, **READINGS[reading]) == pytest.approx((1, 1, 1, 1))


def test_equal_lengths_with_a_shared_first_half_have_the_closed_form():
    a, b = "one two three four five " + "p q r s t", "one two three four five " + "v w x y z"
    n4 = (5 / 10 * 4 / 9 * 3 / 8 * 2 / 7) ** 0.25
    assert overlap(a, b) == pytest.approx((5 / 10, n4, 5 / 10, 4 / 9))


def test_a_short_text_pays_the_brevity_penalty_and_a_long_one_loses_precision():
    words = [f"w{k}" for k in range(100)]
    whole, part = " ".join(words), " ".join(words[:80])
    assert overlap(part, whole).bleu1 == pytest.approx(np.exp(1 - 100 / 80))
    assert overlap(whole, part).bleu1 == pytest.approx(0.8)
    assert overlap(part, whole, rouge="recall").rouge1 == pytest.approx(0.8)
    assert overlap(part, whole, rouge="precision").rouge1 == pytest.approx(1)


def test_readings_differ_where_they_should_and_nothing_warns():
    a, b = "Running dogs ran 1,000 miles", "the dog runs 1,000 MILES daily"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {name: overlap(a, b, **how) for name, how in READINGS.items()}
    apart = overlap("a b c d e", "e d c b a", **READINGS["BLEU unsmoothed"]), overlap("a b c d e", "e d c b a")
    assert [x.bleu4 > 1e-6 for x in apart] == [False, True]
    assert found["BLEU cased"].bleu1 < found["base"].bleu1
    assert found["ROUGE of stems"].rouge1 > found["base"].rouge1
    assert found["BLEU cased, 13a tokens, exponential"].bleu1 == pytest.approx(np.exp(1 - 6 / 5) / 5)  # 1,000


def test_line_breaks_are_no_words():
    assert overlap("He won.\nShe lost.", "He won. She lost.") == pytest.approx((1, 1, 1, 1))


def test_labels_exchange_generated_and_human_when_the_texts_change_names_and_keep_ties():
    other = {"A": "B", "B": "A"}
    swapped = {tie_label(x, y): tie_label(other[y], other[x]) for x in "AB" for y in "AB"}
    assert swapped == {"Generated": "Human", "Human": "Generated", LABELS[2]: LABELS[2], LABELS[3]: LABELS[3]}
    assert {tie_label(*pair) for pair in [("tie", "A"), ("A", "unparsed"), ("", "")]} == {"other"}


def test_expected_shares_are_the_four_products_and_what_drawing_gives():
    p, q = 0.7, 0.4
    odds = [np.log(x / (1 - x)) for x in (p, q)]
    shares = expected_shares(*odds)
    assert shares == pytest.approx([p * q, (1 - p) * (1 - q), p * (1 - q), (1 - p) * q])
    rng = np.random.default_rng(0)
    first, second = (np.where(rng.random(100_000) < x, "A", "B") for x in (p, q))
    drawn = pd.Series([tie_label(*pair) for pair in zip(first, second, strict=True)]).value_counts(normalize=True)
    assert [drawn[label] for label in LABELS[:4]] == pytest.approx(shares.tolist(), abs=0.01)


def test_temperature_divides_the_log_odds():
    assert expected_shares(0.7, -0.35, temperature=0.7) == pytest.approx(expected_shares(1, -0.5))
    assert expected_shares(2, 2, temperature=1e-3) == pytest.approx([1, 0, 0, 0])


def clustered(n=300, per=4, seed=1):
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(n), per)
    x = rng.normal(size=n)[cluster] + rng.normal(size=n * per)
    y = 1 - 2 * x + rng.normal(size=n)[cluster] + rng.normal(size=n * per)
    return y, sm.add_constant(x), cluster


def test_slope_is_the_least_squares_one_with_the_clustered_interval():
    y, design, cluster = clustered()
    found = slope(y, design, cluster, at=1, draws=2_000)
    fit = sm.OLS(y, design).fit(cov_type="cluster", cov_kwds={"groups": cluster})
    assert found.value == pytest.approx(fit.params[1])
    assert (found.low, found.high) == pytest.approx(tuple(fit.conf_int()[1]), abs=0.02)
    assert found.n == 300


def test_the_bootstrap_draws_articles_not_rows():
    y, design, cluster = clustered()
    once = slope(y, design, cluster, at=1, draws=500)
    thrice = slope(np.tile(y, 3), np.tile(design, (3, 1)), np.tile(cluster, 3), at=1, draws=500)
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high))
