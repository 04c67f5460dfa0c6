"""A lean Llama: the whole batch, decode steps and prompt chunks alike, in one pass over packed tokens.

transformers spends more time in Python a layer than a small model's arithmetic takes; this does the same arithmetic
(held equal by a test) with fused projections and few kernels. Axes: N tokens, C hidden, H query heads, K key-value
heads, G query heads a key-value head, D head size, T tokens of a sequence, R cache rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from agentrl.errors import UserError
from agentrl.inference.embedded.batch import Batch, Chunk
from agentrl.inference.embedded.kv import Geometry, KvCache
from agentrl.inference.embedded.weights import check_finite, check_tensors, read_safetensors

_ROUND = 16
"""The padded length of decode attention is rounded up to this: fewer distinct shapes."""


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The fields of config.json that matter here."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_eps: float
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    rope: dict[str, Any]

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> LlamaConfig:
        """Raises UserError if a key is missing."""
        try:
            num_heads = config["num_attention_heads"]
            return cls(
                hidden_size=config["hidden_size"],
                intermediate_size=config["intermediate_size"],
                num_layers=config["num_hidden_layers"],
                num_heads=num_heads,
                num_kv_heads=config.get("num_key_value_heads") or num_heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // num_heads,
                vocab_size=config["vocab_size"],
                rms_eps=config.get("rms_norm_eps", 1e-6),
                tied=config.get("tie_word_embeddings", False),
                attention_bias=config.get("attention_bias", False),
                mlp_bias=config.get("mlp_bias", False),
                rope=rope_parameters(config),
            )
        except KeyError as error:
            raise UserError(f"the model's config.json has no {error}") from error


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Rotary settings of config.json: `rope_parameters`, or `rope_theta` and `rope_scaling` of older files."""
    settings = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    settings.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    settings.setdefault("rope_type", settings.get("type", "default"))
    return settings


