"""`episodes`, `why` and `replay` on a run whose episodes acted in real sandboxes."""

from __future__ import annotations

import json
import tarfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.config.schema import JobConfig
from agentrl.controller.lifecycle.branching import load_origin, only_its_task
from agentrl.controller.lifecycle.records import LedgerRecords
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.controller.scheduling.collector import evidence_json
from agentrl.errors import UserError
from agentrl.ledger.ledger import Ledger
from agentrl.model.config import ModelConfig
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.attempt import EpisodeSpec
from agentrl.rollout.branch import Branch
from agentrl.rollout.config import AgentConfig, ToolFormat
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.verdict import Verdict
from agentrl.tasks.config import TasksConfig
from agentrl.tasks.dataset import Dataset
from agentrl.tasks.folders import load_task
from agentrl.trainer.score import score
from agentrl.wire import Trajectory
from tests.fixtures.sandboxes import SMALL, bubblewrap
from tests.fixtures.task_folders import make_task
from tests.fixtures.tiny_model import make_tiny_model
from tests.integration.test_evidence import JUDGE, Alphabet, Records, Script

AGENT = AgentConfig(format=ToolFormat.line, max_turns=6, max_turn_tokens=2000, max_episode_tokens=20000)
EPISODES = {
    "g000000.m000.a00": ["echo 41 > answer", "printf '[red]x[/red]\\033[2J'", "cat missing", "echo 42 > answer"],
    "g000000.m001.a00": ["date +%N", "true"],
}


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return result.exit_code, result.output


@pytest.fixture
async def runs(tmp_path: Path) -> AsyncIterator[Path]:
    """A folder of runs with one run `job`: a solved episode, and one that did not do the same thing twice."""
    folder = make_task(tmp_path / "tasks" / "answer", test=JUDGE, dockerfile="FROM x\nWORKDIR /app\n")
    config = JobConfig(
        agent=AGENT,
        sandbox=SMALL,
        tasks=TasksConfig(path=str(tmp_path / "tasks"), num_heldout=0),
        model=ModelConfig(path=str(tmp_path / "model")),
    )
    directory = RunDirectory.create(tmp_path / "runs", "job", "job", "", config)
    ledger = Ledger.take(directory.ledger)
    ledger.open_group("g000000", seq=0, task="answer")
    async with bubblewrap(tmp_path / "state") as provider:
        for member, (episode, commands) in enumerate(EPISODES.items()):
            runner = EpisodeRunner(
                agent=AGENT,
                chat=Alphabet(),
                sampler=Script(*commands),
                provider=provider,
                recorder=LedgerRecords(ledger),
                active_time=ActiveTime(),
            )
            ledger.start_episode(episode, group="g000000", member=member, attempt=0, version=3)
            spec = EpisodeSpec(episode=episode, group="g000000", task=load_task(folder), seed=0)
            result = await runner.run(spec)
            ledger.end_episode(
                episode,
                verdict=result.verdict.value,
                cause=result.cause.value,
                num_turns=result.num_turns,
                num_tokens=result.num_tokens,
                active_s=result.active_s,
                evidence=evidence_json(result),
                trajectory=result.trajectory,
            )
    ledger.close()
    yield tmp_path / "runs"


def test_a_runs_episodes_can_be_listed_and_chosen(runs: Path) -> None:
    code, listed = run("episodes", "job", "--runs-dir", str(runs), "--json")
    rows = json.loads(listed)
    assert code == 0 and [row["episode"] for row in rows] == list(EPISODES)
    assert [(row["verdict"], row["reward"], row["version"]) for row in rows] == [
        ("success", 1.0, 3),
        ("model_failure", 0.0, 3),
    ]
    code, failed = run(
        "episodes", "job", "--runs-dir", str(runs), "--verdict", "model_failure", "--task", "ans*", "--json"
    )
    assert [row["episode"] for row in json.loads(failed)] == ["g000000.m001.a00"]
    code, longest = run("episodes", "job", "--runs-dir", str(runs), "--longest", "1")
    assert code == 0 and "1 episodes" in longest
    with pytest.raises(UserError, match="no such verdict"):
        run("episodes", "job", "--runs-dir", str(runs), "--verdict", "bad")
    with pytest.raises(UserError, match="tasks: answer"):
        run("episodes", "job", "--runs-dir", str(runs), "--task", "other")


def test_why_tells_the_turns_the_time_the_group_and_the_evidence(runs: Path) -> None:
    code, page = run("why", "g000000.m000.a00", "--runs-dir", str(runs))
    assert code == 0
    assert page.startswith("g000000.m000.a00  success: rewarded, reward 1\n")
    told = ("task answer", "version 3", "$ echo 41 > answer", "exit code 1", "cat: missing", "g000000.m001.a00")
    assert [part for part in told if part not in page] == []
    assert "[red]x[/red]\\x1b[2J" in page and "\x1b" not in page
    code, story = run("why", "g000000.m000.a00", "--runs-dir", str(runs), "--json")
    assert [turn["command"] for turn in json.loads(story)["turns"]] == [*EPISODES["g000000.m000.a00"], None]
    with pytest.raises(UserError, match=r"did you mean g000000\.m000\.a00"):
        run("why", "g000000.m000.a0", "--runs-dir", str(runs))


def test_a_replay_says_whether_the_same_happens_again(runs: Path) -> None:
    code, said = run("replay", "g000000.m000.a00", "--runs-dir", str(runs))
    assert (code, said) == (0, "reproducible: all 4 commands did the same, and the reward is 1 again\n")
    code, said = run("replay", "g000000.m001.a00", "--run", "job", "--runs-dir", str(runs))
    assert code == 1 and "turn 0: $ date +%N" in said
    assert said.splitlines()[-1].startswith("the same outcome by another way: 1 of 2 commands did otherwise (turn 0)")


