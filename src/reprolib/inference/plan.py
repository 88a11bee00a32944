"""From token sequences to the order in which a model computes them, each shared prefix once. No torch.

Sequences are sorted, so that a depth-first walk of their prefix tree goes through the list: a sequence adds only the
tokens after its longest common prefix with the one before. A token is on the path of every token from its own place in
the walk to the place where the walk leaves its branch, and of no other: the two numbers are the whole attention mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from typing import NamedTuple


class Query(NamedTuple):
    """A token sequence, and how many of its last positions are read (their next-token logits)."""

    ids: tuple[int, ...]
    read: int = 1


class Plan(NamedTuple):
    """The walk. `ends`: the place at which each token's branch is left; `reads`: the places that each query reads."""

    tokens: list[int]
    depths: list[int]  # position of each token in its sequence
    ends: list[int]
    reads: list[list[int]]


def shared(queries: Sequence[Query]) -> Plan:
    """Plan `queries`, in any order and with repeats, so that each shared prefix is computed once.

    >>> shared([Query((1, 2, 3)), Query((1, 2, 4, 5)), Query((1, 2, 3))])
    Plan(tokens=[1, 2, 3, 4, 5], depths=[0, 1, 2, 2, 3], ends=[5, 5, 3, 5, 5], reads=[[2], [4], [2]])
    """
    plan = Plan([], [], [], [[] for _ in queries])
    before, path = tuple[int, ...](), list[int]()  # path: place in the walk of each position of the sequence at hand
    for index in sorted(range(len(queries)), key=lambda i: queries[i].ids):
        ids, read = queries[index]
        depth, place = sum(takewhile(bool, map(eq, before, ids))), len(plan.tokens)  # length of the common prefix
        _leave(plan, path[depth:])
        path[depth:] = range(place, place + len(ids) - depth)
        plan.tokens.extend(ids[depth:])
        plan.depths.extend(range(depth, len(ids)))
        plan.ends.extend(path[depth:])
        plan.reads[index] += path[len(ids) - read :]
        before = ids
    _leave(plan, path)
    return plan


def padded(lengths: Sequence[int], *, pack_tokens: int, most: int) -> list[list[int]]:
    """Batches without sharing: indices of `lengths`, longest first, of at most `most` rows and `pack_tokens` tokens.

    >>> padded([3, 9, 8], pack_tokens=18, most=8)
    [[1, 2], [0]]
    """
    left, batches = sorted(range(len(lengths)), key=lambda i: -lengths[i]), []
    while left:
        rows = max(1, min(most, pack_tokens // lengths[left[0]]))
        batches.append(left[:rows])
        left = left[rows:]
    return batches


def _leave(plan: Plan, places: list[int]) -> None:
    for place in places:
        plan.ends[place] = len(plan.tokens)
