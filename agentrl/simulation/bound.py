"""What no controller could beat on the same drawn episodes: a lower bound for each resource. Pure.

Optimistic on purpose: every token is sampled in a batch as full as KV allows, nothing is prefilled twice, nobody waits
for anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from agentrl.simulation.config import EngineLaw, Hardware, Workload
from agentrl.simulation.life import Life, within_budget


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Seconds that a batch takes at least, by what would be the only limit."""

    longest: float
    """The longest episode, alone on an engine; 0 where a batch need not wait for the episodes it began."""
    engines: float
    """Sampling and prefilling, spread evenly over the engines."""
    sandboxes: float
    """Sandbox time of all episodes, as if each were alone, over the sandboxes."""
    starts: float
    """Starts of all sandboxes, so many at once; 0 where those of a single batch were started before."""
    trainer: float
    """The trainer's own time for the batch."""

    @property
    def seconds(self) -> float:
        return max(self.by_resource().values())

    @property
    def collecting_s(self) -> float:
        """Training not counted."""
        return max(self.longest, self.engines, self.sandboxes, self.starts)

    @property
    def resource(self) -> str:
        """The one that binds."""
        by_resource = self.by_resource()
        return max(by_resource, key=lambda name: by_resource[name])

    def by_resource(self) -> dict[str, float]:
        return {
            "longest trajectory": self.longest,
            "engines": self.engines,
            "sandboxes": self.sandboxes,
            "sandbox starts": self.starts,
            "trainer": self.trainer,
        }


def bound(
    lives: Sequence[Life],
    workload: Workload,
    hardware: Hardware,
    *,
    sandboxes: int,
    warm: bool,
    batches: int = 1,
    trainer_gpus: int = 1,
    carry_over: bool = False,
) -> Bound:
    """Bound of the time of one batch, where `lives` are the episodes of `batches` batches.

    `carry_over`: unfinished episodes go on beside the next batch, so that none waits for its own longest one.
    """
    lives = [within_budget(life, workload) for life in lives]
    alone = [unloaded_s(life, workload, hardware.engine, warm=warm) for life in lives]
    starts_s = sum(life.start_cold_s for life in lives)
    law = hardware.trainer
    work_s = engine_s(lives, workload, hardware.engine)
    return Bound(
        longest=0.0 if carry_over else max(alone),
        engines=work_s / hardware.engines / batches,
        sandboxes=sum(alone) / sandboxes / batches,
        starts=0.0 if warm and batches == 1 else starts_s / hardware.sandbox_starts / batches,
        trainer=law.step_s + law.step_per_token_s * _tokens(lives, workload) / batches / trainer_gpus,
    )


def unloaded_s(life: Life, workload: Workload, law: EngineLaw, *, warm: bool) -> float:
    """Seconds of an episode that has an engine to itself, from asking for its sandbox to its verdict."""
    sampling_s = sum(
        law.request_s + turn.generated_tokens * (law.step_s + law.step_per_running_s + _read_s(law, context))
        for turn, context in zip(life.turns, _contexts(life, workload), strict=True)
    )
    tools_s = sum(turn.tool_s for turn in life.turns[:-1])
    start_s = life.start_warm_s if warm else life.start_cold_s
    prefill_s = _num_prefilled(life, workload) / law.prefill_tokens_per_s
    return start_s + sampling_s + prefill_s + tools_s + life.verifier_s


def engine_s(lives: Sequence[Life], workload: Workload, law: EngineLaw) -> float:
    """Seconds of one engine that episodes need at least: their tokens in full batches, their contexts prefilled once.

    A batch is full with `max_running` requests, or when their contexts fill the KV cache; a group's prompt counts there
    once. A prefill costs the others only what it slows their decoding by.
    """
    turns = [pair for life in lives for pair in zip(life.turns, _contexts(life, workload), strict=True)]
    tokens = sum(turn.generated_tokens for turn, _ in turns)
    read = sum(turn.generated_tokens * context for turn, context in turns)
    shared = workload.prompt_tokens * (1 - 1 / workload.group_size) * tokens
    num_steps = max(tokens / law.max_running, (read - shared) / law.kv_tokens)
    prefill_s = sum(_num_prefilled(life, workload) for life in lives) / law.prefill_tokens_per_s
    sampling_s = law.step_s * num_steps + law.step_per_running_s * tokens + _read_s(law, read)
    return sampling_s + prefill_s * (1 - law.decode_share_while_prefilling)


def _read_s(law: EngineLaw, context: float) -> float:
    return law.step_per_context_token_s * context


def _contexts(life: Life, workload: Workload) -> list[float]:
    """By turn, the mean context while its message is sampled."""
    grown = accumulate(
        (turn.generated_tokens + turn.observation_tokens for turn in life.turns[:-1]), initial=workload.prompt_tokens
    )
    return [before + turn.generated_tokens / 2 for before, turn in zip(grown, life.turns, strict=True)]


def _num_prefilled(life: Life, workload: Workload) -> int:
    return workload.prompt_tokens + sum(turn.observation_tokens for turn in life.turns[:-1])


def _tokens(lives: Sequence[Life], workload: Workload) -> int:
    return sum(_num_prefilled(life, workload) + sum(turn.generated_tokens for turn in life.turns) for life in lives)
