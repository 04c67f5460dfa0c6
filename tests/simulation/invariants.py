"""What holds of every run, whatever died in it: checked on its ledger, its trainer's disk, and its lives."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from agentrl.clock import monotonic
from agentrl.controller.balance.gpu_time import TRAINER
from agentrl.controller.config import Stragglers
from agentrl.ledger.accounts import read_balance, read_gpu_time
from agentrl.ledger.reader import LedgerReader
from agentrl.simulation.engine import logprob_of
from agentrl.simulation.faults import FaultyRun
from agentrl.simulation.figures import num_tokens
from agentrl.simulation.life import World
from agentrl.simulation.run import Scenario
from agentrl.simulation.tongue import parse_episode
from agentrl.wire import Trajectory

DROP_REASONS = {"zero_variance", "stale", "too_few_usable"}


def check(run: FaultyRun, scenario: Scenario, reader: LedgerReader) -> None:
    """Of a run that has ended."""
    steps_are_made_once_and_published(run, scenario, reader)
    no_group_is_trained_twice(run, reader)
    nothing_is_lost(reader)
    groups_have_their_members(scenario, reader)
    whoever_has_no_verdict_has_a_cause(reader)
    batches_are_in_launch_order_when_all_are_waited_for(scenario, reader)
    every_trained_token_is_what_was_sampled_and_fresh_enough(run, scenario)
    no_fault_is_a_reward(run)
    nothing_is_left_open(run)
    evaluations_are_whole(scenario, reader)
    gpu_time_adds_up(scenario, reader)


def steps_are_made_once_and_published(run: FaultyRun, scenario: Scenario, reader: LedgerReader) -> None:
    wanted = list(range(1, scenario.config.schedule.steps + 1))
    assert [batch.step for batch in run.trained] == wanted
    assert [step.step for step in reader.steps()] == wanted
    assert [step.batch_id for step in reader.steps()] == [batch.batch_id for batch in run.trained]
    for step in reader.steps():
        assert step.applied_at is not None and step.published_at is not None
        assert step.assigned_at <= step.applied_at <= step.published_at


def no_group_is_trained_twice(run: FaultyRun, reader: LedgerReader) -> None:
    batches = [{trajectory.group for trajectory in batch.trajectories} for batch in run.trained]
    trained = [group for batch in batches for group in batch]
    assert len(trained) == len(set(trained))
    assert {row.id for row in reader.groups(["batched"])} == set(trained)
    for batch in run.trained:
        members = [parse_episode(trajectory.episode)[:2] for trajectory in batch.trajectories]
        assert len(members) == len(set(members))


def nothing_is_lost(reader: LedgerReader) -> None:
    """Every group has left for a reason that is told, or is still there; launch numbers have no gap."""
    groups = reader.groups(["open", "ready", "batched", "dropped"])
    assert [row.seq for row in groups] == list(range(len(groups)))
    for row in groups:
        if row.state == "dropped":
            assert row.reason is not None and row.reason.partition(":")[0] in DROP_REASONS
    known = {row.id for row in groups}
    assert all(row.group in known for row in reader.episodes())


def groups_have_their_members(scenario: Scenario, reader: LedgerReader) -> None:
    """However many started: never more than a group's size is trained on, and never fewer than are usable."""
    config = scenario.config
    usable = Counter(row.group for row in reader.episodes() if row.reward is not None)
    for row in reader.groups(["ready", "batched"]):
        assert config.schedule.min_usable <= usable[row.id] <= config.algorithm.group_size


def whoever_has_no_verdict_has_a_cause(reader: LedgerReader) -> None:
    """Of the episodes that are over."""
    closed = {row.id for row in reader.groups(["ready", "batched", "dropped"])}
    for row in reader.episodes():
        if row.verdict is None and row.group in closed:
            assert row.cause in {"unfinished", "surplus", "straggler"}


def batches_are_in_launch_order_when_all_are_waited_for(scenario: Scenario, reader: LedgerReader) -> None:
    if scenario.config.schedule.stragglers is Stragglers.wait:
        steps = [row.step for row in reader.groups(["batched"])]
        assert steps == sorted(steps, key=lambda step: step or 0)


def every_trained_token_is_what_was_sampled_and_fresh_enough(run: FaultyRun, scenario: Scenario) -> None:
    world = World(scenario.workload, seed=scenario.config.seed)
    for batch in run.trained:
        for trajectory in batch.trajectories:
            life = world.life(*parse_episode(trajectory.episode))
            assert trajectory.reward == life.reward
            if num_tokens(life, world) < scenario.workload.max_episode_tokens:
                assert trajectory.num_turns == len(life.turns)
                assert trajectory.num_tokens == num_tokens(life, world)
                assert trajectory.num_sampled == sum(turn.generated_tokens for turn in life.turns)
            versions_only_grow(trajectory)
            labels_are_true(trajectory)
            lag = batch.step - 1 - trajectory.oldest_version
            assert 0 <= lag <= scenario.config.schedule.max_policy_lag


def versions_only_grow(trajectory: Trajectory) -> None:
    versions = trajectory.versions_array()[trajectory.mask_array() == 1].tolist()
    assert all(before <= after for before, after in pairwise(versions))


def labels_are_true(trajectory: Trajectory) -> None:
    """A simulated token's log-prob tells which weights really sampled it."""
    sampled = trajectory.mask_array() == 1
    versions, logprobs = trajectory.versions_array()[sampled], trajectory.logprobs_array()[sampled]
    for version in set(versions.tolist()):
        assert set(logprobs[versions == version].tolist()) == {logprob_of(version)}


def no_fault_is_a_reward(run: FaultyRun) -> None:
    lost = {owner for life in run.lives for owner in life.provider.lost}
    assert all(trajectory.episode not in lost for batch in run.trained for trajectory in batch.trajectories)


def nothing_is_left_open(run: FaultyRun) -> None:
    """Of the last controller, which had time to clean up."""
    last = run.lives[-1]
    assert last.provider.open == ()
    assert last.brain.collector.num_live == 0


def evaluations_are_whole(scenario: Scenario, reader: LedgerReader) -> None:
    """Each label once, with all its tasks."""
    num_tasks = scenario.config.schedule.eval_tasks
    labels = [row.label for row in reader.evaluations()]
    assert sorted(labels) == sorted(["before", "after"] * num_tasks)


def gpu_time_adds_up(scenario: Scenario, reader: LedgerReader) -> None:
    """Every lane was in exactly one use at any time that some controller accounted for; rows are bounded."""
    rows = read_gpu_time(reader)
    totals: dict[str, int] = {}
    for row in rows:
        totals[row.lane] = totals.get(row.lane, 0) + row.spent_us
    lanes = {f"engine-{index}" for index in range(scenario.hardware.engines)}
    assert set(totals) == (lanes | {TRAINER} if scenario.config.schedule.swing == "none" else lanes)
    (total,) = set(totals.values())
    assert 0 < total <= round(monotonic() * 1e6)
    assert len(rows) <= len(totals) * (scenario.config.schedule.steps + 1) * 8
    assert all(row.realised_s is None or row.realised_s >= 0 for row in read_balance(reader))
