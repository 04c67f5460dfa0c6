"""Recorded episodes take the place of drawn ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentrl.errors import UserError
from agentrl.simulation.config import load_workload
from agentrl.simulation.life import World
from agentrl.simulation.replay import Recorded, RecordedTurn, Replay, read_trials
from tests.simulation.small import workload

HEADER = "task,agent,trial,setup_s,agent_s,verifier_s,resolved,failure_mode\n"
ROWS = [
    "a,x,1,2,25,4,1,unset",
    "a,x,2,3,50,5,0,agent_timeout",
    "b,x,1,9,100,6,0,parse_error",
    "b,y,1,,,,0,unset",
]


def trials(folder: Path, rows: list[str] = ROWS) -> Path:
    file = folder / "trials.csv"
    file.write_text(HEADER + "\n".join(rows) + "\n")
    return file


def test_trials_are_grouped_by_task_and_agent_and_their_seconds_become_turns(tmp_path: Path) -> None:
    replay = read_trials(trials(tmp_path))
    assert [[(one.num_turns, one.start_s, one.reward, one.failed) for one in task] for task in replay.tasks] == [
        [(12, 2.0, 1.0, False), (25, 3.0, 0.0, False)],
        [(50, 9.0, 0.0, True)],
    ]


def test_a_world_lives_what_was_recorded(tmp_path: Path) -> None:
    world = World(msgspec.structs.replace(workload(), replay=read_trials(trials(tmp_path))), seed=3)
    lives = [world.life(group, member, 0) for group in range(2) for member in range(2)]
    assert sorted(len(life.turns) for life in lives) == [12, 25, 50, 50]
    assert {life.start_cold_s for life in lives if len(life.turns) == 50} == {9.0}
    assert all((life.failure_turn is not None) == (len(life.turns) == 50) for life in lives)


def test_recorded_turns_are_taken_over_in_order() -> None:
    turn = RecordedTurn(generated_tokens=5, observation_tokens=7, tool_s=0.5)
    one = Recorded(num_turns=2, turns=(turn, turn), start_s=0.1, verifier_s=0.2, reward=1.0)
    other = Recorded(num_turns=1, turns=(turn,), start_s=0.3, verifier_s=0.4, reward=0.0)
    world = World(msgspec.structs.replace(workload(), replay=Replay(tasks=((one,), (other,)), shuffled=False)), seed=0)
    assert [len(world.life(group, 0, 0).turns) for group in range(3)] == [2, 1, 2]
    assert world.life(0, 5, 0).turns[0].tool_s == 0.5


def test_seeds_meet_recorded_tasks_in_orders_of_their_own() -> None:
    tasks = tuple((Recorded(num_turns=number, start_s=0, verifier_s=0, reward=0),) for number in range(1, 30))
    replay = Replay(tasks=tasks)
    orders = [[replay.find(seed, group, 0).num_turns for group in range(29)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task,agent\n", r"no column 'setup_s'"),
        (HEADER, "no trial has setup_s"),
        (HEADER + "a,x,1,2,many,4,1,unset\n", "agent_s is 'many', not a number"),
    ],
)
def test_a_file_of_trials_that_is_wrong_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "trials.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_trials(file)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.csv: cannot be read"):
        read_trials(tmp_path / "none.csv")


def test_the_packaged_terminal_bench_has_the_trials_quantiles() -> None:
    laws = load_workload("terminal_bench")
    world = World(laws, seed=0)
    starts = sorted(world.life(group, member, 0).start_cold_s for group in range(100) for member in range(8))
    assert starts[len(starts) // 2] == pytest.approx(6.6, rel=0.2)
    assert starts[-1] > 600
