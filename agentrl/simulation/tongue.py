"""What simulated agents and sandboxes say to each other, as token ids that cost nothing to make.

Lengths and prefixes are those of the drawn lives, so that an engine's prefix cache works as a real one would; the ids
say only what is needed to go on. A message begins with a head that names its turn, so text and command follow from the
ids and the sandbox's owner alone; the rest of it, like a prompt or an observation, is one id over and over.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.rollout.chat import Message, Rendered
from agentrl.simulation.life import MIN_GENERATED_TOKENS, World

END, START = 1, 2
"""End of a message, and start of the agent's next one."""
_FIRST_HEAD = 16
_FIRST_WORD = 1 << 24
_WORDS = 1 << 30
_HEAD_TOKENS = 1
assert MIN_GENERATED_TOKENS > _HEAD_TOKENS


def parse_episode(episode: str) -> tuple[int, int, int]:
    """(group, member, attempt) of `g000012.m003.a00`, whatever follows. Raises ValueError."""
    group, member, attempt = episode.split(".")[:3]
    return int(group[1:]), int(member[1:]), int(attempt[1:])


class SimulatedModel:
    """Speaks as the drawn lives say: the `Speaker` of simulated engines."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self, rid: str, ids: list[int]) -> list[int]:
        """The rest of the message of the turn that `rid` names. A resumed turn goes on where `ids` end."""
        who = parse_episode(rid)
        turn = int(rid.rpartition(".t")[2].partition(".")[0])
        turns = self._world.life(*who).turns
        head = [_FIRST_HEAD + 2 * turn + (turn + 1 == len(turns))]
        num_fill = turns[turn].generated_tokens - _HEAD_TOKENS - 1
        message = [*head, *[_word(f"{who}/{turn}")] * num_fill, END]
        return message if ids[-1] == START else message[_num_after_start(ids) :]


class SimulatedChat:
    """The chat template of simulated agents: a `ChatFormat`."""

    end_id: int = END
    stop_ids: tuple[int, ...] = (END,)

    def render(
        self,
        messages: Sequence[Message],
        *,
        after: str | None = "",
        known: int = 0,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Rendered:
        """A prompt, or what is appended to it; without text, so nothing ever breaks."""
        if after == "":
            return Rendered(ids=self._prompt(messages), text=None)
        return Rendered(ids=[END, *self._bridge(messages[-1].content)], text=None)

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        """As long as the task's instruction says: `task-000012 3000`."""
        name, _, num_tokens = messages[-1].content.partition(" ")
        return [*[_word(name)] * (int(num_tokens) - 1), START]

    def _bridge(self, content: str) -> list[int]:
        """As long as the observation says: `output 532`; other text is one token a word."""
        words = content.split()
        num_tokens = int(words[1]) if words[:1] == ["output"] else len(words)
        return [*[_word(content)] * num_tokens, START]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """`turn 7`, or `done`."""
        turn, done = divmod(ids[0] - _FIRST_HEAD, 2) if ids else (-1, 0)
        if turn < 0:
            return ""
        return "done" if done else f"turn {turn}"


def _num_after_start(ids: list[int]) -> int:
    """Tokens behind the last START."""
    count = 0
    while ids[-1 - count] != START:
        count += 1
    return count


def _word(text: str) -> int:
    """One id for a text, the same in every run."""
    return _FIRST_WORD + zlib.crc32(text.encode()) % _WORDS
