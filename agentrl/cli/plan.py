"""`agentrl plan`: what a launch would start, with what, and what the lint says about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli import cluster_plan
from agentrl.cli.arguments import FileArgument, JsonOption, OverridesArgument
from agentrl.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from agentrl.config.plan import Plan


def register(app: typer.Typer) -> None:
    app.command()(plan)


def plan(
    file: FileArgument,
    overrides: OverridesArgument = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="In a cluster: write its objects there, with a kustomization.")
    ] = None,
    yaml_: Annotated[bool, typer.Option("--yaml", help="In a cluster: print its objects instead.")] = False,
    json_: JsonOption = False,
) -> None:
    """Print what launching FILE would start, and what would stop it, which exits with 2. Starts and writes nothing."""
    from dataclasses import replace

    from agentrl.config.compose import load
    from agentrl.config.inspect_job import inspect_job
    from agentrl.config.kubernetes import in_cluster
    from agentrl.config.lint import Severity
    from agentrl.config.plan import plan as make_plan
    from agentrl.controller.lifecycle.preflight import before_launch

    loaded = load(file, overrides or [])
    made = make_plan(loaded.config, inspect_job(loaded.config, loaded.file))
    failed = any(finding.severity is Severity.ERROR for finding in made.findings)
    if not failed:
        try:
            made = replace(made, warnings=tuple(before_launch(loaded.config)))
        except UserError as problem:
            made, failed = replace(made, problem=str(problem)), True
    if yaml_ and in_cluster(loaded.config) and not failed:
        cluster_plan.print_yaml(loaded)
        return
    print_plan(made, as_json=json_)
    if failed:
        raise typer.Exit(2)
    if not in_cluster(loaded.config):
        if yaml_ or out is not None:
            raise UserError("--yaml and --out: the job is made of no objects", hint="choose cluster=kubernetes")
        return
    if not json_ and not cluster_plan.print_objects(loaded, out):
        raise typer.Exit(1)


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a plan to stdout, as tables or as JSON. `agentrl launch --dry-run` prints the same."""
    if as_json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(plan), indent=2).decode())
        return
    from rich.console import Console

    # User text (paths, names) must not be read as markup: "[/tmp]" would raise and "[red]" would vanish.
    console = Console(markup=False, highlight=False, soft_wrap=True)
    console.print(f"model    {plan.model}\ntasks    {plan.tasks}\nrun in   {plan.run_dir}\n")
    _print_processes(plan)
    _print_batch(console, plan)
    _print_deadlines(plan)
    _print_findings(console, plan)


def _print_processes(plan: Plan) -> None:
    from agentrl.cli.table import Column, print_table

    rows = []
    for process in plan.processes:
        memory = f">= {_size(process.memory_bytes)}" if process.memory_bytes else "unknown"
        rows.append((process.role, str(process.count), str(process.threads), memory, process.command))
    sandboxes = plan.sandboxes
    limit = f"<= {_size(sandboxes.memory_limit_bytes)}"
    rows.append(("sandbox", f"up to {sandboxes.count}", "", limit, sandboxes.provider))
    columns = [Column(title) for title in ("role", "count", "threads", "memory each")]
    print_table([*columns, Column("command", folds=True)], rows)


def _print_batch(console: Console, plan: Plan) -> None:
    batch = plan.batch
    lag = plan.lag
    console.print(
        f"\na step   {batch.groups_per_step} groups x {batch.group_size} = {batch.episodes_per_step} episodes"
        f" of up to {batch.max_turns} turns; trains at most {batch.max_tokens_per_step:,} tokens,"
        f" samples at most {batch.max_sampled_per_step:,}"
        f"\nthe run  {batch.steps} steps, {batch.episodes:,} trained episodes, {batch.eval_episodes} for evaluation"
        f"\nlag      about {lag.mean:g} versions between a group's oldest token and the weights it trains;"
        f" {lag.most} at most\n"
    )


def _print_deadlines(plan: Plan) -> None:
    from agentrl.cli.table import Column, print_table

    rows = [(deadline.key, f"{deadline.seconds:g}", deadline.then) for deadline in plan.deadlines]
    print_table([Column("deadline"), Column("seconds"), Column("when it passes", folds=True)], rows)


def _print_findings(console: Console, plan: Plan) -> None:
    console.print()
    if plan.problem is not None:
        console.print(f"error    {plan.problem}")
    for warning in plan.warnings:
        console.print(f"warning  {warning}")
    if not plan.findings:
        console.print("lint     no findings")
    for finding in plan.findings:
        console.print(f"{finding.severity.value:<8} {finding}  [{finding.rule}]")


def _size(num_bytes: int) -> str:
    mib = num_bytes / (1 << 20)
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"
