"""The plan against a tree built by hand from its definition: the set of prefixes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.inference.plan import Query, padded, shared

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=12)


def _prefixes(ids: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {s[: n + 1] for s in ids for n in range(len(s))}


@given(sequences)
def test_each_prefix_is_computed_exactly_once(ids: list[tuple[int, ...]]) -> None:
    assert len(shared([Query(s) for s in ids]).tokens) == len(_prefixes(ids))


@given(sequences)
@settings(max_examples=200)
def test_every_token_is_seen_by_those_whose_prefix_it_ends_and_by_no_other(ids: list[tuple[int, ...]]) -> None:
    plan = shared([Query(s, len(s)) for s in ids])
    prefix_at = {place: s[: n + 1] for s, places in zip(ids, plan.reads, strict=True) for n, place in enumerate(places)}
    for place, prefix in prefix_at.items():
        seen = [prefix_at[key] for key in prefix_at if key <= place < plan.ends[key]]
        assert sorted(seen, key=len) == [prefix[:n] for n in range(1, len(prefix) + 1)]
        assert plan.depths[place] == len(prefix) - 1


def test_the_order_of_the_queries_does_not_change_the_work() -> None:
    ids = [(1, 2, 3), (1, 2, 4), (5,), (1, 2, 3)]
    assert shared([Query(s) for s in ids])[:3] == shared([Query(s) for s in ids[::-1]])[:3]


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100), st.integers(1, 5))
def test_padded_batches_hold_every_prompt_once_and_keep_to_their_size(
    lengths: list[int], pack_tokens: int, most: int
) -> None:
    batches = padded(lengths, pack_tokens=pack_tokens, most=most)
    assert all(len(batch) <= most for batch in batches)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= pack_tokens
