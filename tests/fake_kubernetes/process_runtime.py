"""Containers that are real processes, each in a bubblewrap sandbox of its own.

A container has its own process, IPC and host name spaces and its own root: the host's system read-only, what the
image's rule makes visible, and everything else empty and its own. The network is the host's: pods are told apart by
their loopback addresses. As in a real container the command is process 1, so it gets no signal that it has no handler
for, and all its processes end with it. Without ``runAsUser`` it is root with the capabilities that containers usually
have (where the tests run as root), with it a user of that number in a user namespace.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from .environment import expand
from .runtime import CannotStart, ContainerPlan, Disk

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CAPABILITIES = (
    "chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service",
    "net_raw", "sys_chroot", "mknod", "audit_write", "setfcap",
)  # fmt: skip
"""What containerd leaves to root in a container."""
ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version", "group", "gshadow",
    "host.conf", "inputrc", "issue", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "login.defs", "magic",
    "mime.types", "networks", "nsswitch.conf", "os-release", "passwd", "profile", "profile.d", "protocols", "python3",
    "python3.11", "resolv.conf", "services", "shells", "skel", "ssl", "terminfo", "timezone",
)  # fmt: skip
CHECKOUT = "/opt/agentrl"
ENVIRONMENT = "/opt/venv"
EMPTY = (
    "home",
    "media",
    "mnt",
    "opt",
    "root",
    "run",
    "srv",
    "tmp",
    "var",
    "var/tmp",
    "var/log",
    "var/lib",
    "var/cache",
)


@dataclass(frozen=True)
class ImageRule:
    """What containers of images of a pattern are: host folders that they see read-only, and their defaults."""

    pattern: str
    mounts: Mapping[Path, str] = field(default_factory=dict)
    """Host folders, and where containers have them."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()


def plain_image(pattern: str) -> ImageRule:
    """The host's own system and nothing else."""
    return ImageRule(pattern)


def project_image(pattern: str, checkout: Path) -> ImageRule:
    """Python and the packages of the environment that runs the tests, and a checkout of the project."""
    base, environment = Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve()
    mounts = {} if base.is_relative_to("/usr") else {base: str(base)}
    path = f"{base}/bin:{PATH}"
    # Not where they are here: that may be in /tmp, which a pod may have as a volume of its own.
    mounts[checkout.resolve()] = CHECKOUT
    if environment != base:
        mounts[environment] = ENVIRONMENT
        path = f"{ENVIRONMENT}/bin:{path}"
    env = {"PATH": path, "PYTHONPATH": CHECKOUT, "OMP_NUM_THREADS": "1", "HOME": "/root"}
    return ImageRule(pattern, mounts, env)


@dataclass(frozen=True)
class Inside:
    """What every command in a container is given. ``user`` is None for root."""

    env: Mapping[str, str]
    workdir: str
    user: int | None


class ProcessRuntime:
    """Starts bubblewrap for every container."""

    has_processes = True

    def __init__(self, images: Iterable[ImageRule]) -> None:
        self._images = tuple(images)
        self._bwrap = str(Path(shutil.which("bwrap") or "bwrap").resolve())

    async def start(self, plan: ContainerPlan) -> ProcessContainer:
        image, disk = self._image(plan.spec["image"]), plan.disk
        assert disk is not None, "a kubelet with processes plans a disk"
        env = {"PATH": PATH, "HOSTNAME": _hostname(plan), "HOME": "/root", **image.env, **plan.env}
        command = [expand(one, env) for one in plan.spec.get("command") or image.entrypoint]
        command += [expand(one, env) for one in plan.spec.get("args") or []]
        if not command:
            raise CannotStart("no command specified")
        workdir = plan.spec.get("workingDir") or image.workdir
        _find(command[0], env, workdir, lambda path: _on_host(path, disk))
        user = _user(plan)
        told, tell = os.pipe()
        log = disk.log.open("ab", buffering=0)
        try:
            process = await asyncio.create_subprocess_exec(
                self._bwrap, *_arguments(plan, disk, image, user), "--info-fd", str(tell), "--chdir", "/", "--clearenv",
                *(part for name, value in env.items() for part in ("--setenv", name, value)),
                "--", "/bin/sh", "-c", 'mkdir -p "$0"; cd "$0" && exec "$@"', workdir, *command,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                pass_fds=(tell,), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            log.close()
            os.close(told)
            raise
        finally:
            os.close(tell)
        pid = await _child_pid(told)
        container = ProcessContainer(process, pid, Inside(env, workdir, user), log)
        await container.started(self._bwrap)
        return container

    def _image(self, name: str) -> ImageRule:
        found = next((rule for rule in self._images if fnmatch.fnmatch(name, rule.pattern)), None)
        if found is None:
            raise CannotStart(f"no rule of the test says what image {name} is")
        return found


class ProcessContainer:
    """A container that runs, by its first process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        pid: int,
        inside: Inside,
        log: BinaryIO,
    ) -> None:
        self._process = process
        self._pid = pid
        self._inside = inside
        self._log = log
        self._code: int | None = None
        self._copying = asyncio.ensure_future(self._copy())

    async def started(self, bwrap: str) -> None:
        """Wait until bubblewrap has become the command: whoever enters before finds the host's root."""
        while self._process.returncode is None and _program(self._pid) == bwrap:  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.001)

    async def wait(self) -> int:
        code = await self._process.wait()
        await self._copying
        code = 128 - code if code < 0 else code
        return self._code if self._code is not None and code == 137 else code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self, exit_code: int = 137) -> None:
        self._code = exit_code
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process.returncode is None and self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    async def execute(self, command: list[str], *, stdin: bool) -> ProcessExec:
        if self._process.returncode is not None:
            raise CannotStart("container is not running")
        root = Path(f"/proc/{self._pid}/root")
        _find(command[0], self._inside.env, self._inside.workdir, lambda path: root / path.relative_to("/"))
        enter = ["nsenter", "--target", str(self._pid), "--mount", "--pid", "--ipc", "--uts"]
        if _has_user_namespace(self._inside.user):
            enter += ["--user", "--preserve-credentials"]
            become: list[str] = []
        else:
            bound = ",".join(["-all", *(f"+{one}" for one in CAPABILITIES)])
            become = ["setpriv", f"--bounding-set={bound}", "--inh-caps=-all"]
        variables = [f"{name}={value}" for name, value in self._inside.env.items()]
        process = await asyncio.create_subprocess_exec(
            *enter, "--", *become, "env", "-i", "-C", self._inside.workdir, *variables, *command,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        return ProcessExec(process)

    async def _copy(self) -> None:
        """Write what the container says into its log, as kubelets keep it: time, stream, whether the line is whole."""
        assert self._process.stdout is not None
        with self._log:
            while True:
                try:
                    line = await self._process.stdout.readline()
                except ValueError:  # a line longer than the reader's limit; what it holds goes out in parts
                    line = await self._process.stdout.read(16_384)
                if not line:
                    return
                whole = "F" if line.endswith(b"\n") else "P"
                stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
                self._log.write(f"{stamp} stdout {whole} ".encode() + line.rstrip(b"\n") + b"\n")


class ProcessExec:
    """A command in a container."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._process = process
        self.stdin = process.stdin
        self.stdout, self.stderr = process.stdout, process.stderr

    async def wait(self) -> int:
        code = await self._process.wait()
        return 128 - code if code < 0 else code


async def _child_pid(told: int) -> int:
    """What bwrap says of its child; 0 where it ended before it had one."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(told, "rb", buffering=0)
    )
    try:
        said = await reader.read()
    finally:
        transport.close()
    return int(json.loads(said)["child-pid"]) if said else 0


