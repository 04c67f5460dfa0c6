"""The prefix index and the cache of parked KV."""

from __future__ import annotations

from agentrl.inference.embedded.prefix import BLOCK, Parked, ParkedCache, PrefixIndex, block_hashes, common_prefix


def parked(tokens: list[int]) -> Parked:
    return Parked(tokens, len(tokens), block_hashes(tokens))


def match_length(index: PrefixIndex, tokens: list[int]) -> int:
    return index.match(tokens, block_hashes(tokens), len(tokens) - 1).usable


def test_finds_the_longest_prefix_to_the_token() -> None:
    index = PrefixIndex()
    cache = ParkedCache(index)
    short, long = parked(list(range(40))), parked([*range(50), 99])
    cache.add(short)
    cache.add(long)
    query = [*range(47), 7, 7, 7]
    match = index.match(query, block_hashes(query), len(query) - 1)
    assert (match.holder, match.usable) == (long, 47)


def test_leaves_one_token_to_compute_when_everything_is_known() -> None:
    index = PrefixIndex()
    ParkedCache(index).add(parked(list(range(64))))
    assert match_length(index, list(range(64))) == 63
    assert match_length(index, list(range(32))) == 31


def test_reuses_nothing_below_a_block_or_from_another_prefix() -> None:
    index = PrefixIndex()
    ParkedCache(index).add(parked(list(range(64))))
    assert match_length(index, list(range(BLOCK - 1))) == 0
    assert match_length(index, [1, *range(1, 64)]) == 0


def test_equal_hashes_of_different_tokens_are_not_a_match() -> None:
    index = PrefixIndex()
    entry = parked(list(range(32)))
    index.add(entry, block_hashes(list(range(100, 132))))
    assert match_length(index, list(range(100, 132))) == 0


def test_another_name_space_knows_nothing() -> None:
    index = PrefixIndex()
    tokens = list(range(40))
    ParkedCache(index).add(Parked(tokens, 40, block_hashes(tokens, "7"), "7"))
    assert index.match(tokens, block_hashes(tokens, "8"), 39, "8").usable == 0
    assert index.match(tokens, block_hashes(tokens, "7"), 39, "8").usable == 0
    assert index.match(tokens, block_hashes(tokens, "7"), 39, "7").usable == 39


def test_tells_what_a_running_prefill_will_have() -> None:
    index = PrefixIndex()
    running = parked(list(range(64)))
    running.kv_len = 20
    index.add(running, running.blocks)
    query = list(range(60))
    match = index.match(query, block_hashes(query), 59)
    assert (match.usable, match.potential) == (20, 59)


def test_evicts_the_least_recently_used_and_forgets_it() -> None:
    index = PrefixIndex()
    cache = ParkedCache(index)
    first, second = parked(list(range(32))), parked(list(range(100, 132)))
    cache.add(first)
    cache.add(second)
    cache.touch(first)
    cache.shrink(40)
    assert cache.num_tokens == 32
    assert match_length(index, list(range(100, 132))) == 0
    assert match_length(index, list(range(32))) == 31
    cache.clear()
    assert (cache.num_tokens, len(cache), match_length(index, list(range(32)))) == (0, 0, 0)


def test_common_prefix_compares_the_assumed_part_too() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4], 1) == 2
    assert common_prefix([9, 2, 3], [1, 2, 3], 2) == 0
    assert common_prefix([1, 2], [1, 2, 3], 2) == 2
