"""Arguments that several commands share: the configuration file and its overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Candidates for the override under the cursor, as the user's shell must insert them."""
    from agentrl.config.catalog import absolute, catalog_for
    from agentrl.config.complete import candidates

    key = _key_split_off(ctx.params.get("overrides") or [])
    file = absolute(ctx.params.get("file") or Path("any.yaml"))
    return [found.removeprefix(key) for found in candidates(key + incomplete, catalog_for(file))]


def given(ctx: typer.Context) -> set[str]:
    """Parameters that were set on the command line, in contrast to those that have their default."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _key_split_off(before: list[str]) -> str:
    """`model=` where the shell handed over `model=ti` as the words `model`, `=`, `ti`, as bash does; else ''.

    bash replaces only the last of these words. With nothing after the `=`, that word is missing too.
    """
    if len(before) > 1 and before[-1] == "=":
        return f"{before[-2]}="
    if before and "=" not in before[-1] and not before[-1].startswith("~") and before[-2:-1] != ["="]:
        return f"{before[-1]}="
    return ""


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="YAML file of the job, such as conf/exp.yaml.")]

OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OVERRIDE",
        help="Hydra overrides: key=value, group=option, +key=value, ~group.",
        autocompletion=complete_override,
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
