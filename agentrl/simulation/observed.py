"""What a run's ledger says about the world: samples for the laws of a workload and of a machine.

Only what suspensions did not stretch counts: intervals that a step's training or publication overlaps are left out
wherever enough others remain. Times that the ledger does not hold are differences: a sandbox was up when the first
generation began, and the verifier ran from the last turn to the episode's end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from agentrl.ledger.reader import LedgerReader
from agentrl.ledger.rows import EpisodeTimes, StepRow, TurnTimes
from agentrl.simulation.replay import Recorded, RecordedTurn

S = TypeVar("S")
N = TypeVar("N", int, float)

_ENOUGH = 30
"""Undisturbed samples that are preferred to more, disturbed ones."""


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
    starts: tuple[tuple[float, float, bool], ...]
    """(asked, up, undisturbed) of sandboxes, in the order in which they were asked for."""
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
        return _generation_began(self.turns[0])


def observe(reader: LedgerReader) -> Observed:
    """Everything that a ledger says about the laws."""
    steps = reader.steps()
    disturbed = Disturbed([(s.assigned_at, s.published_at) for s in steps if s.published_at is not None])
    episodes = _episodes(reader)
    usable = [episode for episode in episodes if episode.times.reward is not None]
    ended = [times for times in reader.episode_times() if times.verdict is not None]
    turns = [turn for episode in episodes for turn in episode.turns]
    quiet = disturbed.prefer_quiet(turns, lambda t: (_generation_began(t), t.ended_at))
    verified = disturbed.prefer_quiet(usable, lambda e: (e.turns[-1].ended_at, e.times.ended_at))
    prompts = prompt_tokens(episodes)
    return Observed(
        num_episodes=len(ended),
        turns=tuple(len(episode.turns) for episode in usable),
        turns_by_group=_by_group(usable, lambda episode: len(episode.turns)),
        rewards_by_group=_by_group(usable, lambda episode: episode.times.reward or 0.0),
        generated_tokens=tuple(turn.num_sampled for turn in turns),
        observation_tokens=tuple(turn.num_context for turn in turns if turn.turn > 0 and turn.num_context > 0),
        prompt_tokens=prompts,
        tool_s=tuple(turn.tool_s for turn in quiet if turn.called_tool),
        verifier_s=tuple(episode.times.ended_at - episode.turns[-1].ended_at for episode in verified),
        starts=tuple((e.times.started_at, e.up_at, not disturbed(e.times.started_at, e.up_at)) for e in episodes),
        generations=tuple(_generated(turn) for turn in quiet),
        infrastructure_share=_share([times.verdict == "infra_failure" for times in ended]),
        train=tuple(_trained(steps)),
        publish_s=tuple(
            s.published_at - s.applied_at for s in steps if s.published_at is not None and s.applied_at is not None
        ),
    )


def recorded_groups(reader: LedgerReader) -> list[tuple[Recorded, ...]]:
    """Episodes with a usable verdict as they were, by group in launch order and member: for `replay`."""
    by_group: dict[str, list[Recorded]] = defaultdict(list)
    for episode in sorted(_episodes(reader), key=lambda e: e.times.episode):
        if episode.times.reward is not None:
            by_group[episode.times.group].append(_recorded(episode))
    return [tuple(by_group[group]) for group in sorted(by_group)]


class Disturbed:
    """Spans of time in which episodes were held up by something else than the world."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._spans = sorted(spans)
        self._begins = [begin for begin, _ in self._spans]

    def __call__(self, begin: float, end: float) -> bool:
        """Whether any of them overlaps the interval."""
        index = bisect_right(self._begins, end) - 1
        return index >= 0 and self._spans[index][1] > begin

    def prefer_quiet(self, items: Sequence[S], span: Callable[[S], tuple[float, float]]) -> list[S]:
        """The items that were not held up; all of them if those are few."""
        quiet = [item for item in items if not self(*span(item))]
        return quiet if len(quiet) >= _ENOUGH else list(items)


def prompt_tokens(episodes: Sequence[_Episode]) -> tuple[int, ...]:
    """Context tokens of first turns, which are prompt and first observation together, less a usual observation."""
    observed = sorted(t.num_context for e in episodes for t in e.turns[1:-1])
    usual = observed[len(observed) // 2] if observed else 0
    single = [e.turns[0].num_context for e in episodes if len(e.turns) == 1]
    return tuple(single) if len(single) >= _ENOUGH else tuple(max(e.turns[0].num_context - usual, 1) for e in episodes)


def _episodes(reader: LedgerReader) -> list[_Episode]:
    """Those with at least one finished turn, in the order in which they began."""
    turns = {episode: tuple(rows) for episode, rows in groupby(reader.turn_times(), key=lambda turn: turn.episode)}
    return [_Episode(times, turns[times.episode]) for times in reader.episode_times() if times.episode in turns]


def _generation_began(turn: TurnTimes) -> float:
    return turn.ended_at - turn.tool_s - turn.generation_s


def _generated(turn: TurnTimes) -> Generated:
    ended = turn.ended_at - turn.tool_s
    return Generated(
        began=ended - turn.generation_s,
        ended=ended,
        num_sampled=turn.num_sampled,
        num_new_context=turn.num_context,
    )


def _recorded(episode: _Episode) -> Recorded:
    turns = tuple(
        RecordedTurn(generated_tokens=t.num_sampled, observation_tokens=t.num_context, tool_s=t.tool_s)
        for t in episode.turns
    )
    return Recorded(
        num_turns=len(turns),
        turns=turns,
        start_s=max(episode.up_at - episode.times.started_at, 0.0),
        verifier_s=max(episode.times.ended_at - episode.turns[-1].ended_at, 0.0),
        reward=episode.times.reward or 0.0,
    )


def _trained(steps: Sequence[StepRow]) -> Iterable[tuple[float, float]]:
    for step in steps:
        if step.applied_at is not None and "num_tokens" in step.metrics:
            yield step.metrics["num_tokens"], step.applied_at - step.assigned_at


def _by_group(episodes: Sequence[_Episode], value: Callable[[_Episode], N]) -> tuple[tuple[N, ...], ...]:
    groups: dict[str, list[N]] = defaultdict(list)
    for episode in episodes:
        groups[episode.times.group].append(value(episode))
    return tuple(tuple(values) for values in groups.values())


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 0.0
