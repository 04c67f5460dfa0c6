"""The `agentrl` command. `main` is the console script: it turns errors into one line and an exit code.

Exit codes: 0 done, 1 the run or a check failed, 2 a mistake of the user, 130 interrupted, 141 nobody reads its output.
Commands import what they need when they run, so that `agentrl --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from agentrl import __version__
from agentrl.cli import (
    bench,
    cluster_plan,
    control,
    doctor,
    episodes,
    evaluate,
    launch,
    plan,
    runs,
    show,
    simulate,
    tasks,
    tune,
)
from agentrl.errors import AgentrlError, UserError

app = typer.Typer(
    name="agentrl",
    help="Agentic reinforcement learning of language models in sandboxes, from one YAML file.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"agentrl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Agentic reinforcement learning of language models in sandboxes, from one YAML file."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


# Each module adds its own commands; the help lists them in this order.
launch.register(app)
plan.register(app)
cluster_plan.register(app)
show.register(app)
runs.register(app)
control.register(app)
episodes.register(app)
evaluate.register(app)
tasks.register(app)
doctor.register(app)
simulate.register(app)
tune.register(app)
bench.register(app)


def main() -> None:
    """Run the command line and exit."""
    try:
        code = app(standalone_mode=False, prog_name="agentrl")
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _end_unread()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer and rich make exit code 1 of it
            _end_unread()
        raise
    except (AgentrlError, typer.TyperException) as error:
        if os.environ.get("AGENTRL_DEBUG"):
            raise
        code, text = _explained(error)
        print(text, file=sys.stderr)
        sys.exit(code)
    sys.exit(code if isinstance(code, int) else 0)


def _end_unread() -> NoReturn:
    """End as a program does that SIGPIPE ended: as with `| head`, there is nothing to complain of."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ else 1)  # what is still buffered
    sys.exit(141)


def _explained(error: AgentrlError | typer.TyperException) -> tuple[int, str]:
    """Exit code, and what to print: one line, or the help of a command group that was called without a command."""
    if isinstance(error, AgentrlError):
        code, message = (2 if isinstance(error, UserError) else 1), str(error)
    else:
        code, message = error.exit_code, error.format_message()
        if message.startswith("Usage:"):
            return code, message
        context = getattr(error, "ctx", None)
        message += f" (see {context.command_path if context else 'agentrl'} --help)"
    return code, "error: " + " ".join(message.split())
