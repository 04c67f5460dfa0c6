"""The stand-ins as files, on their way into a sandbox; the programs themselves are in `stand_ins.py` and `ctrf.py`."""

from __future__ import annotations

import atexit
import importlib.metadata
import io
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from agentrl.sandbox.provider import DEFAULT_PATH, Sandbox

MISSING_FILE = "/logs/verifier/.missing"
"""Where the stand-ins write what they could not serve, one a line; in a folder that any user may write."""
BUILD_ROOT = "/opt/.agentrl"
"""Where the stand-ins lie while an image is built."""
_COMMANDS = ("apt", "apt-get", "curl", "git", "pip", "pip3", "pytest", "python", "uv", "uvx", "wget")
_WANTED = re.compile(rf"(?<![\w./-])(?:{'|'.join(_COMMANDS)})(?![\w-])|-m\s+(?:pip|pytest)\b")
_STUB = """\
#!/bin/sh
if command -v python3 >/dev/null; then exec python3 -I "{root}/stand_ins.py" {name} "$@"; fi
echo "{name}: the image has no python3" >&2
echo python3 >> {missing}
exit 127
"""
_PIP_MODULE = """\
import os, sys


def main(arguments=None):
    words = sys.argv[1:] if arguments is None else arguments
    os.execv(sys.executable, [sys.executable, "-I", "{root}/stand_ins.py", "pip", *words])


if __name__ == "__main__":
    main()
"""
"""For `python3 -m pip`, and for the pip of a virtual environment, which looks for `pip._internal.cli.main`."""
_SERVED = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "pytest-timeout")
"""Distributions that are brought along, pure Python all; the last one if it is there."""
_KEPT_OF_PYGMENTS = {
    "lexers": {"__init__.py", "_mapping.py", "python.py", "diff.py"},
    "styles": {"__init__.py", "_mapping.py", "default.py"},
}
"""pygments is 9 MB of languages, of which pytest colours two."""
_CTRF_ENTRY_POINT = "[pytest11]\nagentrl_ctrf = agentrl_ctrf\n"
_MAX_MISSING_BYTES = 65536
_DPKG_STATUS = Path("/var/lib/dpkg/status")


def needed(scripts: Iterable[Path]) -> bool:
    """Whether any of these scripts names a command that has a stand-in."""
    return any(_WANTED.search(script.read_text(errors="replace")) for script in scripts)


@cache
def files(root: str) -> dict[str, tuple[bytes, int]]:
    """Absolute path inside -> contents and mode, for stand-ins that lie in the folder `root`; under 1 MB in all."""
    here = Path(__file__).parent
    made = {
        f"{root}/stand_ins.py": ((here / "stand_ins.py").read_bytes(), 0o644),
        f"{root}/pytest.zip": (_pytest_zip(), 0o644),
        f"{root}/packages": ("\n".join(_installed_packages()).encode(), 0o644),
    }
    pip = _PIP_MODULE.format(root=root).encode()
    for path in ("__main__", "_internal/cli/main"):
        made[f"{root}/modules/pip/{path}.py"] = (pip, 0o644)
    for path in ("", "_internal/", "_internal/cli/"):
        made[f"{root}/modules/pip/{path}__init__.py"] = (b"", 0o644)
    for name in _COMMANDS:
        stub = _STUB.format(root=root, name=name, missing=MISSING_FILE)
        made[f"{root}/bin/{name}"] = (stub.encode(), 0o755)
    return made


@cache
def folder() -> Path:
    """A folder of this machine with the stand-ins for an image's build, where they lie under `BUILD_ROOT`.

    It goes when the process ends.
    """
    made = Path(tempfile.mkdtemp(prefix="agentrl-stand-ins-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    for name, (data, mode) in files(BUILD_ROOT).items():
        path = made / name.removeprefix(f"{BUILD_ROOT}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    made.chmod(0o755)
    return made


async def bring(sandbox: Sandbox, root: str, *, path: str | None = None) -> dict[str, str]:
    """Put the stand-ins into a sandbox. Returns the environment in which they come first; `path` is the image's PATH.

    Raises OSError where the sandbox has no room for them.
    """
    for name, (data, mode) in files(root).items():
        await sandbox.write(name, data, mode=mode)
    return {
        "PATH": f"{root}/bin:{path or DEFAULT_PATH}",
        "PYTHONPATH": f"{root}/modules",
        "AGENTRL_STAND_INS": root,
    }


async def missing(sandbox: Sandbox) -> tuple[str, ...]:
    """What was asked of the stand-ins in vain, each once, in that order."""
    try:
        data = await sandbox.read(MISSING_FILE, max_bytes=_MAX_MISSING_BYTES)
    except ValueError:  # longer than any list: the tests retry for ever
        return ("more than can be listed",)
    lines = (data or b"").decode(errors="replace").splitlines()
    return tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))


def _pytest_zip() -> bytes:
    """pytest as Python imports it from one file, with a plugin for `--ctrf`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _served_files():
            archive.write(path, name)
        archive.write(Path(__file__).parent / "ctrf.py", "agentrl_ctrf.py")
        archive.writestr("agentrl_ctrf-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: agentrl-ctrf\nVersion: 1\n")
        archive.writestr("agentrl_ctrf-1.dist-info/entry_points.txt", _CTRF_ENTRY_POINT)
    return buffer.getvalue()


def _served_files() -> Iterator[tuple[str, Path]]:
    for name in _SERVED:
        try:
            listed = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in listed:
            kept = _KEPT_OF_PYGMENTS.get(file.parent.name, {file.name}) if name == "pygments" else {file.name}
            path = Path(str(file.locate()))
            if file.suffix != ".pyc" and ".." not in file.parts and file.name in kept and path.is_file():
                yield str(file), path


def _installed_packages() -> list[str]:
    """Names of the host's packages, whose files a sandbox sees under /usr."""
    try:
        status = _DPKG_STATUS.read_text(errors="replace")
    except OSError:
        return []
    paragraphs = re.findall(r"^Package: (\S+)\n(?:\S.*\n)*?Status: (.*)$", status, re.MULTILINE)
    return [name for name, state in paragraphs if state.endswith(" installed")]
