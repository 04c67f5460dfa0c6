"""Arguments that several commands share: the configuration file and its overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def complete_override(ctx: typer.Context, args: list[str], incomplete: str) -> list[str]:
    """Candidates for the override under the cursor, as the user's shell must insert them.

    bash hands over `model=ti` as the three words `model`, `=`, `ti` and replaces only the last of them.
    """
    from agentrl.config.catalog import absolute, catalog_for
    from agentrl.config.complete import candidates

    split = ""
    if incomplete == "=" and args:
        split, incomplete = f"{args[-1]}=", ""
    elif len(args) > 1 and args[-1] == "=":
        split = f"{args[-2]}="
    file = ctx.params.get("file") or Path("any.yaml")
    found = candidates(split + incomplete, catalog_for(absolute(Path(file))))
    return [candidate.removeprefix(split) for candidate in found]


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="YAML file of the job, such as conf/exp.yaml.")]

OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDE]...",
        help="Hydra overrides: key=value, group=option, +key=value, ~group.",
        autocompletion=complete_override,
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
