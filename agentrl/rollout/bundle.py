"""An episode in one file that replays elsewhere: the task's folder, the commands, what they did, and the versions.

A gzipped tar: `episode.json` and `task/`. Nothing of the run is needed to replay it, and nothing of the model is in it.
"""

from __future__ import annotations

import io
import platform
import tarfile
from pathlib import Path

import msgspec

import agentrl
from agentrl.errors import UserError
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.replay import Outcome, Recorded
from agentrl.sandbox.config import SandboxConfig

FORMAT = 1
_MAX_JSON_BYTES = 256 << 20


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """What `episode.json` holds."""

    format: int
    episode: str
    task: str
    outcome: Outcome
    turns: list[Recorded]
    agent: AgentConfig
    sandbox: SandboxConfig
    offline: bool
    """Whether the task was taken although it may use a network."""
    versions: dict[str, str]
    """Of what it was recorded with."""


def versions() -> dict[str, str]:
    """Of this machine, as far as they can change what a command does."""
    return {
        "agentrl": agentrl.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }


def write_bundle(path: Path, bundle: Bundle, task_folder: Path) -> None:
    """Raises UserError if it cannot be written."""
    data = msgspec.json.format(msgspec.json.encode(bundle))
    partial = path.with_name(f".{path.name}.partial")
    try:
        with tarfile.open(partial, "w:gz") as archive:
            header = tarfile.TarInfo("episode.json")
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
            archive.add(task_folder, "task", filter=_anonymous)
        partial.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_bundle(path: Path, folder: Path) -> tuple[Bundle, Path]:
    """What a bundle holds, and its task's folder, unpacked in `folder`. Raises UserError for anything else."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            archive.extractall(folder, filter="data")
        file = folder / "episode.json"
        if file.stat().st_size > _MAX_JSON_BYTES:
            raise UserError(f"{path}: its episode.json is too large to be one")
        bundle = msgspec.json.decode(file.read_bytes(), type=Bundle)
    except (OSError, EOFError, tarfile.TarError, msgspec.DecodeError) as error:
        raise UserError(f"{path}: not a bundle of this version of agentrl: {error}") from error
    if bundle.format != FORMAT:
        raise UserError(f"{path}: a bundle of format {bundle.format}, this agentrl reads {FORMAT}")
    return bundle, folder / "task"


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
