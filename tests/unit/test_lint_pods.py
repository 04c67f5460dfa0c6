"""The rules about sandboxes that are pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentrl.config.lint import Severity, lint
from agentrl.config.lint_pods import POD_RULES
from agentrl.config.schema import JobConfig
from agentrl.sandbox.config import Isolation, SandboxBackend, SandboxConfig
from agentrl.sandbox.pods.config import PodConfig, PodSnapshots


def job(
    *, backend: SandboxBackend = SandboxBackend.kubernetes, pods: dict[str, Any] | None = None, **sandbox: Any
) -> JobConfig:
    kubernetes = PodConfig(**(pods or {}))
    return replace(JobConfig(), sandbox=SandboxConfig(backend=backend, kubernetes=kubernetes, **sandbox))


E, W = Severity.ERROR, Severity.WARNING
CASES = [
    ("pods_are_isolated_by_their_cluster", E, "sandbox.isolation", job(isolation=Isolation.none)),
    ("pods_are_isolated_by_their_cluster", W, "sandbox.pids", job(pids=7)),
    ("pods_outlive_their_episodes", E, "sandbox.kubernetes.active_deadline_s", job(pods={"active_deadline_s": 60.0})),
    ("pod_snapshots_are_asked_for", E, "sandbox.fork_groups", job(fork_groups=True)),
    (
        "pod_snapshots_are_asked_for",
        W,
        "sandbox.fork_groups",
        job(fork_groups=True, pods={"snapshots": PodSnapshots.workdir}),
    ),
    (
        "pod_overrides_are_fields_of_pods",
        E,
        "sandbox.kubernetes.overrides",
        job(pods={"overrides": {"spec": {"nodeSelectr": {}}}}),
    ),
    ("claims_have_a_warm_pool_of_their_own", W, "sandbox.warm_max", job(backend=SandboxBackend.agent_sandbox)),
]


@pytest.mark.parametrize(("rule", "severity", "where", "config"), CASES)
def test_a_rule_speaks(rule: str, severity: Severity, where: str, config: JobConfig) -> None:
    found = [(finding.severity, finding.where) for finding in lint(config) if finding.rule == rule]
    assert (severity, where) in found


def test_every_rule_has_a_case_and_none_concerns_other_sandboxes() -> None:
    names = {rule.__name__ for rule in POD_RULES}
    assert {rule for rule, _, _, _ in CASES} == names
    assert not names & {finding.rule for finding in lint(job())}
    local = job(backend=SandboxBackend.bubblewrap, pids=7, fork_groups=True, pods={"active_deadline_s": 1.0})
    assert not names & {finding.rule for finding in lint(local)}
