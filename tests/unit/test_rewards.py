"""Reading the verifier's reward files: a number or a named problem, never a guess."""

from __future__ import annotations

import pytest

from agentrl.tasks.verifier import parse_json, parse_text


@pytest.mark.parametrize(
    ("data", "reward", "problem"),
    [
        (b"1\n", 1.0, None),
        (b" 0.25 ", 0.25, None),
        (b"-1e-3", -0.001, None),
        (b"", None, "empty"),
        (b" \n", None, "empty"),
        (b"passed", None, "not_a_number"),
        (b"1 2", None, "not_a_number"),
        (b"\xff\xfe", None, "not_a_number"),
        (b"nan", None, "not_finite"),
        (b"inf", None, "not_finite"),
        (b"1e999", None, "not_finite"),
    ],
)
def test_text(data: bytes, reward: float | None, problem: str | None) -> None:
    assert parse_text(data) == (reward, problem)


@pytest.mark.parametrize(
    ("data", "reward", "problem"),
    [
        (b"1", 1.0, None),
        (b"0.5", 0.5, None),
        (b'{"reward": 0.5, "speed": 3}', 0.5, None),
        (b'{"score": 1}', 1.0, None),
        (b'{"a": 1, "b": 0}', None, "ambiguous"),
        (b"{}", None, "not_a_number"),
        (b"[1]", None, "not_a_number"),
        (b"true", None, "not_a_number"),
        (b'"1"', None, "not_a_number"),
        (b'{"reward": null}', None, "not_a_number"),
        (b"NaN", None, "not_finite"),
        (b"-Infinity", None, "not_finite"),
        (b"1" + b"0" * 400, None, "not_finite"),
        (b"", None, "empty"),
        (b"{", None, "unreadable"),
        (b"\xff", None, "unreadable"),
        (b"[" * 60000, None, "unreadable"),
    ],
)
def test_json(data: bytes, reward: float | None, problem: str | None) -> None:
    assert parse_json(data) == (reward, problem)
