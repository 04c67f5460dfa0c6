"""The command line's names: what users and scripts type. A change here is a change for them."""

from __future__ import annotations

from typing import Any

import typer.main

from agentrl.cli.main import app

REMOTE = ["--kubernetes", "-k", "--namespace"]
FILE_AND_OVERRIDES = ["FILE", "OVERRIDE"]
LAWS = ["--workload", "-w", "--hardware"]
SURFACE = {
    "agentrl": ["--version"],
    "launch": [*FILE_AND_OVERRIDES, "--dry-run", "--detach", "-d", "--ctrl-c", "--json"],
    "plan": [*FILE_AND_OVERRIDES, "--out", "-o", "--yaml", "--json"],
    "manifest": FILE_AND_OVERRIDES,
    "show": [*FILE_AND_OVERRIDES, "--defaults", "--schema", "--json"],
    "resume": ["RUN", "--runs-dir", *REMOTE, "--detach", "-d", "--ctrl-c", "--json"],
    "stop": ["RUN", "--runs-dir", *REMOTE],
    "control": ["RUN", "--config"],
    "ps": ["--runs-dir", *REMOTE, "--json"],
    "status": ["RUN", "--runs-dir", *REMOTE, "--json"],
    "watch": ["RUN", "--runs-dir", *REMOTE, "--ctrl-c"],
    "logs": ["RUN", "--role", "-r", "-c", "--lines", "-n", "--follow", "-f", "--runs-dir", *REMOTE],
    "episodes": ["RUN", "--verdict", "--task", "--longest", "--json", "--runs-dir"],
    "why": ["EPISODE", "--run", "--full", "--json", "--runs-dir"],
    "replay": ["EPISODE|FILE", "--run", "--policy", "--bundle", "--json", "--runs-dir"],
    "eval": [
        "RUN|FOLDER",
        "OVERRIDE",
        *("--tasks", "--samples", "-n", "-k", "--temperature", "--seed", "--version", "--config", "--history"),
        *("--json", "--runs-dir"),
    ],
    "doctor": ["--runs-dir", "--json"],
    "tasks check": ["PATH|FAMILY", "--json", "--jobs", "-j", "--count", "--seed"],
    "tasks generate": ["FAMILY", "DIR", "--count", "--seed"],
    "tasks images": ["PATH", "--registry", "--builder", "--run", "--json"],
    "simulate": [
        *FILE_AND_OVERRIDES,
        *LAWS,
        "--from-run",
        "--write-laws",
        "--seeds",
        "--steps",
        "--trace",
        "--mechanisms",
        "--jobs",
        "-j",
        "--runs-dir",
        "--json",
    ],
    "bench balance": [
        "KEY=VALUE",
        "--seeds",
        "--steps",
        "--swing",
        "--scale",
        *LAWS,
        "--jobs",
        "-j",
        "--json",
    ],
    "tune": [*FILE_AND_OVERRIDES, *LAWS, "--budget", "--steps", "--max-bias", "--best", "--jobs", "-j", "--json"],
    "bench collect": [
        "KEY=VALUE",
        "--seeds",
        "--policy",
        "-p",
        *LAWS,
        "--trials",
        "--jobs",
        "-j",
        "--plot",
        "--real",
        "--batches",
        "--json",
    ],
}


def names(command: Any) -> list[str]:
    """Arguments by their metavar, options by everything they can be called."""
    found: list[str] = []
    for parameter in command.params:
        found += (
            parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name.upper()]
        )
    return [name for name in found if "completion" not in name]


def surface() -> dict[str, list[str]]:
    root: Any = typer.main.get_command(app)
    found = {"agentrl": names(root)}
    pending = [(name, command) for name, command in root.commands.items()]
    while pending:
        name, command = pending.pop(0)
        inner = getattr(command, "commands", {})
        if inner:
            pending += [(f"{name} {sub}", below) for sub, below in inner.items()]
        else:
            found[name] = names(command)
    return found


def test_commands_and_options_are_what_they_were() -> None:
    assert surface() == SURFACE


def test_every_command_and_option_says_what_it_does() -> None:
    root: Any = typer.main.get_command(app)
    for command in root.commands.values():
        assert command.help
        for parameter in command.params:
            assert parameter.help, f"{command.name} {parameter.name}"
