"""Configuration of the controller: schedule, groups, staleness, publication."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agentrl.bounds import Count, CountOrZero, Factor, Positive, PositiveShare, Seconds, Share, Swing, Text


class Stragglers(Enum):
    """What happens to the last members of a group, for which the others wait."""

    carry = "carry"
    """They go on, and batches close with other groups meanwhile."""
    wait = "wait"
    """Batches take groups in launch order, so they wait for all of them: no selection at all, and the longest waits."""
    cut = "cut"
    """A group closes without members that are expected to take long, if it has `min_usable` others."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    steps: Count = 25
    """Training steps of the run."""

    groups_per_step: Count = 8
    """Complete groups in one batch."""

    swing: Swing = "all"
    """Engines that share their GPU with the trainer: the first so many, `all`, or `none`. With `all` generation and
    training take turns (colocated); with `none` the trainer has GPUs of its own and generation never stops
    (disaggregated); between them the other engines go on while the swing ones train (hybrid)."""

    window_groups: Count = 16
    """Groups open (launched, not yet taken or dropped) at once. A batch takes any complete ones, oldest first; a
    narrow window keeps selection from favouring short episodes, a wide one keeps stragglers from holding up."""

    max_live_episodes: Count = 64
    """Episodes acting at once, over all engines."""

    extra_members: CountOrZero = 0
    """Episodes that start in each group beyond algorithm.group_size. The first group_size usable ones make the group;
    the others are cancelled then. Sooner, but it favours short episodes: the summary shows by how much."""

    stragglers: Stragglers = Stragglers.carry
    """What happens to the last members of a group, for which the others wait."""

    straggler_factor: Factor = 2.0
    """With `stragglers=cut`: members are cut that are expected to act for this many times as long again as the group's
    ended members took on average."""

    kv_share: PositiveShare = 0.9
    """Live contexts with their growth stay under this share of the engines' KV capacity."""

    keep_context_s: Seconds = 20.0
    """For so long an engine keeps room for the context of an episode whose tool runs, while others wait for room. On
    the reference hardware holding room for longer costs more than prefilling the context again."""

    max_policy_lag: CountOrZero = 4
    """Steps between a trained token's policy version and the version it trains. A group with an older token is
    dropped, and counted."""

    drop_zero_variance: bool = True
    """Drop complete groups whose rewards are all equal (no gradient) and refill the stream."""

    max_refill: Factor = 3.0
    """A batch closes with fewer groups once this many times groups_per_step were used up for it, most of them without
    variance: near the top of the reward, refilling would otherwise take ever longer."""

    max_infra_retries: CountOrZero = 3
    """Re-runs of one member that was lost to infrastructure."""

    min_usable: Count = 2
    """Members with a usable verdict that a group needs when the others cannot be repaired; below it is dropped."""

    infra_share_limit: Share = 0.5
    """Launching pauses when more than this share of the last 64 ended episodes failed for infrastructure; then 8 are
    tried, and if as many of these fail, it pauses for twice as long."""

    infra_pause_s: Seconds = 30.0
    """The first such pause."""

    infra_pauses: CountOrZero = 4
    """Such pauses in a row, after which the run itself pauses: it ends, says what it saw, and `agentrl resume` goes
    on. 0: at once."""

    uncertain_share_limit: Share = 0.25
    """The run itself pauses, at once, when more than this share of the last 64 ended episodes has an uncertain
    verdict."""

    stall_timeout_s: Seconds = 2400.0
    """The run stops when nothing finished (turn, episode, step) for this long. Must exceed every other deadline."""

    eval_tasks: CountOrZero = 32
    """Held-out tasks acted on greedily before the first and after the last step; 0 turns evaluation off."""

    eval_every: CountOrZero = 0
    """Also after every so many steps, while training episodes stand still and keep their sandboxes: those of the
    evaluation come on top of max_live_episodes. 0: not in the middle of a run."""


def num_swing(swing: str, num_engines: int) -> int:
    """How many of the engines are swing engines; engine-0 is the first."""
    if swing == "all":
        return num_engines
    return 0 if swing == "none" else int(swing)


class PublishMethod(Enum):
    """How new weights reach the engines."""

    storage = "storage"
    """A folder of safetensors that every engine can read."""
    direct = "direct"
    """From the memory of the trainer's rank 0, through a process group with each engine: gloo on CPU, NCCL on GPUs."""
    shared = "shared"
    """From the memory of the trainer's rank 0 on the same host: shared memory on CPU, CUDA IPC on GPUs."""


class InFlight(Enum):
    """What happens to requests that are running when weights change. docs/decisions/publication.md compares them."""

    abort_resume = "abort_resume"
    """They are aborted, their partial tokens kept, and the episodes ask for the rest under the new version. KV is
    flushed: each prefills its context again."""
    drain = "drain"
    """They are waited for, at most until their turns' deadlines: no message spans two versions, and the engines idle
    until the longest one has ended."""
    retract = "retract"
    """They wait in the engine while weights change, prefill again, and go on under the new version: as abort_resume,
    without the way to the controller and back."""
    in_place = "in_place"
    """They stop between two tokens and go on with the KV of the old weights: nothing is prefilled again, and what
    they sample is of neither version's policy. Requests that come later never get that KV."""


@dataclass(frozen=True, kw_only=True)
class PublishConfig:
    method: PublishMethod = PublishMethod.storage
    """How new weights reach the engines. docs/decisions/publication.md says which to take when."""

    storage_every: Count = 1
    """A version in so many is written to a folder with all of its weights, and the run's last one: engines are started
    on the newest, and then get what is newer by the method. Above 1 `storage` needs delta."""

    delta: bool = False
    """Only tensors that have changed travel, and a checksum of all of them is held against the trainer's. It pays where
    training leaves tensors as they are, as low-rank adapters do."""

    address: Text | None = None
    """With `direct`: where engines reach the trainer's rank 0. None: its address on the way to the controller."""

    in_flight: InFlight = InFlight.abort_resume
    """Policy for running requests."""

    probe: bool = True
    """Before an engine serves new weights it is asked for a few log-probs that the trainer has computed with them. One
    that differs is quarantined: it gets no request until it was given the weights again, or restarted, and agrees."""

    probe_tolerance: Positive | None = None
    """Mean absolute difference of these log-probs up to which an engine is believed. None: 0.001 with inference.dtype
    float32, 0.05 with bfloat16."""

    timeout_s: Seconds = 120.0
    """Deadline of one engine's weight update; an engine that misses it is restarted on the new weights."""

    keep_versions: Count = 2
    """Published weight folders kept on disk, newest first."""
