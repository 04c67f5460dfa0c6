"""The files that a sandbox starts with, beside the host's /usr: made up, copied from the host's /etc, or an image's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentrl.sandbox.bubblewrap.layout import AGENT_UID, FILES, base_files, base_folders
from agentrl.sandbox.bubblewrap.transfer import Upload, pack
from agentrl.sandbox.provider import Copy, Image


def made_up_files(*, with_agent: bool) -> Upload:
    """Those of every sandbox. `with_agent`: there is a user `agent`, and it owns its home."""
    texts = {path: text.encode() for path, text in FILES.items()}
    entries: list[dict[str, Any]] = [
        {"path": path, "kind": "file", "mode": 0o644, "size": len(data)} for path, data in texts.items()
    ]
    if with_agent:
        entries.append({"path": "/home/agent", "kind": "dir", "mode": 0o755, "uid": AGENT_UID})
    return Upload(entries, b"".join(texts.values()))


def overlay_base(*, with_agent: bool) -> Upload:
    """The lowest layer of every root: folders, the host's public files, and the made-up ones. Raises OSError."""
    folders = [{"path": path, "kind": "dir", "mode": mode} for path, mode in base_folders()]
    return joined([Upload(folders, b""), *_packed(base_files()), made_up_files(with_agent=with_agent)])


def image_files(image: Image) -> Upload:
    """What an image copies, and its working folder. Raises OSError, ValueError."""
    workdir: dict[str, Any] = {"path": image.workdir, "kind": "dir", "mode": None}
    return joined([*_packed(image.copies), Upload([workdir], b"")])


def _packed(copies: Iterable[Copy]) -> list[Upload]:
    return [pack(copy.source, copy.target) for copy in copies]


def joined(uploads: Iterable[Upload]) -> Upload:
    """All of them as one, in their order."""
    parts = list(uploads)
    return Upload([entry for part in parts for entry in part.entries], b"".join(part.content for part in parts))
