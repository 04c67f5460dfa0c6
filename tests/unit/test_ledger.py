"""The ledger's promises: one batch per group, one application per step, nothing from a superseded controller."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentrl.controller.lifecycle.recovery import load_batch, recover
from agentrl.controller.scheduling.groups import GroupBook
from agentrl.controller.scheduling.ready_pool import ReadyPool
from agentrl.errors import Superseded, UserError
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.ledger.rows import EvaluationRow, ProcessRow, StepRow
from agentrl.ledger.stories import Stories
from agentrl.wire import Segment, Trajectory, encode


def trajectory(episode: str, reward: float = 1.0, version: int = 0) -> Trajectory:
    return Trajectory(
        episode=episode,
        group=episode.partition(".")[0],
        task="t",
        reward=reward,
        ids=np.arange(3, dtype=np.int32).tobytes(),
        mask=b"\0\1\1",
        logprobs=np.zeros(3, dtype=np.float32).tobytes(),
        versions=np.array([-1, version, version], dtype=np.int32).tobytes(),
        num_turns=1,
    )


def end(ledger: Ledger, episode: str, reward: float | None, verdict: str = "success") -> None:
    ledger.end_episode(
        episode,
        verdict=verdict,
        cause="rewarded",
        num_turns=1,
        num_tokens=3,
        active_s=1.0,
        evidence={},
        trajectory=None if reward is None else trajectory(episode, reward),
    )


def run_group(ledger: Ledger, seq: int, rewards: tuple[float, ...]) -> str:
    """A group whose members all ended with a usable verdict; still open."""
    group = f"g{seq}"
    ledger.open_group(group, seq=seq, task="t")
    for member, reward in enumerate(rewards):
        episode = f"{group}.m{member}.a0"
        ledger.start_episode(episode, group=group, member=member, attempt=0)
        end(ledger, episode, reward)
    return group


def step(number: int) -> StepRow:
    return StepRow(step=number, batch_id=f"b{number}", assigned_at=0.0, time_to_batch_s=1.5, reward_sampled=0.5)


def book(size: int = 2) -> GroupBook:
    return GroupBook(group_size=size, max_infra_retries=3, min_usable=2)


def pool() -> ReadyPool:
    return ReadyPool(groups_per_step=2, max_policy_lag=4, drop_zero_variance=True, max_refill=3.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def test_every_write_of_a_superseded_controller_is_refused(path: Path) -> None:
    old = Ledger.take(path)
    new = Ledger.take(path)
    assert new.epoch == old.epoch + 1
    with pytest.raises(Superseded):
        old.open_group("g0", seq=0, task="t")
    new.open_group("g0", seq=0, task="t")


def test_group_can_be_batched_only_once_and_only_when_ready(path: Path) -> None:
    ledger = Ledger.take(path)
    group = run_group(ledger, 0, (0.0, 1.0))
    with pytest.raises(AssertionError):
        ledger.assign_batch(step(1), [group], [])
    ledger.close_group(group, "ready")
    ledger.assign_batch(step(1), [group], [])
    with pytest.raises(AssertionError):
        ledger.assign_batch(step(2), [group], [])
    assert [row.step for row in LedgerReader.of(ledger).steps()] == [1]


def test_batch_that_cannot_be_assigned_whole_is_not_assigned_at_all(path: Path) -> None:
    ledger = Ledger.take(path)
    ready = run_group(ledger, 0, (0.0, 1.0))
    ledger.close_group(ready, "ready")
    with pytest.raises(AssertionError):
        ledger.assign_batch(step(1), [ready, "g9"], [])
    reader = LedgerReader.of(ledger)
    assert reader.steps() == []
    assert [row.id for row in reader.groups(["ready"])] == [ready]


def test_group_cannot_close_twice(path: Path) -> None:
    ledger = Ledger.take(path)
    group = run_group(ledger, 0, (1.0, 1.0))
    ledger.close_group(group, "dropped", reason="zero_variance")
    with pytest.raises(AssertionError):
        ledger.close_group(group, "ready")


def test_episode_ends_once(path: Path) -> None:
    ledger = Ledger.take(path)
    run_group(ledger, 0, (1.0,))
    with pytest.raises(AssertionError):
        end(ledger, "g0.m0.a0", 0.0)


def test_step_is_applied_once(path: Path) -> None:
    ledger = Ledger.take(path)
    ledger.assign_batch(step(1), [], [])
    assert ledger.apply_step(1, weights_path="/w", metrics={"loss": 1.0})
    assert not ledger.apply_step(1, weights_path="/other", metrics={})
    assert LedgerReader.of(ledger).step(1).weights_path == "/w"
    assert LedgerReader.of(ledger).step(1).metrics == {"loss": 1.0}


def test_another_connection_reads_what_was_written(path: Path) -> None:
    ledger = Ledger.take(path)
    run_group(ledger, 0, (0.0, 1.0))
    reader = LedgerReader.open(path)
    assert reader.verdict_counts() == {"success": 2}
    assert reader.next_seq() == 1
    reader.close()


def test_ledger_that_is_not_there_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no ledger there"):
        LedgerReader.open(tmp_path / "none.sqlite")


def test_processes_are_listed_until_they_end(path: Path) -> None:
    ledger = Ledger.take(path)
    ledger.record_process(ProcessRow(10, 77, "trainer", 0.0))
    reader = LedgerReader.of(ledger)
    assert [row.role for row in reader.processes()] == ["trainer"]
    ledger.end_process(10, 77)
    assert reader.processes() == []


def test_evaluation_is_recorded_whole(path: Path) -> None:
    ledger = Ledger.take(path)
    rows = [EvaluationRow("before", 0, f"e{i}", "t", "success", 1.0) for i in range(3)]
    ledger.record_evaluations(rows)
    assert LedgerReader.of(ledger).evaluations() == rows


def test_recovery_of_a_new_run_starts_at_version_0(path: Path) -> None:
    recovered = recover(Ledger.take(path), book(), pool())
    assert (recovered.applied, recovered.pending, recovered.next_seq) == (0, None, 0)


def test_recovery_runs_again_what_was_running_and_keeps_what_had_ended(path: Path) -> None:
    ledger = Ledger.take(path)
    ledger.open_group("g0", seq=0, task="t")
    for member in range(3):
        ledger.start_episode(f"g0.m{member}.a0", group="g0", member=member, attempt=0)
    end(ledger, "g0.m0.a0", 1.0)
    end(ledger, "g0.m1.a0", None, verdict="infra_failure")
    successor = Ledger.take(path)
    groups, ready = book(size=3), pool()
    recover(successor, groups, ready)
    assert [(x.member, x.attempt) for x in groups.launch(9)] == [(1, 1), (2, 1)]
    rows = {row.id: row for row in LedgerReader.of(successor).episodes()}
    assert (rows["g0.m2.a0"].verdict, rows["g0.m2.a0"].cause) == (None, "unfinished")


def test_recovery_closes_a_group_whose_last_member_had_ended(path: Path) -> None:
    run_group(Ledger.take(path), 0, (0.0, 1.0))
    run_group(ledger := Ledger.take(path), 1, (1.0, 1.0))
    groups, ready = book(), pool()
    recover(ledger, groups, ready)
    assert (len(groups), len(ready), ready.num_consumed) == (0, 1, 1)
    assert [row.state for row in LedgerReader.of(ledger).groups(["ready", "dropped"])] == ["ready", "dropped"]


def test_recovery_brings_back_ready_groups_and_uncharged_drops(path: Path) -> None:
    ledger = Ledger.take(path)
    ledger.close_group(run_group(ledger, 0, (0.0, 1.0)), "ready")
    ledger.close_group(run_group(ledger, 1, (1.0, 1.0)), "dropped", reason="zero_variance")
    ready = pool()
    recover(Ledger.take(path), book(), ready)
    assert (len(ready), ready.num_consumed) == (1, 1)


def test_recovery_offers_an_assigned_batch_again_with_the_same_trajectories(path: Path) -> None:
    ledger = Ledger.take(path)
    group = run_group(ledger, 0, (0.0, 1.0))
    ledger.close_group(group, "ready")
    ledger.assign_batch(step(1), [group], [])
    before = load_batch(LedgerReader.of(ledger), step(1))
    recovered = recover(Ledger.take(path), book(), pool())
    assert recovered.pending is not None
    assert load_batch(recovered.reader, recovered.pending) == before
    assert [t.reward for t in before.trajectories] == [0.0, 1.0]


def test_recovery_after_an_applied_step_starts_from_its_weights(path: Path) -> None:
    ledger = Ledger.take(path)
    ledger.assign_batch(step(1), [], [])
    ledger.apply_step(1, weights_path="/w/v1", metrics={})
    recovered = recover(Ledger.take(path), book(), pool())
    assert (recovered.applied, recovered.weights_path, recovered.pending) == (1, "/w/v1", None)


def blobs(ledger: Ledger, query: str) -> list[object]:
    return [row[0] for row in ledger._db.execute(query)]


def test_tokens_of_a_turn_are_kept_until_the_trajectory_holds_them(tmp_path: Path) -> None:
    ledger = Ledger.take(tmp_path / "ledger.sqlite")
    ledger.open_group("g0", seq=0, task="t")
    for member, reward in ((0, 1.0), (1, None)):
        episode = f"g0.m{member}.a0"
        ledger.start_episode(episode, group="g0", member=member, attempt=0)
        ledger.record_turn(
            episode=episode,
            turn=0,
            began_at=1.0,
            message="ls",
            command="ls",
            timeout_s=10.0,
            exit_code=0,
            result={"exit_code": 0},
            observation="",
            generation_s=0.1,
            tool_s=0.1,
            suspended_s=0.0,
            num_sampled=1,
            num_prompt=2,
            num_observed=1,
            segment=b"tokens",
        )
        end(ledger, episode, reward, "success" if reward else "infra_failure")
    assert blobs(ledger, "SELECT segment FROM turns ORDER BY episode") == [b"", b"tokens"]


def test_pruning_forgets_old_tokens_and_nothing_else(tmp_path: Path) -> None:
    ledger = Ledger.take(tmp_path / "ledger.sqlite")
    groups = [run_group(ledger, seq, (1.0, 0.0)) for seq in range(3)]
    for group in groups:
        ledger.close_group(group, "ready")
    ledger.assign_batch(step(1), [groups[0]], [])
    ledger.assign_batch(step(2), [groups[1]], [])
    before = LedgerReader.of(ledger).episodes()
    ledger.prune_trajectories(before_step=2)
    reader = LedgerReader.of(ledger)
    assert reader.load_batch(1) == []
    assert len(reader.load_batch(2)) == 2
    assert blobs(ledger, "SELECT count(*) FROM episodes WHERE trajectory IS NOT NULL") == [4], (
        "ready groups keep theirs"
    )
    assert reader.episodes() == before


def test_tokens_of_an_unfinished_episode_are_put_together_by_sequence(tmp_path: Path) -> None:
    ledger = Ledger.take(tmp_path / "ledger.sqlite")
    ledger.open_group("g0", seq=0, task="t")
    ledger.start_episode("g0.m0.a0", group="g0", member=0, attempt=0)
    for turn, sequence in enumerate((0, 1, 0)):
        segment = Segment(ids=bytes([turn]), mask=b"\1", logprobs=b"", versions=b"", sequence=sequence)
        ledger.record_turn(
            episode="g0.m0.a0",
            turn=turn,
            began_at=1.0,
            message="",
            command=None,
            timeout_s=None,
            exit_code=None,
            result=None,
            observation=None,
            generation_s=0.1,
            tool_s=0.1,
            suspended_s=0.0,
            num_sampled=1,
            num_prompt=0,
            num_observed=0,
            segment=encode(segment),
        )
    ledger.close()
    stories = Stories.open(tmp_path / "ledger.sqlite")
    assert [one.ids for one in stories.tokens("g0.m0.a0")] == [b"\0\2", b"\1"]
    stories.close()


def test_breaks_of_conversations_are_counted(tmp_path: Path) -> None:
    ledger = Ledger.take(tmp_path / "ledger.sqlite")
    ledger.open_group("g0", seq=0, task="t")
    for member, sequences in enumerate(({"num": 3, "template_breaks": 2}, {"num": 2, "history_breaks": 1}, None)):
        episode = f"g0.m{member}.a0"
        ledger.start_episode(episode, group="g0", member=member, attempt=0)
        ledger.end_episode(
            episode,
            verdict="uncertain",
            cause="c",
            num_turns=1,
            num_tokens=1,
            active_s=1.0,
            evidence={"sequences": sequences} if sequences else {},
            trajectory=None,
        )
    counts = {"num": 5, "template_breaks": 2, "history_breaks": 1, "dropped_tokens": 0}
    assert LedgerReader.of(ledger).sequence_counts() == counts
