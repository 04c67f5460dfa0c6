"""Bodies of HTTP requests, and the check of everything in them. A `BadRequest` becomes HTTP 400 with its message."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from agentrl.inference.embedded.sequence import Sampling
from agentrl.inference.engine import PauseMode

_GREEDY_BELOW = 1e-6
_DEFAULT_NEW_TOKENS = 128
_MAX_RID = 256

B = TypeVar("B")


class BadRequest(ValueError):
    """The request cannot be served as it is; the message says why."""


class SamplingBody(msgspec.Struct, forbid_unknown_fields=True):
    """SGLang's sampling parameters. Those that are not served and would change what is sampled must be neutral."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    sampling_seed: int | None = None
    n: int | None = None
    stop: Any = None
    stop_regex: Any = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    logit_bias: dict[str, float] | None = None
    custom_params: dict[str, Any] | None = None
    stream_interval: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None


class GenerateBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /generate. `input_ids`, `sampling_params` and `rid` are decoded later: a list of them makes a batch."""

    input_ids: msgspec.Raw = msgspec.Raw()
    text: Any = None
    sampling_params: msgspec.Raw = msgspec.Raw()
    rid: str | list[str] | None = None
    model: str | None = None
    """There is one model; a router names it."""
    extra_key: str | None = None
    """Name space of the prefix cache, for all prompts."""
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool = False
    priority: int | None = None
    """Without effect: requests start in the order in which they come."""
    log_metrics: bool = True
    no_logs: bool = False
    return_hidden_states: bool = False
    background: bool = False
    return_bytes: bool = False
    return_entropy: bool = False


class AbortBody(msgspec.Struct):
    rid: str | None = None
    abort_all: bool = False


class PauseBody(msgspec.Struct):
    mode: PauseMode = PauseMode.ABORT


class UpdateWeightsBody(msgspec.Struct):
    """POST /update_weights_from_disk."""

    model_path: str
    weight_version: str | None = None
    """None keeps the version."""
    flush_cache: bool = True
    abort_all_requests: bool = False


class GroupBody(msgspec.Struct):
    """POST /init_weights_update_group."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class GroupNameBody(msgspec.Struct):
    """POST /destroy_weights_update_group."""

    group_name: str = "weight_update_group"


class FromGroupBody(msgspec.Struct):
    """POST /update_weights_from_distributed."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None


class FromTensorsBody(msgspec.Struct):
    """POST /update_weights_from_tensor."""

    serialized_named_tensors: list[bytes]
    """Base64 in JSON; one for each tensor-parallel rank, of which there is one here."""
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None


class CheckBody(msgspec.Struct):
    """POST /weights_checker."""

    action: str = "checksum"


class VersionBody(msgspec.Struct):
    """POST /update_weight_version."""

    new_version: str
    abort_all_requests: bool = True


class MemoryBody(msgspec.Struct):
    """POST /release_memory_occupation and /resume_memory_occupation. None: all of it."""

    tags: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What requests are checked against."""

    vocab_size: int
    stop_ids: frozenset[int]
    context_length: int
    """Prompt plus completion, in tokens; already lowered to what the KV cache can hold."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One validated sequence to generate."""

    rid: str
    ids: list[int]
    sampling: Sampling
    seed: int | None
    extra_key: str = ""


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    prompts: list[Prompt]
    is_batch: bool
    """The body held lists, so the answer is a list."""
    stream: bool
    return_logprob: bool


def decode(data: bytes, kind: type[B]) -> B:
    """A JSON body as `kind`; an empty body is `{}`. Raises BadRequest."""
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(str(error)) from error


def parse_generate(data: bytes, model: ServedModel) -> GenerateRequest:
    """Body of /generate, completely checked. Raises BadRequest."""
    body = decode(data, GenerateBody)
    _refuse_unserved(body)
    prompts, is_batch = _decode_ids(body.input_ids)
    if is_batch and body.stream:
        raise BadRequest("a batch cannot be streamed: send one request each")
    params = _decode_params(body.sampling_params, len(prompts))
    rids = _rids(body.rid, len(prompts), is_batch)
    return GenerateRequest(
        prompts=[
            Prompt(
                rid=rid,
                ids=_checked_ids(ids, model),
                sampling=_sampling(param, len(ids), model),
                seed=param.sampling_seed,
                extra_key=body.extra_key or "",
            )
            for rid, ids, param in zip(rids, prompts, params, strict=True)
        ],
        is_batch=is_batch,
        stream=body.stream,
        return_logprob=body.return_logprob,
    )


def _refuse_unserved(body: GenerateBody) -> None:
    if body.text is not None:
        raise BadRequest("text is not served: this engine has no tokenizer; send input_ids")
    if not bytes(body.input_ids):
        raise BadRequest("input_ids is missing")
    if body.logprob_start_len not in (None, -1):
        raise BadRequest("logprob_start_len is not served: only output log-probs are")
    if body.top_logprobs_num:
        raise BadRequest("top_logprobs_num is not served")
    for name in ("return_hidden_states", "background", "return_bytes", "return_entropy"):
        if getattr(body, name):
            raise BadRequest(f"{name} is not served")