def inverse_frequencies(head_dim: int, rope: dict[str, Any]) -> torch.Tensor:
    """float32[D/2] for the rope types default, linear and llama3."""
    inverse: torch.Tensor = 1.0 / (rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if rope["rope_type"] == "linear":
        inverse = inverse / rope["factor"]
    if rope["rope_type"] == "llama3":
        return _llama3_frequencies(inverse, rope)
    return inverse


def _llama3_frequencies(inverse: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between interpolated."""
    original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    wavelength = 2 * math.pi / inverse
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * inverse / rope["factor"] + smooth * inverse
    stretched = torch.where(wavelength > original / low, inverse / rope["factor"], between)
    return torch.where(wavelength < original / high, inverse, stretched)


@dataclass(frozen=True)
class _Layer:
    norm_in: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    norm_mlp: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True)
class _Weights:
    embed: torch.Tensor
    layers: list[_Layer]
    norm: torch.Tensor
    head: torch.Tensor


@dataclass(frozen=True)
class _Step:
    """Tensors of one batch that every layer uses."""

    cos: torch.Tensor
    sin: torch.Tensor
    write: torch.Tensor
    decode_rows: torch.Tensor | None
    decode_mask: torch.Tensor | None
    decode_width: int
    chunk_masks: list[torch.Tensor | None]


class LlamaModel:
    """Implements `CausalModel` for config.json with model_type llama."""

    @staticmethod
    def supports(config: dict[str, Any]) -> bool:
        """Whether this implementation covers the config; transformers serves the rest."""
        return (
            config.get("model_type") == "llama"
            and config.get("hidden_act", "silu") == "silu"
            and rope_parameters(config)["rope_type"] in ("default", "linear", "llama3")
        )

    def __init__(self, config: dict[str, Any], *, dtype: torch.dtype, context_length: int) -> None:
        c = self.config = LlamaConfig.from_json(config)
        self.dtype = dtype
        self.vocab_size = c.vocab_size
        self.geometry = Geometry(num_layers=c.num_layers, num_kv_heads=c.num_kv_heads, head_dim=c.head_dim)
        self._weights: _Weights | None = None
        angles_TD = torch.outer(torch.arange(context_length).float(), inverse_frequencies(c.head_dim, c.rope)).repeat(
            1, 2
        )
        self._cos_TD = angles_TD.cos().to(dtype)
        # rotate_half(x) * sin = roll(x, D/2) * sin with the first half's sign turned.
        self._sin_TD = angles_TD.sin().to(dtype)
        self._sin_TD[:, : c.head_dim // 2].neg_()

    # --- weights -----------------------------------------------------------------------------------------------

    def load(self, folder: Path) -> None:
        self._serve(read_safetensors(folder))

    def change(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._serve({**self.named(), **tensors})

    def _serve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        optional = {"lm_head.weight"} if self.config.tied else set()
        optional |= {name for name in tensors if name.endswith("rotary_emb.inv_freq")}
        check_tensors(tensors, self.expected(), frozenset(optional))
        copies = {name: tensors[name].to(self.dtype, copy=True) for name in self.expected()}
        check_finite(copies)
        self._weights = self._fuse(copies)

    def named(self) -> dict[str, torch.Tensor]:
        if self._weights is None:
            return {}
        c, weights = self.config, self._weights
        qkv_rows = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim)
        found = {"model.embed_tokens.weight": weights.embed, "model.norm.weight": weights.norm}
        if not c.tied:
            found["lm_head.weight"] = weights.head
        for index, layer in enumerate(weights.layers):
            prefix = f"model.layers.{index}"
            found[f"{prefix}.input_layernorm.weight"] = layer.norm_in
            found[f"{prefix}.post_attention_layernorm.weight"] = layer.norm_mlp
            for kind, qkv, out, gate_up, down in (
                ("weight", layer.qkv, layer.out, layer.gate_up, layer.down),
                ("bias", layer.qkv_bias, layer.out_bias, layer.gate_up_bias, layer.down_bias),
            ):
                if qkv is not None and out is not None:
                    parts = zip(("q_proj", "k_proj", "v_proj"), qkv.split_with_sizes(qkv_rows), strict=True)
                    found |= {f"{prefix}.self_attn.{name}.{kind}": part for name, part in (*parts, ("o_proj", out))}
                if gate_up is not None and down is not None:
                    parts = zip(("gate_proj", "up_proj"), gate_up.chunk(2), strict=True)
                    found |= {f"{prefix}.mlp.{name}.{kind}": part for name, part in (*parts, ("down_proj", down))}
        return found

    def release(self) -> None:
        self._weights = None

    def expected(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors in a checkpoint of this model."""
        c = self.config
        heads, kv_heads = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        matrices: list[tuple[str, int, int, bool]] = [
            ("self_attn.q_proj", heads, c.hidden_size, c.attention_bias),
            ("self_attn.k_proj", kv_heads, c.hidden_size, c.attention_bias),
            ("self_attn.v_proj", kv_heads, c.hidden_size, c.attention_bias),
            ("self_attn.o_proj", c.hidden_size, heads, c.attention_bias),
            ("mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias),
            ("mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias),
            ("mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias),
        ]
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (c.vocab_size, c.hidden_size),
            "model.norm.weight": (c.hidden_size,),
        }
        if not c.tied:
            shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
        for layer in range(c.num_layers):
            prefix = f"model.layers.{layer}"
            shapes[f"{prefix}.input_layernorm.weight"] = (c.hidden_size,)
            shapes[f"{prefix}.post_attention_layernorm.weight"] = (c.hidden_size,)
            for name, rows, columns, bias in matrices:
                shapes[f"{prefix}.{name}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{prefix}.{name}.bias"] = (rows,)
        return shapes

    def _fuse(self, tensors: dict[str, torch.Tensor]) -> _Weights:
        def cat(prefix: str, names: tuple[str, ...], kind: str) -> torch.Tensor | None:
            parts = [tensors.get(f"{prefix}.{name}.{kind}") for name in names]
            present = [part for part in parts if part is not None]
            return torch.cat(present) if present else None

        layers = []
        for layer in range(self.config.num_layers):
            prefix = f"model.layers.{layer}"
            qkv_names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            qkv, gate_up = cat(prefix, qkv_names, "weight"), cat(prefix, ("mlp.gate_proj", "mlp.up_proj"), "weight")
            assert qkv is not None and gate_up is not None
            layers.append(
                _Layer(
                    norm_in=tensors[f"{prefix}.input_layernorm.weight"],
                    qkv=qkv,
                    qkv_bias=cat(prefix, qkv_names, "bias"),
                    out=tensors[f"{prefix}.self_attn.o_proj.weight"],
                    out_bias=tensors.get(f"{prefix}.self_attn.o_proj.bias"),
                    norm_mlp=tensors[f"{prefix}.post_attention_layernorm.weight"],
                    gate_up=gate_up,
                    gate_up_bias=cat(prefix, ("mlp.gate_proj", "mlp.up_proj"), "bias"),
                    down=tensors[f"{prefix}.mlp.down_proj.weight"],
                    down_bias=tensors.get(f"{prefix}.mlp.down_proj.bias"),
                )
            )
        embed = tensors["model.embed_tokens.weight"]
        head = embed if self.config.tied else tensors["lm_head.weight"]
        return _Weights(embed, layers, tensors["model.norm.weight"], head)

    # --- forward -----------------------------------------------------------------------------------------------

    def forward(self, batch: Batch, kv: KvCache) -> torch.Tensor:
        weights = self._weights
        assert weights is not None, "forward on released weights"
        c = self.config
        step = self._prepare(batch, kv)
        x_NC = F.embedding(batch.ids_N, weights.embed)
        for index, layer in enumerate(weights.layers):
            normed_NC = F.rms_norm(x_NC, (c.hidden_size,), layer.norm_in, c.rms_eps)
            heads_N = self._attention(index, F.linear(normed_NC, layer.qkv, layer.qkv_bias), step, batch, kv)
            x_NC = x_NC + F.linear(heads_N, layer.out, layer.out_bias)
            normed_NC = F.rms_norm(x_NC, (c.hidden_size,), layer.norm_mlp, c.rms_eps)
            gate, up = F.linear(normed_NC, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            x_NC = x_NC + F.linear(F.silu(gate).mul_(up), layer.down, layer.down_bias)
        if batch.sampled_B is not None:
            x_NC = x_NC[batch.sampled_B]
        x_BC = F.rms_norm(x_NC, (c.hidden_size,), weights.norm, c.rms_eps)
        return F.linear(x_BC, weights.head).float()

    def _prepare(self, batch: Batch, kv: KvCache) -> _Step:
        num_decode = batch.num_decode
        rows = mask = None
        width = min(-(-batch.decode_length // _ROUND) * _ROUND, kv.num_tokens)
        if num_decode:
            last_R = batch.positions_N[:num_decode]
            if not batch.dense:
                rows = batch.slots_N[:num_decode]
                # Slots that do not decode now attend to their first token: any finite result will do.
                last_R = torch.zeros(batch.num_slots, dtype=torch.int64).index_copy_(0, rows, last_R)
            hidden_RT = torch.arange(width) > last_R[:, None]
            mask = torch.zeros(hidden_RT.shape, dtype=self.dtype).masked_fill_(hidden_RT, -math.inf)[:, None, None]
        return _Step(
            cos=self._cos_TD[batch.positions_N][:, None],
            sin=self._sin_TD[batch.positions_N][:, None],
            write=kv.write_index(batch.slots_N, batch.positions_N),
            decode_rows=rows,
            decode_mask=mask,
            decode_width=width,
            chunk_masks=[chunk_mask(chunk, self.dtype) for chunk in batch.chunks],
        )

    def _attention(self, layer: int, qkv: torch.Tensor, step: _Step, batch: Batch, kv: KvCache) -> torch.Tensor:
        """Rotate, write keys and values, attend: [N, (H+2K)*D] -> [N, H*D]."""
        c = self.config
        num_rotated = c.num_heads + c.num_kv_heads
        qkv_NHD = qkv.view(-1, num_rotated + c.num_kv_heads, c.head_dim)
        qk_NHD = qkv_NHD[:, :num_rotated]
        qk_NHD = (qk_NHD * step.cos).addcmul_(qk_NHD.roll(c.head_dim // 2, -1), step.sin)
        q_NHD = qk_NHD[:, : c.num_heads]
        k_rows, v_rows = kv.layer_rows(layer)
        k_rows.index_copy_(0, step.write, qk_NHD[:, c.num_heads :].reshape(-1, c.head_dim))
        v_rows.index_copy_(0, step.write, qkv_NHD[:, num_rotated:].reshape(-1, c.head_dim))
        parts = []
        if batch.num_decode:
            parts.append(self._attend_decode(layer, q_NHD[: batch.num_decode], step, batch, kv))
        for chunk, mask in zip(batch.chunks, step.chunk_masks, strict=True):
            parts.append(self._attend_chunk(layer, q_NHD[chunk.offset : chunk.offset + chunk.count], chunk, mask, kv))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_decode(self, layer: int, q_NHD: torch.Tensor, step: _Step, batch: Batch, kv: KvCache) -> torch.Tensor:
        """One query a sequence, over all used slots at once, padded to the longest sequence."""
        c = self.config
        if step.decode_rows is not None:
            q_NHD = q_NHD.new_zeros(batch.num_slots, c.num_heads, c.head_dim).index_copy_(0, step.decode_rows, q_NHD)
        # The query heads that share a key-value head stand where a longer query would have its tokens.
        q_RKGD = q_NHD.reshape(batch.num_slots, c.num_kv_heads, -1, c.head_dim)
        k_RKTD = kv.k_LSHTD[layer, : batch.num_slots, :, : step.decode_width]
        v_RKTD = kv.v_LSHTD[layer, : batch.num_slots, :, : step.decode_width]
        out = F.scaled_dot_product_attention(q_RKGD, k_RKTD, v_RKTD, attn_mask=step.decode_mask)
        out = out.reshape(batch.num_slots, -1)
        return out if step.decode_rows is None else out[step.decode_rows]

    def _attend_chunk(
        self, layer: int, q_THD: torch.Tensor, chunk: Chunk, mask: torch.Tensor | None, kv: KvCache
    ) -> torch.Tensor:
        """The queries of one prompt chunk over all of its sequence so far."""
        k_KTD = kv.k_LSHTD[layer, chunk.slot, :, : chunk.end][None]
        v_KTD = kv.v_LSHTD[layer, chunk.slot, :, : chunk.end][None]
        out = F.scaled_dot_product_attention(
            q_THD.transpose(0, 1)[None], k_KTD, v_KTD, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return out[0].transpose(0, 1).reshape(chunk.count, -1)


def chunk_mask(chunk: Chunk, dtype: torch.dtype) -> torch.Tensor | None:
    """Additive causal mask [count, end] of a chunk; None where it starts its sequence (plain causal)."""
    if chunk.start == 0:
        return None
    mask = torch.full((chunk.count, chunk.end), -math.inf, dtype=dtype)
    return mask.triu_(chunk.start + 1)
