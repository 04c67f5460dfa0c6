"""What simulated agents and sandboxes say to each other, as token ids that cost nothing to make.

Lengths and prefixes are those of the drawn lives, so that an engine's prefix cache works as a real one would; the ids
say only what is needed to go on. A message begins with a head that names its turn, so text and command follow from the
ids alone; the rest of it, like a prompt or an observation, is one id over and over.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from agentrl.rollout.chat import Message
from agentrl.simulation.life import MIN_GENERATED_TOKENS, World

END, START, ACT, DONE = 1, 2, 3, 4
"""End of a message, start of the agent's next one, and the two kinds of message."""
_FIRST_WORD = 16
_WORDS = 1 << 30
_HEAD_TOKENS = 5
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
        kind = ACT if turn + 1 < len(turns) else DONE
        head = [kind, *(_FIRST_WORD + number for number in (*who, turn))]
        num_fill = turns[turn].generated_tokens - _HEAD_TOKENS - 1
        message = [*head, *[_word(f"{who}/{turn}")] * num_fill, END]
        return message if ids[-1] == START else message[_num_after_start(ids) :]


class SimulatedChat:
    """The chat template of simulated agents: a `ChatFormat`."""

    end_id: int = END
    stop_ids: tuple[int, ...] = (END,)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """As long as the task's instruction says: `task-000012 3000`."""
        name, _, num_tokens = messages[-1].content.partition(" ")
        return [*[_word(name)] * (int(num_tokens) - 1), START]

    def bridge(self, role: str, content: str, *, closed: bool = True) -> list[int]:
        """As long as the observation says: `output 532`; other text is one token a word."""
        words = content.split()
        num_tokens = int(words[1]) if words[:1] == ["output"] else len(words)
        ids = [*[_word(content)] * num_tokens, START]
        return ids if closed else [END, *ids]

    def decode(self, ids: Sequence[int]) -> str:
        """`turn 12 3 0 7` (group, member, attempt, turn), or `done`."""
        if len(ids) < _HEAD_TOKENS or ids[0] == DONE:
            return "done" if ids and ids[0] == DONE else ""
        return " ".join(("turn", *(str(word - _FIRST_WORD) for word in ids[1:_HEAD_TOKENS])))


def _num_after_start(ids: list[int]) -> int:
    """Tokens behind the last START."""
    count = 0
    while ids[-1 - count] != START:
        count += 1
    return count


def _word(text: str) -> int:
    """One id for a text, the same in every run."""
    return _FIRST_WORD + zlib.crc32(text.encode()) % _WORDS
