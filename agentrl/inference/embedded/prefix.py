"""Which KV can be reused: the longest token prefix among running sequences and parked (finished) ones.

Tokens are indexed in blocks of `BLOCK`, each block's hash chained to the one before, so that a lookup costs one
dictionary access a block however many sequences are held. A hit is then compared token by token: hashes only find.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

BLOCK = 16
_CANDIDATES = 8
"""Holders compared token by token at one depth, newest first: bounds the cost when many share a block."""


class Holder(Protocol):
    """Something with KV for the first `kv_len` of `tokens`."""

    tokens: list[int]
    extra_key: str
    """Only holders of the same one are found."""
    kv_len: int


@dataclass(eq=False, slots=True, weakref_slot=True)
class Parked:
    """KV of a finished sequence, kept for reuse. `kv` is set by whoever owns the tensors."""

    tokens: list[int]
    """Exactly those whose KV is held."""
    kv_len: int
    blocks: list[int]
    extra_key: str = ""
    kv: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Match:
    """Result of a lookup: `usable` tokens from `holder` now; `potential` once running prefills have finished."""

    holder: Holder | None
    usable: int
    potential: int


def block_hashes(tokens: list[int], extra_key: str = "") -> list[int]:
    """Chained hashes of the whole blocks of `tokens` in the name space `extra_key`."""
    hashes: list[int] = []
    chained = hash(extra_key)
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        chained = hash((chained, *tokens[end - BLOCK : end]))
        hashes.append(chained)
    return hashes


def common_prefix(first: list[int], second: list[int], start: int) -> int:
    """Length of the common prefix of two lists that are likely equal in their first `start` tokens; 0 if not."""
    if first[:start] != second[:start]:
        return 0
    length = start
    for a, b in zip(islice(first, start, None), islice(second, start, None), strict=False):
        if a != b:
            break
        length += 1
    return length


class PrefixIndex:
    """Finds holders by token prefix."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[int, Holder]] = {}

    def add(self, holder: Holder, blocks: list[int]) -> None:
        for block in blocks:
            self._holders.setdefault(block, {})[id(holder)] = holder

    def remove(self, holder: Holder, blocks: list[int]) -> None:
        """Forget a holder; harmless if it is not held."""
        for block in blocks:
            held = self._holders.get(block)
            if held is not None and held.pop(id(holder), None) is not None and not held:
                del self._holders[block]

    def match(self, tokens: list[int], blocks: list[int], limit: int, extra_key: str = "") -> Match:
        """Best holder for a prefix of at most `limit` of `tokens`, whose whole blocks hash to `blocks`."""
        best, usable, potential = None, 0, 0
        for depth in range(len(blocks), 0, -1):
            if usable >= depth * BLOCK:
                break
            for holder in islice(reversed(self._holders.get(blocks[depth - 1], {}).values()), _CANDIDATES):
                if holder.extra_key != extra_key:
                    continue
                length = min(common_prefix(holder.tokens, tokens, depth * BLOCK), limit)
                potential = max(potential, length)
                if min(length, holder.kv_len) > usable:
                    best, usable = holder, min(length, holder.kv_len)
        return Match(best, usable, potential)

    def clear(self) -> None:
        self._holders.clear()


class ParkedCache:
    """Parked KV, least recently used first out. Invariant: `num_tokens` is the sum over its entries."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._entries: OrderedDict[int, Parked] = OrderedDict()
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Parked) -> None:
        self._entries[id(entry)] = entry
        self._index.add(entry, entry.blocks)
        self.num_tokens += entry.kv_len

    def touch(self, entry: Parked) -> None:
        """Mark as used; harmless if it was evicted."""
        if id(entry) in self._entries:
            self._entries.move_to_end(id(entry))

    def drop(self, entry: Parked) -> None:
        """Forget one; harmless if it was evicted."""
        if self._entries.pop(id(entry), None) is not None:
            self._index.remove(entry, entry.blocks)
            self.num_tokens -= entry.kv_len

    def shrink(self, max_tokens: int) -> None:
        """Evict the least recently used until at most `max_tokens` are held."""
        while self.num_tokens > max_tokens:
            self.drop(next(iter(self._entries.values())))

    def clear(self) -> None:
        self.shrink(0)
