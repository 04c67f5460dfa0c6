"""The rules of the lint about engines and the router before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentrl.config.kubernetes import in_cluster
from agentrl.config.lint import Finding, LintFacts, error, warning
from agentrl.config.schema import JobConfig
from agentrl.inference.config import Router


def router_settings_have_a_router(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A setting of a router that is not used is a misunderstanding."""
    inference = config.inference
    if inference.router is Router.direct:
        for name in ("router_url", "router_python"):
            if getattr(inference, name) is not None:
                message = "is ignored: inference.router is direct"
                yield warning(f"inference.{name}", message, "set inference.router=sglang, or remove it")
    elif inference.router_url is not None and inference.router_python is not None:
        message = "is ignored: inference.router_url names a router that runs already"
        yield warning("inference.router_python", message, "remove it")


def router_is_reached_in_a_cluster(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A router that the controller starts listens on its own machine's loopback."""
    inference = config.inference
    if in_cluster(config) and inference.router is Router.sglang and inference.router_url is None:
        message = "a router is started on one machine only"
        yield error("inference.router_url", message, "give the URL of a router in the cluster, or choose router direct")


INFERENCE_RULES: tuple[Callable[[JobConfig, LintFacts], Iterator[Finding]], ...] = (
    router_settings_have_a_router,
    router_is_reached_in_a_cluster,
)
