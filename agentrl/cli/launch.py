"""`agentrl launch`: from a YAML file to a running job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli import remote
from agentrl.cli.arguments import FileArgument, JsonOption, OverridesArgument
from agentrl.cli.remote import CtrlCOption, OnInterrupt
from agentrl.errors import UserError


def register(app: typer.Typer) -> None:
    app.command()(launch)


def launch(
    file: FileArgument,
    overrides: OverridesArgument = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be started, as `plan`.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="In a cluster: do not follow the run.")] = False,
    on_interrupt: CtrlCOption = OnInterrupt.DETACH,
    json_: JsonOption = False,
) -> int:
    """Run the job in FILE to its end: in this terminal, or in a cluster and followed from here."""
    from agentrl.cli.plan import plan
    from agentrl.config.compose import load
    from agentrl.config.inspect_job import inspect_job
    from agentrl.config.lint import lint, raise_on_errors

    if dry_run:
        plan(file, overrides, json_=json_)
        return 0
    loaded = load(file, overrides or [])
    findings = lint(loaded.config, inspect_job(loaded.config, loaded.file).lint)
    raise_on_errors(findings)
    for finding in findings:
        print(f"{finding.severity.value}: {finding}", file=sys.stderr)

    from agentrl.config.kubernetes import in_cluster

    config = loaded.config
    if in_cluster(config):
        if json_:
            raise UserError("--json: a run in a cluster prints plain lines", hint="`agentrl status -k RUN --json`")
        return remote.launch(loaded, detach=detach, on_interrupt=on_interrupt)
    if detach:
        raise UserError("--detach: the run is in this terminal", hint="choose cluster=kubernetes")

    from agentrl.cli.foreground import drive
    from agentrl.controller.lifecycle.preflight import before_launch
    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.observe.config import LiveView

    for warning in before_launch(config):
        print(f"warning: {warning}", file=sys.stderr)
    run = RunDirectory.create(
        Path(config.cluster.runs_dir), config.name, stem=loaded.file.stem, config_text=loaded.text, config=config
    )
    return drive(run, config, LiveView.json if json_ else config.observe.live)
