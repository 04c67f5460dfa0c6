"""What a run's ledger says about the world: samples for the laws of a workload and of a machine.

Generations and commands are in active time, which suspensions do not stretch. Times that the ledger does not hold are
differences: a sandbox was up when the first turn began, and the verifier ran from the last turn to the episode's end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from agentrl.ledger.reader import LedgerReader
from agentrl.ledger.rows import EpisodeTimes, StepRow, TurnTimes
from agentrl.simulation.fit import service_times
from agentrl.simulation.replay import Recorded, RecordedTurn

N = TypeVar("N", int, float)


@dataclass(frozen=True, kw_only=True)
class Generated:
    """One generation on an engine."""

    began: float
    ended: float
    num_sampled: int
    num_new_context: int
    """Tokens that the engine had not seen in this episode."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Samples. Times in seconds."""

    num_episodes: int
    turns: tuple[int, ...]
    """Of episodes with a usable verdict; by group in `turns_by_group`."""
    turns_by_group: tuple[tuple[int, ...], ...]
    rewards_by_group: tuple[tuple[float, ...], ...]
    generated_tokens: tuple[int, ...]
    observation_tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    tool_s: tuple[float, ...]
    verifier_s: tuple[float, ...]
    starts: tuple[tuple[float, float], ...]
    """(asked, up) of episodes' sandboxes, in the order in which they were asked for."""
    starts_s: tuple[float, ...]
    """What starts took by themselves, where somebody wrote that down: with a warm pool, `starts` do not tell."""
    generations: tuple[Generated, ...]
    infrastructure_share: float
    """Of ended episodes."""
    train: tuple[tuple[float, float], ...]
    """(tokens, seconds) of steps."""
    publish_s: tuple[float, ...]


@dataclass(frozen=True)
class _Episode:
    times: EpisodeTimes
    turns: tuple[TurnTimes, ...]

    @property
    def up_at(self) -> float:
        return self.turns[0].began_at


def observe(reader: LedgerReader) -> Observed:
    """Everything that a ledger says about the laws."""
    steps = reader.steps()
    episodes = _episodes(reader)
    usable = [episode for episode in episodes if episode.times.reward is not None]
    ended = [times for times in reader.episode_times() if times.verdict is not None]
    turns = [turn for episode in episodes for turn in episode.turns]
    return Observed(
        num_episodes=len(ended),
        turns=tuple(len(episode.turns) for episode in usable),
        turns_by_group=_by_group(usable, lambda episode: len(episode.turns)),
        rewards_by_group=_by_group(usable, lambda episode: episode.times.reward or 0.0),
        generated_tokens=tuple(turn.num_sampled for turn in turns),
        observation_tokens=tuple(turn.num_observed for turn in turns if turn.num_observed > 0),
        prompt_tokens=tuple(episode.turns[0].num_prompt for episode in episodes),
        tool_s=tuple(turn.tool_s for turn in turns if turn.called_tool),
        verifier_s=tuple(episode.times.ended_at - episode.turns[-1].ended_at for episode in usable),
        starts=tuple((episode.times.started_at, episode.up_at) for episode in episodes),
        starts_s=tuple(reader.start_times()),
        generations=tuple(_generations(episodes)),
        infrastructure_share=_share([times.verdict == "infra_failure" for times in ended]),
        train=tuple(_trained(reader, steps)),
        publish_s=tuple(
            s.published_at - s.applied_at for s in steps if s.published_at is not None and s.applied_at is not None
        ),
    )


def recorded_groups(reader: LedgerReader, *, starts_at_once: int) -> list[tuple[Recorded, ...]]:
    """Episodes with a usable verdict as they were, by group in launch order and member: for `replay`.

    `starts_at_once`: sandboxes that started at once; what an episode waited for its turn is no part of its start.
    """
    episodes = _episodes(reader)
    starts_s = service_times(
        [one.times.started_at for one in episodes], [one.up_at for one in episodes], at_once=starts_at_once
    )
    by_group: dict[str, list[tuple[str, Recorded]]] = defaultdict(list)
    for episode, start_s in zip(episodes, starts_s, strict=True):
        if episode.times.reward is not None:
            by_group[episode.times.group].append((episode.times.episode, _recorded(episode, start_s)))
    return [tuple(one for _, one in sorted(by_group[group], key=lambda pair: pair[0])) for group in sorted(by_group)]


def _episodes(reader: LedgerReader) -> list[_Episode]:
    """Those with at least one finished turn, in the order in which they began; of several at once, as they came up."""
    turns = {episode: tuple(rows) for episode, rows in groupby(reader.turn_times(), key=lambda turn: turn.episode)}
    found = [_Episode(times, turns[times.episode]) for times in reader.episode_times() if times.episode in turns]
    return sorted(found, key=lambda episode: (episode.times.started_at, episode.up_at))


def _generations(episodes: Sequence[_Episode]) -> list[Generated]:
    """What an engine has to read for a message is the prompt, or the observation of the turn before."""
    found: list[Generated] = []
    for episode in episodes:
        unread = 0
        for turn in episode.turns:
            found.append(
                Generated(
                    began=turn.began_at,
                    ended=turn.began_at + turn.generation_s,
                    num_sampled=turn.num_sampled,
                    num_new_context=unread + turn.num_prompt,
                )
            )
            unread = turn.num_observed
    return found


def _recorded(episode: _Episode, start_s: float) -> Recorded:
    turns = tuple(
        RecordedTurn(generated_tokens=t.num_sampled, observation_tokens=t.num_observed, tool_s=t.tool_s)
        for t in episode.turns
    )
    return Recorded(
        num_turns=len(turns),
        turns=turns,
        start_s=start_s,
        verifier_s=max(episode.times.ended_at - episode.turns[-1].ended_at, 0.0),
        reward=episode.times.reward or 0.0,
    )


def _trained(reader: LedgerReader, steps: Sequence[StepRow]) -> Iterable[tuple[float, float]]:
    """Tokens of each step's batch, and seconds from the batch to the weights."""
    step_of = {row.id: row.step for row in reader.groups(["batched"])}
    tokens: dict[int | None, int] = defaultdict(int)
    for row in reader.episodes():
        if row.reward is not None and row.group in step_of:
            tokens[step_of[row.group]] += row.num_tokens or 0
    for step in steps:
        if step.applied_at is not None:
            yield float(tokens[step.step]), step.applied_at - step.assigned_at


def _by_group(episodes: Sequence[_Episode], value: Callable[[_Episode], N]) -> tuple[tuple[N, ...], ...]:
    groups: dict[str, list[N]] = defaultdict(list)
    for episode in episodes:
        groups[episode.times.group].append(value(episode))
    return tuple(tuple(values) for values in groups.values())


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 0.0
