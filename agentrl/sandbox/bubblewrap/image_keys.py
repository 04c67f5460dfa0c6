"""Names of image layers: a digest of what a layer is made of, and of the layer below it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from agentrl.sandbox.bubblewrap.transfer import pieces
from agentrl.sandbox.provider import Add, Run, Step, Unpack
from agentrl.sandbox.supervisor.userns import IdMap

_FORMAT = 2
"""To be raised when a layer of the same key would have other contents."""
_CHUNK_BYTES = 1 << 20
_PACKAGES = (Path("/var/lib/dpkg/status"), Path("/var/lib/rpm/rpmdb.sqlite"), Path("/etc/os-release"))
"""What tells one state of the host's /usr from another, as far as its packages go."""


def base_key(ids: IdMap, *, network: bool) -> str:
    """Of the host's own system, as sandboxes with these ids see it."""
    digest = hashlib.sha256(json.dumps([_FORMAT, ids.first, ids.count, network]).encode())
    for path in _PACKAGES:
        if path.is_file():
            digest.update(_file_digest(path).encode())
    return digest.hexdigest()


def layer_key(below: str, step: Step) -> str:
    """Of the layer that a step makes on the layer `below`. Raises OSError, ValueError for files that cannot be read."""
    return hashlib.sha256(json.dumps([below, _describe(step)]).encode()).hexdigest()


def _describe(step: Step) -> list[Any]:
    if isinstance(step, Run):
        return ["run", step.argv, sorted(step.env.items()), step.workdir, step.user]
    if isinstance(step, Unpack):
        return ["unpack", step.target, _file_digest(step.source)]
    assert isinstance(step, Add)
    return ["add", step.owner, [_copy_digest(copy.source, copy.target) for copy in step.copies]]


def _copy_digest(source: Path, target: str) -> str:
    digest = hashlib.sha256()
    for piece in pieces(source, target):
        digest.update(json.dumps(piece.entries).encode())
        digest.update(piece.content)
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
