"""The watch's decisions, event by event."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.kubernetes.errors import Gone, Unreachable
from agentrl.kubernetes.watch_state import RESYNC_S, Change, Kind, List, Watch, WatchState


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def event(kind: str, name: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": pod(name, version)}


def told(changes: list[Change]) -> list[tuple[Kind, str]]:
    return [(change.kind, change.object["metadata"]["name"]) for change in changes]


def names(state: WatchState) -> list[str]:
    return sorted(item["metadata"]["name"] for item in state.objects.values())


def test_it_lists_and_then_watches_from_there() -> None:
    state = WatchState()
    assert state.next(0.0, 0.5) == List()
    assert told(state.listed([pod("a", 3), pod("b", 4)], "10", 0.0)) == [(Kind.CHANGED, "a"), (Kind.CHANGED, "b")]
    assert state.next(1.0, 0.5) == Watch("10")
    assert told(state.event(event("MODIFIED", "a", 11), 1.0)) == [(Kind.CHANGED, "a")]
    assert told(state.event(event("DELETED", "b", 12), 1.0)) == [(Kind.GONE, "b")]
    assert told(state.event(event("DELETED", "b", 12), 1.0)) == []
    assert names(state) == ["a"]
    assert state.next(2.0, 0.5) == Watch("12")


def test_bookmarks_move_it_on_and_change_nothing() -> None:
    state = WatchState()
    state.listed([pod("a", 3)], "10", 0.0)
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "99"}}}
    assert state.event(bookmark, 1.0) == []
    assert state.next(2.0, 0.5) == Watch("99")
    assert names(state) == ["a"]


def test_a_forgotten_version_lists_again_and_tells_what_was_missed() -> None:
    state = WatchState()
    state.listed([pod("a", 3), pod("b", 4)], "10", 0.0)
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    with pytest.raises(Gone) as caught:
        state.event(error, 1.0)
    state.failed(caught.value)
    assert state.next(1.0, 0.5) == List()
    missed = state.listed([pod("b", 4), pod("c", 20)], "30", 2.0)
    assert told(missed) == [(Kind.GONE, "a"), (Kind.CHANGED, "c")]
    assert state.next(2.0, 0.5) == Watch("30")


def test_a_server_that_forgets_at_once_is_asked_ever_more_seldom() -> None:
    state, pauses = WatchState(), []
    for _ in range(5):
        pauses.append(state.next(0.0, 0.0).after_s)
        state.failed(Gone("x"))
    assert pauses == sorted(pauses)
    assert pauses[-1] > 0.5


def test_failures_are_spread_and_forgotten_with_the_next_word() -> None:
    state = WatchState()
    state.listed([], "10", 0.0)
    pauses = []
    for _ in range(4):
        state.failed(Unreachable("x"))
        action = state.next(1.0, 0.0)
        assert isinstance(action, Watch) and action.resource_version == "10"
        pauses.append(action.after_s)
    assert pauses == [0.125, 0.25, 0.5, 1.0]
    state.event(event("ADDED", "a", 11), 2.0)
    assert state.next(2.0, 0.0) == Watch("11")


def test_now_and_then_everything_is_listed_anew() -> None:
    state = WatchState()
    state.listed([pod("a", 3)], "10", 0.0)
    assert isinstance(state.next(RESYNC_S - 1, 0.5), Watch)
    assert state.next(RESYNC_S, 0.5) == List()
    assert state.listed([pod("a", 3)], "40", RESYNC_S) == []


def test_an_object_made_anew_under_its_name_is_another() -> None:
    state = WatchState()
    state.listed([pod("a", 3)], "10", 0.0)
    again = pod("a", 12)
    again["metadata"]["uid"] = "another"
    assert told(state.listed([again], "13", 1.0)) == [(Kind.GONE, "a"), (Kind.CHANGED, "a")]
