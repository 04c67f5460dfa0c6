"""How many episodes may act at once, so that their contexts fit the engines' KV cache. Pure.

More in flight than fits makes engines evict and re-prefill; fewer leaves them idle.
"""

from __future__ import annotations

from collections.abc import Collection


def may_start(
    num: int, live_tokens: Collection[int], *, expected_tokens: float, capacity_tokens: int, share: float, limit: int
) -> int:
    """How many of `num` further episodes may start now.

    Each live episode is charged what it is expected to grow to: the larger of its context now and `expected_tokens`,
    the mean final length of ended episodes. At least one episode may always be live, or nothing would ever end.
    """
    slots = limit - len(live_tokens)
    charged = sum(max(tokens, expected_tokens) for tokens in live_tokens)
    by_kv = int((capacity_tokens * share - charged) / max(expected_tokens, 1.0))
    if not live_tokens:
        by_kv = max(by_kv, 1)
    return max(min(num, slots, by_kv), 0)
