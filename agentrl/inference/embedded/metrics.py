"""GET /metrics: SGLang's names, Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentrl.inference.embedded.sequence import Snapshot
from agentrl.inference.embedded.stats import Stats

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics:
    """Registry of one engine: figures are read from `stats` when scraped, latencies are observed as requests end."""

    def __init__(self, model_name: str, stats: Callable[[], Stats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_StatsCollector(model_name, stats))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(f"sglang:{name}", text, ["model_name"], registry=self._registry, buckets=buckets)
            return family.labels(model_name)

        self._first = histogram("time_to_first_token_seconds", "Arrival to first token.", _LATENCY_BUCKETS_S)
        self._between = histogram("inter_token_latency_seconds", "Mean time between tokens.", _TOKEN_BUCKETS_S)
        self._whole = histogram("e2e_request_latency_seconds", "Arrival to answer.", _LATENCY_BUCKETS_S)

    def observe(self, snapshot: Snapshot) -> None:
        """Account for a request that ended."""
        self._whole.observe(snapshot.latency_s)
        if snapshot.first_token_s is None:
            return
        self._first.observe(snapshot.first_token_s)
        later_tokens = len(snapshot.output_ids) - 1
        if later_tokens > 0:
            self._between.observe((snapshot.latency_s - snapshot.first_token_s) / later_tokens)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)


class _StatsCollector(Collector):
    def __init__(self, model_name: str, stats: Callable[[], Stats]) -> None:
        self._model_name = model_name
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        gauges = {
            "num_running_reqs": ("Requests being decoded or prefilled.", stats.num_running),
            "num_queue_reqs": ("Requests waiting for a slot or memory.", stats.num_waiting),
            "num_paused_reqs": ("Requests held by a pause.", stats.num_paused),
            "num_used_tokens": ("KV tokens held, the prefix cache included.", stats.used_tokens),
            "max_total_num_tokens": ("KV capacity in tokens.", stats.max_total_tokens),
            "token_usage": ("Share of the KV capacity that running requests hold.", stats.token_usage),
            "cache_hit_rate": ("Share of prompt tokens that came from the prefix cache.", stats.cache_hit_rate),
            "gen_throughput": ("Sampled tokens per second.", stats.gen_throughput),
        }
        counters = {
            "prompt_tokens": ("Prompt tokens computed or found in the cache.", stats.prompt_tokens_total),
            "cached_tokens": ("Prompt tokens found in the cache.", stats.cached_tokens_total),
            "generation_tokens": ("Tokens sampled.", stats.generation_tokens_total),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"sglang:{name}", text, labels=["model_name"])
            gauge.add_metric([self._model_name], value)
            yield gauge
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(f"sglang:{name}", text, labels=["model_name"])
            counter.add_metric([self._model_name], value)
            yield counter
