"""`BubblewrapSandbox`: the owner's handle of one sandbox."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox.bubblewrap.layout import ENV
from agentrl.sandbox.bubblewrap.link import SupervisorLink
from agentrl.sandbox.bubblewrap.session import BubblewrapSession
from agentrl.sandbox.bubblewrap.snapshot import BubblewrapSnapshot
from agentrl.sandbox.bubblewrap.transfer import PIECE_BYTES, Listed, Upload, append, destination, make, pieces, remove
from agentrl.sandbox.provider import NO_LIMITS, CommandLimits, Download, ExecResult, Image

FILE_TIMEOUT_S = 30.0
"""For one transfer of files, or any other request that is not a command."""
_CLOSE_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 10.0
SNAPSHOT_TIMEOUT_S = 300.0
"""Sealing takes milliseconds; copying beside running processes, or to a disk, as long as what was written takes."""
MAX_DOWNLOAD_ENTRIES = 10_000


class BubblewrapSandbox:
    """Implements `Sandbox`. Commands run one after another; files and probes pass them by."""

    def __init__(
        self,
        link: SupervisorLink,
        box_id: str,
        image: Image,
        *,
        output_limit_bytes: int,
        on_closed: Callable[[], None],
    ) -> None:
        self._link = link
        self._id = box_id
        self._name = box_id
        """In messages."""
        self._image = image
        self._output_limit_bytes = output_limit_bytes
        self._on_closed = on_closed
        self._closed = False
        self._snapshots = itertools.count()

    @property
    def id(self) -> str:
        return self._id

    async def exec(
        self,
        command: str | list[str],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        timeout_s: float,
        max_output_bytes: int | None = None,
        limits: CommandLimits = NO_LIMITS,
    ) -> ExecResult:
        """See `Sandbox.exec`. What cannot be started exits with 126 or 127, as in a shell, and says why on stderr."""
        result, _ = await self._exec(
            ["bash", "-c", command] if isinstance(command, str) else command,
            cwd=cwd or self._image.workdir,
            env={**ENV, **self._image.env, **(env or {})},
            user=user,
            stdin=stdin,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            limits=limits,
        )
        return result

    def session(
        self,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        state: bytes = b"",
        limits: CommandLimits = NO_LIMITS,
    ) -> BubblewrapSession:
        """See `Sandbox.session`."""

        async def run(
            argv: list[str], env: dict[str, str], handoff: bytes, timeout_s: float, max_output_bytes: int | None
        ) -> tuple[ExecResult, bytes]:
            return await self._exec(
                argv,
                cwd=cwd or self._image.workdir,
                env=env,
                user=user,
                stdin=None,
                handoff=handoff,
                timeout_s=timeout_s,
                max_output_bytes=max_output_bytes,
                limits=limits,
            )

        return BubblewrapSession(run, {**ENV, **self._image.env, **(env or {})}, state)

    async def _exec(
        self,
        argv: list[str],
        *,
        cwd: str,
        env: dict[str, str],
        user: str | None,
        stdin: bytes | None,
        handoff: bytes | None = None,
        timeout_s: float,
        max_output_bytes: int | None,
        limits: CommandLimits,
    ) -> tuple[ExecResult, bytes]:
        """The result of a command, and what it handed off."""
        header, output = await self._request(
            "exec",
            (stdin or b"") + (handoff or b""),
            argv=argv,
            cwd=cwd,
            env=env,
            user=self._image.user if user is None else user,
            stdin_bytes=None if stdin is None else len(stdin),
            handoff=handoff is not None,
            timeout_s=timeout_s,
            max_output_bytes=self._output_limit_bytes if max_output_bytes is None else max_output_bytes,
            limits=asdict(limits),
        )
        split, end = header["stdout_bytes"], len(output) - header["handoff_bytes"]
        result = ExecResult(
            exit_code=header["exit_code"],
            signal=header["signal"],
            stdout=output[:split],
            stderr=output[split:end],
            timed_out=header["timed_out"],
            oom=header["oom"],
            truncated=header["truncated"],
            bytes_total=header["bytes_total"],
            leftover_processes=header["leftover_processes"],
            duration_s=header["duration_s"],
        )
        return result, output[end:]

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`. OSError when the sandbox's file system refuses: full, or a folder is there."""
        await self.put(Upload([{"path": path, "kind": "file", "mode": mode, "size": len(data)}], data))

    async def upload(self, source: Path, target: str) -> None:
        """See `Sandbox.upload`. Links are copied as links. OSError as in `write`; ValueError if it is too large."""
        uploads = pieces(source, target)
        while piece := await asyncio.to_thread(next, uploads, None):
            await self.put(piece)

    async def put(self, upload: Upload) -> None:
        """Make all its files."""
        await self._ask("put", upload.content, entries=upload.entries)

    async def clear(self, path: str, *, mode: int = 0o755) -> None:
        """See `Sandbox.clear`. OSError when the sandbox's file system refuses."""
        await self._ask("clear", path=path, mode=mode)

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        """See `Sandbox.read`."""
        header, data = await self._ask("get", path=path, offset=0, max_bytes=max_bytes)
        if not header["found"]:
            return None
        if header["size"] > max_bytes:
            raise ValueError(f"{path} has {header['size']} bytes, over the {max_bytes} allowed")
        return data

    async def download(self, path: str, target: Path, *, max_bytes: int = 64 << 20) -> Download:
        """See `Sandbox.download`."""
        header, listing = await self._ask("list", path=path, max_entries=MAX_DOWNLOAD_ENTRIES)
        if not header["found"]:
            raise FileNotFoundError(f"{path}: nothing to download in the sandbox")
        if header["more"]:
            raise ValueError(f"{path} has more than {MAX_DOWNLOAD_ENTRIES} files and folders, or lies too deep")
        found = [Listed(*fields) for fields in json.loads(listing)]
        total = sum(listed.size for listed in found)
        if total > max_bytes:
            raise ValueError(f"{path} has {total} bytes, over the {max_bytes} allowed")
        make(target, found[0])
        try:
            await self._fetch(path, found[0], target)
            for listed in found[1:]:
                place = destination(target, listed)
                await asyncio.to_thread(make, place, listed)
                await self._fetch(path, listed, place)
        except BaseException:
            await asyncio.to_thread(remove, target)
            raise
        return Download(num_files=sum(not listed.is_folder for listed in found), skipped=tuple(header["skipped"]))

    async def _fetch(self, path: str, listed: Listed, target: Path) -> None:
        """Fill one file of a download with what it has now, at most as long as it was listed."""
        inside = f"{path.rstrip('/')}/{listed.path}" if listed.path else path
        offset = 0
        while offset < listed.size:
            wanted = min(PIECE_BYTES, listed.size - offset)
            header, data = await self._ask("get", path=inside, offset=offset, max_bytes=wanted)
            if not header["found"] or not data:
                return
            await asyncio.to_thread(append, target, data)
            offset += len(data)

    async def assign(self, owner: str | None) -> None:
        """See `Sandbox.assign`."""
        header, _ = await self._ask("assign", within_s=PROBE_TIMEOUT_S)
        if not header["alive"]:
            raise SandboxError(f"sandbox {self._name} does not answer")
        if owner is not None:
            self._name = f"{self._id} of {owner}"

    async def probe(self) -> bool:
        """See `Sandbox.probe`."""
        try:
            header, _ = await self._ask("probe", within_s=PROBE_TIMEOUT_S)
        except OSError:
            return False
        return bool(header["alive"])

    async def kill_all(self) -> int:
        """End every process that runs in it; it stays usable. Returns how many there were."""
        header, _ = await self._ask("kill_all")
        return int(header["killed"])

    async def freeze(self) -> None:
        """See `Sandbox.freeze`. The wall-time limit of a command in flight stops with it; later commands wait."""
        await self._ask("freeze", frozen=True)

    async def thaw(self) -> None:
        await self._ask("freeze", frozen=False)

    async def snapshot(self) -> BubblewrapSnapshot:
        """See `Sandbox.snapshot`."""
        name = f"{self._id}@{next(self._snapshots)}"
        try:
            header, _ = await self._ask("snapshot", within_s=SNAPSHOT_TIMEOUT_S, snapshot=name)
        except BaseException:
            await asyncio.shield(BubblewrapSnapshot(self._link, name, 0).release())
            raise
        return BubblewrapSnapshot(self._link, name, header["leftover_processes"])

    async def export(self, target: Path) -> None:
        """Copy what was written since the start to an empty folder of the host, as a layer. `target` is absolute.

        Raises SandboxError.
        """
        await self._ask("export", within_s=SNAPSHOT_TIMEOUT_S, target=str(target))

    async def close(self) -> None:
        """See `Sandbox.close`. Raises SandboxError only if a process of it outlives SIGKILL."""
        self._closed = True
        try:
            if not self._link.lost:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    header, _ = await self._link.request("close", box=self._id)
                if header["problem"]:
                    raise SandboxError(f"sandbox {self._name}: {header['problem']}")
        except SandboxError:
            if not self._link.lost:  # else it died with its supervisor
                raise
        except TimeoutError as error:
            raise SandboxError(f"sandbox {self._name}: not closed after {_CLOSE_TIMEOUT_S:g} s") from error
        finally:
            self._on_closed()

    async def _ask(
        self, op: str, payload: bytes = b"", *, within_s: float = FILE_TIMEOUT_S, **fields: Any
    ) -> tuple[dict[str, Any], bytes]:
        """A request that a healthy sandbox answers soon."""
        try:
            async with asyncio.timeout(within_s):
                return await self._request(op, payload, **fields)
        except TimeoutError as error:
            raise SandboxError(f"sandbox {self._name}: no answer to {op} in {within_s:g} s") from error

    async def _request(self, op: str, payload: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        if self._closed:
            raise SandboxError(f"sandbox {self._name} is closed")
        try:
            return await self._link.request(op, payload, box=self._id, **fields)
        except SandboxError as error:
            raise SandboxError(f"sandbox {self._name}: {error.message}", death=error.death) from error
