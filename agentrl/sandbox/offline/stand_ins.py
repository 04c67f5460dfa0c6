"""Runs inside sandboxes, as `python3 -I stand_ins.py COMMAND ARGUMENT...`, with whatever Python the image has.

Serves apt-get, curl, wget, git, pip, uv, uvx, pytest and python from what is there. What cannot be served is printed,
and written down if it was the tests that asked, and not a program of the agent's that they run.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import NoReturn

ROOT = str(Path(__file__).resolve().parent)
ZIP = ROOT + "/pytest.zip"
MISSING = "/logs/verifier/.missing"
BUILD = ROOT == "/opt/.agentrl"
"""Whether this serves the build of an image, and not tests."""
ASKING = ("/tests/", "/solution/")
SERVED_PACKAGES = {"apt-transport-https", "ca-certificates", "curl", "python3-pip", "python3-pytest", "wget"}
HARNESS_PACKAGES = {"asciinema", "tmux"}
"""With which Terminal-Bench's own harness drives and records an agent; nothing of that happens here."""
SERVED_DISTRIBUTIONS = {"pip", "pytest-json-ctrf", "setuptools", "uv", "wheel"}
LOCAL = re.compile(r"(?:\w+://)?(?:[^/@]*@)?(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[::1?\])(?:[:/?]|$)|file://")
REMOTE_REPOSITORY = re.compile(r"(?:https?|git|ssh)://|[\w.-]+@[\w.-]+:")
UV_INSTALLER = re.compile(r"astral\.sh/(?:uv/)?(?:[\w.]+/)?(?:uv-)?install(?:er)?\.sh|/uv/releases/.*uv-installer\.sh")
PIP_INSTALLER = re.compile(r"/get-pip\.py$")
INSTALL_UV = f"""\
mkdir -p "$HOME/.local/bin"
ln -sf "{ROOT}/bin/uv" "{ROOT}/bin/uvx" "$HOME/.local/bin/"
printf 'export PATH="$HOME/.local/bin:$PATH"\\n' > "$HOME/.local/bin/env"
"""
VALUES_OF_PIP = {
    *("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-t", "--target", "--prefix", "--root", "-c"),
    *("--constraint", "--python", "-p", "--timeout", "--retries", "--trusted-host", "--upgrade-strategy", "--group"),
    *("--default-index", "--cache-dir", "--no-binary", "--only-binary", "--index-strategy", "--dev-group"),
}
VALUES_OF_UV_RUN = {
    *("-p", "--python", "--with-requirements", "--with-editable", "--project", "--directory", "--env-file", "--group"),
    *("--extra", "--index-url", "--default-index", "--index", "--cache-dir", "-C", "--only-group", "--no-group"),
    *("--exclude-newer", "--resolution", "--python-platform"),
}

WITH = ("-w", "--with", "--from")


def main(name: str, arguments: list[str]) -> int:
    own = real(name)
    if own and has_network():
        os.execv(own, [name, *arguments])
    serve = {
        "git": git,
        "apt": apt,
        "apt-get": apt,
        "pip3": pip,
        "uvx": uvx,
        "uv": uv,
        "pip": pip,
        "pytest": pytest,
    }.get(name)
    if serve:
        return serve(arguments)
    return python(arguments) if name == "python" else fetch(name, arguments)


# --- what is missing


def lack(what: str) -> int:
    """Say that it cannot be served. Returns the exit code."""
    print(f"agentrl: not in this sandbox, which has no network: {what}", file=sys.stderr)
    if asked_by_tests():
        with contextlib.suppress(OSError), Path(MISSING).open("a") as file:
            file.write(what.replace("\n", " ")[:400] + "\n")
    return 1


def asked_by_tests() -> bool:
    """Whether a script of the tests or of the solution ran this, itself or by `sh -c`."""
    pid = os.getppid()
    for _ in range(2):
        words = command_line(pid)
        if any(word.startswith(ASKING) for word in words) or (ROOT + "/stand_ins.py") in words:
            return True
        if "-c" not in words and not is_pip(words):
            return False
        pid = parent(pid)
    return False


