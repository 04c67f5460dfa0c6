"""What is asked is appended to what was said, or a new sequence begins: tokens keep the context they had."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.inference.engine import FinishReason, Generation
from agentrl.rollout.chat import Chat, Message, template_environment
from agentrl.rollout.config import OnBreak
from agentrl.rollout.conversation import Break, Conversation
from agentrl.simulation.toy_chat import TEMPLATE, toy_chat
from agentrl.wire import Trajectory

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }} "
    "{{ m.content.split('note')[-1] if m.role == 'assistant' and not loop.last else m.content }}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)
"""Leaves out of earlier messages all up to a word, as templates leave out reasoning."""


def chat(template: str = TEMPLATE) -> Chat:
    made = toy_chat()
    tokenizer = made._template_tokenizer
    return Chat(tokenizer, template_environment().from_string(template), {"eos_token": "<|im_end|>"}, set())


def user(text: str) -> Message:
    return Message("user", text)


def says(conversation: Conversation, format: Chat, text: str, *, closed: bool = True) -> Message:
    ids = format.encode(text) + ([format.end_id] if closed else [])
    message = Message("assistant", text)
    generation = Generation(ids=ids, logprobs=[-1.0] * len(ids), versions=[0] * len(ids), finish=FinishReason.STOP)
    conversation.say(generation, message, closed=closed)
    return message


def built(conversation: Conversation, on_break: OnBreak = OnBreak.branch) -> Trajectory:
    return conversation.build(on_break, episode="e", group="g", task="t", reward=1.0, num_turns=2)


def sampled(trajectory: Trajectory) -> list[int]:
    return trajectory.ids_array()[trajectory.mask_array() == 1].tolist()


@pytest.mark.parametrize("closed", [True, False])
def test_messages_that_go_on_are_appended_to_the_exact_ids(closed: bool) -> None:
    format = chat()
    conversation = Conversation(format)
    conversation.ask(conversation.question([user("do it")]))
    said = says(conversation, format, "cat note", closed=closed)
    question = conversation.question([user("do it"), said, user("ok")])
    assert (question.sequence, question.why) == (0, None)
    assert question.ids == format.prompt([user("do it"), said, user("ok")])
    conversation.ask(question)
    says(conversation, format, "done")
    trajectory = built(conversation)
    assert trajectory.starts == (0,)
    assert sampled(trajectory) == format.encode("cat note") + [format.end_id] * closed + [
        *format.encode("done"),
        format.end_id,
    ]


def test_a_template_that_rewrites_an_earlier_message_begins_a_new_sequence() -> None:
    format = chat(THINKING)
    conversation = Conversation(format)
    conversation.ask(conversation.question([user("do it")]))
    said = says(conversation, format, "ls note cat")
    question = conversation.question([user("do it"), said, user("ok")])
    assert (question.sequence, question.why) == (1, Break.TEMPLATE)
    assert question.ids == format.prompt([user("do it"), Message("assistant", "cat"), user("ok")])
    conversation.ask(question)
    says(conversation, format, "done")
    figures = conversation.figures(OnBreak.branch)
    assert (figures.num, figures.template_breaks, figures.history_breaks, figures.dropped_tokens) == (2, 1, 0, 0)
    first, second = built(conversation).sequences()
    assert sampled(first) == [*format.encode("ls note cat"), format.end_id]
    assert sampled(second) == [*format.encode("done"), format.end_id]
    assert first.ids_array().tolist() == format.prompt([user("do it")]) + sampled(first)
    assert second.ids_array().tolist() == question.ids + sampled(second)


def test_dropping_trains_on_the_last_sequence_and_counts_the_rest() -> None:
    format = chat(THINKING)
    conversation = Conversation(format)
    conversation.ask(conversation.question([user("do it")]))
    said = says(conversation, format, "ls note cat")
    conversation.ask(conversation.question([user("do it"), said, user("ok")]))
    says(conversation, format, "done")
    assert sampled(built(conversation, OnBreak.drop)) == [*format.encode("done"), format.end_id]
    assert conversation.figures(OnBreak.drop).dropped_tokens == 4


def test_edited_history_branches_where_it_was_edited_and_may_be_returned_to() -> None:
    format = chat()
    conversation = Conversation(format)
    conversation.ask(conversation.question([user("do it")]))
    first = says(conversation, format, "ls")
    conversation.ask(conversation.question([user("do it"), first, user("ok")]))
    second = says(conversation, format, "cat note")
    edited = conversation.question([user("do it"), first, user("no")])
    assert (edited.sequence, edited.base, edited.why) == (1, 0, Break.HISTORY)
    assert edited.ids[: edited.num_kept] == [*format.prompt([user("do it")]), *format.encode("ls"), format.end_id]
    conversation.ask(edited)
    says(conversation, format, "done")
    back = conversation.question([user("do it"), first, user("ok"), second, user("ok")])
    assert (back.sequence, back.why) == (0, None)
    conversation.ask(back)
    says(conversation, format, "exit")
    assert [sampled(one) for one in built(conversation).sequences()] == [
        [
            *format.encode("ls"),
            format.end_id,
            *format.encode("cat note"),
            format.end_id,
            *format.encode("exit"),
            format.end_id,
        ],
        [*format.encode("done"), format.end_id],
    ]
    segments = [len(sequence.ids_array()) for sequence in built(conversation).sequences()]
    assert built(conversation).longest == max(segments)


def test_the_same_question_again_is_asked_in_a_sequence_of_its_own() -> None:
    format = chat()
    conversation = Conversation(format)
    prompt = conversation.question([user("do it")])
    conversation.ask(prompt)
    says(conversation, format, "ls")
    again = conversation.question([user("do it")])
    assert (again.ids, again.sequence, again.why) == (prompt.ids, 1, Break.HISTORY)
    conversation.ask(again)
    says(conversation, format, "cat note")
    assert len(sampled(built(conversation))) == 5


def test_turns_add_what_their_sequence_grew_by() -> None:
    format = chat(THINKING)
    conversation = Conversation(format)
    conversation.ask(conversation.question([user("do it")]))
    said = says(conversation, format, "ls note cat")
    conversation.ask(conversation.question([user("do it"), said, user("ok")]))
    segments = [conversation.take_segment()]
    says(conversation, format, "done")
    segments.append(conversation.take_segment())
    assert [segment.sequence for segment in segments] == [0, 1]
    assert [segment.ids for segment in segments] == [one.ids for one in built(conversation).sequences()]


def test_a_conversation_of_which_only_ids_are_known_goes_on_by_what_the_template_puts_between() -> None:
    format = chat()
    begun = [*format.prompt([user("do it")]), *format.encode("ls"), format.end_id]
    begun += format.bridge("user", "ok")
    conversation = Conversation.continuing(format, begun)
    says(conversation, format, "cat")
    question = conversation.reply(user("no"))
    assert question.ids == [*begun, *format.encode("cat"), format.end_id, *format.bridge("user", "no")]
    conversation.ask(question)
    says(conversation, format, "done", closed=False)
    assert conversation.reply(user("ok")).ids == [*conversation.ids, *format.bridge("user", "ok", closed=False)]
    assert built(conversation).mask_array().tolist()[: len(begun)] == [0] * len(begun)


def test_a_copy_does_not_grow_with_its_original() -> None:
    format = chat()
    conversation = Conversation(format)
    conversation.ask(conversation.question([user("do it")]))
    kept = conversation.copy()
    says(conversation, format, "ls")
    assert kept.ids == format.prompt([user("do it")])
    assert np.all(built(kept).mask_array() == 0)
