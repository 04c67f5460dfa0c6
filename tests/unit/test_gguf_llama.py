"""GGUF to Hugging Face layout: the same logits, the same tokens, and a folder that is complete or absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from agentrl.errors import UserError
from agentrl.model.gguf_llama import convert, unpermute
from agentrl.rollout.chat import Chat, Message

SPECIAL = ["<unk>", "<|im_start|>", "<|im_end|>"]
MERGES = ["a b", "ab c", "Ġ ab"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "abc", "Ġab"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama(*, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval()


def permute(rows: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """As llama.cpp's converter does it to query and key rows."""
    num_rows, width = rows.shape
    return rows.reshape(num_heads, 2, num_rows // num_heads // 2, width).swapaxes(1, 2).reshape(num_rows, width)


def write_gguf(path: Path, model: LlamaForCausalLM, *, quantised: bool = False, **changed: Any) -> Path:
    config, writer = model.config, gguf.GGUFWriter(path, changed.get("architecture", "llama"))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changed.get("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem = name.removesuffix(".weight")
        layer, rest = stem.removeprefix("model.layers.").partition(".")[::2] if "layers" in stem else ("", stem)
        values = tensor.numpy()
        if NAMES[rest] in heads:
            values = permute(values, heads[NAMES[rest]])
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised and values.ndim == 2 else None
        data = gguf.quants.quantize(values, kind) if kind else values
        writer.add_tensor(
            f"blk.{layer}.{NAMES[rest]}.weight" if layer else f"{NAMES[rest]}.weight", data, raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@torch.inference_mode()
def logits(model: LlamaForCausalLM) -> torch.Tensor:
    ids = torch.randint(len(TOKENS), (2, 40), generator=torch.Generator().manual_seed(1))
    return model(ids).logits


@pytest.mark.parametrize("tied", [True, False])
def test_converted_model_gives_the_same_logits(tmp_path: Path, tied: bool) -> None:
    model = llama(tied=tied)
    convert(write_gguf(tmp_path / "model.gguf", model), tmp_path / "out", dtype=torch.float32)
    converted = LlamaForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(converted), logits(model), rtol=1e-5, atol=1e-5)
    assert converted.config.tie_word_embeddings is tied


def test_quantised_weights_come_back_near_the_originals(tmp_path: Path) -> None:
    model = llama(tied=True)
    convert(write_gguf(tmp_path / "model.gguf", model, quantised=True), tmp_path / "out")
    converted = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(converted.state_dict()[name].float(), tensor, rtol=0.01, atol=0.01)


def test_unpermute_undoes_what_the_converter_of_llama_cpp_does() -> None:
    rows = np.arange(24 * 3, dtype=np.float32).reshape(24, 3)
    for num_heads in (1, 2, 3):
        assert (unpermute(permute(rows, num_heads), num_heads) == rows).all()
    assert (permute(rows, 2) != rows).any()


def test_tokenizer_merges_splits_digits_and_keeps_special_tokens(tmp_path: Path) -> None:
    convert(write_gguf(tmp_path / "model.gguf", llama(tied=True)), tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.convert_ids_to_tokens(theirs.encode("abc ab12<|im_end|>")) == ["abc", "Ġab", "1", "2", "<|im_end|>"]
    chat = Chat.load(tmp_path / "out")
    text = "  naïve 北京\n\t12 'x' <|im_end|>"
    ids = chat.prompt([Message("user", text)])
    assert text in chat.decode(ids)
    assert ids.count(chat.end_id) == 1
    assert chat.stop_ids == (2,)


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"architecture": "gpt2"}, "architecture gpt2"), ({"pre": "qwen2"}, "splitting rules qwen2")],
)
def test_other_models_are_refused_and_leave_no_folder(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert(write_gguf(tmp_path / "model.gguf", llama(tied=True), **changed), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF\x03\x00\x00\x00" + b"\x01" * 40])
def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(UserError, match="not a GGUF file"):
        convert(tmp_path / "model.gguf", tmp_path / "out")
