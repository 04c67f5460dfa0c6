"""What a simulated run came to: how long batches took, what they cost, and whether their selection was fair."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from agentrl.ledger.reader import LedgerReader
from agentrl.ledger.rows import STATES, EpisodeRow
from agentrl.simulation.batching import EngineStats
from agentrl.simulation.bound import bound
from agentrl.simulation.config import Hardware
from agentrl.simulation.life import Life, World, within_budget
from agentrl.simulation.loop import START_S
from agentrl.simulation.tongue import parse_episode

WARM_UP_BATCHES = 3
"""Batches after which the steady state is taken to have begun."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One episode, as far as figures need it."""

    turns: int
    tokens: int
    episode: str = ""
    span: int = 0
    """Newest minus oldest policy version among its sampled tokens."""
    infrastructure: bool = False
    """It lost its sandbox, so it should have no reward."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Times in seconds; shares from 0 to 1."""

    batches_s: tuple[float, ...]
    """When each batch was complete, since the start."""
    cold_s: float
    """From nothing running to the first complete batch."""
    steady_s: float | None
    """Mean time between complete batches, the first three dropped; None where there are too few."""
    busy: float
    """Share of engine time with a request in it."""
    prefill_per_generated: float
    retractions: int
    bias_turns: float
    """Mean turns of trained episodes over that of launched ones, minus 1. As of times, of the steady state where there
    is one: the first batches hold what was done first, and what was not is in all the others."""
    bias_tokens: float
    span_median: int
    span_p95: int
    span_max: int
    verdicts: dict[str, int]
    infra_as_reward: int
    """Trained episodes that lost their sandbox. Must be 0."""
    lost: int
    """Usable trajectories that were dropped for another reason than having no gradient."""
    bound_s: float
    """What no controller could beat on the episodes of these batches: of `steady_s` where there is one, else of
    `cold_s`."""


def figures(
    *,
    batches_s: Sequence[float],
    trained: Sequence[Sample],
    launched: Sequence[Sample],
    engines: Iterable[EngineStats],
    engine_s: float,
    verdicts: dict[str, int],
    lost: int,
    bound_s: float,
    steady: Sequence[Sample] | None = None,
) -> Figures:
    """`engine_s`: seconds that all engines together were there. `steady`: those of `trained` that are compared with the
    launched ones, by default all."""
    stats, compared = list(engines), trained if steady is None else steady
    spans = sorted(sample.span for sample in trained)
    return Figures(
        batches_s=tuple(batches_s),
        cold_s=batches_s[0],
        steady_s=_steady_s(batches_s),
        busy=sum(s.busy_s for s in stats) / engine_s,
        prefill_per_generated=sum(s.prefilled_tokens for s in stats) / sum(s.generated_tokens for s in stats),
        retractions=sum(s.retractions for s in stats),
        bias_turns=_bias([s.turns for s in compared], [s.turns for s in launched]),
        bias_tokens=_bias([s.tokens for s in compared], [s.tokens for s in launched]),
        span_median=_quantile(spans, 0.5),
        span_p95=_quantile(spans, 0.95),
        span_max=spans[-1],
        verdicts=dict(sorted(verdicts.items())),
        infra_as_reward=sum(sample.infrastructure for sample in trained),
        lost=lost,
        bound_s=bound_s,
    )


def of_run(
    reader: LedgerReader,
    world: World,
    engines: Sequence[EngineStats],
    *,
    hardware: Hardware,
    sandboxes: int,
    warm: bool,
    lost: Container[str],
    began_s: float = 0.0,
) -> Figures:
    """Figures of a run that ended with its last batch, from its ledger.

    `lost`: episodes that lost their sandbox. `began_s`: when collecting began.
    """
    steps = reader.steps()
    batches_s = [step.assigned_at - START_S - began_s for step in steps]
    num_warm_up = WARM_UP_BATCHES if len(steps) > WARM_UP_BATCHES else 0
    batched = {row.id: row.step or 0 for row in reader.groups(["batched"])}
    episodes = reader.episodes()
    rows = [row for row in episodes if row.group in batched and row.reward is not None]
    steady = [_trained(row, lost) for row in rows if batched[row.group] > num_warm_up]
    in_time = {row.id for row in reader.groups(STATES) if row.opened_at < steps[-1].assigned_at}
    attempts = [parse_episode(row.id) for row in episodes if row.group in in_time]
    launched = [drawn(world, *who) for who in attempts if who[2] == 0]
    return figures(
        batches_s=batches_s,
        trained=[_trained(row, lost) for row in rows],
        steady=steady,
        launched=launched,
        engines=engines,
        engine_s=hardware.engines * batches_s[-1],
        verdicts=reader.verdict_counts(),
        lost=_lost(reader),
        bound_s=bound(
            [world.life(*parse_episode(sample.episode)) for sample in steady],
            world.workload,
            hardware,
            sandboxes=sandboxes,
            warm=warm,
            batches=len(batches_s) - num_warm_up,
            carry_over=num_warm_up > 0,
        ).collecting_s,
    )


def drawn(world: World, group: int, member: int, attempt: int) -> Sample:
    """An episode as it was drawn, within its token budget, whatever became of it."""
    life = within_budget(world.life(group, member, attempt), world.workload)
    return Sample(turns=len(life.turns), tokens=num_tokens(life, world))


def num_tokens(life: Life, world: World) -> int:
    """Prompt, messages and observations, of which the last message has none, within the episode's budget."""
    generated = sum(turn.generated_tokens for turn in life.turns)
    observed = sum(turn.observation_tokens + 1 for turn in life.turns[:-1])
    return min(world.workload.prompt_tokens + generated + observed, world.workload.max_episode_tokens)


def _trained(row: EpisodeRow, lost: Container[str]) -> Sample:
    return Sample(
        episode=row.id,
        turns=row.num_turns or 0,
        tokens=row.num_tokens or 0,
        span=(row.newest_version or 0) - (row.oldest_version or 0),
        infrastructure=row.id in lost,
    )


def _lost(reader: LedgerReader) -> int:
    dropped = {row.id for row in reader.groups(["dropped"]) if row.reason != "zero_variance"}
    return sum(row.reward is not None for row in reader.episodes() if row.group in dropped)


def _steady_s(batches_s: Sequence[float]) -> float | None:
    later = batches_s[WARM_UP_BATCHES:]
    return (later[-1] - batches_s[WARM_UP_BATCHES - 1]) / len(later) if later else None


def _bias(trained: Sequence[int], launched: Sequence[int]) -> float:
    return statistics.mean(trained) / statistics.mean(launched) - 1


def _quantile(ordered: Sequence[int], share: float) -> int:
    return ordered[max(math.ceil(len(ordered) * share) - 1, 0)]
