"""From token sequences to the order in which a model computes them, each shared prefix once. No torch.

Sequences are sorted, so that a depth-first walk of their prefix tree goes through the list: a sequence adds only the
tokens after its longest common prefix with the one before. The walk is cut into *packs* of equal size, one forward
each. Stretches of a pack in which each token follows the one before are its *runs*. A query attends causally to its own
run, and wholly to every other piece of its path: all queries below such a piece are neighbours in the walk, so one
rectangular block serves them, and nothing is copied, padded or masked. Keys of a path that began in an earlier pack are
*kept* from it, indexed by depth.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from math import ceil
from operator import eq
from typing import NamedTuple

from reprolib.inference import JudgeError


class Query(NamedTuple):
    """A token sequence, and how many of its last positions are read (their next-token logits)."""

    ids: tuple[int, ...]
    read: int = 1


class Block(NamedTuple):
    """Queries [q0, q1) of a pack attend to keys [k0, k1): kept ones first, then the pack's own."""

    q0: int
    q1: int
    k0: int
    k1: int
    causal: bool  # queries and keys are the same run, and each query sees itself and what stands before it

    @property
    def pairs(self) -> int:
        """Query-key pairs that attend."""
        n = self.q1 - self.q0
        return n * (n + 1) // 2 if self.causal else n * (self.k1 - self.k0)


class Pack(NamedTuple):
    """One forward: tokens [start, stop) of the walk over `kept` keys of the open path."""

    start: int
    stop: int
    kept: int
    blocks: tuple[Block, ...]
    keep: int  # so many kept keys begin the next pack's path
    take: tuple[int, ...]  # indices of the pack's own keys that follow them there


class Shape(NamedTuple):
    """The sizes of a model that its cost depends on; `linear` counts the weights of linear layers without the head."""

    linear: int
    layers: int
    attention_width: int
    hidden: int
    vocabulary: int


class Plan(NamedTuple):
    """What will be computed."""

    tokens: tuple[int, ...]  # ids in the order of the walk
    depths: tuple[int, ...]  # position of each token in its sequence
    packs: tuple[Pack, ...]
    reads: tuple[tuple[int, ...], ...]  # for each query given, the places in the walk of the positions it reads

    def flops(self, shape: Shape) -> float:
        """Floating-point operations of all forwards: linear layers, attention, and the head on the rows read."""
        pairs = sum(block.pairs for pack in self.packs for block in pack.blocks)
        rows = len({place for places in self.reads for place in places})
        linear, attention = shape.linear * len(self.tokens), 2 * shape.layers * shape.attention_width * pairs
        return 2.0 * (linear + attention + shape.hidden * shape.vocabulary * rows)


def shared(queries: Sequence[Query], *, pack_tokens: int) -> Plan:
    """Plan `queries`, in any order and with repeats, so that each shared prefix is computed once.

    No forward exceeds `pack_tokens` tokens. Raises JudgeError if a sequence is shorter than what is read, or empty.

    >>> plan = shared([Query((1, 2, 3)), Query((1, 2, 4, 5)), Query((1, 2, 3))], pack_tokens=100)
    >>> plan.tokens, plan.depths, plan.reads
    ((1, 2, 3, 4, 5), (0, 1, 2, 2, 3), ((2,), (4,), (2,)))
    >>> [tuple(block) for block in plan.packs[0].blocks]
    [(0, 3, 0, 3, True), (3, 5, 3, 5, True), (3, 5, 0, 2, False)]
    """
    for query in queries:
        if not 0 < query.read <= len(query.ids):
            raise JudgeError(f"{query.read} positions to read in a sequence of {len(query.ids)} tokens")
    tokens: list[int] = []
    depths: list[int] = []
    path: list[int] = []  # place in the walk of each position of the sequence at hand
    reads: list[tuple[int, ...]] = [()] * len(queries)
    before: tuple[int, ...] = ()
    for index in sorted(range(len(queries)), key=lambda i: queries[i].ids):
        ids, read = queries[index]
        depth = sum(takewhile(bool, map(eq, before, ids)))  # length of the common prefix
        path[depth:] = range(len(tokens), len(tokens) + len(ids) - depth)
        depths.extend(range(depth, len(ids)))
        tokens.extend(ids[depth:])
        reads[index] = tuple(path[len(ids) - read :])
        before = ids
    return Plan(tuple(tokens), tuple(depths), tuple(_packs(depths, pack_tokens)), tuple(reads))


def padded(
    lengths: Sequence[int], *, pack_tokens: int, most: int | None = None, equal: bool = False
) -> list[list[int]]:
    """Batches without sharing: indices of `lengths`, longest first, padded size at most `pack_tokens`.

    `most`: rows in a batch. `equal`: only prompts of one length go together, without padding.

    >>> padded([3, 9, 8], pack_tokens=18)
    [[1, 2], [0]]
    """
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not room or (equal and lengths[index] != lengths[batches[-1][0]]):
            batches.append([])
            room = min(most or len(lengths), max(1, pack_tokens // max(1, lengths[index])))
        batches[-1].append(index)
        room -= 1
    return batches


def _packs(depths: list[int], pack_tokens: int) -> Iterator[Pack]:
    """Cut the walk into packs of nearly equal size."""
    total = len(depths)
    size = ceil(total / ceil(total / pack_tokens)) if total else 1
    path: list[int] = []
    for start in range(0, total, size):
        stop = min(start + size, total)
        for place in range(start, stop):
            path[depths[place] :] = [place]
        del path[depths[stop] if stop < total else 0 :]
        keep = bisect_left(path, start)
        take = tuple(place - start for place in path[keep:])
        yield Pack(start, stop, depths[start], tuple(_blocks(depths[start:stop])), keep, take)


def _blocks(depths: list[int]) -> list[Block]:
    """Blocks of a pack: each run on itself, then each piece of a run or of the kept path, with all queries below it."""
    kept, size = depths[0], len(depths)
    starts = [0, *(q for q in range(1, size) if depths[q] != depths[q - 1] + 1), size]
    runs = [(start, stop, depths[start]) for start, stop in pairwise(starts)]
    causal = [Block(start, stop, kept + start, kept + stop, True) for start, stop, _ in runs]
    whole: list[Block] = []
    for number, (start, stop, depth) in enumerate([(-kept, 0, 0), *runs]):
        on_path = stop  # the run's keys before this place are on the path of the queries at hand
        for at in range(number, len(runs) + 1):  # a later run takes keys off the path, the end of the pack takes all
            since, _, branch = runs[at] if at < len(runs) else (size, size, 0)
            left = max(start, start + branch - depth)
            if left < on_path:
                whole.append(Block(stop, since, kept + left, kept + on_path, False))
                on_path = left
            if on_path == start:
                break
    return causal + [block for block in whole if block.q0 < block.q1]
