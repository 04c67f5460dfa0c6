"""The engine's scheduler as a state machine, against a symbolic KV cache that remembers what was written where."""

from __future__ import annotations

import itertools
import random

import pytest

from agentrl.inference.embedded.scheduler import Copy, Limits, Park, PauseMode, Plan, Restore, Scheduler
from agentrl.inference.embedded.sequence import End, Sampling, Sequence

Cell = tuple[int, int]
"""(token, weights epoch that computed its KV)."""


class Engine:
    """Carries out plans on a symbolic cache, and checks every step that the KV read is the KV meant."""

    def __init__(self, *, max_running: int = 4, max_total_tokens: int = 400, prefill_tokens: int = 32) -> None:
        limits = Limits(max_running=max_running, max_total_tokens=max_total_tokens, prefill_tokens=prefill_tokens)
        self.scheduler = Scheduler(limits, "0")
        self.slots: list[list[Cell]] = [[] for _ in range(max_running)]
        self.epoch = 0
        self.stale_allowed: set[int] = set()
        self.keys = itertools.count(1)
        self.ended: list[Sequence] = []
        self.now = 0.0

    def submit(self, tokens: list[int], new: int = 4, stop: frozenset[int] = frozenset()) -> Sequence:
        key = next(self.keys)
        sequence = Sequence(
            key=key,
            rid=f"r-{key:04}",
            tokens=list(tokens),
            num_prompt=len(tokens),
            sampling=Sampling(max_new_tokens=new, stop_ids=stop),
            seed=key,
        )
        self.scheduler.submit(sequence)
        return sequence

    def step(self) -> Plan:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        for operation in plan.operations:
            self._apply(operation)
        self._check(plan)
        for work in plan.works:
            cells = self.slots[work.sequence.slot]
            new = work.sequence.tokens[work.start : work.start + work.count]
            cells[work.start :] = [(token, self.epoch) for token in new]
        samples = [(sample(work.sequence), -1.0) for work in plan.works if work.samples]
        self.ended += self.scheduler.commit(plan.works, samples, self.now)
        return plan

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.step().works:
                return
        raise AssertionError("the engine did not come to rest")

    def change_weights(self, *, flush: bool) -> None:
        self.epoch += 1
        self.stale_allowed = set() if flush else set(self.scheduler.running)
        self.scheduler.weights_changed(str(self.epoch), flush=flush)

    def _apply(self, operation: Park | Restore | Copy) -> None:
        match operation:
            case Park(slot, length, entry):
                entry.kv = self.slots[slot][:length]
                assert len(entry.kv) == length
            case Restore(entry, slot, length):
                self.slots[slot] = entry.kv[:length]
            case Copy(source, target, length):
                self.slots[target] = self.slots[source][:length]

    def _check(self, plan: Plan) -> None:
        running = list(self.scheduler.running.values())
        limits = self.scheduler.limits
        if plan.works:
            assert sorted(sequence.slot for sequence in running) == list(range(plan.num_slots))
        assert sum(sequence.reserved_tokens for sequence in running) <= limits.max_total_tokens
        assert self.scheduler.used_tokens <= limits.max_total_tokens
        assert sum(work.count for work in plan.prefills) <= limits.prefill_tokens + 1
        assert [work.sequence.slot for work in plan.decodes] == sorted(work.sequence.slot for work in plan.decodes)
        for work in plan.works:
            cells = self.slots[work.sequence.slot][: work.start]
            assert [token for token, _ in cells] == work.sequence.tokens[: work.start]
            if work.sequence.key not in self.stale_allowed:
                assert {epoch for _, epoch in cells} <= {self.epoch}


def sample(sequence: Sequence) -> int:
    """A deterministic next token, so that equal prefixes have equal continuations."""
    return sum(sequence.tokens[-3:]) % 11


