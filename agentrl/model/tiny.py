"""The tiny model: a 0.1M-parameter Llama, its word-level tokenizer, and the warm-up that teaches it to act.

The warm-up imitates `boxes.demonstrations`: it teaches the commands, and to copy the box that a note names once the
note has been read. Whether to read it first is left to RL, because most demonstrations do not.

Token sequences are built by `Chat`, the class that the rollout uses, so that RL sees the ids of the warm-up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from agentrl.model.config import ModelConfig
from agentrl.rollout.chat import Chat, Message
from agentrl.tasks.families import boxes
from agentrl.tasks.families.boxes import Dialogue

UNK, PAD, START, END = "<unk>", "<pad>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML. The tokenizer splits at white space, so its newlines cost no tokens."""

WORDS = (
    *("system", "user", "assistant", "tool"),
    *boxes.INSTRUCTION.split(),
    *boxes.NAMES,
    *("cp", "cat", "ls", "mv", "rm", "echo", "head", "done", ">"),
    *("(no", "output)", "(exit", "code", ")"),
    *("cat:", "cp:", "bash:", "line", ":", "command", "not", "found", "No", "such", "file", "or", "directory"),
)
"""What tasks, commands and observations say; anything else is <unk>. Digits are tokens of their own."""

_IGNORE = -100  # label that cross_entropy skips


def build_tokenizer() -> Tokenizer:
    """Word-level: split at white space, each digit alone, unknown words to <unk>; no special tokens added by itself."""
    words = dict.fromkeys((UNK, PAD, START, END, *WORDS, *"0123456789"))
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (UNK, PAD, START, END)]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as Chat and transformers' AutoTokenizer read them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "unk_token": UNK,
        "pad_token": PAD,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def build_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    """Random weights from torch's global generator."""
    end_id, pad_id = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=pad_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end_id, pad_token_id=pad_id)
    return model


@dataclass(frozen=True)
class Example:
    """One demonstration as the model sees it."""

    ids: tuple[int, ...]
    """Token ids of the whole dialogue."""
    labels: tuple[int, ...]
    """`ids` where the assistant speaks (its end of message included), else _IGNORE."""


def encode_dialogue(chat: Chat, tokenizer: Tokenizer, dialogue: Dialogue) -> Example:
    """Ids exactly as the agent loop appends them: prompt, then sampled message, bridge, sampled message, ..."""
    ids = chat.prompt([Message(*dialogue[0])])
    labels = [_IGNORE] * len(ids)
    for role, text in dialogue[1:]:
        if role == "assistant":
            said = [*tokenizer.encode(text, add_special_tokens=False).ids, chat.end_id]
            ids, labels = ids + said, labels + said
        else:
            bridge = chat.bridge(role, text)
            ids, labels = ids + bridge, labels + [_IGNORE] * len(bridge)
    return Example(tuple(ids), tuple(labels))


def warm_up(
    model: LlamaForCausalLM,
    chat: Chat,
    tokenizer: Tokenizer,
    config: ModelConfig,
    *,
    seed: int,
    report: Callable[[str], None],
) -> None:
    """Train `model` in place for config.warmup_steps supervised steps on demonstrations drawn from `seed`."""
    rng = Random(f"warm-up/{seed}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.warmup_lr, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_share(step, config.warmup_steps))
    for step in range(1, config.warmup_steps + 1):
        dialogues = boxes.demonstrations(rng, config.warmup_batch, hasty_share=config.warmup_hasty_share)
        loss = _loss(model, [encode_dialogue(chat, tokenizer, dialogue) for dialogue in dialogues])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == config.warmup_steps:
            report(f"warm-up step {step}/{config.warmup_steps} loss {loss.item():.3f}")


def _lr_share(step: int, num_steps: int) -> float:
    """Share of the peak learning rate: up over the first tenth, then linearly down to a fiftieth."""
    rise = max(1, num_steps // 10)
    return min((step + 1) / rise, max(0.02, (num_steps - step) / max(1, num_steps - rise)))


def _loss(model: LlamaForCausalLM, examples: Sequence[Example]) -> Tensor:
    """Mean cross-entropy of the assistant's tokens. Padding is on the right, where causal attention never looks."""
    ids = _pad([example.ids for example in examples], 0)
    labels = _pad([example.labels for example in examples], _IGNORE)
    logits: Any = model(input_ids=ids, use_cache=False).logits
    loss: Tensor = nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORE
    )
    return loss


def _pad(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """int64[len(rows), longest row]."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
