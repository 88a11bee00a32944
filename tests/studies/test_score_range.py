"""The committed numbers of SummEval as they are known, and decoding rules on simulated judges."""

from __future__ import annotations

import numpy as np
import pytest

from reprolib.metrics.correlation import cross_table
from reprolib.studies import score_range

FILE_ORDER = ["M11", "M13", "M1", "M14", "M15", "M12", "M5", "M17", "M20", "M23", "M2", "M0", "M22", "M8", "M10", "M9"]
TEST = list(score_range.shuffled()[10:])


def human(aspect: str, articles: list[int]) -> np.ndarray:
    table = score_range.items().set_index("cluster_id")
    return np.stack([table.loc[article, aspect].to_numpy() for article in articles])


@pytest.mark.parametrize(
    ("aspect", "mean", "sd", "at_five", "counts"),
    [
        ("coherence", 3.413, 1.037, 0.069, [38, 326, 422, 579, 235]),
        ("consistency", 4.660, 0.917, 0.816, [35, 82, 37, 59, 1387]),
        ("relevance", 3.777, 0.797, 0.052, [11, 120, 362, 837, 270]),
    ],
)
def test_committed_ratings_have_the_known_moments(aspect, mean, sd, at_five, counts) -> None:  # type: ignore[no-untyped-def]
    values = score_range.items()[aspect]
    assert (values.mean(), values.std(ddof=0)) == pytest.approx((mean, sd), abs=6e-4)
    assert round((values == 5).mean(), 3) == at_five
    assert np.bincount(np.rint(values).astype(int), minlength=6)[1:].tolist() == counts


@pytest.mark.parametrize(
    ("aspect", "pooled", "kept", "within"), [("coherence", 0.966, 90, 0.943), ("consistency", 0.874, 80, 0.896)]
)
def test_a_judge_that_rounds_the_humans_reaches_the_known_ceiling(aspect, pooled, kept, within) -> None:  # type: ignore[no-untyped-def]
    scores = human(aspect, TEST)
    table = cross_table(np.rint(scores), scores)
    defined = table.within()[np.isfinite(table.within())]
    assert round(table.pooled(), 3) == pooled
    assert (len(defined), round(defined.mean(), 3)) == (kept, within)


def test_ids_are_in_file_order_and_digits_are_counted_in_the_text() -> None:
    table = score_range.items()
    assert table.groupby("cluster_id").author.agg(list).map(lambda systems: systems == FILE_ORDER).all()
    shares = {digit: round(table[f"seen_{digit}"].mean(), 2) for digit in "01234567"}
    assert shares == {"0": 0.78, "1": 0.80, "2": 0.72, "3": 0.55, "4": 0.46, "5": 0.49, "6": 0.43, "7": 0.40}


def simulated(noise: float, seed: int, articles: int = 60) -> score_range.Judged:
    """A judge that sees the humans' score through noise, likes level 2, and names levels by the range's digits."""
    rng, people = np.random.default_rng(seed), human("coherence", list(score_range.shuffled()[:articles]))
    seen_quality = people - 1 + rng.normal(0, noise, people.shape)
    logits = rng.normal(0, 0.01, (4, *people.shape, 10))
    for r, low in enumerate(score_range.RANGES.values()):
        logits[r, ..., low : low + 5] += 20 - 0.3 * (np.arange(5) - seen_quality[..., None]) ** 2 + [0, 1, 2.5, 0.5, 0]
    return score_range.Judged(logits, logits > 0, logits[..., 0], people, [])


def test_the_tuned_rule_is_the_best_on_the_development_articles_and_is_tested_on_the_others() -> None:
    main, assistant = simulated(1.5, 0), simulated(6, 1)
    scores = score_range.methods(main, assistant)
    weights = np.ones(60)
    found = score_range.agreement(scores, main.human)(weights)
    for r in range(4):
        rules = scores["contrastive"][:, r]
        dev = [cross_table(s[:10], main.human[:10]).pooled() for s in rules]
        best = cross_table(rules[int(np.argmax(dev))][10:], main.human[10:]).pooled()
        assert found[1, r] == pytest.approx(best)
    assert found[0] == pytest.approx([cross_table(s[10:], main.human[10:]).pooled() for s in scores["greedy"][0]])


def test_a_constant_assistant_changes_nothing_and_calibration_removes_the_favourite() -> None:
    main = simulated(1.5, 0)
    flat = main._replace(logits=np.zeros_like(main.logits))
    table = score_range.evaluate(score_range.methods(main, flat), main.human, draws=100, seed=0)
    mean = table[table.range == "mean"].set_index("method")
    assert mean.gain["contrastive"].value == 0
    assert mean.gain["contrastive"].high == 0
    assert mean.gain["batch calibration"].low > 0
    assert mean.gain["expected score"].low > 0
