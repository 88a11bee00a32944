"""The pool of narrative constraints: four elements, five categories each, ten sentences each, all of one form."""

import re
from itertools import combinations

import pandas as pd
import pytest
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

OPENINGS = {
    "event": "The plot turns when ",
    "style": "The narration ",
    "character": "One character is ",
    "setting": "The story unfolds in ",
}


@pytest.fixture
def pool(root) -> pd.DataFrame:
    return pd.read_csv(root / "evidence" / "prompts" / "constraints.csv")


def content(text: str, opening: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.removeprefix(opening).lower())) - ENGLISH_STOP_WORDS


def shared(one: set[str], other: set[str]) -> float:
    """The share of the shorter sentence's content words that the other one has too."""
    return len(one & other) / min(len(one), len(other))


def test_the_pool_is_balanced(pool):
    assert list(pool.columns) == ["id", "element", "category", "text"]
    assert list(pool["id"]) == list(range(1, 201))
    assert list(pool["element"].unique()) == list(OPENINGS)
    assert (pool.groupby("element")["category"].nunique() == 5).all()
    assert (pool.groupby("category").size() == 10).all()
    assert pool["category"].nunique() == 20


def test_each_sentence_has_the_form(pool):
    words = pool["text"].str.split().str.len()
    assert words.between(15, 20).all(), pool[~words.between(15, 20)]
    for element, text in pool[["element", "text"]].itertuples(index=False):
        assert text.startswith(OPENINGS[element]), text
        assert re.fullmatch(r"[A-Z][A-Za-z,: ]+\.", text), text  # one sentence; no quotation mark, no digit
        assert "  " not in text
        assert text == text.strip()


def test_no_two_sentences_say_the_same(pool):
    assert pool["text"].is_unique
    for _, group in pool.groupby("category"):
        words = [(text, content(text, OPENINGS[element])) for element, text in group[["element", "text"]].to_numpy()]
        for (text, one), (again, other) in combinations(words, 2):
            assert shared(one, other) <= 0.6, (text, again)


def test_the_overlap_check_sees_a_near_copy():
    text = "The plot turns when a widower learns that his silent neighbour has been paying his rent."
    copy = "The plot turns when a widower hears that his silent neighbour was paying all of the rent."
    assert shared(*(content(sentence, OPENINGS["event"]) for sentence in (text, copy))) > 0.6
