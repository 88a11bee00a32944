"""Tokens computed and time of the judge, beside the usual ways to do the same work: see README.md."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

INSTRUCTIONS = """You will read a news article and then one summary of it. Your task is to judge a single property of the \
summary: its coherence.

A coherent summary is well organised. Its sentences belong to one another: each one builds on what stands before it, \
things that are referred to have been introduced, the order of events can be followed, and the whole reads as one text \
about one subject and not as a heap of facts. Whether the facts are right, how much of the article is covered and how \
polished the language is are other properties, which do not count here.

The score is a whole number from {low} to {high}, where {low} means that the sentences have nothing to do with one \
another and {high} means that the summary could not be organised better.

Work in three steps. First read the article and find its subject and its main points. Then read the summary and follow \
how it moves from sentence to sentence. Then choose the score from {low} to {high} that fits best.

Article:
{article}
"""
FORM = "\nSummary:\n{summary}\n\nAnswer with the score for coherence only, a whole number from {low} to {high}."
RANGES = ((1, 5), (2, 6))


class _DataOnly(pickle.Unpickler):
    """The released file is a pickle of dicts, lists, strings and numbers; anything else in it is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def prompts(path: Path, articles: int) -> list[list[dict[str, str]]]:
    """One chat prompt for each of `articles` x 16 summaries x 2 ranges, the range before the article."""
    with path.open("rb") as file:
        data = _DataOnly(file).load()
    out = []
    for item in list(data.values())[:articles]:
        for summary in item["sys_summs"].values():
            for low, high in RANGES:
                text = (INSTRUCTIONS + FORM).format(low=low, high=high, article=item["src"], summary=summary["sys_summ"])
                out.append([{"role": "user", "content": text}])
    return out
