"""What a simulated engine does with its requests: queue, prefill, decode, KV cache. No tasks, the time passed in.

Invariant: cached tokens plus those of running requests and of the one being prefilled fit the KV capacity. When they
would not, idle prefixes go first, and then the request that came last goes back to the head of the queue.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from agentrl.simulation.config import EngineLaw
from agentrl.simulation.decoding import DecodeClock
from agentrl.simulation.prefix_cache import Node, PrefixCache

_EVICT_AHEAD_STEPS = 64
"""Decoding steps for which room is made at once when the KV is full."""
_ALMOST = 1e-6
"""Rounding, in decoding steps and in seconds."""


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """One generation in the engine."""

    number: int
    """In order of arrival."""
    rid: str
    ids: list[int]
    """The prompt; the caller's own list, which it does not change meanwhile."""
    message: list[int]
    """What will be sampled if nothing ends it before; never empty."""
    version: int = 0
    """Of the weights under which it was sent: the prefix cache gives it nothing of another one."""
    num_sampled: int = 0
    """Tokens of `message` that are out; while it runs, those that were when it last joined."""
    num_cached: int | None = None
    """Prompt tokens that the prefix cache had when it was first prefilled."""
    aborted: bool = False
    node: Node | None = None
    """End of its locked path in the prefix cache: of what it knows, all but what it samples or prefills now."""
    joined: float = 0.0
    """Decoding step at which it joined the running ones."""

    def known(self) -> list[int]:
        """Prompt and what was sampled so far."""
        return self.ids + self.message[: self.num_sampled] if self.num_sampled else self.ids

    @property
    def end(self) -> float:
        """Decoding step of its last token, while it runs."""
        return self.joined + (len(self.message) - self.num_sampled)

    @property
    def num_known(self) -> int:
        return len(self.ids) + self.num_sampled


@dataclass(kw_only=True)
class EngineStats:
    """Sums since the start."""

    busy_s: float = 0.0
    """Time in which it prefilled or decoded."""
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    retractions: int = 0


