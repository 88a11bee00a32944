"""From token sequences to the order in which a model computes them, each shared prefix once. No torch.

Sequences are sorted, so that a depth-first walk of their prefix tree goes through the list: a sequence adds only the
tokens after its longest common prefix with the one before. They are a *run*, which hangs at its depth on the path that
the walk has open. Runs are cut into *packs* of equal size, one forward each. Within a pack a query attends causally to
its own run, and wholly to every other piece of its path: all queries below such a piece are neighbours in the walk, so
one rectangular block serves them, and nothing is copied, padded or masked. Keys of a path that began in an earlier pack
are *kept* from it, indexed by depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest
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


class _Run(NamedTuple):
    start: int
    length: int
    depth: int


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
    runs: list[_Run] = []
    path: list[int] = []  # place in the walk of each position of the sequence at hand
    reads: list[tuple[int, ...]] = [()] * len(queries)
    before: tuple[int, ...] = ()
    for index in sorted(range(len(queries)), key=lambda i: queries[i].ids):
        ids, read = queries[index]
        depth = _common(before, ids)
        if depth < len(ids):
            runs.append(_Run(len(tokens), len(ids) - depth, depth))
            path[depth:] = range(len(tokens), len(tokens) + len(ids) - depth)
            depths.extend(range(depth, len(ids)))
            tokens.extend(ids[depth:])
        reads[index] = tuple(path[len(ids) - read : len(ids)])
        before = ids
    return Plan(tuple(tokens), tuple(depths), _packs(runs, len(tokens), pack_tokens), tuple(reads))


def padded(lengths: Sequence[int], *, pack_tokens: int, equal: bool = False) -> list[list[int]]:
    """Batches for a model that cannot share: indices of `lengths`, longest first, padded size at most `pack_tokens`.

    `equal`: only prompts of one length go together, without padding.

    >>> padded([3, 9, 8], pack_tokens=18)
    [[1, 2], [0]]
    """
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not room or (equal and lengths[index] != lengths[batches[-1][0]]):
            batches.append([])
            room = max(1, pack_tokens // max(1, lengths[index]))
        batches[-1].append(index)
        room -= 1
    return batches


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the longest common prefix; slices are compared in C, by halving."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def _packs(runs: list[_Run], total: int, pack_tokens: int) -> tuple[Pack, ...]:
    """Cut the walk into packs of nearly equal size."""
    size = -(-total // max(1, -(-total // pack_tokens)))
    groups: list[list[_Run]] = []
    for start, length, depth in runs:
        cuts = [start, *range(start - start % size + size, start + length, size), start + length]
        for left, right in pairwise(cuts):
            if left % size == 0:
                groups.append([])
            groups[-1].append(_Run(left, right - left, depth + left - start))
    packs: list[Pack] = []
    path: list[int] = []
    for group, following in zip_longest(groups, groups[1:]):
        start, stop = group[0].start, group[-1].start + group[-1].length
        for run in group:
            path[run.depth :] = range(run.start, run.start + run.length)
        del path[following[0].depth if following else 0 :]
        keep = sum(place < start for place in path)
        take = tuple(place - start for place in path[keep:])
        packs.append(Pack(start, stop, group[0].depth, tuple(_blocks(group)), keep, take))
    return tuple(packs)


def _blocks(group: list[_Run]) -> list[Block]:
    """Blocks of one pack: each run on itself, then each piece of an open path with all queries below it."""
    origin, kept = group[0].start, group[0].depth
    # An open piece: its first key, how many of its keys are on the path, its depth, and since which query that holds.
    pieces = [(0, kept, 0, 0)]
    causal: list[Block] = []
    whole: list[Block] = []

    def close(now: int) -> tuple[int, int]:
        key, length, depth, since = pieces.pop()
        if now > since and length:
            whole.append(Block(since, now, key, key + length, False))
        return key, depth

    for run in group:
        now = run.start - origin
        while pieces and pieces[-1][2] + pieces[-1][1] > run.depth:
            key, depth = close(now)
            if depth < run.depth:
                pieces.append((key, run.depth - depth, depth, now))
        causal.append(Block(now, now + run.length, kept + now, kept + now + run.length, True))
        pieces.append((kept + now, run.length, run.depth, now + run.length))
    while pieces:
        close(now + run.length)
    return causal + whole
