"""The rules of the lint about engines and the router before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentrl.config.kubernetes import in_cluster
from agentrl.config.lint import Finding, LintFacts, error, warning
from agentrl.config.schema import JobConfig
from agentrl.inference.config import Device, EngineBackend, Router, Speculation


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


def features_run_on_device(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """SGLang 0.5.23 refuses deterministic kernels with torch_native attention, and speculates on GPUs only."""
    inference = config.inference
    if inference.backend is not EngineBackend.sglang or inference.sglang.device is not Device.cpu:
        return
    if inference.sglang.deterministic:
        yield error("inference.sglang.deterministic", "needs a GPU's attention kernels", "set it to false on CPU")
    if inference.sglang.speculation.algorithm is not Speculation.none:
        yield error("inference.sglang.speculation.algorithm", "needs a GPU", "set it to none on CPU")


def speculation_is_whole(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A draft model without an algorithm is never used, and most algorithms have no draft without one."""
    draft, where = config.inference.sglang.speculation, "inference.sglang.speculation"
    needs_model = draft.algorithm in (Speculation.EAGLE, Speculation.EAGLE3, Speculation.STANDALONE)
    if needs_model and draft.draft_model is None:
        yield error(f"{where}.draft_model", f"is needed for {draft.algorithm.name}", "name the folder of its weights")
    if draft.draft_model is not None and not needs_model:
        yield warning(f"{where}.draft_model", f"is ignored with {draft.algorithm.name}", "remove it")
    if draft.algorithm is Speculation.none:
        for name in ("num_steps", "topk", "num_draft_tokens"):
            if getattr(draft, name) is not None:
                yield warning(f"{where}.{name}", "is ignored: no algorithm is chosen", "choose one, or remove it")


def something_is_released(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A swing engine that gives nothing up leaves the trainer no memory."""
    release = config.inference.sglang.release
    if not release:
        yield error("inference.sglang.release", "is empty", "name at least kv_cache")
    elif len(set(release)) < len(release):
        yield error("inference.sglang.release", "names a tag twice", "name each once")


INFERENCE_RULES: tuple[Callable[[JobConfig, LintFacts], Iterator[Finding]], ...] = (
    router_settings_have_a_router,
    router_is_reached_in_a_cluster,
    features_run_on_device,
    speculation_is_whole,
    something_is_released,
)
