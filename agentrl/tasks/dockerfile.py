"""Dockerfiles of the plain kind: FROM, RUN, COPY, ADD, WORKDIR, ENV, ARG, USER, SHELL, LABEL, and what has no effect.

Whatever FROM names, the local provider gives the host's own base, where the software that the name stands for is there
too. Without RUN or a change of owner nothing has to be built: the files are copied at every start. Otherwise the
instructions become the image's steps. An instruction whose effect would be lost is refused, and none is dropped.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import TaskError
from agentrl.sandbox import offline
from agentrl.sandbox.provider import DEFAULT_PATH, Add, Copy, Image, Run, Step, Unpack
from agentrl.tasks.instructions import copy_words, instructions, json_words

_WITHOUT_EFFECT = {"LABEL", "MAINTAINER", "CMD", "EXPOSE", "STOPSIGNAL"}
"""CMD and its like: a task's container is kept up by a command of the harness, in Harbor too."""
_READ_ONLY = ("/dev", "/proc", "/sys", "/tests", "/logs")
_NEEDS_BUILD = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_KNOWN_FOLDERS = {"/", "/app", "/etc", "/home", "/mnt", "/opt", "/root", "/srv", "/tmp", "/var", "/var/tmp"}
_ROOT = ("root", "0", "root:root", "0:0")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+)|(.))")
_UV_IMAGE = re.compile(r"--from=(?:ghcr\.io/astral-sh|astral)/uv(?:[:@].*)?$")
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_STANDS_FOR = {
    "gcc": "gcc",
    "golang": "go",
    "haskell": "ghc",
    "julia": "julia",
    "maven": "mvn",
    "mysql": "mysqld",
    "nginx": "nginx",
    "node": "node",
    "openjdk": "java",
    "eclipse-temurin": "java",
    "perl": "perl",
    "php": "php",
    "postgres": "postgres",
    "python": "python3",
    "r-base": "R",
    "redis": "redis-server",
    "ruby": "ruby",
    "rust": "cargo",
}
"""Last part of an image's name -> the command that it is taken for; what is not here is taken for a bare system."""
_TERMINAL_BENCH = "laude-institute/t-bench/"
"""The bases of Terminal-Bench 1, whose working folder is /app."""


class NotRunnable(TaskError):
    """A task that is well formed, and that sandboxes of this machine cannot run."""


def refused(what: str) -> NotRunnable:
    return NotRunnable(f"not runnable by the bubblewrap provider: {what}")


@dataclass
class _Build:
    """What the instructions so far made."""

    context: Path
    workdir: str = "/"
    user: str | None = None
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    env: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    folders: set[str] = field(default_factory=lambda: set(_KNOWN_FOLDERS))

    @property
    def needs_steps(self) -> bool:
        """Whether anything has to be built, and not only copied."""
        return any(not isinstance(step, Add) or step.owner or _in_base(step) for step in self.steps)


def read_dockerfile(file: Path) -> Image:
    """The image that a Dockerfile describes; its folder is the build context.

    Raises NotRunnable for what cannot be given, TaskError for what is wrong.
    """
    build = _Build(file.parent)
    try:
        found = instructions(file.read_text())
    except ValueError as error:
        raise TaskError(f"{file}: {error}") from error
    if (file.parent / ".dockerignore").exists() and any(name in ("COPY", "ADD") for name, _ in found):
        raise refused(f"{file.parent.name}/.dockerignore")
    if [name for name, _ in found].count("FROM") > 1:
        raise refused("a Dockerfile of several stages")
    for name, rest in found:
        try:
            _apply(build, name, rest)
        except ValueError as error:
            if isinstance(error, TaskError):
                raise
            raise TaskError(f"{file}: {name} {rest}: {error}") from error
    image = Image(env=build.env, workdir=build.workdir, user=build.user)
    if build.needs_steps:
        return Image(env=image.env, workdir=image.workdir, user=image.user, steps=_served(build.steps))
    copies = tuple(copy for step in build.steps if isinstance(step, Add) for copy in step.copies)
    return Image(copies=copies, env=image.env, workdir=image.workdir, user=image.user)


def _apply(build: _Build, name: str, rest: str) -> None:
    if name in _WITHOUT_EFFECT:
        return
    if name == "FROM":
        base = _expand(build, copy_words(rest)[0][0])
        _check_base(base)
        build.workdir = "/app" if _TERMINAL_BENCH in base else "/"
    elif name == "WORKDIR":
        build.workdir = _inside(build, rest)
        build.folders.add(build.workdir)
    elif name == "ENV":
        build.env.update(_assignments(build, rest))
    elif name == "ARG":
        _argument(build, rest)
    elif name == "USER":
        user = _expand(build, rest)
        build.user = None if user in _ROOT else user
    elif name == "SHELL":
        build.shell = tuple(json_words(rest))
    elif name == "RUN":
        _run(build, rest)
    elif name in ("COPY", "ADD"):
        _copy(build, name, rest)
    else:
        raise refused(_short(f"{name} {rest}"))


