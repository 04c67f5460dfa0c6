"""A bash session that survives whatever its commands do: each command runs in a shell of its own, which takes over what
the last one left (folder, variables, functions, aliases, options, umask) and leaves it to the next.

State travels over private descriptors, as text that bash itself writes (`declare -p` and its like). So exit codes and
ends of output come from the kernel, as for any command, and nothing printed can forge them; a shell that is killed,
replaced or out of time costs what it changed, not the session; and the state outlives a sandbox that is snapshotted.
What only a living shell has does not pass on: its job table, its open descriptors, traps.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import replace

from agentrl.sandbox.provider import ExecResult
from agentrl.sandbox.supervisor.command import HANDOFF_IN, HANDOFF_OUT

Run = Callable[[list[str], dict[str, str], bytes, float, int | None], Awaitable[tuple[ExecResult, bytes]]]
"""(command line, environment, handoff, timeout_s, max_output_bytes) to the result and
what the command handed off."""

_NUM_FIELDS = 3
"""Folder, options, everything else; each ends with a zero byte, which no text of bash contains. A shell leaves the
length of the last before it."""

_OF_THE_SHELL = (
    *("__agentrl_*", "BASH", "BASHOPTS", "BASHPID", "BASH_ALIASES", "BASH_ARGC", "BASH_ARGV", "BASH_ARGV0"),
    *("BASH_CMDS", "BASH_COMMAND", "BASH_EXECUTION_STRING", "BASH_LINENO", "BASH_LOADABLES_PATH", "BASH_REMATCH"),
    *("BASH_SOURCE", "BASH_SUBSHELL", "BASH_VERSINFO", "BASH_VERSION", "COMP_WORDBREAKS", "DIRSTACK", "EPOCHREALTIME"),
    *("EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HISTCMD", "LINENO", "PIPESTATUS", "PPID", "PWD", "RANDOM"),
    *("SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM", "UID", "_"),
)
"""Variables that every shell makes itself; giving them a value would break them."""

# In a subshell, so that it changes nothing; `|| :` keeps `set -e` from turning a failure here into the exit code.
# Options are told outside of `$(...)`, which clears some; they are taken over last. Functions come after variables, for
# one may be named `declare`; aliases after functions. Names are split by IFS, so that is saved before it is set. The
# state's length in bytes tells whether something else wrote in between.
_DUMP = "; ".join(
    (
        r"builtin printf 'shopt -s extglob\n'",
        "builtin set +eux",
        "builtin shopt -s extglob",
        "builtin declare -p IFS",
        r"IFS=$'\n'",
        f"builtin declare -p $(builtin compgen -v -X '@({'|'.join(_OF_THE_SHELL)}|IFS)')",
        "builtin declare -f",
        "builtin declare -Fx",
        "builtin alias -p",
        "builtin umask -p",
    )
)
_SAVE = (
    "{ ( "
    + "; ".join(
        (
            r"""builtin printf '%s\0' "$PWD" """,
            "builtin shopt -p",
            "builtin set +o",
            f"__agentrl_state=$({_DUMP})",
            "LC_ALL=C",
            r"""builtin printf '\0%d\0%s\0' "${#__agentrl_state}" "$__agentrl_state" """,
        )
    )
    + f" ); }} 2>/dev/null >&{HANDOFF_OUT} || :"
)
# One line, so that bash counts the lines of the command as it does in `bash -c`. The EXIT trap is for commands that
# leave the shell; where they set their own, what follows the command saves all the same.
_SHELL = "; ".join(
    (
        "__agentrl_command=$1",
        "set --",
        f". /proc/self/fd/{HANDOFF_IN}",
        f"exec {HANDOFF_IN}<&-",
        '[[ -z $__agentrl_folder ]] || cd -- "$__agentrl_folder"',
        f"trap {shlex.quote(_SAVE)} EXIT",
        'eval "$__agentrl_state" >/dev/null 2>&1',
        'eval "$__agentrl_options" 2>/dev/null',
        'eval "$__agentrl_command"',
        f"{{ __agentrl_code=$?; {_SAVE}; exec {HANDOFF_OUT}>&-; }} 2>/dev/null",
        "exit $__agentrl_code",
    )
)
_NOTHING = b"\0" * _NUM_FIELDS
_FOLDER = re.compile(rb"/.{0,4095}", re.DOTALL)
_OPTIONS = re.compile(rb"(?:(?:shopt -[su]|set [-+]o) [\w-]+\n)+")


def _assignments(state: bytes) -> bytes:
    """The fields of a state as bash reads them at once; `read` would take them byte by byte."""
    fields = zip((b"folder", b"options", b"state"), state.split(b"\0"), strict=False)
    return b"".join(b"__agentrl_%s='%s'\n" % (name, field.replace(b"'", b"'\\''")) for name, field in fields)


class BubblewrapSession:
    """Implements `Session`."""

    def __init__(self, run: Run, env: dict[str, str], state: bytes) -> None:
        """`env` is the first shell's; `state` that of an earlier session, or empty."""
        self._run = run
        self._env = env
        self._state = state

    @property
    def state(self) -> bytes:
        return self._state

    async def exec(self, command: str, *, timeout_s: float, max_output_bytes: int | None = None) -> ExecResult:
        """See `Session.exec`."""
        argv = ["bash", "--noprofile", "--norc", "-c", _SHELL, "bash", command]
        env = {"PATH": self._env["PATH"]} if self._state else self._env  # the state has what became of the rest
        result, handoff = await self._run(argv, env, _assignments(self._state or _NOTHING), timeout_s, max_output_bytes)
        state = _first_state(handoff)
        if state is None:
            return replace(result, shell_reset=True)
        self._state = state
        return result


def _first_state(handoff: bytes) -> bytes | None:
    """The state that a shell left, None if it did not come to that. A shell that ends by itself may say it twice.

    Where something else wrote to the descriptor as well, the fields tell, and nothing is taken over.
    """
    fields = handoff.split(b"\0", _NUM_FIELDS + 1)
    if len(fields) != _NUM_FIELDS + 2:
        return None
    folder, options, size, state, _ = fields
    whole = size.isdigit() and int(size) == len(state)
    if not whole or not _FOLDER.fullmatch(folder) or not _OPTIONS.fullmatch(options):
        return None
    return b"\0".join((folder, options, state, b""))
