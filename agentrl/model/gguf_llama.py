"""A Llama in a GGUF file as a folder in Hugging Face layout: weights, configuration, tokenizer, chat template.

GGUF stores quantised weights, and the rows of the query and key projections in the order of llama.cpp's rotary
embedding. Both are undone here. Only what SmolLM2 needs: architecture `llama`, byte-level BPE with its splitting rules.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agentrl.errors import UserError

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

_CONTROL = 3  # GGUF's token type of special tokens


@dataclass(frozen=True)
class GgufFile:
    """Metadata and tensors of one file."""

    path: Path
    fields: dict[str, Any]
    tensors: list[Any]

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Map the file. Raises UserError if it is not a GGUF file or of another architecture than llama."""
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise UserError(f"{path}: not a GGUF file: {error}") from error
        fields = {name: field.contents() for name, field in reader.fields.items()}
        architecture = fields.get("general.architecture")
        if architecture != "llama":
            raise UserError(f"{path}: architecture {architecture}", hint="only llama can be converted")
        return cls(path, fields, list(reader.tensors))

    def need(self, name: str) -> Any:
        if name not in self.fields:
            raise UserError(f"{self.path}: has no {name}", hint="is it a complete model with its tokenizer?")
        return self.fields[name]


def convert(source: Path, out: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the model in the GGUF file `source` as folder `out`, which appears complete or not at all.

    An `out` that is there is replaced. Raises UserError for a file that cannot be converted.
    """
    file = GgufFile.open(source)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weights = {name: tensor.to(dtype).contiguous() for name, tensor in read_weights(file).items()}
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    _write_json(partial / "config.json", llama_config(file, tied="lm_head.weight" not in weights, dtype=dtype))
    end_id, pad_id = file.need("tokenizer.ggml.eos_token_id"), file.fields.get("tokenizer.ggml.padding_token_id")
    _write_json(partial / "generation_config.json", {"eos_token_id": end_id, "pad_token_id": pad_id})
    build_tokenizer(file).save(str(partial / "tokenizer.json"))
    _write_json(partial / "tokenizer_config.json", tokenizer_config(file))
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)


def read_weights(file: GgufFile) -> dict[str, torch.Tensor]:
    """Hugging Face name -> float32 tensor."""
    num_heads = {
        "attn_q": int(file.need("llama.attention.head_count")),
        "attn_k": int(file.need("llama.attention.head_count_kv")),
    }
    weights = {}
    for tensor in file.tensors:
        name, part = _hugging_face_name(file, tensor.name)
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if part in num_heads:
            values = unpermute(values, num_heads[part])
        weights[name] = torch.from_numpy(np.ascontiguousarray(values))
    return weights


def _hugging_face_name(file: GgufFile, name: str) -> tuple[str, str]:
    """`blk.3.attn_q.weight` -> (`model.layers.3.self_attn.q_proj.weight`, `attn_q`)."""
    stem, _, kind = name.rpartition(".")
    layer, _, part = stem.rpartition(".")
    known = _LAYER_NAMES.get(part) if layer else _OTHER_NAMES.get(part)
    if known is None or kind != "weight":
        raise UserError(f"{file.path}: tensor {name} is not known", hint="only plain Llama models can be converted")
    return (f"model.layers.{layer.removeprefix('blk.')}.{known}.weight" if layer else f"{known}.weight"), part


def unpermute(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """[out, in] with each head's rows from pairs (x0, y0, x1, y1, ...) back to halves (x0, x1, ..., y0, y1, ...).

    llama.cpp rotates neighbouring rows; Hugging Face rotates a head's first half against its second.
    """
    num_rows, width = rows.shape
    pairs = rows.reshape(num_heads, num_rows // num_heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(num_rows, width)


def llama_config(file: GgufFile, *, tied: bool, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of the model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": file.need("llama.embedding_length"),
        "intermediate_size": file.need("llama.feed_forward_length"),
        "num_hidden_layers": file.need("llama.block_count"),
        "num_attention_heads": file.need("llama.attention.head_count"),
        "num_key_value_heads": file.need("llama.attention.head_count_kv"),
        "max_position_embeddings": file.need("llama.context_length"),
        "rms_norm_eps": round(file.need("llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": file.need("llama.rope.freq_base"),
        "tie_word_embeddings": tied,
        "vocab_size": len(file.need("tokenizer.ggml.tokens")),
        "bos_token_id": file.need("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.need("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.fields.get("tokenizer.ggml.padding_token_id"),
        "dtype": str(dtype).removeprefix("torch."),
    }


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """Byte-level BPE with single digits, as GGUF's pre-tokenizer `smollm` names it."""
    rules = file.need("tokenizer.ggml.model"), file.need("tokenizer.ggml.pre")
    if rules != ("gpt2", "smollm"):
        raise UserError(f"{file.path}: tokenizer {rules[0]} with splitting rules {rules[1]}", hint="gpt2, smollm can")
    words: list[str] = file.need("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in file.need("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = file.need("tokenizer.ggml.token_type")
    special = [word for word, kind in zip(words, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    return tokenizer


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """tokenizer_config.json, with the chat template."""
    words = file.need("tokenizer.ggml.tokens")
    named = {
        "bos_token": "tokenizer.ggml.bos_token_id",
        "eos_token": "tokenizer.ggml.eos_token_id",
        "unk_token": "tokenizer.ggml.unknown_token_id",
        "pad_token": "tokenizer.ggml.padding_token_id",
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": file.need("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.need("llama.context_length"),
        **{name: words[file.fields[key]] for name, key in named.items() if key in file.fields},
    }


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