def _find(command: str, env: Mapping[str, str], workdir: str, where: Callable[[Path], Path]) -> None:
    """Look for a command as execve does.

    Raises:
        CannotStart: it is not there, in the words of runc.
    """
    if "/" in command:
        places = [Path(workdir) / command]
        why = f'exec: "{command}": stat {command}: no such file or directory: unknown'
    else:
        places = [Path(workdir) / folder / command for folder in env.get("PATH", PATH).split(":")]
        why = f'exec: "{command}": executable file not found in $PATH: unknown'
    if not any(os.path.lexists(where(place)) for place in places):
        raise CannotStart(f"unable to start container process: {why}")


def _on_host(path: Path, disk: Disk) -> Path:
    """Where the host has a file of a container that has not started."""
    for mount in sorted(disk.mounts, key=lambda one: -len(one.target)):
        if path.is_relative_to(mount.target):
            return mount.source / path.relative_to(mount.target)
    return path


def _program(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return None


def _has_user_namespace(user: int | None) -> bool:
    return user is not None or os.geteuid() != 0


def _user(plan: ContainerPlan) -> int | None:
    mine = plan.spec.get("securityContext") or {}
    pods = plan.pod["spec"].get("securityContext") or {}
    user = mine.get("runAsUser", pods.get("runAsUser"))
    return None if user in (None, 0) else int(user)


def _hostname(plan: ContainerPlan) -> str:
    return str(plan.pod["spec"].get("hostname") or plan.pod["metadata"]["name"])[:63]


def _arguments(plan: ContainerPlan, disk: Disk, image: ImageRule, user: int | None) -> list[str]:
    """bubblewrap's options for a container's namespaces and root."""
    made = ["--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1"]
    made += ["--hostname", _hostname(plan)]
    if _has_user_namespace(user):
        number = str(user or 0)
        made += ["--unshare-user", "--uid", number, "--gid", number]
    else:
        made += ["--cap-drop", "ALL", *(part for one in CAPABILITIES for part in ("--cap-add", f"CAP_{one.upper()}"))]
    made += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            made += ["--symlink", str(path.readlink()), f"/{name}"]
        elif path.is_dir():
            made += ["--ro-bind", f"/{name}", f"/{name}"]
    made += ["--proc", "/proc", "--dev", "/dev"]
    for name in EMPTY:
        made += ["--perms", "1777" if name.endswith("tmp") else "0755", "--dir", f"/{name}"]
    made += ["--symlink", "../run", "/var/run", "--symlink", "../run/lock", "/var/lock"]
    for name in ETC:
        if (Path("/etc") / name).exists():
            made += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    made += [
        "--ro-bind",
        str(disk.hosts),
        "/run/fake-kubernetes",
        "--symlink",
        "/run/fake-kubernetes/hosts",
        "/etc/hosts",
    ]
    for folder, target in image.mounts.items():
        made += ["--ro-bind", str(folder), target]
    for mount in sorted(disk.mounts, key=lambda one: one.target):
        made += ["--ro-bind" if mount.read_only else "--bind", str(mount.source), mount.target]
    made += ["--bind", str(disk.termination_log), str(plan.spec.get("terminationMessagePath", "/dev/termination-log"))]
    if (plan.spec.get("securityContext") or {}).get("readOnlyRootFilesystem"):
        made += ["--remount-ro", "/"]
    return made