def _check_base(base: str) -> None:
    """The host's base serves for a system, and for a language or service if the host has it."""
    name = base.partition("@")[0].rpartition("/")[2].partition(":")[0]
    command = _STANDS_FOR.get(name)
    if command is not None and shutil.which(command, path=DEFAULT_PATH) is None:
        raise refused(f"FROM {_short(base)}: this machine has no {command}")


def _argument(build: _Build, rest: str) -> None:
    name, equals, value = rest.partition("=")
    if not equals:
        raise refused(f"ARG {rest}: it has no value")
    build.arguments[name.strip()] = _expand(build, value.strip().strip("'\""))


def _run(build: _Build, rest: str) -> None:
    words, flags = copy_words(rest, split=False)
    for flag in flags:
        if not flag.startswith(("--mount=type=cache", "--network=none", "--network=default")):
            raise refused(f"RUN {flag}")
    argv = tuple(json_words(words[0])) if words[0].startswith("[") else (*build.shell, words[0])
    environment = {**build.arguments, **build.env}
    build.steps.append(Run(argv=argv, env=environment, workdir=build.workdir, user=build.user))


def _served(steps: list[Step]) -> tuple[Step, ...]:
    """The steps, with stand-ins for what a network would serve while commands run, and without them at the end."""
    if not any(isinstance(step, Run) for step in steps):
        return tuple(steps)
    made: list[Step] = [Add(copies=(Copy(source=offline.folder(), target=offline.BUILD_ROOT),))]
    for step in steps:
        if isinstance(step, Run):
            path = f"{offline.BUILD_ROOT}/bin:{step.env.get('PATH', DEFAULT_PATH)}"
            env = {**step.env, "PATH": path, "PYTHONPATH": f"{offline.BUILD_ROOT}/modules"}
            made.append(Run(argv=step.argv, env=env, workdir=step.workdir, user=step.user))
        else:
            made.append(step)
    made.append(Run(argv=("rm", "-rf", offline.BUILD_ROOT)))
    return tuple(made)


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
    return {key: _expand(build, value, appends_to=key) for key, _, value in pairs}


def _expand(build: _Build, text: str, *, appends_to: str | None = None) -> str:
    """Replace $A, ${A} and ${A:-x}. A variable that nothing above sets may be set by the real base: it is refused, but
    where it only grows (`ENV A=x:$A`) it begins empty.
    """
    empty = {} if appends_to is None else {appends_to: ""}
    known = {**empty, "PATH": DEFAULT_PATH, "HOME": "/root", **build.arguments, **build.env}

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        if name is not None and name in known:
            return known[name]
        if default is not None:
            return default
        if name is None:
            raise ValueError(f"{match[0]} is no variable")
        raise refused(f"{match[0]}, which no ENV or ARG above sets")

    return _VARIABLE.sub(value, text)


def _copy(build: _Build, name: str, rest: str) -> None:
    words, flags = copy_words(rest)
    if any(_UV_IMAGE.match(flag) for flag in flags):
        return  # its stand-in serves wherever uv is asked for
    owner = _owner(name, flags)
    if len(words) < 2:
        raise ValueError("needs a source and a target")
    *patterns, target = words
    sources = [path for pattern in patterns for path in _sources(build, name, pattern)]
    to = _inside(build, target)
    if any(to == top or to.startswith(f"{top}/") for top in _READ_ONLY):
        raise refused(f"{name} to {to}, which is not the image's")
    to_folder = target.endswith("/") or len(sources) > 1 or to in build.folders
    for label, source in sources:
        if name == "ADD" and label.endswith(_ARCHIVES):
            build.steps.append(Unpack(source=source, target=to))
            continue
        into = posixpath.join(to, label) if to_folder and not source.is_dir() else to
        build.steps.append(Add(copies=(Copy(source=source, target=into),), owner=owner))
        build.folders.add(into if source.is_dir() else posixpath.dirname(into))


def _owner(name: str, flags: list[str]) -> str | None:
    """User and group that --chown names; None for root. Refuses other flags."""
    owner: str | None = None
    for flag in flags:
        key, _, value = flag.partition("=")
        if key == "--chown":
            owner = None if value in _ROOT else value
        elif flag != "--link":
            raise refused(f"{name} {flag}")
    return owner


def _in_base(step: Add) -> bool:
    """Whether it writes into what is read-only unless it is built."""
    targets = [copy.target for copy in step.copies]
    return any(to == top or to.startswith(f"{top}/") for to in targets for top in _NEEDS_BUILD)


def _sources(build: _Build, name: str, pattern: str) -> list[tuple[str, Path]]:
    """(name, real path) of what a COPY source names: inside the build context, links resolved."""
    if name == "ADD" and ("://" in pattern or pattern.startswith("git@")):
        raise refused(f"ADD {_short(pattern)}")
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
