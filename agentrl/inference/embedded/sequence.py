"""One request inside the engine: its tokens, how to sample, how far its KV cache reaches, and how it ended.

Owned and changed by the torch thread only. What crosses to the HTTP front is a `Snapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class End(StrEnum):
    """Why a sequence ended; the values are SGLang's finish_reason types, and `error`, which becomes HTTP 500."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Validated sampling parameters of one sequence."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    stop_ids: frozenset[int] = frozenset()
    """Sampling one of these ends the sequence: the request's stop tokens and the model's end-of-sequence tokens."""

    @property
    def filtered(self) -> bool:
        """Whether a filter narrows what can be sampled."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


@dataclass(frozen=True)
class Snapshot:
    """What the front may know of a sequence at one moment. Lists are never changed afterwards."""

    key: int
    """The sequence's."""
    rid: str
    output_ids: list[int]
    logprobs: list[float]
    num_prompt: int
    cached_tokens: int
    num_retractions: int
    spans: list[tuple[str, int, int]]
    """(weight version, start, end) over the output ids: which weights sampled which."""
    weight_version: str
    end: End | None
    """None while it runs."""
    reason: str
    """For people: what ended it, where `end` alone does not say."""
    queue_s: float
    """Seconds between arrival and the first forward pass."""
    first_token_s: float | None
    """Seconds between arrival and the first sampled token."""
    latency_s: float
    """Seconds between arrival and this snapshot."""


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """A request being served. `tokens` is prompt then output; KV exists for the first `kv_len` of them."""

    key: int
    """Order of arrival, unique in the process."""
    rid: str
    tokens: list[int]
    num_prompt: int
    sampling: Sampling
    seed: int
    extra_key: str = ""
    """Name space of the prefix cache."""
    stream: bool = False
    arrived_s: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    slot: int = -1
    """Row of the KV cache; -1 while it waits."""
    kv_len: int = 0
    kv_epoch: int = -1
    """Weights epoch of its KV; a sequence whose epoch has passed may go on, but nothing else may reuse its KV."""
    cached_tokens: int = 0
    num_retractions: int = 0
    started_s: float | None = None
    first_token_s: float | None = None
    end: End | None = None
    reason: str = ""
    blocks: list[int] = field(default_factory=list)
    """Chained hashes of the whole blocks of the prompt (see `prefix`)."""

    @property
    def pending(self) -> int:
        """Tokens whose KV is still to be computed; 1 is a decode step."""
        return len(self.tokens) - self.kv_len

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def reserved_tokens(self) -> int:
        """KV tokens that it may come to need."""
        return self.num_prompt + self.sampling.max_new_tokens

    def append(self, token: int, logprob: float, version: str, now_s: float) -> None:
        """Take one sampled token; sets `end` when it was the last."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.first_token_s is None:
            self.first_token_s = now_s
        self._extend_span(version)
        if token in self.sampling.stop_ids:
            self.end = End.STOP
        elif self.num_output >= self.sampling.max_new_tokens:
            self.end = End.LENGTH

    def _extend_span(self, version: str) -> None:
        end = self.num_output
        if self.spans and self.spans[-1][0] == version:
            self.spans[-1] = (version, self.spans[-1][1], end)
        else:
            self.spans.append((version, end - 1, end))

    def snapshot(self, version: str, now_s: float) -> Snapshot:
        """State for the front. `version` is the one served now, told when nothing was sampled."""
        started = now_s if self.started_s is None else self.started_s
        first = None if self.first_token_s is None else self.first_token_s - self.arrived_s
        return Snapshot(
            key=self.key,
            rid=self.rid,
            output_ids=self.tokens[self.num_prompt :],
            logprobs=list(self.logprobs),
            num_prompt=self.num_prompt,
            cached_tokens=self.cached_tokens,
            num_retractions=self.num_retractions,
            spans=list(self.spans),
            weight_version=self.spans[-1][0] if self.spans else version,
            end=self.end,
            reason=self.reason,
            queue_s=started - self.arrived_s,
            first_token_s=first,
            latency_s=now_s - self.arrived_s,
        )
