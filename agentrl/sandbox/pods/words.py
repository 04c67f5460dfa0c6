"""What is said to the runner in a pod (run.sh), and what its words mean: pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from agentrl.kubernetes.exec import Ending, How
from agentrl.sandbox.bubblewrap.transfer import Upload
from agentrl.sandbox.provider import NO_LIMITS, CommandLimits
from agentrl.sandbox.supervisor.command import CANNOT_RUN, HANDOFF_IN, HANDOFF_OUT

STATE = "/.agentrl/state"
"""Where the runner keeps what is in flight: a small memory of its own, so that a full disk is not in its way."""
BIN = "/.agentrl/bin"
RUNNER = f"{BIN}/run"
_HOLD = f'exec {HANDOFF_IN}<"$0" {HANDOFF_OUT}>"$1"; shift; exec "$@"'
"""Opens a session's descriptors; only bash knows numbers above 9."""

_BECOME = r"""become() {
  user=$1 uid= gid= home=/ name_of=
  while IFS=: read -r name _ id group _ folder _; do
    case $user in "$name" | "$id") uid=$id gid=$group home=$folder name_of=$name; break ;; esac
  done </etc/passwd
  case $user in *[!0-9]*) ;; *) : "${uid:=$user}" "${gid:=$user}" ;; esac
  shift
  HOME=$home
  export HOME
  [ "$uid" != "$(id -u)" ] || exec "$@"
  if [ -n "$uid" ]; then
    if setpriv --reuid "$uid" --regid "$gid" --clear-groups true 2>/dev/null; then
      exec setpriv --reuid "$uid" --regid "$gid" --clear-groups "$@"
    fi
    if [ -n "$name_of" ] && su -s /bin/sh "$name_of" -c true 2>/dev/null; then
      exec su -s /bin/sh "$name_of" -c 'exec "$@"' sh "$@"
    fi
  fi
  echo "sandbox: no way to become user $user" >&2
  exit 125
}
"""


def runner_script() -> str:
    """The text of run.sh."""
    return Path(__file__).with_name("run.sh").read_text()


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command, as the runner's `exec` takes it."""

    command: str | list[str]
    cwd: str | None
    """None: where the container's own commands begin."""
    env: dict[str, str]
    user: str | None
    """None: the container's."""
    limits: CommandLimits = NO_LIMITS
    handoff: bool = False
    """Whether the command has HANDOFF_IN and HANDOFF_OUT; it needs bash then."""


def job_text(job: Job, directory: str) -> bytes:
    """The script that becomes the command. `directory`: the command's own in the pod.

    Raises ValueError for what no command line can hold: zero bytes, lone surrogates.
    """
    words = [job.command] if isinstance(job.command, str) else job.command
    if any("\0" in text for text in (*words, *job.env, *job.env.values(), job.cwd or "")):
        raise ValueError("embedded null byte")
    lines = [f"export {name}={shlex.quote(value)}" for name, value in job.env.items()]
    if job.cwd is not None:
        where = shlex.quote(job.cwd)
        failed = f'echo "sandbox: cannot run in "{where} >&2; exit {CANNOT_RUN}'
        lines.append(f"cd -- {where} 2>/dev/null || {{ {failed}; }}")
    lines += _limit_lines(job.limits)
    parts = ["exec"]
    if job.handoff:
        parts.append(shlex.join(["bash", "-c", _HOLD, f"{directory}/hand", f"{directory}/handed"]))
    if job.user is not None:
        parts.append(shlex.join(["sh", "-c", f'{_BECOME}become "$@"', "sh", job.user]))
    if isinstance(job.command, str):
        lines.append("shell=sh; ! command -v bash >/dev/null || shell=bash")
        parts.append(f'"$shell" -c {shlex.quote(job.command)}')
    else:
        parts.append(shlex.join(job.command))
    return ("\n".join([*lines, " ".join(parts)]) + "\n").encode()


def become_script(user: str) -> str:
    """A script that succeeds where commands can become a user."""
    return f"{_BECOME}become {shlex.quote(user)} true"


def _limit_lines(limits: CommandLimits) -> list[str]:
    """setrlimit, in the units of POSIX sh: KiB, seconds, 512 bytes."""
    lines = []
    if limits.memory_mb is not None:
        lines.append(f"ulimit -v {limits.memory_mb << 10}")
    if limits.cpu_s is not None:
        lines.append(f"ulimit -S -t {limits.cpu_s}; ulimit -H -t {limits.cpu_s + 1}")
    if limits.pids is not None:
        lines.append(f"ulimit -u {limits.pids} 2>/dev/null || ulimit -p {limits.pids}")
    if limits.file_mb is not None:
        lines.append(f"ulimit -f {limits.file_mb << 11}")
    return lines


# --- files


