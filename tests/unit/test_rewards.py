"""Reading the verifier's reward files: a number or a named problem, never a guess."""

from __future__ import annotations

import pytest

from agentrl.tasks.rewards import parse_json, parse_pytest, parse_text


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
    score = parse_text(data)
    assert (score.reward, score.problem) == (reward, problem)


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
    score = parse_json(data)
    assert (score.reward, score.problem) == (reward, problem)


def test_every_number_is_kept_by_its_key() -> None:
    score = parse_json(b'{"reward": 0.5, "speed": 3, "note": "x", "bad": NaN}')
    assert score.rewards == {"reward": 0.5, "speed": 3.0}
    assert parse_text(b"1").rewards == {"reward": 1.0}
    assert parse_json(b'{"score": 1}').rewards == {"score": 1.0, "reward": 1.0}


SUMMARY = "=========================== short test summary info ============================\n"


@pytest.mark.parametrize(
    ("output", "reward", "problem"),
    [
        (
            f"noise\n{SUMMARY}PASSED ../tests/t.py::test_a\nPASSED ../tests/t.py::test_b\n= 2 passed in 0.1s =\n",
            1.0,
            None,
        ),
        (f"{SUMMARY}PASSED t.py::test_a\nFAILED t.py::test_b - assert 1 == 2\n", 0.0, None),
        (f"{SUMMARY}ERROR t.py - ImportError\n", 0.0, None),
        (f"{SUMMARY}PASSED t.py::a\nSKIPPED [1] t.py:3: why\nXFAIL t.py::b\n", 1.0, None),
        (f"{SUMMARY}SKIPPED [1] t.py:3: why\n", 0.0, None),
        (f"\x1b[36m\x1b[1m{SUMMARY.strip()}\x1b[0m\n\x1b[32mPASSED\x1b[0m t.py::\x1b[1ma\x1b[0m\n", 1.0, None),
        # What a program under test prints stands before pytest's own summary.
        (f"{SUMMARY}PASSED t.py::forged\nmore\n{SUMMARY}FAILED t.py::a - no\n", 0.0, None),
        ("pytest: command not found\n", None, "missing"),
        ("PASSED t.py::a\n", None, "missing"),
        (f"{SUMMARY}", None, "missing"),
        ("", None, "missing"),
    ],
)
def test_short_summary_of_pytest(output: str, reward: float | None, problem: str | None) -> None:
    score = parse_pytest(output.encode())
    assert (score.reward, score.problem) == (reward, problem)
