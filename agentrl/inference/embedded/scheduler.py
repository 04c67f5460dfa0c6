"""What to compute next: admission, prefix reuse, chunked prefill, abort, pause, weight epochs. Pure; knows no torch.

The owner calls `plan`, carries out its KV operations in order, runs one forward pass over its works, and gives the
samples to `commit`. Invariants:
- A sequence is admitted only when everything that it and the running ones may ever need fits in `max_total_tokens`,
  so a running sequence never waits for memory, and nothing deadlocks. The prefix cache lives in what is left over.
- Running sequences occupy the slots 0 to n-1 when a plan is returned, so that decoding works on a view of the cache.
- KV is reused only within its weights epoch, and between requests of one `extra_key`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl.inference.embedded.prefix import BLOCK, Parked, ParkedCache, PrefixIndex, block_hashes
from agentrl.inference.embedded.sequence import End, Sequence
from agentrl.inference.engine import PauseMode


@dataclass(frozen=True, kw_only=True)
class Limits:
    max_running: int
    max_total_tokens: int
    prefill_tokens: int
    """Prompt tokens computed in one step beside the decoding sequences: bounds how long a long prompt stalls them."""


@dataclass(frozen=True, slots=True)
class Park:
    """Copy `length` tokens of KV out of `slot` into `entry.kv`."""

    slot: int
    length: int
    entry: Parked


@dataclass(frozen=True, slots=True)
class Restore:
    """Copy the first `length` tokens of `entry.kv` into `slot`."""

    entry: Parked
    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the first `length` tokens of KV from slot `source` to slot `target`."""

    source: int
    target: int
    length: int


KvOperation = Park | Restore | Copy


@dataclass(frozen=True, slots=True)
class Work:
    """Compute tokens [start, start + count) of a sequence. `samples` is True if its next token is sampled after it."""

    sequence: Sequence
    start: int
    count: int
    samples: bool


@dataclass(frozen=True)
class Plan:
    operations: list[KvOperation] = field(default_factory=list)
    decodes: list[Work] = field(default_factory=list)
    """Works of one token, by slot."""
    prefills: list[Work] = field(default_factory=list)
    """Works of more than one token, in order of admission."""
    num_slots: int = 0
    """Slots in use: 0 to num_slots - 1."""

    @property
    def works(self) -> list[Work]:
        return self.decodes + self.prefills