def expected_output(prompt: list[int], new: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(new):
        tokens.append(sum(tokens[-3:]) % 11)
    return tokens[len(prompt) :]


def test_decodes_in_batches_and_prefills_in_chunks() -> None:
    engine = Engine(prefill_tokens=32)
    long, short = engine.submit(list(range(50))), engine.submit([1, 2, 3])
    first = engine.step()
    assert [(work.start, work.count, work.samples) for work in first.prefills] == [(0, 32, False)]
    second = engine.step()
    assert [(work.sequence, work.count) for work in second.works] == [(long, 18), (short, 3)]
    third = engine.step()
    assert {work.sequence for work in third.decodes} == {long, short}
    engine.run()
    assert long.tokens[50:] == expected_output(list(range(50)), 4)


def test_a_sequence_ends_at_a_stop_token_which_it_keeps() -> None:
    engine = Engine()
    prompt = [1, 2, 3]
    stop = expected_output(prompt, 2)[1]
    sequence = engine.submit(prompt, new=50, stop=frozenset({stop}))
    engine.run()
    assert (sequence.end, sequence.tokens[-1], sequence.num_output) == (End.STOP, stop, 2)


def test_waits_for_memory_in_order_of_arrival_and_never_overcommits() -> None:
    engine = Engine(max_running=4, max_total_tokens=100)
    sequences = [engine.submit([token] * 30, new=20) for token in range(6)]
    engine.step()
    assert list(engine.scheduler.running) == [sequences[0].key, sequences[1].key]
    engine.run()
    assert engine.ended == sequences


def test_the_next_turn_of_an_episode_reuses_the_last_one() -> None:
    engine = Engine()
    first = engine.submit(list(range(40)), new=4)
    engine.run()
    second = engine.submit([*first.tokens, 7, 7], new=4)
    engine.run()
    # The last sampled token was never fed, so its KV is not there.
    assert second.cached_tokens == 43
    assert engine.scheduler.parked_tokens == 49, "the earlier turn's entry was superseded"


def test_a_group_computes_its_common_prompt_once() -> None:
    engine = Engine(max_running=8, max_total_tokens=1000, prefill_tokens=64)
    prompt = list(range(60))
    members = [engine.submit(prompt) for _ in range(8)]
    computed = sum(work.count for work in engine.step().prefills)
    assert computed == 60
    engine.run()
    assert [member.cached_tokens for member in members] == [0] + [59] * 7
    assert {tuple(member.tokens) for member in members} == {(*prompt, *expected_output(prompt, 4))}


def test_the_prefix_cache_gives_way_to_requests() -> None:
    engine = Engine(max_total_tokens=100)
    engine.submit(list(range(60)), new=4)
    engine.run()
    assert engine.scheduler.parked_tokens == 63
    engine.submit([5] * 70, new=20)
    engine.step()
    assert engine.scheduler.parked_tokens == 0


def test_abort_returns_what_was_sampled_and_leaves_the_others() -> None:
    engine = Engine()
    victim, other, waiting = (
        engine.submit([1] * 20, new=30),
        engine.submit([2] * 20, new=6),
        engine.submit([3], new=370),
    )
    engine.step()
    engine.step()
    assert engine.scheduler.abort(lambda sequence: sequence in (victim, waiting), "aborted") == [victim, waiting]
    assert (victim.end, victim.num_output, waiting.num_output) == (End.ABORT, 2, 0)
    engine.run()
    assert engine.ended == [other]


def test_pause_abort_ends_everything_and_holds_what_comes() -> None:
    engine = Engine()
    running = engine.submit([1] * 20, new=30)
    engine.step()
    assert engine.scheduler.pause(PauseMode.ABORT) == [running]
    later = engine.submit([2] * 20)
    assert not engine.step().works
    engine.scheduler.resume()
    engine.run()
    assert later.end is End.LENGTH


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.IN_PLACE])
def test_pause_without_abort_loses_nothing(mode: PauseMode) -> None:
    engine = Engine()
    sequences = [engine.submit([token] * 20, new=10) for token in range(6)]
    for _ in range(4):
        engine.step()
    assert engine.scheduler.pause(mode) == []
    assert not engine.step().works
    engine.scheduler.resume()
    engine.run()
    assert [sequence.num_output for sequence in sequences] == [10] * 6
    assert sum(sequence.num_retractions for sequence in sequences) == (4 if mode is PauseMode.RETRACT else 0)


def test_new_weights_make_old_kv_unusable_for_new_requests() -> None:
    engine = Engine()
    engine.submit(list(range(40)))
    engine.run()
    engine.scheduler.pause(PauseMode.ABORT)
    engine.change_weights(flush=False)
    engine.scheduler.resume()
    again = engine.submit(list(range(40)))
    engine.run()
    assert again.cached_tokens == 0


