"""The plan against a tree built by hand from its definition: the set of prefixes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.inference import JudgeError
from reprolib.inference.plan import Query, Shape, padded, shared

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=12)


def _prefixes(ids: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {s[: n + 1] for s in ids for n in range(len(s))}


@given(sequences, st.integers(1, 20))
def test_each_prefix_is_computed_exactly_once(ids: list[tuple[int, ...]], pack_tokens: int) -> None:
    plan = shared([Query(s) for s in ids], pack_tokens=pack_tokens)
    assert len(plan.tokens) == len(_prefixes(ids))
    assert all(0 < pack.stop - pack.start <= pack_tokens for pack in plan.packs)


@given(sequences, st.integers(1, 20))
@settings(max_examples=200)
def test_every_query_attends_to_its_own_prefix_and_to_nothing_else(
    ids: list[tuple[int, ...]], pack_tokens: int
) -> None:
    plan = shared([Query(s, len(s)) for s in ids], pack_tokens=pack_tokens)
    prefix_at = {place: s[: n + 1] for s, places in zip(ids, plan.reads, strict=True) for n, place in enumerate(places)}
    path: list[int] = []  # the places whose keys are kept, carried as the executor carries them
    for pack in plan.packs:
        assert len(path) == pack.kept
        keys = [*path, *range(pack.start, pack.stop)]
        seen: dict[int, list[int]] = {place: [] for place in range(pack.start, pack.stop)}
        for q0, q1, k0, k1, causal in pack.blocks:
            for q in range(q0, q1):
                stop = k0 + q - q0 + 1 if causal else k1
                seen[pack.start + q] += keys[k0:stop]
        for place, attended in seen.items():
            expected = [prefix_at[place][:n] for n in range(1, len(prefix_at[place]) + 1)]
            assert sorted((prefix_at[p] for p in attended), key=len) == expected
        path = path[: pack.keep] + [pack.start + index for index in pack.take]


def test_the_order_of_the_queries_does_not_change_the_work() -> None:
    ids = [(1, 2, 3), (1, 2, 4), (5,), (1, 2, 3)]
    assert (
        shared([Query(s) for s in ids], pack_tokens=2).packs
        == shared([Query(s) for s in ids[::-1]], pack_tokens=2).packs
    )


def test_flops_of_one_sequence_are_those_of_the_formula() -> None:
    plan = shared([Query((1, 2, 3, 4))], pack_tokens=10)
    shape = Shape(linear=1000, layers=2, attention_width=8, hidden=8, vocabulary=50)
    assert plan.flops(shape) == 2 * 1000 * 4 + 4 * 2 * 8 * (4 * 5 / 2) + 2 * 8 * 50


def test_a_longer_read_than_the_sequence_is_refused() -> None:
    with pytest.raises(JudgeError, match="2 positions to read in a sequence of 1"):
        shared([Query((1,), 2)], pack_tokens=5)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100))
def test_padded_batches_hold_every_prompt_once_and_keep_to_their_size(lengths: list[int], pack_tokens: int) -> None:
    batches = padded(lengths, pack_tokens=pack_tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= pack_tokens
