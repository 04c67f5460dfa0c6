"""`SGLangClient`: the `Engine` protocol over SGLang's native HTTP API, whichever server answers it.

Errors: HTTP 400 to a generation is EngineRequestError. A lost connection, a missed deadline, any other refusal and any
answer that is not what the API promises is EngineError. Nothing is retried: the caller knows what may be repeated.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import aiohttp
import msgspec

from agentrl.errors import AgentrlError, EngineError, EngineRequestError
from agentrl.inference.config import MemoryTag
from agentrl.inference.engine import EngineLoad, FinishReason, Generation, PauseMode, SamplingParams
from agentrl.inference.gauges import parse_gauges
from agentrl.inference.labels import NOT_OURS, parse_label, weight_label
from agentrl.inference.sglang_checks import missing_paths
from agentrl.wire import Meeting, Piece, Transfer

_HEALTH_TIMEOUT_S = 5.0
_KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn drops an idle connection: so that a request never meets one being dropped."""
_DETAIL_CHARS = 300
ROUTING_KEY = "X-SMG-Routing-Key"
"""Header by which SGLang's router keeps requests on one worker."""

_BUILD = (
    "version", "device", "dtype", "quantization", "kv_cache_dtype", "torchao_config", "tp_size", "ep_size",
    "attention_backend", "sampling_backend", "speculative_algorithm", "enable_deterministic_inference",
)  # fmt: skip
"""What /server_info tells of how a server computes; SGLang's names."""

A = TypeVar("A")


class _Finish(msgspec.Struct):
    type: str


class _Span(msgspec.Struct):
    """Output tokens from `start` to before `end`."""

    version: str
    start: int
    end: int


class _Meta(msgspec.Struct):
    finish_reason: _Finish
    weight_version: str
    weight_versions: list[_Span] = []
    cached_tokens: int = 0
    output_token_logprobs: list[tuple[float, int, Any]] = []


class _Generated(msgspec.Struct):
    output_ids: list[int]
    meta_info: _Meta


class _Load(msgspec.Struct):
    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int


class _Loads(msgspec.Struct):
    loads: list[_Load]


class _ModelInfo(msgspec.Struct):
    weight_version: str


class _Updated(msgspec.Struct):
    success: bool
    message: str = ""


class _Checksums(msgspec.Struct):
    checksums: dict[str, str]


class _Checked(msgspec.Struct):
    ranks: list[_Checksums]


