"""What an episode will do, drawn before it begins: its whole life is a function of the seed and of who it is.

So every policy meets the same tasks, the same stragglers and the same failures, and a difference between two policies
is not luck. Each part of a life has a random stream of its own: changing one law leaves the others' draws alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from agentrl.simulation.config import Workload
from agentrl.simulation.replay import Recorded

MIN_GENERATED_TOKENS = 2
"""Shortest message: the head that says which turn it is (see `agentrl.simulation.tongue`), and its end."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation and the tool call that it asks for."""

    generated_tokens: int
    observation_tokens: int
    tool_s: float


@dataclass(frozen=True, slots=True)
class Life:
    """One attempt of one member of a group. The last turn says that the agent is done and calls no tool."""

    turns: tuple[Turn, ...]
    verifier_s: float
    reward: float
    start_cold_s: float
    start_warm_s: float
    failure_turn: int | None
    """The sandbox dies in this turn's tool call; the last turn has none, and then it dies in the verifier."""


def within_budget(life: Life, workload: Workload) -> Life:
    """The life up to where `max_episode_tokens` ends it, as the agent loop would."""
    known, turns = workload.prompt_tokens, list[Turn]()
    for turn in life.turns:
        if known >= workload.max_episode_tokens:
            break
        generated = min(turn.generated_tokens, workload.max_episode_tokens - known)
        known += generated + turn.observation_tokens + 1
        turns.append(replace(turn, generated_tokens=generated))
    return replace(life, turns=tuple(turns))


class World:
    """All lives of one simulation."""

    def __init__(self, workload: Workload, *, seed: int, hygiene: bool = False) -> None:
        """`hygiene`: sandboxes are health-checked and reaped, so that fewer are lost."""
        self.workload = workload
        self._seed = seed
        self._failure_share = workload.failure_share_hygiene if hygiene else workload.failure_share
        self.life = lru_cache(maxsize=4096)(self._draw)
        """life(group, member, attempt) -> Life; all three are numbers from 0."""

    def _random(self, *who: object) -> Random:
        return Random("/".join(map(str, ("life", self._seed, *who))))

    def _draw(self, group: int, member: int, attempt: int) -> Life:
        life = self._draw_by_law(group, member, attempt)
        replay = self.workload.replay
        if replay is None:
            return life
        return self._replayed(replay.find(self._seed, group, member), life, group, member, attempt)

    def _replayed(self, recorded: Recorded, drawn: Life, group: int, member: int, attempt: int) -> Life:
        """A recorded episode; a further attempt at it fails as the laws say. Hygiene saves its share of the lost."""
        who = (group, member, attempt)
        turns = tuple(Turn(t.generated_tokens, t.observation_tokens, t.tool_s) for t in recorded.turns)
        if not turns:
            turns = self._draw_turns(recorded.num_turns, self._random("turns", *who))
        fate = self._random("replayed fate", *who)
        saved = fate.random() * self.workload.failure_share >= self._failure_share
        fails = (recorded.failed and not saved) if attempt == 0 else drawn.failure_turn is not None
        return replace(
            drawn,
            turns=turns,
            verifier_s=recorded.verifier_s,
            reward=recorded.reward,
            start_cold_s=recorded.start_s if attempt == 0 else drawn.start_cold_s,
            failure_turn=int(fate.random() * len(turns)) if fails else None,
        )

    def _draw_by_law(self, group: int, member: int, attempt: int) -> Life:
        who = (group, member, attempt)
        turns = self._turns(group, self._random("turns", *who))
        fate = self._random("fate", *who)
        fails, point = fate.random() < self._failure_share, int(fate.random() * len(turns))
        sandbox = self._random("sandbox", *who)
        workload = self.workload
        start_cold_s = self._draw_cold_start(sandbox)
        return Life(
            turns=turns,
            verifier_s=workload.verifier_s.sample(self._random("verifier", *who)),
            reward=float(self._random("reward", *who).random() < self.success(group)),
            start_cold_s=start_cold_s,
            start_warm_s=workload.start_warm_s.sample(sandbox),
            failure_turn=point if fails else None,
        )

    def cold_start_s(self, number: int) -> float:
        """Seconds of a start for nobody yet; `number` counts them from 0."""
        return self._draw_cold_start(self._random("cold start", number))

    def _draw_cold_start(self, random: Random) -> float:
        workload = self.workload
        hangs = random.random() < workload.start_hang_share
        return (workload.start_hang_s if hangs else workload.start_cold_s).sample(random)

    def success(self, group: int) -> float:
        """Probability with which the episodes of a group's task succeed."""
        return self.workload.success.sample(self._random("task", group))

    def _turns(self, group: int, random: Random) -> tuple[Turn, ...]:
        workload = self.workload
        common = self._random("difficulty", group).gauss(0.0, 1.0)
        share = workload.turns_group_share
        z = math.sqrt(share) * common + math.sqrt(1 - share) * random.gauss(0.0, 1.0)
        return self._draw_turns(max(round(workload.turns.at(z) * self._growth(group)), 1), random)

    def _growth(self, group: int) -> float:
        """Factor on the turns of a group's episodes."""
        share = min(group / self.workload.turns_growth_groups, 1.0)
        return 1.0 + (self.workload.turns_growth - 1.0) * share

    def _draw_turns(self, num_turns: int, random: Random) -> tuple[Turn, ...]:
        workload = self.workload
        return tuple(
            Turn(
                generated_tokens=min(
                    max(round(workload.generated_tokens.sample(random)), MIN_GENERATED_TOKENS),
                    workload.max_turn_tokens,
                ),
                observation_tokens=max(round(workload.observation_tokens.sample(random)), 1),
                tool_s=workload.tool_s.sample(random),
            )
            for _ in range(num_turns)
        )