def _decode_ids(raw: msgspec.Raw) -> tuple[list[list[int]], bool]:
    """(prompts, whether they came as a batch)."""
    data = bytes(raw)
    try:
        return [msgspec.json.decode(data, type=list[int])], False
    except msgspec.ValidationError as single:
        try:
            prompts = msgspec.json.decode(data, type=list[list[int]])
        except msgspec.ValidationError:
            raise BadRequest(f"input_ids: {single}") from single
    if not prompts:
        raise BadRequest("input_ids is empty")
    return prompts, True


def _decode_params(raw: msgspec.Raw, count: int) -> list[SamplingBody]:
    data = bytes(raw) or b"{}"
    if data.lstrip()[:1] == b"[":
        params = decode(data, list[SamplingBody])
        if len(params) != count:
            raise BadRequest(f"{len(params)} sampling_params for {count} prompts")
        return params
    if data == b"null":
        data = b"{}"
    try:
        return [msgspec.json.decode(data, type=SamplingBody)] * count
    except msgspec.ValidationError as error:
        raise BadRequest(f"sampling_params: {error}") from error


def _rids(rid: str | list[str] | None, count: int, is_batch: bool) -> list[str]:
    if rid is None:
        return [uuid.uuid4().hex for _ in range(count)]
    rids = rid if isinstance(rid, list) else [f"{rid}_{index}" for index in range(count)] if is_batch else [rid]
    if len(rids) != count or len(set(rids)) != count:
        raise BadRequest(f"rid must be {count} distinct strings, or one string")
    if any(not name or len(name) > _MAX_RID for name in rids):
        raise BadRequest(f"rid must have 1 to {_MAX_RID} characters")
    return rids


def _checked_ids(ids: list[int], model: ServedModel) -> list[int]:
    if not ids:
        raise BadRequest("input_ids is empty")
    for extreme in (min(ids), max(ids)):
        if not 0 <= extreme < model.vocab_size:
            raise BadRequest(f"input_ids holds {extreme}, outside the vocabulary of {model.vocab_size}")
    if len(ids) >= model.context_length:
        raise BadRequest(f"the prompt's {len(ids)} tokens reach the context length of {model.context_length}")
    return ids


def _sampling(body: SamplingBody, num_prompt: int, model: ServedModel) -> Sampling:
    _refuse_unserved_sampling(body)
    room = model.context_length - num_prompt
    max_new = min(_DEFAULT_NEW_TOKENS, room) if body.max_new_tokens is None else body.max_new_tokens
    _require(max_new >= 0, "max_new_tokens", max_new, "at least 0")
    if max_new > room:
        raise BadRequest(
            f"{num_prompt} prompt tokens plus max_new_tokens {max_new} exceed the context length {model.context_length}"
        )
    temperature = 1.0 if body.temperature is None else body.temperature
    _require(math.isfinite(temperature) and temperature >= 0, "temperature", temperature, "a finite number from 0 on")
    top_p = 1.0 if body.top_p is None else body.top_p
    _require(0 < top_p <= 1, "top_p", top_p, "in (0, 1]")
    min_p = 0.0 if body.min_p is None else body.min_p
    _require(0 <= min_p <= 1, "min_p", min_p, "in [0, 1]")
    top_k = -1 if body.top_k is None else body.top_k
    _require(top_k == -1 or top_k >= 1, "top_k", top_k, "-1 (off) or at least 1")
    greedy = temperature < _GREEDY_BELOW or top_k == 1
    stop_ids = frozenset() if body.ignore_eos else model.stop_ids | frozenset(body.stop_token_ids or ())
    return Sampling(
        max_new_tokens=max_new,
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
        top_p=1.0 if greedy else top_p,
        top_k=0 if top_k == -1 or temperature < _GREEDY_BELOW else min(top_k, model.vocab_size),
        min_p=0.0 if greedy else min_p,
        stop_ids=stop_ids,
    )


def _refuse_unserved_sampling(body: SamplingBody) -> None:
    neutral: dict[str, tuple[Any, ...]] = {
        "min_new_tokens": (None, 0),
        "n": (None, 1),
        "stop": (None, [], ""),
        "stop_regex": (None, [], ""),
        "frequency_penalty": (None, 0),
        "presence_penalty": (None, 0),
        "repetition_penalty": (None, 1),
        "json_schema": (None,),
        "regex": (None,),
        "ebnf": (None,),
        "structural_tag": (None,),
        "logit_bias": (None, {}),
    }
    for name, allowed in neutral.items():
        value = getattr(body, name)
        if value not in allowed:
            raise BadRequest(f"sampling_params.{name} is not served by this engine")


def _require(holds: bool, name: str, value: object, what: str) -> None:
    if not holds:
        raise BadRequest(f"{name} must be {what}, got {value}")
