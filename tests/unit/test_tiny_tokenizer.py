"""The tiny model's tokenizer: one token a word, and the same ids wherever a conversation is encoded."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from agentrl.model.tiny import END, START, UNK, build_tokenizer, encode_dialogue, save_tokenizer
from agentrl.rollout.chat import Chat, Message
from agentrl.tasks.families import boxes


@pytest.fixture
def chat(tmp_path: Path) -> Chat:
    save_tokenizer(build_tokenizer(), tmp_path)
    return Chat.load(tmp_path)


def tokens(text: str) -> list[str]:
    encoded: list[str] = build_tokenizer().encode(text, add_special_tokens=False).tokens
    return encoded


def test_digits_are_tokens_of_their_own() -> None:
    assert tokens("echo 407 > answer") == ["echo", "4", "0", "7", ">", "answer"]


def test_special_tokens_are_kept_whole_without_white_space_around() -> None:
    assert tokens(f"{START}user\nred{END}\n{START}assistant\n") == [START, "user", "red", END, START, "assistant"]


def test_unknown_words_become_the_unknown_token() -> None:
    assert tokens("cat zebra") == ["cat", UNK]


def test_everything_that_tasks_and_demonstrations_say_is_known() -> None:
    said = [text for dialogue in boxes.demonstrations(Random(0), 50, hasty_share=0.5) for _, text in dialogue]
    said += [text for name, text in boxes.generate(1, 0)[0].files.items() if re.search("files/|instruction", name)]
    assert UNK not in tokens(" ".join(said))


def test_commands_survive_encoding_and_decoding(chat: Chat) -> None:
    for command in ("cat note", "cp gold answer", "echo 4 > answer", "done"):
        assert chat.decode([*build_tokenizer().encode(command).ids, chat.end_id]) == command


def test_demonstrations_have_the_ids_that_the_agent_loop_appends(chat: Chat) -> None:
    dialogue = boxes.demonstrations(Random(0), 1, hasty_share=0.0)[0]
    example = encode_dialogue(chat, build_tokenizer(), dialogue)
    for turn in range(1, len(dialogue), 2):
        prompt = chat.prompt([Message(*message) for message in dialogue[:turn]])
        assert list(example.ids[: len(prompt)]) == prompt


def test_labels_are_what_the_assistant_says_with_its_ends(chat: Chat) -> None:
    dialogue = boxes.demonstrations(Random(0), 1, hasty_share=0.0)[0]
    example = encode_dialogue(chat, build_tokenizer(), dialogue)
    learned = [token for token, label in zip(example.ids, example.labels, strict=True) if label >= 0]
    said = " ".join(f"{text} {END}" for role, text in dialogue if role == "assistant")
    assert learned == build_tokenizer().encode(said).ids
    assert all(label in (token, -100) for token, label in zip(example.ids, example.labels, strict=True))


def test_transformers_reads_the_same_tokenizer(chat: Chat, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": boxes.INSTRUCTION}]
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids == chat.prompt([Message("user", boxes.INSTRUCTION)])
    assert theirs.eos_token_id == chat.end_id
