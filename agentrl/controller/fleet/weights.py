"""The weights of a version, and where engines find them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from agentrl.config.schema import JobConfig
from agentrl.controller.config import PublishMethod
from agentrl.trainer.job import is_whole
from agentrl.wire import Probe


@dataclass(frozen=True)
class Weights:
    """What the engines must serve."""

    path: str
    """The newest folder with all the weights of a version: engines can be started on it."""
    version: int
    probe: Probe | None = field(default=None, compare=False)
    """What the trainer says of them."""
    base: int | None = None
    """Version that `path` holds, where that is an older one."""
    changes: str | None = None
    """Folder with what has changed since `base`. None: only the trainer has that."""

    before: Weights | None = field(default=None, compare=False)
    """Those that were published before, to know an engine by that kept them."""

    @property
    def stored(self) -> int:
        """Version that `path` holds."""
        return self.version if self.base is None else self.base

    @property
    def folders(self) -> set[str]:
        """All that an engine may read to come to this version."""
        return {self.path} if self.changes is None else {self.path, self.changes}


def weights_of(version: int, folder: str, probe: Probe | None, *, config: JobConfig, start: str) -> Weights:
    """A version, from its own folder. `start`: where version 0 is."""
    publish = config.publish
    if is_whole(version, every=publish.storage_every, total_steps=config.schedule.steps):
        return Weights(folder, version, probe)
    base = version - version % publish.storage_every
    path = str(Path(folder).with_name(f"v{base:06d}")) if base else start
    changes = folder if publish.method is PublishMethod.storage else None
    return Weights(path, version, probe, base=base, changes=changes)


def weights_bytes(folder: str) -> int:
    """Size of the weights in a folder of Hugging Face layout."""
    return sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
