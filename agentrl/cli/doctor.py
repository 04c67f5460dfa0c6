"""`agentrl doctor`: what this machine offers, what that weakens, and the command that fixes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import JsonOption

if TYPE_CHECKING:
    from agentrl.doctor.check import Check


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    runs_dir: Annotated[Path, typer.Option("--runs-dir", help="Folder of the runs.")] = Path("runs"),
    json_: JsonOption = False,
) -> None:
    """Say what this machine offers and which limits are weaker for it. Exits with 1 if no launch can work."""
    from agentrl.doctor.check import can_launch
    from agentrl.doctor.examine import examine

    checks = examine(runs_dir)
    ready = can_launch(checks)
    if json_:
        _print_json(checks, ready=ready)
    else:
        _print_table(checks, ready=ready)
    if not ready:
        raise typer.Exit(1)


def _print_json(checks: list[Check], *, ready: bool) -> None:
    import json
    from dataclasses import asdict

    print(json.dumps({"ready": ready, "checks": [asdict(check) for check in checks]}, indent=1))


def _print_table(checks: list[Check], *, ready: bool) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{check.status:5}  {check.name:{width}}  {check.found}")
        indent = " " * (width + 9)
        if check.means:
            print(f"{indent}{check.means}")
        if check.fix:
            print(f"{indent}fix: {check.fix}")
    print("a launch can work here" if ready else "no launch can work here: see what fails")
