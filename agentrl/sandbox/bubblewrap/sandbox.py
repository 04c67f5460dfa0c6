"""`BubblewrapSandbox`: the owner's handle of one sandbox."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox.bubblewrap.layout import ENV
from agentrl.sandbox.bubblewrap.link import SupervisorLink
from agentrl.sandbox.bubblewrap.session import BubblewrapSession
from agentrl.sandbox.provider import ExecResult, Image, Snapshot

FILE_TIMEOUT_S = 30.0
"""For one transfer of files, or any other request that is not a command."""
_CLOSE_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 10.0
MAX_UPLOAD_BYTES = 64 << 20


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
        self._image = image
        self._output_limit_bytes = output_limit_bytes
        self._on_closed = on_closed
        self._closed = False

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
        )
        return result

    def session(
        self,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        state: bytes = b"",
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
    ) -> tuple[ExecResult, bytes]:
        """The result of a command, and what it handed off."""
        header, output = await self._request(
            "exec",
            (stdin or b"") + (handoff or b""),
            argv=argv,
            cwd=cwd,
            env=env,
            user=user,
            stdin_bytes=None if stdin is None else len(stdin),
            handoff=handoff is not None,
            timeout_s=timeout_s,
            max_output_bytes=self._output_limit_bytes if max_output_bytes is None else max_output_bytes,
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
        await self.put(await asyncio.to_thread(pack, source, target))

    async def put(self, upload: Upload) -> None:
        """Make all its files."""
        await self._ask("put", upload.content, entries=upload.entries)

    async def clear(self, path: str, *, mode: int = 0o755) -> None:
        """See `Sandbox.clear`. OSError when the sandbox's file system refuses."""
        await self._ask("clear", path=path, mode=mode)

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        """See `Sandbox.read`."""
        header, data = await self._ask("get", path=path, max_bytes=max_bytes)
        if not header["found"]:
            return None
        if header["size"] > max_bytes:
            raise ValueError(f"{path} has {header['size']} bytes, over the {max_bytes} allowed")
        return data

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

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        raise SandboxError(f"sandbox {self._id}: no snapshots without an overlay")

    async def close(self) -> None:
        """See `Sandbox.close`. Raises SandboxError only if a process of it outlives SIGKILL."""
        self._closed = True
        try:
            if not self._link.lost:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    header, _ = await self._link.request("close", box=self._id)
                if header["problem"]:
                    raise SandboxError(f"sandbox {self._id}: {header['problem']}")
        except SandboxError:
            if not self._link.lost:  # else it died with its supervisor
                raise
        except TimeoutError as error:
            raise SandboxError(f"sandbox {self._id}: not closed after {_CLOSE_TIMEOUT_S:g} s") from error
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
            raise SandboxError(f"sandbox {self._id}: no answer to {op} in {within_s:g} s") from error

    async def _request(self, op: str, payload: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        if self._closed:
            raise SandboxError(f"sandbox {self._id} is closed")
        try:
            return await self._link.request(op, payload, box=self._id, **fields)
        except SandboxError as error:
            raise SandboxError(f"sandbox {self._id}: {error.message}") from error


@dataclass(frozen=True)
class Upload:
    """Files on their way into a sandbox: entries as the supervisor's `put` wants them, all contents in their order."""

    entries: list[dict[str, Any]]
    content: bytes


def pack(source: Path, target: str) -> Upload:
    """A host file or folder as an upload to `target`. Links inside stay links, special files are refused.

    Raises OSError if it cannot be read, ValueError over MAX_UPLOAD_BYTES or for a device, socket or pipe.
    """
    entries: list[dict[str, Any]] = []
    content = bytearray()
    for path, inside in _walk(source, target.rstrip("/") or "/"):
        info = path.lstat()
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISLNK(info.st_mode):
            entries.append({"path": inside, "kind": "link", "target": str(path.readlink())})
        elif stat.S_ISDIR(info.st_mode):
            entries.append({"path": inside, "kind": "dir", "mode": mode})
        elif stat.S_ISREG(info.st_mode):
            if len(content) + info.st_size > MAX_UPLOAD_BYTES:
                raise ValueError(f"{source}: more than {MAX_UPLOAD_BYTES >> 20} MiB to upload")
            data = path.read_bytes()
            content += data
            entries.append({"path": inside, "kind": "file", "mode": mode, "size": len(data)})
        else:
            raise ValueError(f"{path}: neither file, folder nor link")
    return Upload(entries, bytes(content))


def _walk(source: Path, target: str) -> list[tuple[Path, str]]:
    """Parents first, in the order of names."""
    found = [(source, target)]
    if source.is_dir() and not source.is_symlink():
        for child in sorted(source.iterdir()):
            found += _walk(child, f"{target.rstrip('/')}/{child.name}")
    return found
