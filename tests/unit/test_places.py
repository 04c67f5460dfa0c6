"""Where episodes sample, and what still fits beside them."""

from __future__ import annotations

from agentrl.controller.places import Places


def two_engines() -> Places:
    places = Places(kv_share=0.5)
    places.add("a", 1000)
    places.add("b", 1000)
    return places


def test_an_episode_stays_until_its_engine_leaves() -> None:
    places = two_engines()
    first = places.place("e1", 10)
    assert first is not None
    assert places.place("e1", 20) == first
    places.remove(first)
    assert not places.has("e1")
    assert places.place("e1", 20) not in (first, None)


def test_contexts_fit_up_to_the_share_of_all_engines_in_service() -> None:
    places = two_engines()
    places.place("e1", 600)
    assert places.fits(400)
    assert not places.fits(401)
    places.remove("b" if places.place("e1", 600) == "a" else "a")
    assert not places.fits(1)
    places.forget("e1")
    assert places.fits(5000), "where nothing is, anything has room"


def test_nothing_fits_where_no_engine_is() -> None:
    places = Places(kv_share=1.0)
    assert not places.fits(1)
    assert places.place("e", 1) is None
    assert (len(places), places.capacity_tokens) == (0, 0)
