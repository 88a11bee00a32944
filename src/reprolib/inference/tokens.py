"""From prompts and labels to token ids, once. No torch.

A string is sent as it is; a list of chat messages goes through the model's own template. Template text already holds
its special tokens, so it is tokenised without adding any: a second BOS moved published scores by points.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from reprolib.inference import JudgeError

Ids = tuple[int, ...]
Prompt = str | Sequence[Mapping[str, str]]
_TAIL = 64  # characters before a label that can change how it is split into tokens


class Rendered(NamedTuple):
    """A prompt as text and as ids; truncation removed `cut` tokens from its left."""

    text: str
    ids: tuple[int, ...]
    cut: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 of the ids: equal for equal inputs of the model, whatever template or text made them."""
        return hashlib.sha256(",".join(map(str, self.ids)).encode()).hexdigest()


@dataclass
class Tokens:
    """A tokenizer of the transformers library, with what a judge asks of it."""

    tokenizer: Any
    _labels: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)

    def render(self, prompt: Prompt, *, item: str) -> Rendered:
        """A prompt's text and ids, BOS at most once at the front; an empty or malformed prompt raises JudgeError."""
        text = prompt if isinstance(prompt, str) else self._chat(prompt, item)
        if not text.strip():
            raise JudgeError(f"item {item}: the prompt is empty", hint="give text or a list of chat messages")
        ids, bos = self.ids(text), self.tokenizer.bos_token_id
        if isinstance(prompt, str) and bos is not None and bos in self.tokenizer("")["input_ids"]:
            ids = (bos, *ids)
        while bos is not None and ids[:2] == (bos, bos):
            ids = ids[1:]
        return Rendered(text, ids)

    def fit(self, prompt: Rendered, room: int, *, item: str, truncate: bool) -> Rendered:
        """The prompt, cut on the left to `room` tokens (BOS stays) if `truncate`; else too long a one is refused."""
        if (excess := len(prompt.ids) - room) <= 0:
            return prompt
        if not truncate or room < 2:
            message = f"item {item}: {len(prompt.ids)} tokens do not fit into the context, which leaves {room}"
            raise JudgeError(message, hint="nothing was computed; shorten it, or ask for truncate=True")
        head = prompt.ids[:1] if prompt.ids[0] == self.tokenizer.bos_token_id else ()
        return Rendered(prompt.text, head + prompt.ids[excess + len(head) :], excess)

    def label(self, prompt: Rendered, label: str, *, item: str) -> tuple[int, ...]:
        """The ids of `label` where it follows the prompt; JudgeError if it would merge with the prompt's last token."""
        key = prompt.text[-_TAIL:], label
        if key not in self._labels:
            alone, joint = self.ids(prompt.text), self.ids(prompt.text + label)
            if joint[: len(alone)] != alone or len(joint) == len(alone):
                message = f"item {item}: label {label!r} merges with the end of the prompt {prompt.text[-12:]!r}"
                raise JudgeError(message, hint="move trailing spaces of the prompt to the front of the labels")
            self._labels[key] = joint[len(alone) :]
        return self._labels[key]

    def _chat(self, messages: Sequence[Mapping[str, str]], item: str) -> str:
        if not all(isinstance(message, Mapping) and {"role", "content"} <= set(message) for message in messages):
            raise JudgeError(f"item {item}: a chat message needs 'role' and 'content'", hint="or give one string")
        if not any(message["content"].strip() for message in messages):
            return ""
        if not self.tokenizer.chat_template:
            raise JudgeError(f"item {item}: this model has no chat template", hint="give the prompt as one string")
        plain = [dict(message) for message in messages]
        return str(self.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True))

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text on its own, no special tokens added."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def check_labels(labels: Sequence[str]) -> None:
    """Raises JudgeError for no labels, an empty one, or one given twice."""
    if not labels or any(not label for label in labels):
        raise JudgeError("no labels, or an empty one", hint="give the answers to compare, such as ['A', 'B']")
    if twice := sorted({label for label in labels if list(labels).count(label) > 1}):
        raise JudgeError(f"label {twice[0]!r} is given twice", hint="each answer is one label")


def without_extensions(labels: Sequence[tuple[int, ...]]) -> list[int]:
    """Indices of the labels that extend no other: their probabilities are of disjoint events and may be added.

    >>> without_extensions([(16,), (16, 15), (17,)])
    [0, 2]
    """
    begun = [any(other != ids and ids[: len(other)] == other for other in labels) for ids in labels]
    return [index for index, extends in enumerate(begun) if not extends]


def may_follow(options: Iterable[Ids], comma: Ids, count: int, end: int, ids: Ids) -> list[int]:
    """The ids that may follow `ids` in a list of `count` different options with commas between, and then `end`."""
    left = [*options]
    while found := next((option for option in left if ids[: len(option)] == option), None):
        left, ids = [option for option in left if option != found], ids[len(found) :]
        if (count := count - 1) <= 0:
            return [end]
        if len(ids) < len(comma):
            return [comma[len(ids)]]
        ids = ids[len(comma) :]
    return sorted({option[len(ids)] for option in left if option[: len(ids)] == ids})


def read_prompts(path: Path) -> pd.DataFrame:
    """JSON Lines or Parquet with columns `id` (unique) and `prompt` (text or chat messages); else JudgeError."""
    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_json(path, lines=True, dtype=False)
        texts = [prompt if isinstance(prompt, str) else list(prompt) for prompt in table["prompt"]]
        table = table.assign(id=table["id"].astype(str), prompt=texts)
        if not table["id"].is_unique:
            raise ValueError("an id stands twice")
    except (ValueError, OSError, KeyError) as error:
        hint = "give JSON Lines, or Parquet named *.parquet, with columns id (unique) and prompt"
        raise JudgeError(f"{path} cannot be read: {error}", hint=hint) from error
    return table
