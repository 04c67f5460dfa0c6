"""The container images of tasks: named by themselves, by the configuration, or by what their Dockerfile is built from.

A task that has only a Dockerfile runs in the image that the user's builder makes of it. Its name carries a digest of
the folder that it is built from, so that a changed Dockerfile is another image, and no node runs an old one by its
name.
"""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.errors import TaskError
from agentrl.kubernetes.names import dns_name
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image
from agentrl.tasks.dockerfile import read_dockerfile
from agentrl.tasks.instructions import copy_words, instructions
from agentrl.tasks.task import Task

TO_BUILD = "dockerfile:"
"""Begins the reference of an image that is still to be built, before its digest."""
_DIGEST_CHARS = 12


@dataclass(frozen=True)
class ContainerImage:
    """An image that tasks run in."""

    name: str
    tasks: tuple[str, ...]
    context: Path | None
    """Folder that it is built from; None: it is somebody else's."""

    def build_command(self, builder: str) -> list[str]:
        """The command line that makes it. `builder`: such as "docker build"."""
        assert self.context is not None, "it is built"
        return [*shlex.split(builder), "--tag", self.name, str(self.context)]


def container_image(folder: Path, name: str | None) -> Image:
    """The image of a task whose environment is `folder`: `name`, else of its Dockerfile; an empty reference for
    neither.

    Where the Dockerfile only copies files, they are copied at each start into the image that FROM names. What a built
    image sets is left to it; only the working folder has to be known. Raises TaskError.
    """
    dockerfile = folder / "Dockerfile"
    if not dockerfile.is_file():
        return Image(workdir="" if name else "/app", reference=name)
    try:
        found = instructions(dockerfile.read_text())
    except (ValueError, OSError) as error:
        raise TaskError(f"{dockerfile}: {error}") from error
    if name is None and (plain := _only_copies(dockerfile)) is not None:
        base = next(rest for instruction, rest in found if instruction == "FROM")
        return replace(plain, reference=copy_words(base)[0][0])
    reference = name or f"{TO_BUILD}{content_digest(folder)}"
    return Image(workdir=_workdir(found), reference=reference)


def _only_copies(dockerfile: Path) -> Image | None:
    """What it copies, if nothing has to be run for it."""
    try:
        image = read_dockerfile(dockerfile)
    except TaskError:  # not what bubblewrap can give, so a builder has to
        return None
    return None if image.steps else image


def content_digest(folder: Path) -> str:
    """Of everything in a build context: paths, modes, contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        kind = path.readlink().as_posix().encode() if path.is_symlink() else b""
        if stat.S_ISREG(info.st_mode):
            kind = hashlib.sha256(path.read_bytes()).digest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{stat.S_IMODE(info.st_mode):o}\0".encode() + kind)
    return digest.hexdigest()[:_DIGEST_CHARS]


def chosen_image(task: Task, config: SandboxConfig) -> str | None:
    """The image that a task runs in; None: it would have to be built, and there is no registry for it."""
    pods = config.kubernetes
    for pattern, image in pods.images.items():
        if fnmatch.fnmatchcase(task.name, pattern):
            return image
    reference = task.spec.image.reference
    if reference is None or not reference.startswith(TO_BUILD):
        return reference or pods.image
    if pods.registry is None:
        return None
    return f"{pods.registry.rstrip('/')}/{dns_name(task.name)}:{reference.removeprefix(TO_BUILD)}"


def in_container(task: Task, config: SandboxConfig) -> Task:
    """The task, its image named. `chosen_image` is not None."""
    image = replace(task.spec.image, reference=chosen_image(task, config))
    return replace(task, spec=replace(task.spec, image=image))


def images_of(tasks: Iterable[Task], config: SandboxConfig) -> list[ContainerImage]:
    """The images that tasks need, each once, those to build with what from. Tasks without one are left out."""
    names: dict[str, list[str]] = {}
    contexts: dict[str, Path] = {}
    for task in tasks:
        name = chosen_image(task, config)
        if name is None:
            continue
        names.setdefault(name, []).append(task.name)
        if (task.spec.image.reference or "").startswith(TO_BUILD) and name.endswith(
            (task.spec.image.reference or "").removeprefix(TO_BUILD)
        ):
            environment = task.folder / "environment"
            contexts[name] = environment if environment.is_dir() else task.folder
    return [ContainerImage(name, tuple(using), contexts.get(name)) for name, using in names.items()]


def _workdir(found: list[tuple[str, str]]) -> str:
    """The working folder that a Dockerfile's last stage sets; / if none, or if it names a variable."""
    workdir = "/"
    for name, rest in found:
        if name == "FROM":
            workdir = "/"
        elif name == "WORKDIR" and "$" not in rest:
            workdir = posixpath.join(workdir, rest.strip("\"'"))
    return workdir