class SGLangClient:
    """One server at `url`. `request_timeout_s` is the deadline of every request, generation included."""

    def __init__(
        self, name: str, url: str, *, request_timeout_s: float, signed: bool = False, tags: Sequence[MemoryTag] = ()
    ) -> None:
        """`signed`: the engine's name is part of its version label, so that an answer through a router names it.
        `tags`: the memory that it gives up; by default all."""
        self._memory = {"tags": [tag.value for tag in tags]} if tags else {}
        self._name = name
        self._signature = name if signed else None
        self._url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=request_timeout_s)
        self._session: aiohttp.ClientSession | None = None
        self._serves: int | None = None
        """Version that the server was last known to serve; None: not asked yet, or an update failed half way."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        return self._url

    async def generate(self, rid: str, input_ids: list[int], params: SamplingParams) -> Generation:
        return await self.generate_under(self._serves, rid, input_ids, params)

    async def generate_under(
        self, version: int | None, rid: str, input_ids: list[int], params: SamplingParams, *, routing_key: str = ""
    ) -> Generation:
        """`version`: whose KV may be reused; None: not known. `routing_key`: for a router, if it is one at the URL."""
        sampling: dict[str, Any] = {"max_new_tokens": params.max_new_tokens, "temperature": params.temperature}
        if params.stop_token_ids:
            sampling["stop_token_ids"] = params.stop_token_ids
        if params.seed is not None:
            sampling["sampling_seed"] = params.seed
        body: dict[str, Any] = {"rid": rid, "input_ids": input_ids, "sampling_params": sampling, "return_logprob": True}
        if params.priority:
            body["priority"] = params.priority
        if version is not None:
            # A name space of the prefix cache: what another version computed is not found in it.
            body["extra_key"] = str(version)
        headers = {ROUTING_KEY: routing_key} if routing_key else {}
        answer = await self._ask("POST", "/generate", body, _Generated, refusal=EngineRequestError, headers=headers)
        return self._generation(answer, params)

    async def best_logprobs(self, ids: list[int], ends: list[int]) -> list[float]:
        """The longest prefix first: the others find it cached."""
        params = SamplingParams(max_new_tokens=1, temperature=0.0)
        found: dict[int, float] = {}
        for end in sorted(ends, reverse=True):
            generation = await self.generate(f"probe.{end:08d}", ids[:end], params)
            if not generation.logprobs:
                raise EngineError(f"{self._name}: nothing was sampled after a prefix of {end} tokens")
            found[end] = generation.logprobs[0]
        return [found[end] for end in ends]

    async def abort(self, rid: str | None) -> None:
        await self._send("POST", "/abort_request", {"abort_all": True} if rid is None else {"rid": rid})

    async def pause(self, mode: PauseMode = PauseMode.ABORT) -> None:
        await self._send("POST", "/pause_generation", {"mode": mode.value})

    async def resume(self) -> None:
        await self._send("POST", "/continue_generation", {})

    async def flush_cache(self) -> None:
        await self._send("POST", "/flush_cache", {})

    async def update_weights(self, path: str, version: int, *, flush_cache: bool = True) -> None:
        body = {
            "model_path": path,
            "weight_version": weight_label(version, self._signature),
            "flush_cache": flush_cache,
            "abort_all_requests": False,
        }
        self._serves = None
        answer = await self._ask("POST", "/update_weights_from_disk", body, _Updated)
        if not answer.success:
            raise EngineError(f"{self._name}: weights of version {version} were not loaded: {answer.message}")
        self._serves = version

    async def receive_weights(self, transfer: Transfer, *, flush_cache: bool = True) -> None:
        """One session of SGLang's: nothing of it is labelled before the last piece is there."""
        self._serves = None
        await self._order("/update_weight_version", {"new_version": str(NOT_OURS), "abort_all_requests": False})
        if transfer.meeting is not None:
            await self._order("/init_weights_update_group", _joining(transfer.meeting))
        try:
            await self._order("/begin_weight_update", {})
        except EngineError:
            # A controller before this one may have ended in the middle of an update.
            await self._order("/end_weight_update", {})
            await self._order("/begin_weight_update", {})
        for piece in transfer.pieces:
            last = piece is transfer.pieces[-1]
            body = {
                "flush_cache": flush_cache and last,
                "abort_all_requests": False,
                "weight_version": weight_label(transfer.version, self._signature) if last else None,
            }
            await self._order(*_sending(piece, transfer.meeting, body))
        await self._order("/end_weight_update", {})
        if transfer.meeting is not None:
            await self._order("/destroy_weights_update_group", {"group_name": transfer.meeting.name})
        self._serves = transfer.version

    async def checksums(self) -> dict[str, str]:
        ranks = (await self._ask("POST", "/weights_checker", {"action": "checksum"}, _Checked)).ranks
        found: dict[str, str] = {}
        for number, rank in enumerate(ranks):
            found |= {f"{number}/{name}" if number else name: value for name, value in rank.checksums.items()}
        return found

    async def release_memory(self) -> None:
        await self._send("POST", "/release_memory_occupation", self._memory)

    async def resume_memory(self) -> None:
        await self._send("POST", "/resume_memory_occupation", self._memory)

    async def load(self) -> EngineLoad:
        ranks = (await self._ask("GET", "/v1/loads", None, _Loads)).loads
        return EngineLoad(
            num_running=sum(rank.num_running_reqs for rank in ranks),
            num_queued=sum(rank.num_waiting_reqs for rank in ranks),
            kv_tokens_used=sum(rank.num_used_tokens for rank in ranks),
            kv_tokens_capacity=sum(rank.max_total_num_tokens for rank in ranks),
        )

    async def gauges(self) -> dict[str, float]:
        return parse_gauges((await self._send("GET", "/metrics", None)).decode(errors="replace"))

    async def version(self) -> int:
        text = (await self._ask("GET", "/model_info", None, _ModelInfo)).weight_version
        label = parse_label(text)
        self._serves = label.version if label is not None and label.engine == self._signature else NOT_OURS
        return self._serves

    async def build(self) -> dict[str, str]:
        told = await self._ask("GET", "/server_info", None, dict[str, Any])
        return {name: str(told[name]) for name in _BUILD if told.get(name) is not None}

    async def healthy(self) -> bool:
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                await self._send("GET", "/health", None)
        except (EngineError, TimeoutError):
            return False
        return True

    async def check_api(self) -> None:
        """The server has every endpoint that this client asks. Raises EngineError with those that it lacks."""
        if missing := missing_paths(await self._ask("GET", "/openapi.json", None, dict[str, Any])):
            raise EngineError(f"{self._name}: this server lacks {', '.join(missing)}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- answers -----------------------------------------------------------------------------------------------

    def _generation(self, answer: _Generated, params: SamplingParams) -> Generation:
        ids, meta = answer.output_ids, answer.meta_info
        logprobs = [entry[0] for entry in meta.output_token_logprobs]
        if [entry[1] for entry in meta.output_token_logprobs] != ids:
            raise EngineError(f"{self._name}: {len(logprobs)} log-probs do not belong to the {len(ids)} output ids")
        if not all(map(math.isfinite, logprobs)):
            raise EngineError(f"{self._name}: a log-prob is not finite")
        try:
            finish = FinishReason(meta.finish_reason.type)
        except ValueError as error:
            raise EngineError(f"{self._name}: unknown finish reason {meta.finish_reason.type!r}") from error
        if finish is FinishReason.LENGTH and ids and ids[-1] in params.stop_token_ids:
            # SGLang looks at the length first; a stop token in the last place is still a stop.
            finish = FinishReason.STOP
        versions, engine = self._labels(meta, len(ids))
        return Generation(
            ids=ids,
            logprobs=logprobs,
            versions=versions,
            engine=engine,
            finish=finish,
            cached_tokens=meta.cached_tokens,
        )

    def _labels(self, meta: _Meta, num_ids: int) -> tuple[list[int], str | None]:
        """Version of each output id, by spans where the server tells them, else all of one; and who signed them."""
        spans = meta.weight_versions or [_Span(meta.weight_version, 0, num_ids)]
        versions: list[int] = []
        signatures: set[str | None] = set()
        for span in spans:
            label = parse_label(span.version)
            if label is None:
                raise EngineError(f"{self._name}: weight version {span.version!r} is not a number")
            if span.start != len(versions):
                raise EngineError(f"{self._name}: spans of weight versions do not follow one another")
            versions += [label.version] * (span.end - span.start)
            signatures.add(label.engine)
        if len(versions) != num_ids:
            raise EngineError(f"{self._name}: weight versions of {len(versions)} ids, but there are {num_ids}")
        if len(signatures) > 1:
            raise EngineError(f"{self._name}: one answer is signed by several engines")
        return versions, signatures.pop()

    # --- transport ---------------------------------------------------------------------------------------------

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any,
        kind: type[A],
        *,
        refusal: type[AgentrlError] = EngineError,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> A:
        """Send a request and decode its answer."""
        data = await self._send(method, path, body, refusal=refusal, headers=headers)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise EngineError(f"{self._name}: answer to {path} is not the API's: {error}") from error

    async def _order(self, path: str, body: dict[str, Any]) -> None:
        """Part of an update. Raises EngineError if it is refused."""
        answer = await self._ask("POST", path, body, _Updated)
        if not answer.success:
            raise EngineError(f"{self._name}: {path} failed: {answer.message}")

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        *,
        refusal: type[AgentrlError] = EngineError,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes:
        """Send a request; the body of a 200 answer. HTTP 400 raises `refusal`."""
        data = None if body is None else msgspec.json.encode(body)
        typed = {} if data is None else {"Content-Type": "application/json"}
        url = self._url + path
        try:
            async with self._connected().request(method, url, data=data, headers={**typed, **headers}) as response:
                content = await response.read()
        except TimeoutError as error:
            raise EngineError(f"{self._name}: no answer to {path} within {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{self._name}: {path} failed: {error!r}") from error
        if response.status == 200:
            return content
        detail = content[:_DETAIL_CHARS].decode(errors="replace").strip()
        if response.status == 400:
            raise refusal(f"{self._name}: {path} refused: {detail}")
        raise EngineError(f"{self._name}: {path} answered {response.status}: {detail}")

    def _connected(self) -> aiohttp.ClientSession:
        """The session, made where a loop runs. How many requests are in flight is the controller's decision."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self._session


def _joining(meeting: Meeting) -> dict[str, Any]:
    return {
        "master_address": meeting.address,
        "master_port": meeting.port,
        "rank_offset": 1,
        "world_size": meeting.size,
        "group_name": meeting.name,
        "backend": meeting.backend,
    }


def _sending(piece: Piece, meeting: Meeting | None, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Path and body of the request that makes a server take a piece; msgspec writes bytes as base64."""
    if meeting is None:
        return "/update_weights_from_tensor", body | {"serialized_named_tensors": piece.handles}
    tensors = {"names": piece.names, "dtypes": piece.dtypes, "shapes": piece.shapes}
    return "/update_weights_from_distributed", body | tensors | {"group_name": meeting.name}
