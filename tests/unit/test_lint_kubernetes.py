"""Each rule about runs in a Kubernetes cluster: what it catches, where it points, and what it lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.lint import Severity, lint
from agentrl.config.lint_kubernetes import KUBERNETES_RULES
from agentrl.config.schema import JobConfig
from agentrl.config.tree import Tree, from_tree, to_tree

ERROR, WARNING = Severity.ERROR, Severity.WARNING
K = "cluster.kubernetes"
GPUS = {"inference.backend": "sglang", "inference.num_engines": 4, "inference.sglang.gpus_per_engine": 2}


def job(**values: Any) -> JobConfig:
    """A job of the tiny model in a cluster, with some settings changed by their dotted keys."""
    tree: Tree = to_tree(JobConfig())
    chosen = {
        "model.recipe": "tiny",
        "tasks.family": "boxes",
        "agent.format": "line",
        "cluster.backend": "kubernetes",
        "cluster.runs_dir": "/runs",
        **values,
    }
    for key, value in chosen.items():
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place[section]
        place[name] = value
    return from_tree(tree)


def found(config: JobConfig) -> set[tuple[str, Severity, str]]:
    names = {rule.__name__ for rule in KUBERNETES_RULES}
    return {(one.rule, one.severity, one.where) for one in lint(config) if one.rule in names}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"model.recipe": "none", "model.path": "/models/m"},
        {**GPUS, "schedule.swing": "all", f"{K}.trainer.nodes": 2, "trainer.world_size": 4},
        {**GPUS, "schedule.swing": "all", f"{K}.trainer_kind": "trainjob", f"{K}.gpu_sharing": "visible"},
        {**GPUS, "schedule.swing": "none", f"{K}.trainer.gpus": 8, f"{K}.engine.nodes": 2},
        {"cluster.controller": "local", "cluster.runs_dir": "runs"},
    ],
)
def test_what_fits_together_passes(values: dict[str, Any]) -> None:
    assert found(job(**values)) == set()


CASES: list[tuple[str, dict[str, Any], Severity, str]] = [
    ("paths_are_in_pods", {"cluster.runs_dir": "runs"}, ERROR, "cluster.runs_dir"),
    ("paths_are_in_pods", {"model.recipe": "none", "model.path": "models/m"}, ERROR, "model.path"),
    ("engine_spread", {f"{K}.engine.nodes": 2}, ERROR, f"{K}.engine.nodes"),
    ("engine_spread", {**GPUS, f"{K}.engine.nodes": 3, "schedule.swing": "none"}, ERROR, f"{K}.engine.nodes"),
    (
        "engine_spread",
        {**GPUS, f"{K}.engine.nodes": 2, "schedule.swing": "none", f"{K}.engine_kind": "pod"},
        ERROR,
        f"{K}.engine_kind",
    ),
    ("router_is_elsewhere", {"inference.router": "sglang"}, ERROR, "inference.router"),
    ("trainer_spread", {"trainer.world_size": 3, f"{K}.trainer.nodes": 2}, ERROR, f"{K}.trainer.nodes"),
    (
        "shared_gpus",
        {**GPUS, "schedule.swing": "3", f"{K}.trainer.nodes": 2, "trainer.world_size": 2},
        ERROR,
        f"{K}.trainer.nodes",
    ),
    ("shared_gpus", {**GPUS, "schedule.swing": "1", f"{K}.engine.nodes": 2}, ERROR, f"{K}.engine.nodes"),
    ("shared_gpus", {**GPUS, "schedule.swing": "1", f"{K}.trainer.gpus": 1}, ERROR, f"{K}.trainer.gpus"),
    ("shared_gpus", {**GPUS, "schedule.swing": "1", f"{K}.trainer_kind": "trainjob"}, ERROR, f"{K}.trainer_kind"),
    (
        "shared_gpus",
        {
            **GPUS,
            "schedule.swing": "all",
            f"{K}.trainer.nodes": 2,
            "trainer.world_size": 2,
            f"{K}.trainer_kind": "job",
        },
        ERROR,
        f"{K}.trainer_kind",
    ),
    (
        "shared_gpus",
        {
            **GPUS,
            "schedule.swing": "all",
            f"{K}.trainer.nodes": 2,
            "trainer.world_size": 2,
            f"{K}.gpu_sharing": "visible",
        },
        ERROR,
        f"{K}.gpu_sharing",
    ),
    (
        "trainjob_takes_all",
        {f"{K}.trainer_kind": "trainjob", f"{K}.trainer.priority_class": "high"},
        ERROR,
        f"{K}.trainer.priority_class",
    ),
    (
        "ignored_kubernetes",
        {"cluster.backend": "local", "cluster.runs_dir": "runs", f"{K}.namespace": "team"},
        WARNING,
        K,
    ),
    ("ignored_kubernetes", {"cluster.backend": "local", "cluster.controller": "local"}, WARNING, "cluster.controller"),
    ("ignored_kubernetes", {f"{K}.controller.nodes": 2}, WARNING, f"{K}.controller.nodes"),
]


@pytest.mark.parametrize(("rule", "values", "severity", "where"), CASES)
def test_a_job_that_cannot_run_in_a_cluster_is_found(
    rule: str, values: dict[str, Any], severity: Severity, where: str
) -> None:
    assert (rule, severity, where) in found(job(**values))


def test_every_rule_has_a_case_and_a_reason() -> None:
    assert {rule.__name__ for rule in KUBERNETES_RULES} == {rule for rule, _, _, _ in CASES}
    assert all(rule.__doc__ for rule in KUBERNETES_RULES)