def is_pip(words: list[str]) -> bool:
    """Whether a command line is pip's, which became this program."""
    return words[1:3] == ["-m", "pip"] or (len(words) > 1 and words[1].endswith(("/pip", "/pip3")))


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def real(name: str) -> str | None:
    """The image's own command."""
    folders = [folder for folder in os.environ.get("PATH", "").split(":") if not belongs(folder)]
    found = shutil.which(name, path=":".join(folders))
    return None if found is None or belongs(found) else found


def belongs(path: str) -> bool:
    return str(Path(path).resolve()).startswith(ROOT)


def has_network() -> bool:
    """Whether there is an interface but the loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return any(line.partition(":")[0].strip() != "lo" for line in lines)


# --- packages of the distribution


def apt(arguments: list[str]) -> int:
    words = [word for word in arguments if not word.startswith("-")]
    if not words or words[0] not in ("install", "reinstall"):
        return 0
    have = installed_packages()
    lacking = [word for word in words[1:] if not has_package(re.split(r"[=:/]", word.rstrip("+"))[0], have)]
    if lacking:
        return lack("apt-get install " + " ".join(lacking)) and 100
    print("agentrl: already there:", *words[1:])
    return 0


def has_package(name: str, have: set[str]) -> bool:
    return name in have or name in SERVED_PACKAGES or name in HARNESS_PACKAGES or real(name) is not None


def installed_packages() -> set[str]:
    try:
        status = Path("/var/lib/dpkg/status").read_text(errors="replace")
    except OSError:
        status = ""
    found = re.findall(r"^Package: (\S+)\n(?:\S.*\n)*?Status: .* installed$", status, re.MULTILINE)
    return {*found, *Path(ROOT, "packages").read_text().split()}


# --- files of the web


def fetch(name: str, arguments: list[str]) -> int:
    urls = [word for word in arguments if "://" in word or LOCAL.match(word)]
    remote = [url for url in urls if not LOCAL.match(url)]
    if not remote:
        own = real(name)
        if own is None:
            return lack(name) and 127
        os.execv(own, [name, *arguments])
    if UV_INSTALLER.search(remote[0]):
        return deliver(INSTALL_UV, name, arguments)
    if PIP_INSTALLER.search(remote[0]):
        return deliver("", name, arguments)
    return lack(f"{name} {remote[0]}") and (6 if name == "curl" else 4)


def deliver(text: str, name: str, arguments: list[str]) -> int:
    """Write what was fetched to where the arguments say: curl to its output unless -o, wget to a file unless -O-."""
    target = None
    for index, word in enumerate(arguments):
        if re.fullmatch(r"-\w*[oO]|--output|--output-document", word) and (name == "wget" or not word.endswith("O")):
            target = arguments[index + 1] if index + 1 < len(arguments) else None
        elif name == "wget" and re.fullmatch(r"-\w*O-", word):
            target = "-"
        elif word.startswith(("--output=", "--output-document=")):
            target = word.partition("=")[2]
    to_file = name == "wget" or any(re.fullmatch(r"-\w*O|--remote-name", word) for word in arguments)
    if target is None and to_file:
        target = next(word for word in arguments if "://" in word).rstrip("/").rpartition("/")[2]
    if target in (None, "-"):
        sys.stdout.write(text)
    else:
        Path(target).write_text(text)
    return 0


def git(arguments: list[str]) -> int:
    """Run the image's own, but for what only a network has."""
    remote = [word for word in arguments if REMOTE_REPOSITORY.match(word) and not LOCAL.match(word)]
    if remote and {"clone", "fetch", "pull", "ls-remote", "submodule"} & {*arguments}:
        return lack(f"git {remote[0]}") and 128
    own = real("git")
    if own is not None:
        os.execv(own, ["git", *arguments])
    return lack("git") and 127


# --- packages of Python


def normal(requirement: str) -> str:
    """Name of a distribution out of `Name[extra]==1.0; marker` or `name@1.0`."""
    name = re.sub(r"[^\w.-].*", "", requirement.strip().strip("'\""))
    return re.sub(r"[-_.]+", "-", name).lower()


