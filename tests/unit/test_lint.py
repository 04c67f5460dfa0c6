"""Each rule of the lint: what it catches, where it points, and what it lets pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.lint import Finding, LintFacts, Severity, lint, raise_on_errors
from agentrl.config.lint_agent import AGENT_RULES
from agentrl.config.lint_inference import INFERENCE_RULES
from agentrl.config.lint_kubernetes import KUBERNETES_RULES
from agentrl.config.lint_learning import LEARNING_RULES
from agentrl.config.lint_pods import POD_RULES
from agentrl.config.lint_publish import PUBLISH_RULES
from agentrl.config.lint_rules import RULES
from agentrl.config.schema import JobConfig
from agentrl.config.tree import Tree, from_tree, to_tree
from agentrl.errors import UserError
from agentrl.model.config import ModelConfig, Recipe
from agentrl.rollout.config import AgentConfig, ToolFormat
from agentrl.tasks.config import Family, TasksConfig

GOOD = JobConfig(
    model=ModelConfig(recipe=Recipe.tiny),
    tasks=TasksConfig(family=Family.boxes),
    agent=AgentConfig(format=ToolFormat.line),
)
FACTS = LintFacts(num_cpus=2)

ERROR, WARNING = Severity.ERROR, Severity.WARNING


def with_(**values: Any) -> JobConfig:
    """GOOD with some settings changed: `schedule__steps=3`."""
    tree: Tree = to_tree(GOOD)
    for name, value in values.items():
        section, _, key = name.partition("__")
        tree[section][key] = value
    return from_tree(tree)


def folder(**values: Any) -> JobConfig:
    """A job on task folders and a model folder."""
    return with_(model__recipe="none", model__path="m", tasks__family="none", tasks__path="t", **values)


def found(config: JobConfig, facts: LintFacts = FACTS) -> set[tuple[str, Severity, str]]:
    return {(finding.rule, finding.severity, finding.where) for finding in lint(config, facts)}


def test_the_defaults_with_a_model_and_tasks_have_no_findings() -> None:
    assert lint(GOOD, FACTS) == []


CASES: list[tuple[str, dict[str, Any], Severity, str]] = [
    ("model_source", {"model__recipe": "none"}, ERROR, "model.path"),
    ("tasks_source", {"tasks__family": "none"}, ERROR, "tasks.path"),
    ("tasks_source", {"tasks__path": "somewhere"}, ERROR, "tasks.path"),
    ("recipe_fits_tasks", {"tasks__family": "shell_basics"}, WARNING, "model.recipe"),
    ("recipe_fits_tasks", {"agent__format": "fenced"}, WARNING, "agent.format"),
    ("attached_servers", {"inference__backend": "attached"}, ERROR, "inference.urls"),
    ("attached_servers", {"inference__urls": ["http://a:1"]}, ERROR, "inference.urls"),
    (
        "attached_servers",
        {"inference__backend": "attached", "inference__urls": ["a:1"]},
        ERROR,
        "inference.urls",
    ),
    (
        "attached_servers",
        {"inference__backend": "attached", "inference__num_engines": 2, "inference__urls": ["http://a:1"] * 2},
        ERROR,
        "inference.urls",
    ),
    ("ignored_settings", {"inference__sglang": {"gpus_per_engine": 2}}, WARNING, "inference.sglang"),
    ("deadlines_nest", {"agent__tool_timeout_s": 60}, ERROR, "agent.turn_timeout_s"),
    ("deadlines_nest", {"agent__turn_timeout_s": 300}, ERROR, "agent.episode_timeout_s"),
    ("deadlines_nest", {"agent__episode_timeout_s": 1800}, ERROR, "sandbox.lifetime_s"),
    ("deadlines_nest", {"sandbox__lifetime_s": 2400}, ERROR, "schedule.stall_timeout_s"),
    ("builds_end_in_time", {"sandbox__build_timeout_s": 1800}, ERROR, "sandbox.build_timeout_s"),
    ("command_limits_bite", {"agent__tool_pids": 129}, WARNING, "agent.tool_pids"),
    ("command_limits_bite", {"agent__tool_memory_mb": 600}, WARNING, "agent.tool_memory_mb"),
    ("command_limits_bite", {"agent__tool_file_mb": 200}, WARNING, "agent.tool_file_mb"),
    ("stall_is_last", {"trainer__step_timeout_s": 2400}, ERROR, "schedule.stall_timeout_s"),
    ("stall_is_last", {"publish__timeout_s": 3000}, ERROR, "schedule.stall_timeout_s"),
    ("stall_is_last", {"inference__request_timeout_s": 3000}, ERROR, "schedule.stall_timeout_s"),
    ("request_outlives_turn", {"inference__request_timeout_s": 59}, ERROR, "inference.request_timeout_s"),
    ("collective_before_step", {"trainer__collective_timeout_s": 900}, ERROR, "trainer.collective_timeout_s"),
    ("group_has_baseline", {"algorithm__group_size": 1}, ERROR, "algorithm.group_size"),
    ("group_has_baseline", {"schedule__min_usable": 17}, ERROR, "schedule.min_usable"),
    ("group_has_baseline", {"schedule__min_usable": 1}, WARNING, "schedule.min_usable"),
    (
        "stragglers_can_be_cut",
        {"schedule__stragglers": "cut", "schedule__min_usable": 16},
        WARNING,
        "schedule.stragglers",
    ),
    ("ignored_settings", {"schedule__straggler_factor": 3.0}, WARNING, "schedule.straggler_factor"),
    ("ranks_have_work", {"algorithm__updates_per_step": 9}, ERROR, "algorithm.updates_per_step"),
    (
        "ranks_have_work",
        {"schedule__groups_per_step": 1, "algorithm__group_size": 2, "trainer__world_size": 3},
        ERROR,
        "trainer.world_size",
    ),
    ("ranks_have_work", {"trainer__world_size": 3}, WARNING, "trainer.world_size"),
    ("window_holds_batch", {"schedule__window_groups": 7}, ERROR, "schedule.window_groups"),
    ("tasks_fill_window", {"tasks__num_train": 15}, WARNING, "schedule.window_groups"),
    ("enough_heldout", {"schedule__eval_tasks": 33}, WARNING, "schedule.eval_tasks"),
    ("room_to_evaluate", {"schedule__eval_every": 5}, ERROR, "schedule.eval_every"),
    ("room_to_evaluate", {"schedule__eval_every": 25, "sandbox__max_sandboxes": 70}, WARNING, "schedule.eval_every"),
    ("room_to_evaluate", {"schedule__eval_every": 5, "schedule__eval_tasks": 0}, WARNING, "schedule.eval_every"),
    ("sandboxes_for_live", {"sandbox__max_sandboxes": 63}, ERROR, "schedule.max_live_episodes"),
    ("kv_for_live", {"inference__max_total_tokens": 400}, ERROR, "inference.max_total_tokens"),
    ("kv_for_live", {"inference__max_total_tokens": 10_000}, WARNING, "schedule.max_live_episodes"),
    ("episode_fits_context", {"inference__context_length": 400}, ERROR, "agent.max_episode_tokens"),
    ("episode_fits_context", {"agent__max_turn_tokens": 448}, ERROR, "agent.max_turn_tokens"),
    ("episode_fits_micro_batch", {"trainer__micro_batch_tokens": 400}, WARNING, "trainer.micro_batch_tokens"),
    ("sampling_filters", {"agent__top_p": 0.9}, ERROR, "agent.top_p"),
    ("sampling_filters", {"agent__top_k": 50}, ERROR, "agent.top_k"),
    ("sampling_filters", {"agent__min_p": 0.1}, ERROR, "agent.min_p"),
    ("sampling_filters", {"agent__frequency_penalty": 0.1}, ERROR, "agent.frequency_penalty"),
    ("sampling_filters", {"agent__presence_penalty": -0.1}, ERROR, "agent.presence_penalty"),
    ("examples_alternate", {"agent__examples": ["a"]}, ERROR, "agent.examples"),
    ("swing_engines_exist", {"schedule__swing": "2"}, ERROR, "schedule.swing"),
    ("lag_allows_schedule", {"schedule__max_policy_lag": 0}, WARNING, "schedule.max_policy_lag"),
    (
        "lag_allows_schedule",
        {"schedule__max_policy_lag": 0, "schedule__swing": "none"},
        ERROR,
        "schedule.max_policy_lag",
    ),
    ("warmup_ends", {"schedule__steps": 5}, WARNING, "trainer.lr_warmup_steps"),
    ("warm_sandboxes_fit", {"sandbox__warm_max": 65}, ERROR, "sandbox.warm_max"),
    ("warm_sandboxes_fit", {"sandbox__warm_idle_s": 1800.0}, ERROR, "sandbox.warm_idle_s"),
    ("disk_below_memory", {"sandbox__disk_mb": 512}, WARNING, "sandbox.disk_mb"),
    ("isolation_is_given_up", {"sandbox__isolation": "none"}, WARNING, "sandbox.isolation"),
    ("one_episode_without_isolation", {"sandbox__isolation": "none"}, ERROR, "sandbox.max_sandboxes"),
    ("one_episode_without_isolation", {"sandbox__isolation": "none"}, ERROR, "sandbox.warm_max"),
    (
        "no_snapshots_without_isolation",
        {"sandbox__isolation": "none", "sandbox__fork_groups": True},
        ERROR,
        "sandbox.fork_groups",
    ),
    ("limits_without_isolation", {"sandbox__isolation": "none", "sandbox__cpus": 1.0}, WARNING, "sandbox.cpus"),
    ("cpu_dtype", {"inference__dtype": "bfloat16"}, WARNING, "inference.dtype"),
    (
        "ignored_settings",
        {"publish__probe": False, "publish__probe_tolerance": 0.1},
        WARNING,
        "publish.probe_tolerance",
    ),
    ("something_in_flight", {"publish__in_flight": "in_place"}, ERROR, "publish.in_flight"),
    ("cpus_for_threads", {"trainer__threads": 2}, WARNING, "trainer.world_size"),
    ("cpus_for_threads", {"schedule__swing": "none"}, WARNING, "trainer.world_size"),
    ("cpus_for_threads", {"inference__num_engines": 3}, WARNING, "inference.num_engines"),
    ("ignored_settings", {"model__path": "somewhere"}, WARNING, "model.path"),
]


@pytest.mark.parametrize(("rule", "values", "severity", "where"), CASES)
def test_rule_finds(rule: str, values: dict[str, Any], severity: Severity, where: str) -> None:
    assert (rule, severity, where) in found(with_(**values))


def test_settings_of_the_warm_up_are_ignored_without_a_recipe() -> None:
    rules = found(folder(model__warmup_steps=3, tasks__num_train=5))
    assert ("ignored_settings", WARNING, "model.warmup_steps") in rules
    assert ("ignored_settings", WARNING, "tasks.num_train") in rules


def test_folders_that_are_not_there_are_errors() -> None:
    rules = found(folder(), LintFacts(model_found=False, tasks_found=False))
    assert ("model_source", ERROR, "model.path") in rules
    assert ("tasks_source", ERROR, "tasks.path") in rules


@pytest.mark.parametrize(
    ("num_tasks", "expected"),
    [
        (0, {("enough_tasks", ERROR, "tasks.include")}),
        (32, {("enough_tasks", ERROR, "tasks.num_heldout")}),
        (40, {("tasks_fill_window", WARNING, "schedule.window_groups")}),
        (48, set()),
        (None, set()),
    ],
)
def test_tasks_in_a_folder_are_counted(num_tasks: int | None, expected: set[tuple[str, Severity, str]]) -> None:
    assert found(folder(), LintFacts(num_tasks=num_tasks)) == expected


def test_deadlines_that_are_equal_do_not_nest() -> None:
    assert ("deadlines_nest", ERROR, "agent.turn_timeout_s") in found(with_(agent__turn_timeout_s=10))


def test_rules_that_need_facts_stay_silent_without_them() -> None:
    assert lint(with_(trainer__threads=64)) == []
    assert lint(folder()) == []


def test_every_rule_has_a_case_and_a_reason() -> None:
    others = (*AGENT_RULES, *INFERENCE_RULES, *KUBERNETES_RULES, *LEARNING_RULES, *POD_RULES, *PUBLISH_RULES)
    elsewhere = {rule.__name__ for rule in others}
    covered = {rule for rule, _, _, _ in CASES} | {"enough_tasks"} | elsewhere
    assert {rule.__name__ for rule in RULES} == covered
    assert all(rule.__doc__ for rule in RULES)


def test_errors_come_first() -> None:
    severities = [finding.severity for finding in lint(with_(schedule__min_usable=1, agent__top_p=0.5), FACTS)]
    assert severities == [ERROR, WARNING]


def test_errors_stop_a_launch_in_one_line_and_warnings_do_not() -> None:
    warning = Finding(rule="r", severity=WARNING, where="a", message="m", hint="h")
    raise_on_errors([warning])
    error = replace(warning, severity=ERROR, where="b")
    with pytest.raises(UserError, match=r"^b: m \(h and 1 more: agentrl plan FILE lists them\)$"):
        raise_on_errors([warning, error, error])


@pytest.mark.parametrize("name", ["exp", "smollm2"])
def test_the_experiments_in_the_repository_have_no_errors(name: str) -> None:
    from agentrl.config.compose import load

    config = load(Path(__file__).parents[2] / "conf" / f"{name}.yaml").config
    assert lint(config, FACTS) == []
