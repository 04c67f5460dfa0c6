"""One step of an image, done in a sandbox that stands on the layers below."""

from __future__ import annotations

import posixpath
import stat
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from agentrl.errors import ImageError, SandboxError, UserError
from agentrl.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from agentrl.sandbox.bubblewrap.transfer import PIECE_BYTES, Upload, pieces
from agentrl.sandbox.provider import Add, Run, Step, Unpack

_MAX_SAID = 600
_OF_THE_MACHINE = ("/dev", "/proc", "/sys")
"""What a tar of a whole system holds, and a sandbox has of its own."""


async def apply_step(sandbox: BubblewrapSandbox, step: Step, *, ranged: bool, timeout_s: float) -> None:
    """Do it. `ranged`: there are users beside root. Raises ImageError when it fails, SandboxError."""
    try:
        if isinstance(step, Run):
            await _run(sandbox, step, timeout_s)
        elif isinstance(step, Unpack):
            await _put_all(sandbox, _unpacked(step, ranged=ranged))
        else:
            await _add(sandbox, step, ranged=ranged)
    except SandboxError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{describe(step)}: {error}") from error


def describe(step: Step) -> str:
    """A step in a few words."""
    if isinstance(step, Run):
        words = step.argv[2:] if step.argv[:2] in (("/bin/sh", "-c"), ("/bin/bash", "-c")) else step.argv
        text = f"RUN {' '.join(words)}"
    elif isinstance(step, Unpack):
        text = f"unpacking {step.source.name} to {step.target}"
    else:
        text = f"COPY to {', '.join(copy.target for copy in step.copies)}"
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."


async def _run(sandbox: BubblewrapSandbox, step: Run, timeout_s: float) -> None:
    await sandbox.put(Upload([{"path": step.workdir, "kind": "dir", "mode": None}]))
    try:
        result = await sandbox.exec(
            list(step.argv), cwd=step.workdir, env=step.env, user=step.user, timeout_s=timeout_s
        )
    except UserError as error:
        raise ImageError(f"{describe(step)}: {error}") from error
    if result.exit_code == 0:
        return
    said = (result.stdout + result.stderr).decode(errors="replace").strip()[-_MAX_SAID:]
    if result.timed_out:
        how = f"did not end in {timeout_s:g} s"
    elif result.oom:
        how = "ran out of memory"
    elif result.exit_code is None:
        how = f"ended by signal {result.signal}"
    else:
        how = f"exited with {result.exit_code}"
    raise ImageError(f"{describe(step)} {how}: {said}" if said else f"{describe(step)} {how}")


async def _add(sandbox: BubblewrapSandbox, step: Add, *, ranged: bool) -> None:
    owner = await _owner(sandbox, step.owner)
    if owner != (0, 0) and not ranged:
        raise ImageError(f"{describe(step)} for {step.owner}: this machine maps only root into sandboxes")
    for copy in step.copies:
        first = True
        for piece in pieces(copy.source, copy.target):
            if first and piece.entries[0]["kind"] == "dir":
                piece.entries[0]["mode"] = None  # the target's own, if it is there
            first = False
            for entry in piece.entries:
                entry["uid"], entry["gid"] = owner
            await sandbox.put(piece)


async def _owner(sandbox: BubblewrapSandbox, owner: str | None) -> tuple[int, int]:
    """Ids of `user` or `user:group`, by name or number. Raises ValueError for one that is not there."""
    if owner is None:
        return 0, 0
    user, _, group = owner.partition(":")
    users = await _names(sandbox, "/etc/passwd")
    uid, own_group = (int(user), int(user)) if user.isdigit() else users.get(user, (-1, -1))
    if group:
        groups = await _names(sandbox, "/etc/group")
        own_group = int(group) if group.isdigit() else groups.get(group, (-1, -1))[0]
    if uid < 0 or own_group < 0:
        raise ValueError(f"there is no user or group {owner}")
    return uid, own_group


async def _names(sandbox: BubblewrapSandbox, path: str) -> dict[str, tuple[int, int]]:
    """Name -> its id and the field after that, a user's group."""
    text = (await sandbox.read(path) or b"").decode(errors="replace")
    rows = [line.split(":") for line in text.splitlines()]
    return {
        row[0]: (int(row[2]), int(row[3]) if row[3].isdigit() else -1)
        for row in rows
        if len(row) > 3 and row[2].isdigit()
    }


async def _put_all(sandbox: BubblewrapSandbox, uploads: Iterator[Upload]) -> None:
    for upload in uploads:
        await sandbox.put(upload)


def _unpacked(step: Unpack, *, ranged: bool) -> Iterator[Upload]:
    """The contents of an archive, piece by piece. Without `ranged` everything is root's. Raises ValueError, OSError."""
    piece = Upload()
    try:
        with tarfile.open(step.source) as archive:
            for member in archive:
                path = _inside(step.target, member.name)
                if path == step.target.rstrip("/") or _belongs_to_the_machine(path, member):
                    continue
                for entry, data in _member(archive, member, path, step.target):
                    entry["uid"], entry["gid"] = (member.uid, member.gid) if ranged else (0, 0)
                    piece.entries.append(entry)
                    piece.content += data
                    if len(piece.content) >= PIECE_BYTES:
                        yield piece
                        piece = Upload()
    except tarfile.TarError as error:
        raise ValueError(f"not a tar archive: {error}") from error
    yield piece


def _member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, target: str
) -> Iterator[tuple[dict[str, Any], bytes]]:
    mode = stat.S_IMODE(member.mode)
    if member.isdir():
        yield {"path": path, "kind": "dir", "mode": mode}, b""
    elif member.issym():
        yield {"path": path, "kind": "link", "target": member.linkname}, b""
    elif member.islnk():
        yield {"path": path, "kind": "name", "target": _inside(target, member.linkname)}, b""
    elif member.isreg():
        file = archive.extractfile(member)
        assert file is not None
        data = file.read(PIECE_BYTES)
        yield {"path": path, "kind": "file", "mode": mode, "size": len(data)}, data
        while data := file.read(PIECE_BYTES):
            yield {"path": path, "kind": "more", "size": len(data)}, data
    else:
        raise ValueError(f"{member.name} is neither file, folder nor link")


def _inside(target: str, name: str) -> str:
    """Where a member goes: never out of the target."""
    parts = [part for part in PurePosixPath(posixpath.normpath(f"/{name}")).parts if part not in ("/", "..")]
    return posixpath.join(target.rstrip("/") or "/", *parts).rstrip("/")


def _belongs_to_the_machine(path: str, member: tarfile.TarInfo) -> bool:
    """/dev and its like, and links like /bin, which every sandbox has as mounts."""
    if any(path == top or path.startswith(f"{top}/") for top in _OF_THE_MACHINE):
        return True
    return member.issym() and path.count("/") == 1 and member.linkname.strip("/") == f"usr{path}"
