import numpy as np
import pandas as pd

from reprolib.metrics.style import HABITS, predict_author, style_counts

TEXT = """# Title

**Bold** text.  Two spaces!

* one
- two
1. first
2) second

| a | b |
```python
x = 1
```
"""


def test_each_habit_is_counted_by_hand():
    counts = style_counts([TEXT]).loc[0]
    expected = dict(headings=1, bold=1, bullets=2, numbered=2, code_fences=2, table_rows=1, paragraph_breaks=3,
                    exclamations=1, double_spaces=1)  # fmt: skip
    assert counts.to_dict() == expected
    assert set(expected) == set(HABITS)


def test_a_planted_habit_is_found_and_its_absence_is_chance():
    rng = np.random.default_rng(0)
    words = [" ".join(rng.choice(["alpha", "beta", "gamma", "delta"], 30)) for _ in range(200)]
    authors = ["x", "y"] * 100
    groups = np.repeat(np.arange(100), 2)
    marked = [f"{w}.  {w}" if a == "x" else f"{w}. {w}" for w, a in zip(words, authors, strict=True)]
    assert predict_author(marked, authors, groups).mean() == 1
    assert 0.3 < predict_author(words, authors, groups).mean() < 0.7


def test_answers_to_one_question_never_help_to_attribute_each_other():
    # Each question has its own giveaway word, useless for other questions: grouped folds must not profit from it.
    texts = [f"q{k} {author}{k}" for k in range(60) for author in "xy"]
    correct = predict_author(texts, ["x", "y"] * 60, np.repeat(np.arange(60), 2))
    assert correct.mean() <= 0.6


def test_counts_are_accepted_as_a_frame():
    counts = pd.DataFrame({"bold": [0, 9] * 30})
    assert predict_author(counts, ["x", "y"] * 30, np.repeat(np.arange(30), 2)).all()


def test_a_classifier_of_the_originals_is_lost_without_the_habit_it_learnt():
    texts = [f"plain words here.{' ' * (1 + (author == 'x'))}more words" for _ in range(40) for author in "xy"]
    authors, groups = ["x", "y"] * 40, np.repeat(np.arange(40), 2)
    assert predict_author(texts, authors, groups, ablated=texts).all()
    stripped = predict_author(texts, authors, groups, ablated=[" ".join(text.split()) for text in texts])
    assert stripped.mean() == 0.5
    counts = style_counts(texts)
    assert predict_author(counts, authors, groups, ablated=counts * 0).mean() == 0.5
