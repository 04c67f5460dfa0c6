"""What the agent is shown of a command's result."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.rollout.observation import cut_middle, observe
from agentrl.sandbox.provider import ExecResult


def result(**fields: Any) -> ExecResult:
    return ExecResult(**{"exit_code": 0, "signal": None, "stdout": b"", "stderr": b"", **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"stdout": b"a\nb\n"}, "a\nb"),
        ({}, "(no output)"),
        ({"exit_code": 2, "stderr": b"cat: x: No\n"}, "cat: x: No\n(exit code 2)"),
        ({"exit_code": 1}, "(exit code 1)"),
        ({"exit_code": None, "signal": 9}, "(killed by signal 9)"),
        ({"exit_code": None, "timed_out": True, "stdout": b"half"}, "half\n(killed after 3 s)"),
        (
            {"exit_code": None, "signal": 9, "shell_reset": True},
            "(killed by signal 9)\n"
            "(the shell was lost; the next command starts from the folder and variables before this one)",
        ),
        ({"exit_code": 137, "oom": True}, "(killed: out of memory)"),
        ({"stdout": b"\xff"}, "\ufffd"),
        ({"stdout": b"x", "truncated": True, "bytes_total": 9}, "x\n(output of 9 bytes was cut)"),
    ],
)
def test_result_as_text(fields: dict[str, Any], text: str) -> None:
    assert observe(result(**fields), limit_chars=100, timeout_s=3.0) == text


def test_long_output_keeps_head_and_tail_and_says_what_is_missing() -> None:
    text = cut_middle("a" * 50 + "b" * 50, 10)
    assert text == "aaaaa\n(... 90 characters cut ...)\nbbbbb"


def test_output_at_the_limit_is_whole() -> None:
    assert cut_middle("x" * 10, 10) == "x" * 10
