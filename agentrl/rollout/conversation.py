"""What a policy was asked and said, as sequences of exact ids: one, as long as what comes is appended to what was.

A chat template may write what lies behind otherwise than it was (many leave out earlier reasoning), and a harness may
edit its own history. What is asked then does not begin with the ids so far: appending to them would train on contexts
that nobody samples from. So every question is held against what the sequences say (`Chat.render`), and where it
continues none of them, a new sequence begins. Its context is not trained on; every sampled token is in one sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrl.inference.engine import Generation
from agentrl.rollout.chat import Message, Rendered
from agentrl.rollout.config import OnBreak
from agentrl.rollout.edges import ChatFormat
from agentrl.rollout.evidence import Sequences
from agentrl.rollout.trajectory import TrajectoryBuilder, join
from agentrl.wire import Segment, Trajectory


class Break(StrEnum):
    """Why a question continues no sequence."""

    TEMPLATE = "template"
    """The messages only go on, but the chat template writes earlier ones otherwise now."""
    HISTORY = "history"
    """The messages are others than before."""


@dataclass(frozen=True)
class _Mark:
    """A place in a sequence to which something may be appended."""

    text: str | None
    """Of all before it, an end of a message left out; None: not known."""
    num_ids: int
    num_messages: int
    closed: bool = False
    """Whether the ids before it end with the end of a message."""


_NOTHING = _Mark("", 0, 0)


@dataclass
class _Sequence:
    builder: TrajectoryBuilder
    messages: list[Message]
    marks: list[_Mark]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the policy is to be asked: a sequence's ids and what is appended to them. Nothing is changed by it yet."""

    ids: list[int]
    """All that the engine is sent."""
    sequence: int
    """The one that it continues, or the number of a new one."""
    base: int | None
    """The one whose ids it begins with, if one does."""
    num_kept: int
    """So many of them."""
    mark: _Mark
    messages: tuple[Message, ...]
    why: Break | None
    """Why a new sequence begins; None if none does, or it is the first."""