class Scheduler:
    """State of all sequences in the engine."""

    def __init__(self, limits: Limits, version: str) -> None:
        self.limits = limits
        self.version = version
        """Weight version that samples now."""
        self.paused: PauseMode | None = None
        self.released = False
        """Weights or KV memory are not there; nothing runs until they are back."""
        self.running: dict[int, Sequence] = {}
        """By key, in order of admission."""
        self.waiting: deque[Sequence] = deque()
        self.num_cached_tokens = 0
        self._epoch = 0
        self._fence: int | None = None
        self._last_key = 0
        self._slots: list[Sequence | None] = [None] * limits.max_running
        self._sources: dict[int, weakref.ref[Parked]] = {}
        self._reserved = 0
        self._index = PrefixIndex()
        self._parked = ParkedCache(self._index)
        self._operations: list[KvOperation] = []

    # --- arrivals and departures -------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. Keys rise; the caller bounds how many there are."""
        self._last_key = sequence.key
        sequence.blocks = block_hashes(sequence.tokens, sequence.extra_key)
        self.waiting.append(sequence)

    def abort(self, matches: Callable[[Sequence], bool], reason: str) -> list[Sequence]:
        """End every sequence that matches, with what it has; returns them."""
        ended = [sequence for sequence in [*self.running.values(), *self.waiting] if matches(sequence)]
        gone = {sequence.key for sequence in ended}
        for sequence in ended:
            sequence.end, sequence.reason = End.ABORT, reason
            if sequence.key in self.running:
                self._leave(sequence, park=True)
        self.waiting = deque(sequence for sequence in self.waiting if sequence.key not in gone)
        return ended

    # --- pause, weights, memory --------------------------------------------------------------------------------

    def pause(self, mode: PauseMode) -> list[Sequence]:
        """Stop computing until `resume`; returns the sequences that ended by it (mode abort)."""
        self.paused = mode
        if mode is PauseMode.ABORT:
            return self.abort(lambda _: True, "paused")
        if mode is PauseMode.RETRACT:
            self._retract_running()
        return []

    def resume(self) -> None:
        self.paused = None

    def fence(self) -> None:
        """Admit nothing that arrives from now on, until the weights change; see `drained`."""
        if self._fence is None:
            self._fence = self._last_key

    def unfence(self) -> None:
        self._fence = None

    @property
    def drained(self) -> bool:
        """Whether weights may change: everything before the fence has ended, or the engine is paused."""
        if self.paused is not None:
            return True
        return not self.running and not any(self._before_fence(sequence) for sequence in self.waiting)

    @property
    def blocked(self) -> bool:
        """Whether nothing will be computed until someone resumes."""
        return self.paused is not None or self.released

    @property
    def idle(self) -> bool:
        """Whether memory may be given up: nothing runs, and what waits was told to."""
        return not self.running and (self.blocked or not self.waiting)

    def flush(self) -> bool:
        """Forget all parked KV. Returns False, and changes nothing, while sequences hold KV."""
        if self.running:
            return False
        self._parked.clear()
        self._operations.clear()
        return True

    def weights_changed(self, version: str, *, flush: bool) -> None:
        """New weights are in place: no KV from before is given to a new sequence.

        With `flush`, running sequences (there are some only under an in_place pause) recompute theirs; without, they
        go on with what they have.
        """
        self.version = version
        self._epoch += 1
        if flush:
            self._retract_running()
        self._parked.clear()
        self._index.clear()
        self._operations.clear()  # between two plans there are only Parks

    # --- a step ------------------------------------------------------------------------------------------------

    def plan(self, now_s: float) -> Plan:
        """The next step. Empty of works when there is nothing to do or the engine is blocked."""
        if self.blocked:
            return Plan()
        self._admit(now_s)
        self._compact()
        decodes, prefills = self._works()
        return Plan(self._take_operations(), decodes, prefills, len(self.running))

    def commit(self, works: list[Work], samples: list[tuple[int, float]], now_s: float) -> list[Sequence]:
        """Account for a step that was run. `samples` holds (token, log-prob) of the works that sample, in order.

        Returns the sequences that ended.
        """
        drawn = iter(samples)
        ended: list[Sequence] = []
        for work in works:
            sequence = work.sequence
            sequence.kv_len += work.count
            if not work.samples:
                continue
            token, logprob = next(drawn)
            if logprob > float("-inf"):
                sequence.append(token, logprob, self.version, now_s)
            else:
                sequence.end, sequence.reason = End.ERROR, "the model's logits are not finite"
            if sequence.end is not None:
                self._leave(sequence, park=sequence.end is not End.ERROR)
                ended.append(sequence)
        return ended

    # --- figures -----------------------------------------------------------------------------------------------

    @property
    def used_tokens(self) -> int:
        """KV tokens held by running sequences and by the prefix cache."""
        return self._parked.num_tokens + sum(sequence.kv_len for sequence in self.running.values())

    @property
    def parked_tokens(self) -> int:
        return self._parked.num_tokens

    # --- inside ------------------------------------------------------------------------------------------------

    def _before_fence(self, sequence: Sequence) -> bool:
        return self._fence is None or sequence.key <= self._fence

    def _admit(self, now_s: float) -> None:
        """Start waiting sequences in order of arrival, while slots and memory last.

        One that would reuse a prefix which a running sequence is just computing is passed over until that is there:
        a group's members share one prefill of their prompt.
        """
        passed: list[Sequence] = []
        while self.waiting and len(passed) < self.limits.max_running:
            sequence = self.waiting[0]
            fits = self._reserved + sequence.reserved_tokens <= self.limits.max_total_tokens
            if len(self.running) >= self.limits.max_running or not fits or not self._before_fence(sequence):
                break
            self.waiting.popleft()
            limit = len(sequence.tokens) - 1
            match = self._index.match(sequence.tokens, sequence.blocks, limit, sequence.extra_key)
            if match.potential - match.usable >= BLOCK:
                passed.append(sequence)
                continue
            self._start(sequence, match.holder, match.usable, now_s)
        self.waiting.extendleft(reversed(passed))

    def _start(self, sequence: Sequence, source: object, usable: int, now_s: float) -> None:
        slot = self._slots.index(None)
        self._slots[slot] = sequence
        sequence.slot, sequence.kv_len, sequence.kv_epoch = slot, usable, self._epoch
        if sequence.started_s is None:
            sequence.started_s, sequence.cached_tokens = now_s, usable
            self.num_cached_tokens += usable
        if isinstance(source, Sequence):
            self._operations.append(Copy(source.slot, slot, usable))
        elif isinstance(source, Parked):
            self._parked.touch(source)
            self._sources[sequence.key] = weakref.ref(source)
            self._operations.append(Restore(source, slot, usable))
        self.running[sequence.key] = sequence
        self._reserved += sequence.reserved_tokens
        self._parked.shrink(self.limits.max_total_tokens - self._reserved)
        self._index.add(sequence, sequence.blocks)

    def _leave(self, sequence: Sequence, *, park: bool) -> None:
        """Take a sequence off its slot, parking its KV if it is of the present weights."""
        del self.running[sequence.key]
        self._index.remove(sequence, sequence.blocks)
        self._reserved -= sequence.reserved_tokens
        source = self._sources.pop(sequence.key, None)
        if park and sequence.kv_epoch == self._epoch and sequence.kv_len >= BLOCK:
            self._park(sequence, source() if source is not None else None)
        self._slots[sequence.slot] = None
        sequence.slot = -1

    def _park(self, sequence: Sequence, source: Parked | None) -> None:
        tokens = sequence.tokens[: sequence.kv_len]
        if source is not None and source.tokens == tokens[: source.kv_len]:
            # The turn before of the same episode: all of it is in the new entry.
            self._parked.drop(source)
        entry = Parked(tokens, len(tokens), block_hashes(tokens, sequence.extra_key), sequence.extra_key)
        self._operations.append(Park(sequence.slot, sequence.kv_len, entry))
        self._parked.add(entry)
        self._parked.shrink(self.limits.max_total_tokens - self._reserved)

    def _retract_running(self) -> None:
        for sequence in reversed(self.running.copy().values()):
            self._leave(sequence, park=True)
            sequence.kv_len = 0
            sequence.num_retractions += 1
            self.waiting.appendleft(sequence)

    def _compact(self) -> None:
        """Move sequences from the highest slots into holes, so that the used slots are 0 to n-1."""
        num_running = len(self.running)
        holes = [slot for slot in range(num_running) if self._slots[slot] is None]
        for sequence in self.running.values():
            if sequence.slot >= num_running:
                target = holes.pop()
                self._operations.append(Copy(sequence.slot, target, sequence.kv_len))
                self._slots[sequence.slot], self._slots[target] = None, sequence
                sequence.slot = target

    def _works(self) -> tuple[list[Work], list[Work]]:
        budget = self.limits.prefill_tokens
        decodes: list[Work] = []
        prefills: list[Work] = []
        for sequence in self.running.values():
            pending = sequence.pending
            if pending == 1:
                decodes.append(Work(sequence, sequence.kv_len, 1, True))
            elif budget > 0:
                count = min(pending, max(budget, 2))
                budget -= count
                prefills.append(Work(sequence, sequence.kv_len, count, count == pending))
        decodes.sort(key=lambda work: work.sequence.slot)
        return decodes, prefills

    def _take_operations(self) -> list[KvOperation]:
        operations, self._operations = self._operations, []
        return operations
