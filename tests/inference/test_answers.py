"""Reading a reply: a value, a bound or a named failure. Exact log-probabilities come from a model in this process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.inference.api_judge import parse_label, read_reply

SCALE = list("12345")
RUBRIC = "Score 1 if the summary is bad, 3 if it is fair and 5 if it is excellent."


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("4", "4"),
        (" 4\n", "4"),
        ("4.", "4"),
        ("**4**", "4"),
        ("[[4]]", "4"),
        ("Score: 4", "4"),
        ("**Score:** 4", "4"),
        ("Final answer: (4).", "4"),
        ("The score is 4.", "4"),
        ("Rating = `4`", "4"),
    ],
)
def test_a_text_that_is_a_label_is_that_label(text: str, label: str) -> None:
    assert parse_label(text, "stop", SCALE) == (label, "")


@pytest.mark.parametrize(
    ("text", "finish", "failure"),
    [
        ("", "stop", "empty"),
        (" \n", "stop", "empty"),
        ("**", "stop", "empty"),
        ("10", "stop", "off the scale"),
        ("Score: 10", "stop", "off the scale"),
        ("4.5", "stop", "off the scale"),
        (".5", "stop", "off the scale"),
        ("4/5", "stop", "off the scale"),
        ("-1", "stop", "off the scale"),
        ("0", "stop", "off the scale"),
        ("4 or 5", "stop", "several labels"),
        ("4-5", "stop", "several labels"),
        (RUBRIC, "stop", "several labels"),
        (f"{RUBRIC}\n\n4", "stop", "several labels"),
        ("The summary deserves 4 points", "stop", "not alone"),
        ("<4", "stop", "not alone"),
        ("~4", "stop", "not alone"),
        ("I cannot judge this.", "stop", "no label"),
        ("I'm sorry, but I can't rate any of these 5 texts.", "stop", "not alone"),
        ("four", "stop", "no label"),
        ("Score:", "stop", "no label"),
        ("4", "length", "cut"),
        ("4", "content_filter", "refusal"),
        ("I will not do that.", "refusal", "refusal"),
    ],
)
def test_a_text_that_is_no_label_is_a_named_failure(text: str, finish: str, failure: str) -> None:
    assert parse_label(text, finish, SCALE) == (None, failure)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A", ("A", "")),
        ("a", ("A", "")),
        ("Answer: B", ("B", "")),
        ("tie", ("tie", "")),
        ("A is better than B", (None, "several labels")),
        ("A and B are equally good", (None, "several labels")),
        ("A good answer", (None, "not alone")),
        ("Apple", (None, "no label")),
        ("AB", (None, "no label")),
    ],
)
def test_letters_are_labels_only_as_words_of_their_own(text: str, found: tuple[str | None, str]) -> None:
    assert parse_label(text, "stop", ["A", "B", "tie"]) == found


def test_labels_that_differ_in_nothing_but_case_or_space_are_not_guessed() -> None:
    assert parse_label("a", "stop", ["A", "a"]) == (None, "several labels")
    assert parse_label("4", "stop", [" 4", "4"]) == (None, "several labels")


@given(st.text(max_size=40))
def test_any_text_is_a_label_or_a_failure_and_a_label_stands_in_the_text(text: str) -> None:
    label, failure = parse_label(text, "stop", SCALE)
    assert (label is None) != (failure == "")
    if label is not None:
        digits = [character for character in text if character.isdigit()]
        assert digits == [label]


def test_a_label_that_is_not_shown_is_bounded_and_never_a_value() -> None:
    top = [("1", -0.2, [49]), ("The", -2.0, None), ("I", -4.5, None)]
    row = read_reply(top, "The", "stop", ["1", "2"])
    assert (row["logp_1"], row["answer"], row["failure"], row["source"]) == (-0.2, "1", "", "logprob")
    assert math.isnan(row["bound_1"])
    assert math.isnan(row["logp_2"])
    assert row["bound_2"] == -4.5
    assert row["in_label_mass"] == pytest.approx(math.exp(-0.2))


def test_a_label_of_several_tokens_is_bounded_by_the_token_that_begins_it() -> None:
    top = [("Y", -0.1, None), ("No", -3.0, None), ("", -4.0, None)]
    row = read_reply(top, "Yes", "stop", ["Yes", "Never"])
    assert math.isnan(row["logp_Yes"])
    assert (row["bound_Yes"], row["bound_Never"]) == (-0.1, -4.0)
    assert (row["answer"], row["source"]) == ("Yes", "text")


def test_no_label_shown_and_no_label_written_is_a_failure() -> None:
    row = read_reply([("The", -0.1, None)], "The second is better", "stop", ["1", "2"])
    assert (row["answer"], row["failure"], row["source"], row["in_label_mass"]) == (None, "no label", "text", 0.0)


def test_without_log_probabilities_nothing_is_a_number_but_the_text() -> None:
    row = read_reply([], "2", "stop", ["1", "2"])
    assert all(math.isnan(row[name]) for name in ("logp_1", "bound_1", "logp_2", "bound_2", "in_label_mass"))
    assert (row["answer"], row["source"]) == ("2", "text")


def test_two_ids_that_spell_one_label_are_added_and_bytes_win_over_text() -> None:
    row = read_reply([("1", math.log(0.25), None), ("?", math.log(0.5), [49])], "1", "stop", ["1"])
    assert row["logp_1"] == pytest.approx(math.log(0.75))


def test_a_placeholder_for_an_unknown_log_probability_is_none() -> None:
    row = read_reply([("1", -0.5, None), ("2", -9999.0, None)], "1", "stop", ["1", "2"])
    assert math.isnan(row["logp_2"])
    assert row["bound_2"] == -0.5


def test_equally_likely_labels_are_a_tie() -> None:
    row = read_reply([("1", -1.0, None), ("2", -1.0, None)], "1", "stop", ["1", "2"])
    assert (row["answer"], row["failure"]) == (None, "tie")


def test_every_bound_lies_above_the_exact_log_probability(make_judge: Any) -> None:
    """What a server with the toy model would show, in its 20 likeliest tokens, against the toy model itself."""
    judge = make_judge()
    labels = ["1", " 12", "better", "eleven", "Z", "The bus"]
    prompts = ["Score from 1 to 5:", "Which of the two answers is better, A or B?", "The bus leaves at"]
    exact = judge.label_logprobs(prompts, labels, min_mass=0)
    for number, (ids, logits, total) in enumerate(
        zip(exact["top_ids"], exact["top_logits"], exact["logsumexp"], strict=True)
    ):
        top = [
            (judge.tokens.tokenizer.decode([i], skip_special_tokens=True), logit - total, None)
            for i, logit in zip(ids, logits, strict=True)
        ]
        row = read_reply(top, "", "stop", labels)
        for label in labels:
            truth = exact[f"logp_{label}"][number]
            known, bound = row[f"logp_{label}"], row[f"bound_{label}"]
            assert math.isnan(known) != math.isnan(bound)
            assert truth <= bound + 1e-9 if math.isnan(known) else known == pytest.approx(truth)
    assert np.isfinite(exact["logp_Z"]).all()
