"""The syntax of Dockerfiles: instructions, their flags and words. What they mean is in `agentrl.tasks.dockerfile`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

_HEREDOC = re.compile(r"<<(-?)([\"']?)(\w+)\2")


def instructions(text: str) -> list[tuple[str, str]]:
    """(name, rest) of each instruction: continuation lines joined, comments dropped, a RUN's heredoc made its command.

    Raises ValueError for a heredoc that does not end.
    """
    found: list[tuple[str, str]] = []
    pending = ""
    lines = iter(text.splitlines())
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pending += line.strip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        name, _, rest = pending.partition(" ")
        pending = ""
        rest = rest.strip()
        heredoc = _HEREDOC.match(rest) if name.upper() == "RUN" else None
        found.append((name.upper(), _body(lines, heredoc) if heredoc else rest))
    if pending:
        name, _, rest = pending.partition(" ")
        found.append((name.upper(), rest.strip()))
    return found


def copy_words(rest: str, *, split: bool = True) -> tuple[list[str], list[str]]:
    """(words, flags) of the plain or the JSON form; without `split` the rest behind the flags is one word."""
    flags: list[str] = []
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        flags.append(flag)
        rest = rest.lstrip()
    if not split:
        return [rest], flags
    return (json_words(rest) if rest.startswith("[") else shlex.split(rest)), flags


def json_words(text: str) -> list[str]:
    """Raises ValueError for anything but a list of strings in JSON."""
    words = json.loads(text)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("is not a list of strings")
    return words


def _body(lines: Iterator[str], heredoc: re.Match[str]) -> str:
    """Lines up to the heredoc's end."""
    body: list[str] = []
    for line in lines:
        if (line.lstrip("\t") if heredoc[1] else line) == heredoc[3]:
            return "\n".join(body)
        body.append(line.lstrip("\t") if heredoc[1] else line)
    raise ValueError(f"<<{heredoc[3]} has no end")