class Batching:
    """All times are seconds on one clock and never go back."""

    def __init__(self, law: EngineLaw, now: float) -> None:
        self._law = law
        self._clock = DecodeClock(law, now)
        self._cache = PrefixCache()
        self._queue: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self._ends: list[tuple[float, int]] = []
        """Heap of (decoding step of the last token, number); entries of requests that left are skipped."""
        self._joined_sum = 0.0
        self._prefilling: Request | None = None
        self._prefill_ids: list[int] = []
        """Those of its tokens that the cache did not have."""
        self._prefilled_at = math.inf
        self._held = False
        self.stats = EngineStats()

    # --- what is there

    @property
    def busy(self) -> bool:
        return bool(self._running or self._queue or self._prefilling)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Queued, or being prefilled."""
        return len(self._queue) + (self._prefilling is not None)

    @property
    def free_tokens(self) -> float:
        """KV that holds nothing, as of the last `tick`."""
        running = self._clock.num_running * self._clock.steps - self._joined_sum
        return self._law.kv_tokens - self._cache.num_tokens - running - len(self._prefill_ids)

    def requests(self) -> Iterator[Request]:
        """All, in no order that matters."""
        yield from self._running.values()
        if self._prefilling is not None:
            yield self._prefilling
        yield from self._queue

    def next_event(self) -> float:
        """When `tick` must be called at the latest; infinity if nothing happens by itself."""
        while self._ends and not self._is_end(*self._ends[0]):
            heapq.heappop(self._ends)
        if not self._running:
            return self._prefilled_at
        full = self._clock.steps + max(self.free_tokens / len(self._running) - 1, 0.0)
        return min(self._prefilled_at, self._clock.when(min(self._ends[0][0], full)))

    # --- what happens

    def submit(self, request: Request) -> None:
        """Queue a request; `tick` afterwards."""
        self._queue.append(request)

    def tick(self, now: float) -> list[Request]:
        """Catch up with `now`. Returns the requests that have ended."""
        busy = bool(self._running or self._prefilling)
        passed_s = self._clock.advance(now)
        self.stats.busy_s += passed_s if busy else 0.0
        if self._prefilling is not None and now >= self._prefilled_at - _ALMOST:
            self._end_prefill(self._prefilling)
        ended = self._take_ended()
        if self._running and self.free_tokens < len(self._running) + _ALMOST:
            self._make_room()
        if self._prefilling is None and not self._held:
            self._admit(now)
        return ended

    def abort(self, chosen: Callable[[Request], bool], now: float) -> list[Request]:
        """End the chosen requests with what they have. Returns them; `tick` afterwards."""
        self._clock.advance(now)
        aborted = [request for request in self.requests() if chosen(request)]
        for request in aborted:
            request.aborted = True
            if request is self._prefilling:
                self._leave_prefill(request)
            elif request.number in self._running:
                self._leave(request)
            else:
                self._queue.remove(request)
        return aborted

    def hold(self, now: float) -> None:
        """Put everything back into the queue and start nothing until `release`.

        What was computed stays in the cache: unless it is flushed meanwhile, each goes on after a prefill of one token.
        """
        self._clock.advance(now)
        self._held = True
        if self._prefilling is not None:
            request = self._prefilling
            self._leave_prefill(request)
            self._queue.appendleft(request)
        for request in sorted(self._running.values(), key=attrgetter("number"), reverse=True):
            self._leave(request)
            self._queue.appendleft(request)

    def release(self) -> None:
        """Let what is queued start again; `tick` afterwards."""
        self._held = False

    def flush(self) -> None:
        """Forget all prefixes. Only while nothing runs."""
        assert not self._running and self._prefilling is None
        self._cache.clear()

    # --- decoding

    def _join(self, request: Request) -> None:
        request.joined = self._clock.join(request.num_known)
        self._joined_sum += request.joined
        self._running[request.number] = request
        heapq.heappush(self._ends, (request.end, request.number))

    def _leave(self, request: Request) -> None:
        """Count what it sampled; its KV is the cache's from now on."""
        assert request.node is not None
        del self._running[request.number]
        self._clock.leave(request.num_known, request.joined)
        self._joined_sum -= request.joined
        if not self._running:
            self._joined_sum = 0.0
        sampled = int(self._clock.steps - request.joined + _ALMOST)
        sampled = min(sampled, len(request.message) - request.num_sampled)
        self.stats.generated_tokens += sampled
        self._cache.unlock(request.node)
        self._cache.extend(request.node, request.message[request.num_sampled : request.num_sampled + sampled])
        request.node = None
        request.num_sampled += sampled

    def _is_end(self, step: float, number: int) -> bool:
        request = self._running.get(number)
        return request is not None and request.end == step

    def _take_ended(self) -> list[Request]:
        ended = []
        while self._ends and self._ends[0][0] <= self._clock.steps + _ALMOST:
            step, number = heapq.heappop(self._ends)
            if self._is_end(step, number):
                request = self._running[number]
                self._leave(request)
                ended.append(request)
        return ended

    def _make_room(self) -> None:
        """Evict idle prefixes; where that is not enough, retract the requests that came last."""
        wanted = len(self._running) * _EVICT_AHEAD_STEPS
        self._cache.evict(math.ceil(wanted - self.free_tokens))
        while self.free_tokens < len(self._running) + _ALMOST and (len(self._running) > 1 or self._prefilling):
            request = self._running[max(self._running)]
            self._leave(request)
            self._cache.evict(math.ceil(wanted - self.free_tokens))
            self._queue.appendleft(request)
            self.stats.retractions += 1

    # --- prefilling

    def _admit(self, now: float) -> None:
        """Start to prefill the head of the queue if it fits."""
        if not self._queue or len(self._running) >= self._law.max_running:
            return
        ids = self._queue[0].known()
        node, cached = self._cache.match(ids, len(ids) - 1, self._queue[0].version)
        self._cache.lock(node)
        need = len(ids) - cached
        reserve = self._law.reserve_tokens * (len(self._running) + 1) if self._running else 0
        if need + reserve > self.free_tokens + self._cache.num_evictable:
            self._cache.unlock(node)
            return
        request = self._queue.popleft()
        request.node = node
        self._prefill_ids = ids[cached:]
        if request.num_cached is None:
            request.num_cached = cached
        self._cache.evict(math.ceil(need - self.free_tokens))
        self._prefilling = request
        self._prefilled_at = now + need / self._law.prefill_tokens_per_s
        self._clock.prefilling = True
        self.stats.prefilled_tokens += need

    def _end_prefill(self, request: Request) -> None:
        """The cache knows the prompt now, and others may share it while this request decodes."""
        node, ids = request.node, self._prefill_ids
        assert node is not None
        self._leave_prefill(request)
        request.node = self._cache.extend(node, ids)
        self._cache.lock(request.node)
        self._join(request)

    def _leave_prefill(self, request: Request) -> None:
        assert request.node is not None
        self._cache.unlock(request.node)
        request.node = None
        self._prefilling, self._prefill_ids, self._prefilled_at = None, [], math.inf
        self._clock.prefilling = False
