"""A small real run whose sandboxes are killed at random: what it trains on is what its verifiers wrote, and replays."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from random import Random

from agentrl.ledger.reader import LedgerReader
from agentrl.ledger.stories import Stories
from tests.e2e.job import Lab


def kill_one_sandbox(run: Path, chance: Random) -> bool:
    """SIGKILL to the bwrap of one sandbox of a run, whether an episode acts in it or it waits for one."""
    for record in sorted((run / "work" / "sandboxes").glob("*.json")):
        supervisor = json.loads(record.read_text())["supervisor"]["pid"]
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
            boxes = [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "bwrap"]
            if boxes:
                os.kill(chance.choice(boxes), signal.SIGKILL)
                return True
    return False


def test_run_trains_on_its_verifiers_rewards_alone(lab: Lab) -> None:
    job = lab.launch("schedule.steps=2")
    chance, num_killed = Random(0), 0
    for _ in range(8):
        job.wait_for(lambda e: e["event"] == "episode")
        num_killed += kill_one_sandbox(lab.run, chance)
    assert num_killed > 0
    assert job.end() == 0, (lab.folder / "stderr.log").read_text()
    lab.check_each_group_trained_at_most_once(2)
    reader, stories = LedgerReader.open(lab.run / "ledger.sqlite"), Stories.open(lab.run / "ledger.sqlite")
    trained = [trajectory for step in reader.steps() for trajectory in reader.load_batch(step.step)]
    told = {story.episode: story for story in stories.all()}
    for trajectory in trained:
        story = told[trajectory.episode]
        assert story.verdict in ("success", "model_failure")
        assert story.evidence["verification"]["reward"] == trajectory.reward == story.reward
    lost = [story for story in told.values() if story.verdict == "infra_failure"]
    assert all(story.reward is None for story in lost)
    assert not {story.verdict for story in told.values()} & {"uncertain"}
    replayed = lab.command("replay", trained[0].episode, "--run", "job", "--json")
    assert json.loads(replayed.stdout)["reproduced"], replayed.stdout + replayed.stderr
    evaluated = reader.evaluations()[0]
    page = lab.command("why", evaluated.episode).stdout
    assert page.startswith(f"{evaluated.episode}  {evaluated.verdict}") and "turn 0" in page
    reader.close()
    stories.close()