def version_of(name: str) -> str | None:
    """Version with which a distribution is served, or None."""
    for path in ([*sys.path], [ZIP]):
        for found in importlib.metadata.distributions(name=name, path=path):
            return found.version
    return "any" if name in SERVED_DISTRIBUTIONS else None


def lacking_of(requirements: list[str]) -> list[str]:
    """Those that cannot be served; says what serves the others."""
    lacking = []
    for requirement in requirements:
        version = version_of(normal(requirement))
        if version is None:
            lacking.append(requirement)
        elif "==" in requirement and requirement.partition("==")[2].strip() != version:
            print(f"agentrl: {normal(requirement)} {version} serves for {requirement}", file=sys.stderr)
    return lacking


def split(arguments: list[str], values: set[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(options with their values, the other words)."""
    options: list[tuple[str, str]] = []
    words: list[str] = []
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word in values or word in ("-r", "--requirement", "-e", "--editable"):
            options.append((word, arguments[index + 1] if index + 1 < len(arguments) else ""))
            index += 1
        elif word.startswith("-"):
            name, _, value = word.partition("=")
            options.append((name, value))
        else:
            words.append(word)
        index += 1
    return options, words


def requirements_in(path: str) -> list[str]:
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in Path(path).read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("-")]


def pip(arguments: list[str]) -> int:
    if not arguments or arguments[0] != "install":
        return run_real_pip(arguments)
    options, words = split(arguments[1:], VALUES_OF_PIP)
    local = [value for name, value in options if name in ("-e", "--editable")]
    local += [word for word in words if ("/" in word and "://" not in word) or word in (".", "..")]
    if local:
        code = run_real_pip(["install", "--no-index", "--no-build-isolation", "--no-deps", *arguments[1:]])
        return code and lack("pip install " + " ".join(arguments[1:]))
    wanted = list(words)
    for name, value in options:
        if name in ("-r", "--requirement"):
            wanted += requirements_in(value)
    lacking = lacking_of(wanted)
    if lacking:
        return lack("Python packages " + " ".join(lacking))
    if BUILD and any(normal(name).startswith("pytest") for name in wanted):
        unpack_pytest()
    return 0


def unpack_pytest() -> None:
    """Make the pytest that was brought along a part of the image that is being built."""
    if importlib.util.find_spec("pytest") is None:
        with zipfile.ZipFile(ZIP) as archive:
            archive.extractall(sysconfig.get_path("purelib"))
        command = Path("/usr/local/bin/pytest")
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text('#!/bin/sh\nexec python3 -m pytest "$@"\n')
        command.chmod(0o755)


def run_real_pip(arguments: list[str]) -> int:
    own = [sys.executable, "-I", "-m", "pip", *arguments]
    return subprocess.run(own, check=False).returncode


def python(arguments: list[str]) -> NoReturn:
    command = real("python") or real("python3") or sys.executable
    os.execve(command, [command, *arguments], os.environ)


def pytest(arguments: list[str]) -> NoReturn:
    own = real("pytest")
    if own:
        os.execv(own, ["pytest", *arguments])
    run_with_pytest([sys.executable, "-m", "pytest", *arguments])


def run_with_pytest(command: list[str]) -> NoReturn:
    """Run with the pytest that was brought along, before any that the image has."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = ZIP if not before or ZIP in before.split(":") else f"{ZIP}:{before}"
    sys.stdout.flush()
    os.execvp(command[0], command)


# --- uv


def uvx(arguments: list[str]) -> int:
    return uv_run(arguments, tool=True)


def uv(arguments: list[str]) -> int:
    while arguments and arguments[0].startswith("-") and arguments[0] != "--version":
        arguments = arguments[1:]
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--version", [])
    if name in ("tool", "pip", "python") and rest:
        name, rest = f"{name} {rest[0]}", rest[1:]
    if name == "--version":
        print("uv 0.9.0")
        return 0
    if name in ("run", "tool run"):
        return uv_run(rest, tool=name == "tool run")
    if name in ("add", "pip install", "tool install"):
        return pip(["install", *(word for word in rest if word not in ("--dev", "--system"))])
    if name == "venv":
        return make_environment(rest)
    if name == "sync":
        return sync()
    if name.startswith(("init", "lock", "cache", "self", "python", "pip", "tool")):
        return 0
    return lack("uv " + " ".join(arguments))


def uv_run(arguments: list[str], *, tool: bool) -> int:
    """`uv run` and `uvx`: check what it is to run with, then run it."""
    options, command = leading_options(arguments)
    if not command:
        return lack("uv run without a command")
    named = [name for name, _ in options]
    wanted = [part for name, value in options if name in WITH for part in value.split(",") if part]
    for name, value in options:
        if name == "--with-requirements":
            wanted += requirements_in(value)
        elif name in ("-p", "--python"):
            say_python(value)
    if tool and "--from" not in named:
        wanted.append(command[0])
    lacking = lacking_of([*wanted, *inline_requirements(command[0])])
    if lacking:
        return lack("Python packages " + " ".join(lacking))
    if "-m" in named or "--module" in named:
        run_with_pytest([sys.executable, "-m", *command])
    return run_command(re.split(r"[@=<>~\[]", command[0])[0] if tool else command[0], command[1:])


def leading_options(arguments: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(options before the command, with their values; the command)."""
    options: list[tuple[str, str]] = []
    index = 0
    while index < len(arguments) and arguments[index].startswith("-"):
        name, inline, value = arguments[index].partition("=")
        if name in (*VALUES_OF_UV_RUN, *WITH) and not inline:
            index += 1
            value = arguments[index] if index < len(arguments) else ""
        index += 1
        if name == "--":
            break
        options.append((name, value))
    return options, arguments[index:]


def run_command(name: str, arguments: list[str]) -> int:
    """Run a command with the pytest that was brought along."""
    if name == "pytest":
        run_with_pytest([sys.executable, "-m", "pytest", *arguments])
    if name.endswith(".py"):
        run_with_pytest([sys.executable, name, *arguments])
    if name.startswith("python"):
        run_with_pytest([sys.executable, *arguments])
    if shutil.which(name) is None:
        return lack(name) and 127
    run_with_pytest([name, *arguments])


def say_python(version: str) -> None:
    mine = ".".join(map(str, sys.version_info[:2]))
    if re.fullmatch(r"[\d.]+", version) and not (version + ".").startswith(mine + "."):
        print(f"agentrl: Python {mine} serves for {version}", file=sys.stderr)


def inline_requirements(script: str) -> list[str]:
    """Dependencies of a script that names them in a comment block."""
    if not script.endswith(".py") or not Path(script).is_file():
        return []
    block = re.search(
        r"^# /// script\n(.*?)^# ///$", Path(script).read_text(errors="replace"), re.MULTILINE | re.DOTALL
    )
    listed = re.search(r"dependencies\s*=\s*\[(.*?)\]", block.group(1), re.DOTALL) if block else None
    return re.findall(r"[\"']([^\"']+)[\"']", listed.group(1)) if listed else []


def sync() -> int:
    project = Path("pyproject.toml")
    text = project.read_text(errors="replace") if project.is_file() else ""
    listed = re.search(r"^dependencies\s*=\s*\[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    lacking = lacking_of(re.findall(r"[\"']([^\"']+)[\"']", listed.group(1))) if listed else []
    return lack("Python packages " + " ".join(lacking)) if lacking else 0


def make_environment(arguments: list[str]) -> int:
    """A folder that looks like a virtual environment and is the image's Python."""
    _, words = split(arguments, {"-p", "--python", "--prompt", "--seed"})
    folder = Path(words[0] if words else ".venv").absolute()
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for name, target in (("python", sys.executable), ("python3", sys.executable), ("pytest", ROOT + "/bin/pytest")):
        link = folder / "bin" / name
        if not os.path.lexists(link):
            link.symlink_to(target)
    activate = f'VIRTUAL_ENV="{folder}"; export VIRTUAL_ENV\ndeactivate() {{ :; }}\n'
    (folder / "bin" / "activate").write_text(activate)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