def test_a_bundle_replays_without_the_run(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "episode.tar.gz"
    assert run("replay", "g000000.m000.a00", "--bundle", str(file), "--runs-dir", str(runs))[0] == 0
    with tarfile.open(file) as archive:
        names = archive.getnames()
        assert "task/tests/test.sh" in names and "episode.json" in names
    runs.rename(tmp_path / "gone")
    (tmp_path / "tasks").rename(tmp_path / "gone-too")
    code, said = run("replay", str(file), "--json")
    found = json.loads(said)
    assert (code, found["reproduced"], found["num_commands"]) == (0, True, 4)
    broken = tmp_path / "broken"
    broken.write_bytes(b"no tar")
    with pytest.raises(UserError, match="not a bundle"):
        run("replay", str(broken))
    with pytest.raises(UserError, match="a bundle has no tokens"):
        run("replay", str(file), "--policy", "1")


def test_tokens_are_scored_under_another_version(runs: Path, tmp_path: Path) -> None:
    tiny_model = make_tiny_model(tmp_path / "model")
    ids, mask = [5, 6, 7, 8, 9, 10], [0, 0, 1, 1, 0, 1]
    logprobs = score(str(tiny_model), [{"ids": ids, "mask": mask}], 1.0)
    assert len(logprobs) == 3 and all(value < 0 for value in logprobs)
    then = np.zeros(6, dtype=np.float32)
    then[np.asarray(mask) == 1] = logprobs
    ledger = Ledger.take(runs / "job" / "ledger.sqlite")
    ledger.start_episode("g000000.m002.a00", group="g000000", member=2, attempt=0)
    trajectory = Trajectory(
        episode="g000000.m002.a00",
        group="g000000",
        task="answer",
        reward=1.0,
        ids=np.asarray(ids, dtype=np.int32).tobytes(),
        mask=bytes(mask),
        logprobs=then.tobytes(),
        versions=np.asarray([-1, -1, 0, 0, -1, 1], dtype=np.int32).tobytes(),
        num_turns=2,
    )
    ledger.end_episode(
        "g000000.m002.a00",
        verdict="success",
        cause="rewarded",
        num_turns=2,
        num_tokens=6,
        active_s=1.0,
        evidence={},
        trajectory=trajectory,
    )
    ledger.close()
    words = ("replay", "g000000.m002.a00", "--policy", "0", "--runs-dir", str(runs), "--json")
    code, said = run(*words)
    found = json.loads(said)
    assert code == 0 and [token["version"] for token in found["tokens"]] == [0, 0, 1]
    assert found["max_difference"] < 1e-5 and found["k3"] < 1e-9
    with pytest.raises(UserError, match="version 7 is not kept"):
        run("replay", "g000000.m002.a00", "--policy", "7", "--runs-dir", str(runs))


async def test_a_hard_state_becomes_a_group_of_its_own(runs: Path, tmp_path: Path) -> None:
    """Both members begin where the episode was after two turns: `answer` holds 41, and the tokens are context."""
    config = RunDirectory(runs / "job").load_config()
    branched = replace(config, tasks=replace(config.tasks, branch_from="job/g000000.m000.a00@2"))
    branched = replace(branched, cluster=replace(config.cluster, runs_dir=str(runs)))
    directory = RunDirectory.create(runs, "branch", "branch", "", branched)
    origin = load_origin(directory, branched)
    assert origin is not None and [turn.command for turn in origin.turns] == EPISODES["g000000.m000.a00"][:2]
    assert load_origin(directory, replace(branched, cluster=config.cluster)) == origin
    task = load_task(tmp_path / "tasks" / "answer")
    assert [one.name for one in only_its_task(Dataset((task,), ()), origin).train] == ["answer"]
    results = []
    async with bubblewrap(tmp_path / "branch-state") as provider:
        branch = Branch(origin, AGENT, Alphabet(), provider)
        for member, command in enumerate(("[ $(cat answer) = 41 ] && echo 42 > answer", "rm answer")):
            runner = EpisodeRunner(
                agent=AGENT,
                chat=Alphabet(),
                sampler=Script(command),
                provider=provider,
                recorder=Records(),
                active_time=ActiveTime(),
                branch=branch,
            )
            spec = EpisodeSpec(episode=f"g000000.m00{member}.a00", group="g000000", task=task, seed=0)
            results.append(await runner.run(spec))
    assert [result.verdict for result in results] == [Verdict.SUCCESS, Verdict.MODEL_FAILURE]
    trajectory = results[0].trajectory
    assert trajectory is not None and trajectory.ids_array()[: len(origin.ids)].tolist() == origin.ids
    assert not trajectory.mask_array()[: len(origin.ids)].any() and trajectory.num_turns == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("g000000.m000.a00", "not of the form"),
        ("job/g000000.m000.a00@5", "it has 5 turns"),
        ("job/g000009.m000.a00@1", "no episode"),
        ("none/g000000.m000.a00@1", "no run 'none'"),
    ],
)
def test_a_branch_that_cannot_be_is_one_line(runs: Path, text: str, problem: str) -> None:
    config = RunDirectory(runs / "job").load_config()
    config = replace(config, tasks=replace(config.tasks, branch_from=text))
    config = replace(config, cluster=replace(config.cluster, runs_dir=str(runs)))
    with pytest.raises(UserError, match=problem):
        load_origin(RunDirectory(runs / "other"), config)
