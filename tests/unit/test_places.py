"""Places on engines: an episode stays, waits for room, and gives a place up that it only keeps."""

from __future__ import annotations

import random

from agentrl.controller.fleet.places import Places
from agentrl.controller.fleet.routing import Load, Routing


def places(*engines: str, capacity: int = 100, keep_s: float = 20.0) -> Places:
    made = Places(kv_share=1.0, keep_s=keep_s)
    for engine in engines:
        made.add(engine, capacity)
    return made


def test_new_episodes_go_to_the_engine_with_the_most_room_and_then_stay() -> None:
    made = places("a", "b")
    assert made.place("long", 50, 0.0) == "a"
    assert made.place("e1", 10, 0.0) == "b"
    assert made.place("e2", 10, 0.0) == "b"
    assert made.place("long", 60, 1.0) == "a"
    made.forget("long")
    assert made.place("e3", 10, 1.0) == "a"


def test_episodes_move_when_their_engine_leaves_and_find_none_when_none_is_left() -> None:
    made = places("a")
    made.place("e0", 10, 0.0)
    made.remove("a")
    made.remove("a")
    assert made.place("e0", 10, 0.0) is None
    made.add("b", 100)
    assert made.place("e0", 10, 0.0) == "b"
    made.forget("e0")
    made.forget("e0")


def test_what_does_not_fit_waits_until_an_episode_ends() -> None:
    made = places("a")
    made.place("e0", 60, 0.0)
    assert made.place("e1", 50, 0.0) is None
    assert not made.has("e1")
    made.forget("e0")
    assert made.place("e1", 50, 0.0) == "a"


def test_a_place_that_is_only_kept_is_given_up_after_a_while_to_who_needs_it() -> None:
    made = places("a")
    made.place("e0", 60, 0.0)
    made.idle("e0", 70, 10.0)
    assert made.next_room(10.0) == 30.0
    assert made.place("e1", 50, 29.0) is None
    assert made.place("e1", 50, 30.0) == "a"
    assert not made.has("e0")


def test_a_place_is_kept_for_as_long_as_nobody_needs_it() -> None:
    made = places("a", "b")
    made.place("e0", 60, 0.0)
    made.idle("e0", 60, 0.0)
    assert made.place("e1", 50, 1000.0) == "b"
    assert made.has("e0")


def test_a_place_in_use_is_never_given_up() -> None:
    made = places("a")
    made.place("e0", 60, 0.0)
    assert made.place("e1", 50, 1e6) is None
    assert made.next_room(0.0) is None


def test_anything_fits_on_an_engine_that_has_nothing() -> None:
    made = places("a")
    assert made.place("huge", 1000, 0.0) == "a"
    assert made.place("e1", 1, 0.0) is None


def test_after_a_flush_nobody_has_a_place() -> None:
    made = places("a", "b")
    for episode in ("e0", "e1", "e2"):
        made.place(episode, 30, 0.0)
    made.flushed()
    assert not any(made.has(episode) for episode in ("e0", "e1", "e2"))
    assert made.place("e0", 90, 0.0) is not None
    assert made.place("e1", 90, 0.0) is not None


def test_another_routing_can_take_its_place() -> None:
    class Last(Routing):
        def choose(self, episode, loads):  # type: ignore[no-untyped-def]
            return max((load.engine for load in loads), default=None)

    made = Places(kv_share=1.0, routing=Last())
    made.add("a", 100)
    made.add("b", 100)
    assert made.place("e0", 10, 0.0) == "b"
    assert Routing().key("e0") == "e0"
    assert Routing().choose("e0", [Load(engine="a", num_episodes=0, free_tokens=1.0)]) == "a"


def test_placed_contexts_never_exceed_the_share_however_it_goes() -> None:
    rng = random.Random(0)
    made = Places(kv_share=0.5, keep_s=5.0)
    for engine in ("a", "b", "c"):
        made.add(engine, 200)
    held: dict[str, tuple[str, int]] = {}
    for now in range(3000):
        episode, size = f"e{rng.randrange(40)}", rng.randrange(1, 60)
        if rng.random() < 0.2:
            made.forget(episode)
        elif rng.random() < 0.3:
            made.idle(episode, held.get(episode, ("", size))[1], float(now))
        elif not made.has(episode) and (engine := made.place(episode, size, float(now))):
            held[episode] = engine, size
        held = {other: where for other, where in held.items() if made.has(other)}
        for engine in made.engines:
            assert sum(tokens for place, tokens in held.values() if place == engine) <= 100