def put_script(upload: Upload) -> str:
    """The script that makes an upload's files of the bytes that follow it."""
    lines = []
    for entry in upload.entries:
        path = shlex.quote(entry["path"])
        if entry["kind"] == "file":
            lines.append(f"put_file {path} {entry['mode']:o} {entry['size']}")
        elif entry["kind"] == "more":
            lines.append(f"more_file {path} {entry['size']}")
        elif entry["kind"] == "link":
            lines.append(f"put_link {path} {shlex.quote(entry['target'])}")
        else:
            lines.append(f"put_folder {path} {_mode(entry)}")
    return "\n".join(lines)


def _mode(entry: dict[str, Any]) -> str:
    """Of a folder; one that is only to be there keeps its own."""
    return "+x" if entry["mode"] is None else f"{entry['mode']:o}"


def call_script(function: str, *arguments: str | int) -> str:
    """One of the runner's functions."""
    return shlex.join([function, *map(str, arguments)])


# --- answers


@dataclass(frozen=True, kw_only=True)
class CommandEnd:
    """How a command ended, by the runner's word."""

    exit_code: int | None
    signal: int | None
    killed: bool
    """The runner killed it, as it was told."""
    oom: bool
    leftover: int
    more: int
    """Bytes printed and not kept."""
    duration_s: float


@dataclass(frozen=True)
class Finished:
    """It ended, and everything of it has come."""

    end: CommandEnd
    stdout: bytes
    stderr: bytes
    handoff: bytes


@dataclass(frozen=True)
class CouldNotRun:
    """The sandbox has no room for a command: its own state's memory, or its processes, are used up."""

    problem: str


@dataclass(frozen=True)
class RunnerEnded:
    """The runner itself ended before its command did: killed from inside, by the memory limit, or with the pod."""

    exit_code: int | None


@dataclass(frozen=True)
class Lost:
    """The transport broke. Whether the command has begun is known; how it ended is not."""

    begun: bool
    why: str


@dataclass(frozen=True)
class Unending:
    """It was to be killed, and is not known to have ended."""


Outcome: TypeAlias = Finished | CouldNotRun | RunnerEnded | Unending | Lost


def begun_line(secret: str) -> bytes:
    """What the runner says when it has everything and begins."""
    return f"{secret} begun\n".encode()


def outcome(secret: str, stdout: bytes, stderr: bytes, ending: Ending, *, why: str) -> Outcome:
    """What became of a command. `why`: what is known of the transport's end."""
    begun, again = begun_line(secret), f"{secret} again\n".encode()
    if stderr.startswith(problem := f"{secret} problem ".encode()):
        return CouldNotRun(stderr[len(problem) :].decode(errors="replace").strip())
    if stderr.startswith(again):
        return Lost(True, why or "the connection broke while it ran")
    has_begun = stderr.startswith(begun)
    out, out_end, _ = stdout.rpartition(f"\n{secret} end\n".encode())
    err, mark, rest = stderr.rpartition(f"\n{secret} end ".encode())
    line, newline, handoff = rest.partition(b"\n")
    fields = line.decode(errors="replace").split()
    if has_begun and out_end and mark and newline and len(fields) == 10:
        code, signal, killed, oom, leftover, out_more, err_more = map(int, fields[:7])
        if len(handoff) == int(fields[9]):
            end = CommandEnd(
                exit_code=None if code < 0 or killed else code,
                signal=signal or None,
                killed=bool(killed),
                oom=oom > 0,
                leftover=leftover,
                more=out_more + err_more,
                duration_s=max(float(fields[8]) - float(fields[7]), 0.0),
            )
            return Finished(end, out, err[len(begun) :], handoff)
    if ending.how is How.EXITED and not mark:
        return RunnerEnded(ending.exit_code)
    return Lost(has_begun, why or ending.message or "the connection ended without a result")


@dataclass(frozen=True)
class Answer:
    """What an operation that is not a command came to."""

    status: int
    words: list[str]
    """What it answers beside its status."""
    told: list[str]
    """Lines that its functions answered."""
    data: bytes
    problem: str
    """What its programs complained of."""


def answer(secret: str, stdout: bytes, stderr: bytes) -> Answer | None:
    """None if not all of it came."""
    data, out_end, _ = stdout.rpartition(f"\n{secret} end\n".encode())
    err, mark, rest = stderr.rpartition(f"\n{secret} end ".encode())
    line, newline, _ = rest.partition(b"\n")
    if not (out_end and mark and newline):
        return None
    words = line.decode(errors="replace").split()
    lines = err.decode(errors="replace").splitlines()
    head = f"{secret} answer "
    told = [line.removeprefix(head) for line in lines if line.startswith(head)]
    problem = "; ".join(line for line in lines if line.strip() and not line.startswith(head))
    status = int(words[0]) if words and words[0].isdigit() else 0
    return Answer(status, words, told, data, problem)


def listed_lines(data: bytes) -> Iterable[tuple[int, int, str]]:
    """(mode, size, path) of what `list_files` wrote; lines that are none (names with line breaks) are left out."""
    for line in data.decode(errors="surrogateescape").split("\n"):
        mode, _, rest = line.partition(" ")
        size, _, path = rest.partition(" ")
        if size.isdigit() and path.startswith("/") and all(digit in "0123456789abcdef" for digit in mode) and mode:
            yield int(mode, 16), int(size), path
