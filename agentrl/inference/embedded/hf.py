"""Any other causal language model, through transformers' own code and a cache that writes into the engine's slots.

Decoding is one forward pass over all decoding sequences; each prompt chunk is one more. Refused at start: models whose
state is more than one key and value a token (recurrent, sliding-window and shared layers), and rotary types whose keys
depend on the sequence's length, since cached KV would then be wrong for another request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import Cache
from transformers.utils.logging import disable_progress_bar

from agentrl.errors import UserError
from agentrl.inference.embedded.batch import Batch, Chunk
from agentrl.inference.embedded.kv import Geometry, KvCache
from agentrl.inference.embedded.weights import WeightsError, check_finite, check_tensors

_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


class TransformersModel:
    """Implements `CausalModel` for every architecture that transformers knows and `_refusal` does not name."""

    def __init__(self, folder: Path, *, dtype: torch.dtype, context_length: int) -> None:
        disable_progress_bar()
        config = AutoConfig.from_pretrained(folder)
        reason = _refusal(config, context_length)
        if reason is not None:
            raise UserError(f"the embedded engine cannot serve {config.model_type}: {reason}", hint="use sglang")
        self.dtype = dtype
        self.vocab_size: int = config.vocab_size
        self.geometry = _geometry(config)
        self._model: Any = None

    def load(self, folder: Path) -> None:
        if not folder.is_dir():
            raise WeightsError(f"no such folder: {folder}")
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=self.dtype, attn_implementation="sdpa", output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise WeightsError(f"cannot load {folder}: {error}") from error
        for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
            if report[problem]:
                raise WeightsError(f"{problem.replace('_', ' ')} in {folder}: {sorted(map(str, report[problem]))[:3]}")
        if _geometry(model.config) != self.geometry or model.config.vocab_size != self.vocab_size:
            raise WeightsError(f"{folder} holds a model of another shape")
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()  # not a view of the mapped file, which may change
        check_finite(model.state_dict())
        self._model = model.eval()

    def change(self, tensors: Mapping[str, torch.Tensor]) -> None:
        serving = self.named()
        copies = {name: tensor.to(self.dtype, copy=True) for name, tensor in tensors.items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in serving.items()}
        check_tensors({**serving, **copies}, shapes, frozenset(self._model.state_dict() if self._model else ()))
        check_finite(copies)
        for name, tensor in copies.items():
            if name in serving:
                serving[name].data = tensor

    def named(self) -> dict[str, torch.Tensor]:
        return dict(self._model.named_parameters()) if self._model else {}

    def release(self) -> None:
        self._model = None

    def forward(self, batch: Batch, kv: KvCache) -> torch.Tensor:
        assert self._model is not None, "forward on released weights"
        parts = [self._decode(batch, kv)] if batch.num_decode else []
        parts += [self._prefill(batch, chunk, kv) for chunk in batch.chunks]
        logits_NV = torch.cat(parts)
        return logits_NV if batch.sampled_B is None else logits_NV[batch.sampled_B]

    def _decode(self, batch: Batch, kv: KvCache) -> torch.Tensor:
        num = batch.num_decode
        positions_R = batch.positions_N[:num]
        rows = slice(0, num) if batch.dense else batch.slots_N[:num]
        cache = _SlotCache(kv, batch.slots_N[:num], positions_R[:, None], rows, batch.decode_length)
        hidden_RT = torch.arange(batch.decode_length) > positions_R[:, None]
        return self._run(batch.ids_N[:num, None], positions_R[:, None], hidden_RT[:, None, None], cache)[:, -1]

    def _prefill(self, batch: Batch, chunk: Chunk, kv: KvCache) -> torch.Tensor:
        """Logits [count, V]; only the last row is of use, the others are not worth computing."""
        tokens = slice(chunk.offset, chunk.offset + chunk.count)
        positions_1T = batch.positions_N[None, tokens]
        cache = _SlotCache(kv, batch.slots_N[tokens][:1], positions_1T, slice(chunk.slot, chunk.slot + 1), chunk.end)
        hidden_TT = torch.arange(chunk.end) > positions_1T[0, :, None]
        last_1V = self._run(batch.ids_N[None, tokens], positions_1T, hidden_TT[None, None], cache, last=True)[:, -1]
        return last_1V.expand(chunk.count, -1)

    def _run(
        self, ids: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor, cache: _SlotCache, *, last: bool = False
    ) -> torch.Tensor:
        mask = torch.zeros(hidden.shape, dtype=self.dtype).masked_fill_(hidden, -math.inf)
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1 if last else 0,
        )
        logits: torch.Tensor = output.logits
        return logits.float()


class _SlotCache(Cache):  # type: ignore[misc]
    """Writes new keys and values at given slots and positions, and shows the layers the first `width` tokens."""

    def __init__(
        self,
        kv: KvCache,
        slots_B: torch.Tensor,
        positions_BT: torch.Tensor,
        rows: slice | torch.Tensor,
        width: int,
    ) -> None:
        super().__init__(layers=[])
        self._kv = kv
        self._at = (slots_B[:, None], slice(None), positions_BT)
        self._rows = rows
        self._width = width

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shown = []
        for states_BHTD, cache_SHTD in (
            (key_states, self._kv.k_LSHTD[layer_idx]),
            (value_states, self._kv.v_LSHTD[layer_idx]),
        ):
            cache_SHTD[self._at] = states_BHTD.transpose(1, 2)
            shown.append(cache_SHTD[self._rows][:, :, : self._width])
        return shown[0], shown[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._width


def _geometry(config: Any) -> Geometry:
    num_heads = config.num_attention_heads
    return Geometry(
        num_layers=config.num_hidden_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
    )


def _refusal(config: Any, context_length: int) -> str | None:
    """Why a model cannot be served, or None."""
    if config.is_encoder_decoder:
        return "it is an encoder-decoder"
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True) and window < context_length:
        return f"its attention window of {window} is shorter than the context length of {context_length}"
    layer_types: list[str] = getattr(config, "layer_types", None) or []
    kinds = set(layer_types) - {"full_attention", "sliding_attention"}
    num_shared: int = getattr(config, "num_kv_shared_layers", 0)
    if kinds or num_shared:
        return f"it has layers without plain keys and values ({', '.join(sorted(kinds)) or 'shared'})"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
        return f"its rotary embedding ({rope['rope_type']}) depends on the sequence's length"
    return None
