"""The Linux calls that Python 3.11 does not wrap: namespaces, capabilities, process attributes."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
SANDBOX_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)

CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID = 0, 1, 3, 4, 5, 6, 7

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAP_HIGHEST = 63
_CAP_HEADER_V3 = 0x20080522
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1

_IGNORED_SIGNALS = (2, 13, 15, 25)
"""SIGINT and SIGTERM, which the supervisor ignores; SIGPIPE and SIGXFSZ, which Python ignores."""

_libc = ctypes.CDLL(None, use_errno=True)


class _FilterProgram(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("num_instructions", ctypes.c_ushort), ("address", ctypes.c_void_p))


def _check(result: int, what: str) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def setns(pidfd: int, flags: int) -> None:
    """Enter the namespaces `flags` of a process. Pid namespaces hold for children only. Raises OSError."""
    _check(_libc.setns(pidfd, flags), "setns")


def unshare(flags: int) -> None:
    """Leave the current namespaces `flags` for new ones. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def die_with_parent(signal_number: int) -> None:
    """Get `signal_number` when the thread that forked this process ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PDEATHSIG)")


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents end, so that they need not wait for the machine's init."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(CHILD_SUBREAPER)")


def hide_memory() -> None:
    """Keep processes of the same user out of /proc/self/{mem,fd,exe} of this process until its next execve."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(DUMPABLE)")


def bound_capabilities(keep: Iterable[int]) -> None:
    """Reduce what execve can give this process and its children to `keep`. Irreversible."""
    kept = frozenset(keep)
    for number in range(_CAP_HIGHEST + 1):
        if number not in kept and _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == -1:
            break  # past the last capability that this kernel knows


def set_capabilities(mask: int) -> None:
    """Have the capabilities of `mask` (a bit each) and no others. Raises OSError for one that it does not have."""
    header = (ctypes.c_uint32 * 2)(_CAP_HEADER_V3, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    _check(_libc.capset(header, data), "capset")


def forbid_new_privileges() -> None:
    """Make setuid bits and file capabilities without effect for this process and all that it starts."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def set_filter(num_instructions: int, address: int) -> None:
    """Install the seccomp program at `address` (array of struct sock_filter). Irreversible. Raises OSError."""
    program = _FilterProgram(num_instructions, address)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "prctl(SECCOMP)")


def default_signals() -> None:
    """Give the signals that this program ignores their default meaning, before an execve."""
    for number in _IGNORED_SIGNALS:
        _libc.signal(number, None)


def leave_session_keyring() -> None:
    """Swap the inherited session keyring for an empty one, where the kernel allows it."""
    number = _KEYCTL.get(platform.machine())
    if number is not None:
        _libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None)
