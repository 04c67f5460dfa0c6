"""Figures of the engine: counted in the torch thread, read by the HTTP front as immutable `Stats`."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.inference.embedded.scheduler import Work

_WINDOW_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Stats:
    num_running: int
    num_waiting: int
    num_paused: int
    max_running: int
    used_tokens: int
    """KV tokens held: by running sequences and by the prefix cache."""
    parked_tokens: int
    """Those of the prefix cache, which give way to requests."""
    max_total_tokens: int
    prompt_tokens_total: int
    """Prompt tokens computed."""
    cached_tokens_total: int
    """Prompt tokens that came from the prefix cache instead."""
    generation_tokens_total: int
    gen_throughput: float
    """Sampled tokens per second over the last second or so; 0 when idle."""
    blocked: bool
    """Paused, or memory released."""
    version: str

    @property
    def token_usage(self) -> float:
        """Share of the KV capacity that running sequences hold; the prefix cache does not count: it gives way."""
        return (self.used_tokens - self.parked_tokens) / self.max_total_tokens

    @property
    def cache_hit_rate(self) -> float:
        """Share of all prompt tokens so far that came from the prefix cache."""
        prompts = self.prompt_tokens_total + self.cached_tokens_total
        return self.cached_tokens_total / prompts if prompts else 0.0


class Totals:
    """Counters over the life of the engine."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._window_start_s = 0.0
        self._window_tokens = 0
        self._throughput = 0.0

    def count_step(self, works: list[Work], num_sampled: int, now_s: float) -> None:
        self.generation_tokens += num_sampled
        self.prompt_tokens += sum(
            min(work.count, work.sequence.num_prompt - work.start)
            for work in works
            if work.start < work.sequence.num_prompt
        )
        if now_s - self._window_start_s >= _WINDOW_S:
            elapsed = now_s - self._window_start_s
            # After an idle time the window is stale: start afresh.
            self._throughput = self._window_tokens / elapsed if elapsed < 2 * _WINDOW_S else 0.0
            self._window_start_s, self._window_tokens = now_s, 0
        self._window_tokens += num_sampled

    def throughput(self, now_s: float) -> float:
        return self._throughput if now_s - self._window_start_s < 2 * _WINDOW_S else 0.0
