"""`agentrl show`: the configuration that a file leads to, where it comes from, and what can be set at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import JsonOption, OverridesArgument
from agentrl.errors import UserError

if TYPE_CHECKING:
    from agentrl.config.compose import Loaded


def register(app: typer.Typer) -> None:
    app.command()(show)


def show(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="YAML file of the job.")] = None,
    overrides: OverridesArgument = None,
    defaults: Annotated[bool, typer.Option("--defaults", help="Print the files it is made of, in order.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print what every setting means; needs no FILE.")] = False,
    json_: JsonOption = False,
) -> None:
    """Print the resolved configuration of FILE, as YAML."""
    if defaults and schema:
        raise UserError("--defaults and --schema cannot be combined")
    if schema:
        _print_schema(as_json=json_)
        return
    if file is None:
        raise UserError("show needs a FILE", hint="agentrl show conf/exp.yaml")
    from agentrl.config.compose import load

    loaded = load(file, overrides or [])
    if defaults:
        _print_defaults(loaded, as_json=json_)
    else:
        print(json.dumps(loaded.tree, indent=2) if json_ else loaded.text, end="\n" if json_ else "")


def _print_schema(*, as_json: bool) -> None:
    from agentrl.config.describe import describe, describe_text

    print(json.dumps(describe(), indent=2) if as_json else describe_text())


def _print_defaults(loaded: Loaded, *, as_json: bool) -> None:
    rows = [
        {
            "name": source.name,
            "sets": source.package or "everything",
            "origin": source.origin.value,
            "file": str(source.file) if source.file else None,
        }
        for source in loaded.sources
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print("Merged in this order; later wins.")
    for row in rows:
        print(f"{row['name']:<24}{row['sets']:<12}{row['origin']:<10}{row['file'] or ''}".rstrip())
