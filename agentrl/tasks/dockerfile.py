"""Dockerfiles of the plain kind, which need no build: FROM, WORKDIR, COPY, ADD, ENV, USER root, LABEL, comments.

Whatever FROM names, the local provider gives the host's own base; so a Dockerfile that installs something is refused,
and so is every instruction whose effect would be lost. Nothing is ignored silently.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import TaskError
from agentrl.sandbox.provider import DEFAULT_PATH, Copy, Image

_WITHOUT_EFFECT = {"FROM", "LABEL", "MAINTAINER"}
_READ_ONLY = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/dev", "/proc", "/sys")
_KNOWN_FOLDERS = {"/", "/app", "/etc", "/home", "/mnt", "/opt", "/root", "/srv", "/tmp", "/var", "/var/tmp"}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|(.))")
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class NotRunnable(TaskError):
    """A task that is well formed, and that sandboxes of this machine cannot run."""


@dataclass
class _Build:
    """What the instructions so far made."""

    context: Path
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    folders: set[str] = field(default_factory=lambda: set(_KNOWN_FOLDERS))


def read_dockerfile(file: Path) -> Image:
    """The image that a Dockerfile describes; its folder is the build context.

    Raises NotRunnable for what needs a build, TaskError for what is wrong.
    """
    build = _Build(file.parent)
    instructions = _instructions(file.read_text())
    if (file.parent / ".dockerignore").exists():
        raise NotRunnable(f"not runnable by the bubblewrap provider: {file.parent.name}/.dockerignore")
    if [name for name, _ in instructions].count("FROM") > 1:
        raise NotRunnable("not runnable by the bubblewrap provider: a Dockerfile of several stages")
    for name, rest in instructions:
        try:
            _apply(build, name, rest)
        except ValueError as error:
            if isinstance(error, TaskError):
                raise
            raise TaskError(f"{file}: {name} {rest}: {error}") from error
    return Image(copies=tuple(build.copies), env=build.env, workdir=build.workdir)


def _instructions(text: str) -> list[tuple[str, str]]:
    """(name, rest) of each instruction, continuation lines joined, comments dropped."""
    found: list[tuple[str, str]] = []
    pending = ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pending += line.strip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        name, _, rest = pending.partition(" ")
        found.append((name.upper(), rest.strip()))
        pending = ""
    if pending:
        name, _, rest = pending.partition(" ")
        found.append((name.upper(), rest.strip()))
    return found


def _apply(build: _Build, name: str, rest: str) -> None:
    if name in _WITHOUT_EFFECT or (name == "USER" and rest in ("root", "0", "root:root", "0:0")):
        return
    if name == "WORKDIR":
        build.workdir = _inside(build, rest)
        build.folders.add(build.workdir)
    elif name == "ENV":
        build.env.update(_assignments(build, rest))
    elif name in ("COPY", "ADD"):
        _copy(build, name, rest)
    else:
        raise NotRunnable(f"not runnable by the bubblewrap provider: {_short(f'{name} {rest}')}")


def _inside(build: _Build, path: str) -> str:
    """An absolute path of the image, variables replaced."""
    path = _expand(build, path.strip('"'))
    return posixpath.normpath(posixpath.join(build.workdir, path))


def _assignments(build: _Build, rest: str) -> dict[str, str]:
    """`A=b C="d e"`, or the old form `A b c`."""
    name, _, value = rest.partition(" ")
    if "=" not in name:
        return {name: _expand(build, value.strip())}
    pairs = [word.partition("=") for word in shlex.split(rest)]
    if bad := next((key for key, equals, _ in pairs if not equals), None):
        raise ValueError(f"{bad} has no value")
    return {key: _expand(build, value) for key, _, value in pairs}


def _expand(build: _Build, text: str) -> str:
    """Replace $A and ${A}. Raises ValueError for a variable that the Dockerfile did not set, and for other forms."""
    known = {"PATH": DEFAULT_PATH, "HOME": "/root", **build.env}

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name is None or name not in known:
            raise ValueError(f"{match[0]} is not set by an ENV above")
        return known[name]

    return _VARIABLE.sub(value, text)


def _copy(build: _Build, name: str, rest: str) -> None:
    words, flags = _copy_words(rest)
    for flag in flags:
        if flag != "--link" and flag not in ("--chown=root", "--chown=root:root", "--chown=0:0"):
            raise NotRunnable(f"not runnable by the bubblewrap provider: {name} {flag}")
    if len(words) < 2:
        raise ValueError("needs a source and a target")
    *patterns, target = words
    sources = [path for pattern in patterns for path in _sources(build, name, pattern)]
    to = _inside(build, target)
    to_folder = target.endswith("/") or len(sources) > 1 or to in build.folders
    if any(to == top or to.startswith(f"{top}/") for top in _READ_ONLY):
        raise NotRunnable(f"not runnable by the bubblewrap provider: {name} to {to}, which is read-only")
    for label, source in sources:
        into = posixpath.join(to, label) if to_folder and not source.is_dir() else to
        build.copies.append(Copy(source=source, target=into))
        build.folders.add(into if source.is_dir() else posixpath.dirname(into))


def _copy_words(rest: str) -> tuple[list[str], list[str]]:
    """(sources and target, flags) of the plain or the JSON form."""
    flags: list[str] = []
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        flags.append(flag)
        rest = rest.lstrip()
    if rest.startswith("["):
        words = json.loads(rest)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("is not a list of strings")
        return words, flags
    return shlex.split(rest), flags


def _sources(build: _Build, name: str, pattern: str) -> list[tuple[str, Path]]:
    """(name, real path) of what a COPY source names: inside the build context, links resolved."""
    if name == "ADD" and ("://" in pattern or pattern.startswith("git@") or pattern.endswith(_ARCHIVES)):
        raise NotRunnable(f"not runnable by the bubblewrap provider: ADD {_short(pattern)}")
    context = build.context.resolve()
    pattern = _expand(build, pattern).lstrip("/")
    found = sorted(context.glob(pattern)) if re.search(r"[*?\[]", pattern) else [context / pattern]
    for path in found:
        if not path.resolve().is_relative_to(context):
            raise ValueError(f"{pattern} leads out of {build.context.name}/")
        if not path.exists():
            raise ValueError(f"{pattern} is not in {build.context.name}/")
    if not found:
        raise ValueError(f"{pattern} matches nothing in {build.context.name}/")
    return [(path.name, path.resolve()) for path in found]


def _short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
