"""The radix tree against a set of prefixes, which is what it means."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl.simulation.prefix_cache import PrefixCache

ids = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def prefixes(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence) + 1)}


@given(st.lists(ids, max_size=12), ids)
def test_it_knows_every_prefix_of_what_was_inserted_and_counts_each_once(
    sequences: list[list[int]], asked: list[int]
) -> None:
    cache = PrefixCache()
    for sequence in sequences:
        cache.insert(sequence)
    known = prefixes(sequences)
    assert cache.num_tokens == len(known)
    expected = max((end for end in range(1, len(asked) + 1) if tuple(asked[:end]) in known), default=0)
    assert cache.match(asked, len(asked))[1] == expected


@given(st.lists(ids, min_size=1, max_size=12), st.data())
def test_eviction_spares_what_is_locked_and_takes_as_much_as_was_asked_for(
    sequences: list[list[int]], data: st.DataObject
) -> None:
    cache = PrefixCache()
    locked = sequences[: data.draw(st.integers(0, len(sequences)))]
    nodes = []
    for sequence in sequences:
        node = cache.insert(sequence)
        if sequence in locked:
            cache.lock(node)
            nodes.append(node)
    assert cache.num_locked == len(prefixes(locked))
    wanted = data.draw(st.integers(0, 40))
    before = cache.num_tokens
    evicted = cache.evict(wanted)
    assert evicted == min(wanted, before - len(prefixes(locked)))
    assert cache.num_tokens == before - evicted
    assert all(cache.match(sequence, len(sequence))[1] == len(sequence) for sequence in locked)
    for node in nodes:
        cache.unlock(node)
    assert cache.num_locked == 0
    assert cache.evict(1000) == before - evicted
    assert cache.num_tokens == 0


def test_the_least_recently_used_goes_first_from_its_tail() -> None:
    cache = PrefixCache()
    for first in (1, 2, 3):
        cache.insert([first] * 10)
    cache.match([1] * 10, 10)
    assert cache.evict(15) == 15
    assert [cache.match([first] * 10, 10)[1] for first in (1, 2, 3)] == [10, 0, 5]