@pytest.mark.parametrize("flush", [True, False])
def test_in_place_update_recomputes_or_keeps_the_kv_of_running_requests(flush: bool) -> None:
    engine = Engine()
    survivor = engine.submit(list(range(40)), new=10)
    for _ in range(4):
        engine.step()
    engine.scheduler.pause(PauseMode.IN_PLACE)
    engine.change_weights(flush=flush)
    engine.scheduler.resume()
    twin = engine.submit(list(range(40)), new=2)
    engine.run()
    assert survivor.spans == [("0", 0, 3), ("1", 3, 10)]
    assert survivor.num_retractions == (1 if flush else 0)
    assert twin.cached_tokens == (32 if flush else 0), "stale KV is nobody else's"
    late = engine.submit(list(range(40)), new=2)
    engine.run()
    assert late.cached_tokens == 39, "the twin's KV is of the new weights"


def test_an_update_without_a_pause_waits_for_what_came_before_only() -> None:
    engine = Engine()
    before = engine.submit([1] * 20, new=5)
    engine.step()
    engine.scheduler.fence()
    after = engine.submit([2] * 20, new=5)
    assert not engine.scheduler.drained
    engine.run()
    assert (before.end, after.end, engine.scheduler.drained) == (End.LENGTH, None, True)
    engine.change_weights(flush=True)
    engine.scheduler.unfence()
    engine.run()
    assert (before.spans, after.spans) == ([("0", 0, 5)], [("1", 0, 5)])


def test_a_row_of_bad_logits_ends_its_own_sequence_only() -> None:
    engine = Engine()
    bad, good = engine.submit([1] * 20), engine.submit([2] * 20)
    plan = engine.scheduler.plan(1.0)
    for work in plan.works:
        engine.slots[work.sequence.slot] = [(token, 0) for token in work.sequence.tokens]
    samples = [(0, float("-inf") if work.sequence is bad else -1.0) for work in plan.works if work.samples]
    assert engine.scheduler.commit(plan.works, samples, 1.0) == [bad]
    assert bad.end is End.ERROR
    engine.run()
    assert good.end is End.LENGTH
    assert engine.scheduler.parked_tokens == 23, "the KV of bad logits is not kept"


@pytest.mark.parametrize("seed", range(25))
def test_random_histories_end_well(seed: int) -> None:
    """Whatever comes in whatever order: KV is right at every step (Engine checks), and every request ends once."""
    rng = random.Random(seed)
    engine = Engine(
        max_running=rng.choice([1, 3, 8]),
        max_total_tokens=rng.choice([90, 200, 1000]),
        prefill_tokens=rng.choice([1, 16, 64]),
    )
    submitted: list[Sequence] = []
    aborted: list[Sequence] = []
    for _ in range(300):
        action = rng.random()
        if action < 0.25:
            base = rng.choice(submitted).tokens if submitted and rng.random() < 0.6 else [rng.randrange(5)] * 40
            tokens = [*base[: rng.randrange(1, 60)], *(rng.randrange(5) for _ in range(rng.randrange(8)))]
            submitted.append(engine.submit(tokens, new=rng.randrange(1, 20)))
        elif action < 0.30 and submitted:
            victim = rng.choice(submitted)
            aborted += engine.scheduler.abort(lambda sequence, victim=victim: sequence is victim, "aborted")  # type: ignore[misc]
        elif action < 0.33:
            aborted += engine.scheduler.pause(rng.choice(list(PauseMode)))
        elif action < 0.36 and engine.scheduler.paused:
            engine.change_weights(flush=rng.random() < 0.5)
        elif action < 0.38:
            engine.scheduler.flush()
        elif action < 0.50:
            engine.scheduler.resume()
        else:
            engine.step()
    engine.scheduler.resume()
    engine.run()
    assert sorted(sequence.key for sequence in engine.ended + aborted) == [sequence.key for sequence in submitted]
    for sequence in engine.ended:
        prompt = sequence.tokens[: sequence.num_prompt]
        assert sequence.tokens[sequence.num_prompt :] == expected_output(prompt, sequence.sampling.max_new_tokens)
        assert [span[1] for span in sequence.spans[1:]] == [span[2] for span in sequence.spans[:-1]]
    assert not engine.scheduler.running
    assert engine.scheduler.used_tokens == engine.scheduler.parked_tokens
