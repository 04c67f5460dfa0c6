"""What an engine says of its work on GET /metrics, in SGLang's names."""

from __future__ import annotations

from agentrl.errors import EngineError

GAUGES = ("num_running_reqs", "num_queue_reqs", "token_usage", "cache_hit_rate", "gen_throughput")
"""Requests that run and that wait, the share of KV memory in use, the share of prompt tokens that came from the prefix
cache (of the last prefill, in SGLang), and sampled tokens per second."""


def parse_gauges(exposition: str) -> dict[str, float]:
    """`GAUGES` by name; of several ranks the largest. Raises EngineError for text that has not all of them."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(exposition):
            name = family.name.removeprefix("sglang:")
            if name in GAUGES and family.samples:
                found[name] = max(sample.value for sample in family.samples)
    except ValueError as error:
        raise EngineError(f"/metrics is not Prometheus' text: {error}") from error
    if missing := [name for name in GAUGES if name not in found]:
        raise EngineError(f"/metrics lacks {', '.join(missing)}")
    return found