class Conversation:
    """One episode's. `question` first, then `ask` it, then `say` what was sampled."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._sequences: list[_Sequence] = []
        self._current = 0
        """The sequence that was asked last."""
        self._spoke = 0
        """The one that was answered last."""
        self._breaks = dict.fromkeys(Break, 0)

    @classmethod
    def continuing(cls, chat: ChatFormat, ids: list[int]) -> Conversation:
        """One that stands where a message of the policy may begin, of whose ids alone is known what was said."""
        made = cls(chat)
        mark = _Mark(None, len(ids), 0)
        made._sequences.append(_Sequence(TrajectoryBuilder(ids), [], [mark]))
        return made

    def copy(self) -> Conversation:
        """The same, to which saying more changes nothing here."""
        made = Conversation(self._chat)
        made._sequences = [_Sequence(s.builder.copy(), s.messages.copy(), s.marks.copy()) for s in self._sequences]
        made._current, made._spoke, made._breaks = self._current, self._spoke, self._breaks.copy()
        return made

    @property
    def begun(self) -> bool:
        return bool(self._sequences)

    @property
    def ids(self) -> list[int]:
        """Of the sequence that was asked last; not to be changed."""
        return self._sequences[self._current].builder.ids if self._sequences else []

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max((len(sequence.builder.ids) for sequence in self._sequences), default=0)

    def question(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Question:
        """What these messages are as ids. Raises UserError if the template refuses them."""
        if self._sequences:
            end = self._sequences[self._current].marks[-1]
            if (found := self._at(self._current, end, messages, tools)) is not None:
                return found
        whole = self._chat.render(messages, tools=tools)
        assert whole is not None, "every conversation begins with nothing"
        for index, mark in self._prefixes(whole.text or "", len(messages)):
            if (found := self._at(index, mark, messages, tools)) is not None:
                return found
        return self._asked(whole, None, _NOTHING, messages)

    def reply(self, message: Message) -> Question:
        """The question that this message makes of what was said so far."""
        return self.question([*self._sequences[self._current].messages, message])

    def ask(self, question: Question) -> None:
        """The policy is asked this now."""
        if question.sequence == len(self._sequences):
            kept: list[int] = []
            marks: list[_Mark] = []
            if question.base is not None:
                base = self._sequences[question.base]
                kept = base.builder.ids[: question.num_kept]
                marks = [mark for mark in base.marks if mark.num_ids <= question.num_kept]
            self._sequences.append(_Sequence(TrajectoryBuilder(kept), [], marks))
        sequence = self._sequences[question.sequence]
        sequence.builder.append_context(question.ids[len(sequence.builder.ids) :])
        sequence.messages[:] = question.messages
        if question.mark.text is None:
            sequence.marks = [question.mark]
        else:
            sequence.marks.append(question.mark)
        self._current = question.sequence
        if question.why is not None:
            self._breaks[question.why] += 1

    def say(self, generation: Generation, message: Message, *, closed: bool) -> None:
        """The policy's answer to what it was asked last, and the message that it is to the template."""
        self._spoke = self._current
        sequence = self._sequences[self._current]
        before = sequence.marks[-1]
        sequence.builder.append_sampled(generation)
        sequence.messages.append(message)
        text = None if before.text is None else before.text + message.content
        sequence.marks.append(_Mark(text, len(sequence.builder.ids), before.num_messages + 1, closed))

    def take_segment(self) -> Segment:
        """What the sequence that was answered last has more since its last call: what one turn adds to the ledger."""
        return self._sequences[self._spoke].builder.take_segment(self._spoke)

    def figures(self, on_break: OnBreak) -> Sequences:
        """How often it broke, and what that cost."""
        dropped = self._sequences[: self._current] + self._sequences[self._current + 1 :]
        return Sequences(
            num=max(1, len(self._sequences)),
            template_breaks=self._breaks[Break.TEMPLATE],
            history_breaks=self._breaks[Break.HISTORY],
            dropped_tokens=0 if on_break is OnBreak.branch else sum(s.builder.num_sampled for s in dropped),
        )

    def build(self, on_break: OnBreak, **facts: Any) -> Trajectory:
        """The finished record: of all sequences, or of the one that was asked last. `facts`: as `join`."""
        kept = self._sequences if on_break is OnBreak.branch else [self._sequences[self._current]]
        return join([sequence.builder for sequence in kept], **facts)

    def _prefixes(self, text: str, num_messages: int) -> list[tuple[int, _Mark]]:
        """Marks from which a text may go on, with their sequences; the longest first, ends before middles."""
        found = [
            (mark is not sequence.marks[-1], index, mark, len(mark.text))
            for index, sequence in enumerate(self._sequences)
            for mark in sequence.marks
            if mark.text is not None and mark.num_messages <= num_messages and text.startswith(mark.text)
        ]
        return [(index, mark) for _, index, mark, _ in sorted(found, key=lambda one: (-one[3], one[0], -one[1]))]

    def _at(
        self, index: int, mark: _Mark, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> Question | None:
        """The question, if it continues a sequence at that mark."""
        if mark.num_messages > len(messages):
            return None
        rendered = self._chat.render(messages, after=mark.text, known=mark.num_messages, tools=tools)
        return None if rendered is None else self._asked(rendered, index, mark, messages)

    def _asked(self, rendered: Rendered, base: int | None, mark: _Mark, messages: Sequence[Message]) -> Question:
        added = rendered.ids[1:] if mark.closed and rendered.ids[:1] == [self._chat.end_id] else rendered.ids
        ids = [*(self._sequences[base].builder.ids[: mark.num_ids] if base is not None else []), *added]
        goes_on = base is not None and mark is self._sequences[base].marks[-1]
        return Question(
            ids=ids,
            sequence=base if goes_on and base is not None else len(self._sequences),
            base=base,
            num_kept=mark.num_ids,
            mark=_Mark(rendered.text, len(ids), len(messages)),
            messages=tuple(messages),
            why=None if goes_on or not self._sequences else self._why(messages),
        )

    def _why(self, messages: Sequence[Message]) -> Break:
        """Whether the messages only went on for one of the sequences."""
        said = [sequence.messages for sequence in self._sequences]
        went_on = any(len(one) < len(messages) and one == list(messages[: len(one)]) for one in said)
        return Break.TEMPLATE if went_on else Break.HISTORY
