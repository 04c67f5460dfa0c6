"""How long episodes will become: from the prior to what is seen, of all episodes and of the task's own."""

from __future__ import annotations

import random

import pytest

from agentrl.controller.scheduling.forecast import PRIOR_SHARE, Forecast
from agentrl.controller.scheduling.progress import Progress


def seen(lengths: list[float], *, longest: float = 1000.0, task: str = "t") -> Forecast:
    forecast = Forecast(longest)
    for length in lengths:
        forecast.grow(task, 0, length)
        forecast.end(task, length)
    return forecast


def test_before_anything_has_ended_the_mean_is_a_share_of_the_longest() -> None:
    assert Forecast(1000).remaining("t", 0) == pytest.approx(1000 * PRIOR_SHARE, rel=0.01)


def test_the_mean_moves_to_what_is_seen() -> None:
    assert seen([300.0] * 2000).remaining("other", 0) == pytest.approx(300, rel=0.15)


def test_the_mean_of_drawn_lengths_is_found() -> None:
    rng = random.Random(0)
    lengths = [min(rng.lognormvariate(5.0, 0.75), 1000.0) for _ in range(4000)]
    assert seen(lengths).remaining("other", 0) == pytest.approx(sum(lengths) / len(lengths), rel=0.1)


def test_an_episode_that_is_already_long_is_expected_to_end_up_longer() -> None:
    rng = random.Random(1)
    forecast = seen([min(rng.lognormvariate(5.0, 0.75), 1000.0) for _ in range(1000)])
    finals = [length + forecast.remaining("other", length) for length in range(0, 1001, 50)]
    assert finals == sorted(finals)
    assert finals[-1] == 1000


def test_the_long_ones_that_still_run_are_not_forgotten_at_the_start() -> None:
    short_ends_first = seen([100.0] * 10)
    with_running = seen([100.0] * 10)
    for _ in range(30):
        with_running.grow("t", 0, 400.0)
    assert with_running.remaining("other", 0) > 1.5 * short_ends_first.remaining("other", 0)


def test_a_task_that_runs_long_is_expected_to_go_on_and_shrunk_to_the_mean_when_little_is_known() -> None:
    rng = random.Random(2)
    forecast = seen([min(rng.lognormvariate(5.0, 0.75), 1000.0) for _ in range(1000)], task="usual")
    usual = forecast.remaining("never seen", 0)
    forecast.grow("long", 0, 600.0)
    after_one = forecast.remaining("long", 0)
    for _ in range(20):
        forecast.grow("long", 0, 600.0)
        forecast.end("long", 600.0)
    assert usual < after_one < forecast.remaining("long", 0)
    assert after_one < 2 * usual


def test_nothing_grows_beyond_the_longest() -> None:
    forecast = seen([900.0] * 50)
    assert forecast.remaining("t", 1000) == 0
    assert forecast.remaining("t", 1200) == 0
    assert 950 + forecast.remaining("t", 950) <= 1000


def test_progress_sums_what_is_held_and_what_is_to_come() -> None:
    progress = Progress(max_episode_tokens=1000)
    assert progress.totals() == (0, 0)
    for episode in ("a", "b"):
        progress.start(episode, "t")
    assert progress.remaining_s("a") is None
    for episode in ("a", "b"):
        progress.turn(episode, num_tokens=100, seconds=5.0)
    used, remaining = progress.totals()
    assert used == 200
    assert progress.remaining_s("a") == pytest.approx(remaining / 2 * 5 / 100)
    reached = progress.end("a", by_itself=True)
    assert (reached.num_turns, reached.num_tokens) == (1, 100)
    assert progress.totals()[0] == 100


def test_progress_ignores_episodes_that_it_was_not_told_to_start() -> None:
    progress = Progress(max_episode_tokens=1000)
    progress.turn("evaluation", num_tokens=100, seconds=1.0)
    assert progress.totals() == (0, 0)
