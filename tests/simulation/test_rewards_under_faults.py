"""A run whose sandboxes are killed at random trains on exactly the rewards of an undisturbed one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from agentrl.ledger.reader import LedgerReader
from agentrl.ledger.stories import Stories, Story
from agentrl.rollout.verdict import Verdict
from agentrl.simulation.faults import Fault, FaultyRun, Target
from agentrl.simulation.life import Life, World
from agentrl.simulation.loop import simulate
from tests.simulation.small import scenario

STEPS = 6
Rewards = list[dict[tuple[str, str], float]]
"""By step: reward by group and member."""


@pytest.fixture(autouse=True)
def attempts_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a member does and earns is the same in every attempt, as if its policy and its verifier were."""
    draw = World._draw_by_law

    def first_attempt(world: World, group: int, member: int, attempt: int) -> Life:
        return draw(world, group, member, 0)

    monkeypatch.setattr(World, "_draw_by_law", first_attempt)


def trained(folder: Path, faults: list[Fault], *, snapshots: int = 0) -> tuple[Rewards, list[Story]]:
    """Rewards trained on, and every attempt of the groups that were."""
    # As many groups open as a batch takes: each step trains the same groups, whenever they were ready.
    chosen = scenario(steps=STEPS, window_groups=4, laws=["failure_share=0", "start_hang_share=0"])
    sandbox = replace(chosen.config.sandbox, snapshot_every_turns=snapshots)
    chosen = replace(chosen, config=replace(chosen.config, sandbox=sandbox))

    async def main() -> tuple[Rewards, list[Story]]:
        run = FaultyRun(chosen, folder / "ledger.sqlite")
        await run.run(faults)
        reader = LedgerReader.of(run.lives[-1].brain.ledger)
        batches = [reader.load_batch(step.step) for step in reader.steps()]
        rewards = [{(t.group, t.episode.split(".")[1]): t.reward for t in batch} for batch in batches]
        return rewards, [story for story in Stories(reader._db).all() if story.group_state == "batched"]

    folder.mkdir()
    return simulate(main(), seed=1)


def kills(seed: int) -> list[Fault]:
    chance = Random(seed)
    return [Fault(target=Target.SANDBOX, at_s=chance.uniform(1, 1500), index=chance.randrange(40)) for _ in range(12)]


@pytest.mark.parametrize("snapshots", [0, 1])
@pytest.mark.parametrize("seed", range(2))
def test_killed_sandboxes_change_no_reward_that_is_trained_on(tmp_path: Path, seed: int, snapshots: int) -> None:
    undisturbed, calm = trained(tmp_path / "calm", [])
    assert {story.verdict for story in calm} == {Verdict.SUCCESS, Verdict.MODEL_FAILURE}
    disturbed, stormy = trained(tmp_path / "stormy", kills(seed), snapshots=snapshots)
    lost = [story for story in stormy if story.verdict == Verdict.INFRA_FAILURE]
    assert len(lost) >= 0.05 * len(calm)
    assert disturbed == undisturbed
    assert len(stormy) == len(calm) + len(lost)
    resumed = [story for story in stormy if story.evidence.get("resumed_turns")]
    assert bool(resumed) == bool(snapshots)
    assert all(story.attempt > 0 and story.num_turns for story in resumed)
