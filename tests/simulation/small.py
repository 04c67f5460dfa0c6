"""A small scenario: W-TB's laws with short episodes, four groups of four on two engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrl.inference.config import Router
from agentrl.simulation.config import Hardware, Workload, load_hardware, load_workload
from agentrl.simulation.run import Scenario, reference_config

WORKLOAD = ["groups=4", "group_size=4", "turns.median=4", "turns.cap=12", "prompt_tokens=300"]
HARDWARE = ["engines=2", "sandboxes=24", "engine.kv_tokens=140000", "engine.restart_s=30"]


def workload(*overrides: str) -> Workload:
    return load_workload("w_tb", [*WORKLOAD, *overrides])


def hardware(*overrides: str) -> Hardware:
    return load_hardware("h8", [*HARDWARE, *overrides])


def scenario(
    *,
    seed: int = 0,
    steps: int = 3,
    live: int = 20,
    window_groups: int = 6,
    laws: Sequence[str] = (),
    machines: Sequence[str] = (),
    schedule: dict[str, Any] | None = None,
    publish: dict[str, Any] | None = None,
    router: Router = Router.direct,
) -> Scenario:
    """`schedule` and `publish` replace fields of the job's."""
    drawn, built = workload(*laws), hardware(*machines)
    config = reference_config(drawn, built, seed=seed, steps=steps, window_groups=window_groups, live=live)
    config = replace(
        config,
        schedule=replace(config.schedule, **(schedule or {})),
        publish=replace(config.publish, **(publish or {})),
        agent=replace(config.agent, turn_timeout_s=3600.0),
        inference=replace(config.inference, router=router),
    )
    return Scenario(config=config, workload=drawn, hardware=built)
