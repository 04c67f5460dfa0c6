"""The rules of the lint about sandboxes that are pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentrl.config.fields import schema
from agentrl.config.lint import Finding, LintFacts, error, warning
from agentrl.config.schema import JobConfig
from agentrl.sandbox.config import Isolation, SandboxBackend

_OF_THIS_MACHINE = (
    *("seccomp", "pids", "writable_system", "cache_dir"),
    *("build_network", "build_timeout_s", "build_disk_mb"),
)
"""Settings of sandboxes on this machine that a pod has not."""


def pods_are_isolated_by_their_cluster(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Without isolation there is no cluster, and what holds a local sandbox does not hold a pod."""
    sandbox = config.sandbox
    if not sandbox.backend.runs_containers:
        return
    if sandbox.isolation is Isolation.none:
        message = f"none: with sandbox.backend {sandbox.backend.value} pods are what isolates"
        yield error("sandbox.isolation", message, "set it to namespaces")
    for name in _OF_THIS_MACHINE:
        if getattr(sandbox, name) != schema().leaves[f"sandbox.{name}"].default:
            yield warning(f"sandbox.{name}", "is ignored: sandboxes are pods", "remove it")


def pods_outlive_their_episodes(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """The cluster's deadline is the last net: it must not end a sandbox that agentrl still wants."""
    sandbox = config.sandbox
    needed_s = sandbox.warm_idle_s + sandbox.lifetime_s
    if sandbox.backend.runs_containers and sandbox.kubernetes.active_deadline_s <= needed_s:
        message = f"{sandbox.kubernetes.active_deadline_s:g} s: a sandbox may be used for {needed_s:g} s"
        yield error("sandbox.kubernetes.active_deadline_s", message, f"set it above {needed_s:g}")


def pod_snapshots_are_asked_for(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Kubernetes seals no file system: a snapshot is a tar, and only of the working folder."""
    sandbox = config.sandbox
    if not sandbox.backend.runs_containers:
        return
    asked = {
        "sandbox.fork_groups": sandbox.fork_groups,
        "sandbox.snapshot_every_turns": sandbox.snapshot_every_turns > 0,
        "tasks.branch_from": config.tasks.branch_from is not None,
    }
    for key in (key for key, wanted in asked.items() if wanted):
        if sandbox.kubernetes.snapshots.value == "none":
            hint = "set sandbox.kubernetes.snapshots=workdir if tasks keep everything in their working folder"
            yield error(key, "needs snapshots, which pods have not", hint)
        else:
            message = "goes by snapshots of the working folder: what is changed elsewhere is lost"
            yield warning(key, message, "only for tasks that keep everything in their working folder")


def pod_overrides_are_fields_of_pods(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A misspelt override would be dropped, and with it what it was to protect."""
    overrides = config.sandbox.kubernetes.overrides
    if not overrides or not config.sandbox.backend.runs_containers:
        return
    from agentrl.kubernetes.strict import unknown_fields

    for problem in unknown_fields("V1PodTemplateSpec", overrides):
        yield error("sandbox.kubernetes.overrides", problem, "see `kubectl explain pod.spec`")


def claims_have_a_warm_pool_of_their_own(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Two pools, one on the other, keep twice as many pods waiting."""
    sandbox = config.sandbox
    if sandbox.backend is SandboxBackend.agent_sandbox and sandbox.warm_max and sandbox.kubernetes.warm_replicas:
        message = f"{sandbox.warm_max}: agent-sandbox keeps {sandbox.kubernetes.warm_replicas} of each image warm too"
        yield warning("sandbox.warm_max", message, "set it to 0, or sandbox.kubernetes.warm_replicas to 0")


POD_RULES: tuple[Callable[[JobConfig, LintFacts], Iterator[Finding]], ...] = (
    pods_are_isolated_by_their_cluster,
    pods_outlive_their_episodes,
    pod_snapshots_are_asked_for,
    pod_overrides_are_fields_of_pods,
    claims_have_a_warm_pool_of_their_own,
)
