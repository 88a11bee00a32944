"""Tokens against the tokenizer's own answers: BOS, labels in context, two models of a family."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from reprolib.inference import JudgeError
from reprolib.inference.tokens import Tokens, check_labels, without_extensions


class Begins:
    """The toy tokenizer as Llama's behaves: a raw text gets a BOS in front."""

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Any:
        ids = self.inner(text, add_special_tokens=False)["input_ids"]
        return {"input_ids": [self.inner.bos_token_id, *ids] if add_special_tokens else ids}


def test_bos_comes_once_however_many_places_add_it(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens, bos = Tokens(Begins(tokenizer)), tokenizer.bos_token_id
    chat = [{"role": "user", "content": "A or B?"}]
    for prompt in ("A or B?", "<bos>A or B?", "<bos><bos>A or B?", chat):
        ids = tokens.render(prompt, item="x").ids
        assert ids[0] == bos
        assert ids.count(bos) == 1


def test_a_chat_prompt_is_what_the_template_makes_of_it(tokenizer: PreTrainedTokenizerFast) -> None:
    chat = [{"role": "user", "content": "A or B?"}]
    ids = Tokens(tokenizer).render(chat, item="x").ids
    assert list(ids) == tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]


@pytest.mark.parametrize("label", ["A", " A", "better", " better", "12", "A or B"])
@pytest.mark.parametrize("prompt", ["The answer is", "The answer is:\n", "Score ="])
def test_label_ids_are_those_of_the_whole_string(tokenizer: Any, prompt: str, label: str) -> None:
    tokens = Tokens(tokenizer)
    rendered = tokens.render(prompt, item="x")
    ids = tokens.label(rendered, label, item="x")
    assert list(rendered.ids + ids) == tokenizer(prompt + label, add_special_tokens=False)["input_ids"]


def test_a_label_that_merges_with_the_prompt_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = Tokens(tokenizer)
    with pytest.raises(JudgeError, match=r"item q7: label 'better' merges.*move trailing spaces"):
        tokens.label(tokens.render("Which is ", item="q7"), "better", item="q7")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "item q7: the prompt is empty"),
        (" \n", "item q7: the prompt is empty"),
        ([], "item q7: the prompt is empty"),
        ([{"role": "user", "content": " "}], "item q7: the prompt is empty"),
        ([{"content": "hi"}], "item q7: a chat message needs 'role'"),
    ],
)
def test_an_empty_or_malformed_prompt_is_refused_by_name(tokenizer: Any, prompt: Any, message: str) -> None:
    with pytest.raises(JudgeError, match=message):
        Tokens(tokenizer).render(prompt, item="q7")


def test_text_with_braces_and_tags_reaches_the_model_as_it_is(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "{gold} {{7*7}} <img onerror=x> {% if a %}"
    assert text in Tokens(tokenizer).render([{"role": "user", "content": text}], item="x").text


def test_too_long_is_refused_by_name_or_cut_on_the_left(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = Tokens(tokenizer)
    rendered = tokens.render("<bos>A or B or A or B", item="q7")
    n = len(rendered.ids)
    with pytest.raises(JudgeError, match=f"item q7: {n} tokens do not fit .* leaves {n - 2}"):
        tokens.fit(rendered, n - 2, item="q7", truncate=False)
    cut = tokens.fit(rendered, n - 2, item="q7", truncate=True)
    assert cut.ids == rendered.ids[:1] + rendered.ids[3:]
    assert cut.cut == 2


@pytest.mark.parametrize(
    ("labels", "message"), [([], "no labels"), (["A", ""], "empty"), (["A", "B", "A"], "'A' is given")]
)
def test_labels_that_cannot_be_compared_are_refused(labels: list[str], message: str) -> None:
    with pytest.raises(JudgeError, match=message):
        check_labels(labels)


def test_probability_is_added_over_labels_that_exclude_each_other() -> None:
    assert without_extensions([(1,), (1, 2), (3, 4), (3,)]) == [0, 3]
