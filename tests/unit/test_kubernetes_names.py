from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from agentrl.kubernetes.names import dns_name, label_value, labels, object_name, selector

RUN_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)


@given(st.lists(RUN_NAMES, min_size=1, max_size=3))
def test_names_are_dns_labels(parts: list[str]) -> None:
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", dns_name(*parts))


@given(RUN_NAMES, RUN_NAMES)
def test_different_runs_have_different_names(one: str, other: str) -> None:
    assert (object_name(one, 3, "sb-7") == object_name(other, 3, "sb-7")) is (one == other)
    assert (label_value(one) == label_value(other)) is (one == other)


@given(st.text(min_size=1))
def test_label_values_are_valid(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", label_value(text))


def test_a_plain_name_stays_readable() -> None:
    assert object_name("exp-1", 3, "sb-7") == "exp-1-e3-sb-7"
    assert object_name("exp-1", 4, "sb-7") != object_name("exp-1", 3, "sb-7")
    assert label_value("g000001.m002.a00") == "g000001.m002.a00"
    assert labels("exp-1", role="sandbox", epoch=3)["agentrl.dev/epoch"] == "3"
    assert selector({"b": "1", "a": None}) == "a,b=1"
