"""What a sandbox's file system looks like at its start, as arguments of bwrap and as files to put into it. Pure.

The root is one sized tmpfs, or an overlay that is written to one, so the disk limit is one number. The host's /usr and
a few public files of its /etc lie in it; everything else is made up. /tests and /logs/verifier are small tmpfs of their
own: an agent that filled its disk can still be graded.
"""

from __future__ import annotations

import functools
from pathlib import Path

from agentrl.sandbox.provider import DEFAULT_PATH, Copy
from agentrl.sandbox.supervisor.launch import EMPTY_FD, INFO_FD, SECCOMP_FD
from agentrl.sandbox.supervisor.stage import PRELOAD

_GRADING_MB = {"/tests": 32, "/logs": 8, "/logs/verifier": 8, "/logs/agent": 8, "/logs/artifacts": 8}
"""Folders with space of their own. As mounts they can be emptied and filled, but not removed or renamed."""
_SHM_MB, _ETC_MB = 32, 8
UNCOUNTED_MB = sum(_GRADING_MB.values()) + _SHM_MB + _ETC_MB
"""All that can be written beside the disk. Like the disk it is memory, and is added to what processes may use: files
alone can never make the memory limit kill."""
_MERGED_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PUBLIC_ETC = (
    "adduser.conf",
    "alternatives",
    "bash.bashrc",
    "ca-certificates.conf",
    "debian_version",
    "default/useradd",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "login.defs",
    "magic",
    "mime.types",
    "os-release",
    "perl",
    "profile",
    "protocols",
    "services",
    "skel",
    "ssl/certs",
    "terminfo",
)
_PLACES = ("/mnt", "/media", "/srv", "/opt")
_READ_ONLY_PROC = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_HIDDEN_PROC = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug")
FOLDERS = {
    "/root": "0700",
    "/app": "0755",
    "/etc": "0755",
    "/home/agent": "0755",
    "/mnt": "0755",
    "/opt": "0755",
    "/run": "0755",
    "/solution": "0755",
    "/srv": "0755",
    "/tmp": "1777",
    "/var/cache": "0755",
    "/var/lib": "0755",
    "/var/log": "0755",
    "/var/tmp": "1777",
}

ENV = {
    "PATH": DEFAULT_PATH,
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
"""Environment of every command; HOME is added by its user, the rest by the image and the caller."""

AGENT_UID = 1000
FILES = {
    "/etc/passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
        f"agent:x:{AGENT_UID}:{AGENT_UID}:agent:/home/agent:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "/etc/group": (
        f"root:x:0:\ndaemon:x:1:\ntty:x:5:\nsudo:x:27:\nusers:x:100:\nagent:x:{AGENT_UID}:\nnogroup:x:65534:\n"
    ),
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/hostname": "sandbox\n",
    "/etc/host.conf": "multi on\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/pam.d/other": (  # for adduser, chfn and su: root may, nobody else
        "auth sufficient pam_rootok.so\nauth required pam_deny.so\naccount required pam_permit.so\n"
        "password required pam_unix.so\nsession required pam_permit.so\n"
    ),
    "/etc/resolv.conf": "",
    "/etc/shells": "/bin/sh\n/bin/bash\n",
}
"""Made-up files, writable in the sandbox."""


def merged_folders(host_root: Path = Path("/")) -> tuple[str, ...] | None:
    """Names in / that are links to a folder of /usr; None on a host where one of them is a folder of its own."""
    there = [host_root / name for name in _MERGED_FOLDERS if (host_root / name).is_dir()]
    links = all(path.is_symlink() and str(path.readlink()).strip("/") == f"usr/{path.name}" for path in there)
    return tuple(path.name for path in there) if links else None


@functools.cache
def root_place() -> str:
    """A folder of the host that any user may pass; in a sandbox's mount namespace its root takes that place."""
    found = [place for place in _PLACES if Path(place).is_dir() and Path(place).stat().st_mode & 0o001]
    return found[0] if found else "/tmp"


def bwrap_argv(bwrap: str, *, disk_bytes: int, seccomp: bool, root: str | None, network: bool = False) -> list[str]:
    """The command that becomes one sandbox, started as root of its user namespace, up to what it runs. Sizes in bytes.

    `root`: where the supervisor has put its files together; None has bwrap do that. `network`: it has the host's.
    """
    argv = [bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    argv += [] if network else ["--unshare-net"]
    argv += ["--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox", "--cap-drop", "ALL"]
    argv += ["--info-fd", str(INFO_FD)]
    argv += ["--seccomp", str(SECCOMP_FD)] if seccomp else []
    argv += _plain_root(disk_bytes) if root is None else ["--bind", root, "/"]
    for path, size_mb in _GRADING_MB.items():
        argv += ["--perms", "0777" if path != "/tests" else "0755", "--size", str(size_mb << 20), "--tmpfs", path]
    argv += ["--proc", "/proc"]
    for path in _READ_ONLY_PROC:  # where the sandbox's root is the host's, only this keeps it from writing them
        argv += ["--ro-bind-try", path, path]
    for path in _hidden_proc():
        argv += ["--ro-bind", "/dev/null", path]
    argv += ["--dev", "/dev"]
    argv += ["--perms", "1777", "--size", str(_SHM_MB << 20), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    return [*argv, "--chdir", "/"]


@functools.cache
def _hidden_proc() -> tuple[str, ...]:
    """Those of _HIDDEN_PROC that this kernel has."""
    return tuple(path for path in _HIDDEN_PROC if Path(path).exists())


def base_files() -> list[Copy]:
    """Public files of the host's /etc that the base of an overlay holds a copy of."""
    found = [Path("/etc", name) for name in _PUBLIC_ETC]
    return [Copy(source=path, target=str(path)) for path in found if path.exists() or path.is_symlink()]


def base_folders() -> list[tuple[str, int]]:
    """Folders of the base of an overlay, with their modes: also those that something is mounted on."""
    mounted = ("/usr", "/proc", "/dev", *_GRADING_MB, *(f"/{name}" for name in merged_folders() or ()))
    return [(path, 0o755) for path in mounted] + [(path, int(mode, 8)) for path, mode in FOLDERS.items()]


def _plain_root(disk_bytes: int) -> list[str]:
    """Without an overlay: the host's /usr and public files cannot be written, everything else is a tmpfs.

    /etc is a mount, or a command could put another in its place, which the verifier's programs would believe.
    """
    argv = ["--size", str(disk_bytes), "--tmpfs", "/", "--ro-bind", "/usr", "/usr"]
    for name in _MERGED_FOLDERS:
        argv += _merged_folder(Path("/", name))
    for path, mode in FOLDERS.items():
        argv += ["--perms", mode, "--dir", path]
    argv += ["--perms", "0755", "--size", str(_ETC_MB << 20), "--tmpfs", "/etc"]
    for name in _PUBLIC_ETC:
        argv += _public_file(Path("/etc", name))
    return [*argv, "--ro-bind-data", str(EMPTY_FD), PRELOAD]  # or an agent could preload into the verifier


def _merged_folder(path: Path) -> list[str]:
    """/bin and its like: on most hosts a link into /usr, inside always a mount: a command cannot remove that."""
    return ["--ro-bind", str(path), f"/{path.name}"] if path.is_dir() else []


def _public_file(path: Path) -> list[str]:
    target = f"/etc/{path.name}"
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), target]
    return ["--ro-bind", str(path), target] if path.exists() else []
