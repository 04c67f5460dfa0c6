"""What a trainer is told, where it leaves its results, and why it ended. Importable without torch.

The controller writes a `TrainerJob` as JSON and starts

    python -m torch.distributed.run --standalone --nproc-per-node N -m agentrl.trainer --job FILE

torchrun ends with 1 whatever code its ranks ended with, so rank 0 also leaves an `ExitReport` beside the job file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Literal

import msgspec

from agentrl.errors import AgentrlError, UserError
from agentrl.trainer.config import AlgorithmConfig, TrainerConfig


class ExitCode(IntEnum):
    """Why a trainer ended."""

    FINISHED = 0
    """The controller said that no batch will come."""
    CRASHED = 1
    """A defect, a lost rank or a full disk. The step is repeated after a restart."""
    SUPERSEDED = 3
    """The controller of another epoch owns the run. Do not restart."""
    UNREACHABLE = 4
    """No controller answered until the deadline."""
    BAD_BATCH = 5
    """Training on the batch is impossible or gave a non-finite loss or gradient. Repeating gives the same."""


@dataclass(frozen=True, kw_only=True)
class Publication:
    """How the weights of each version leave the trainer."""

    send: Literal["direct", "shared"] | None = None
    """On order to each engine: through a process group, or through shared memory. None: in folders only."""
    every: int = 1
    """A version in so many has a folder with all of its weights."""
    delta: bool = False
    """Whether an engine is sent only what has changed since what it holds, and folders between two whole ones hold
    what has changed since the last whole one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the engines: what they are sent is in it."""
    device: int = -1
    """GPU from which it sends through a group, with NCCL; -1: from memory, with gloo."""
    timeout_s: float = 120.0
    """Deadline of sending one engine its weights."""
    address: str | None = None
    """Where engines reach this process; None: its address on the way to the controller."""


def is_whole(version: int, *, every: int, total_steps: int) -> bool:
    """Whether the folder of a version has all of its weights; the run's last one always has."""
    return version % every == 0 or version == total_steps


@dataclass(frozen=True, kw_only=True)
class TrainerJob:
    """One start of the trainer."""

    controller_url: str
    """Base URL of the controller's HTTP API, without a trailing slash."""
    token: str
    """What the controller's API asks for."""
    epoch: int
    """Epoch of the controller that started this trainer."""
    run_dir: str
    """Absolute; weights go to `weights/`, checkpoints to `checkpoints/`."""
    model_path: str
    """Absolute folder of the start weights in Hugging Face layout: policy version 0, and the KL reference."""
    temperature: float
    """Sampling temperature of the episodes; log-probs are taken at it."""
    seed: int
    total_steps: int
    """Steps of the run, for log lines and the learning-rate schedule; the controller decides when it is finished."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    publication: Publication = field(default_factory=Publication)
    controller_retry_s: float = 60.0
    """How long to retry a controller that does not answer (it may be restarting)."""

    def save(self, path: Path) -> None:
        """Readable by the same user only: it holds the token."""
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))

    @staticmethod
    def load(path: Path) -> TrainerJob:
        """Raises UserError if the file is missing, malformed, or asks for what cannot be trained."""
        try:
            job = msgspec.json.decode(path.read_bytes(), type=TrainerJob)
        except (OSError, msgspec.DecodeError) as error:
            raise UserError(f"cannot read trainer job {path}: {error}") from error
        if not job.temperature > 0:
            raise UserError(
                f"trainer job {path}: temperature {job.temperature} has no log-probs to train on",
                hint="set agent.temperature above 0",
            )
        return job


@dataclass(frozen=True, kw_only=True)
class ExitReport:
    """Why the trainer ended, for the controller and for people. Written by rank 0."""

    code: ExitCode
    message: str
    """One line."""
    episodes: list[str] = field(default_factory=list)
    """With BAD_BATCH: the episodes at fault, where they are known."""

    @staticmethod
    def path(job_file: Path) -> Path:
        return job_file.with_suffix(".exit.json")

    @staticmethod
    def remove(job_file: Path) -> None:
        """Forget an earlier start's report."""
        ExitReport.path(job_file).unlink(missing_ok=True)

    def save(self, job_file: Path) -> None:
        self.path(job_file).write_bytes(msgspec.json.encode(self))

    @staticmethod
    def load(job_file: Path) -> ExitReport | None:
        """The report of the last trainer that ended with this job file; None if it was killed before it could write."""
        try:
            return msgspec.json.decode(ExitReport.path(job_file).read_bytes(), type=ExitReport)
        except (FileNotFoundError, msgspec.DecodeError):
            return None


class TrainerExit(AgentrlError, RuntimeError):
    """Ends the trainer with a code."""

    def __init__(self, code: ExitCode, message: str, *, episodes: list[str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.episodes = episodes or []


def weights_folder(run_dir: Path, version: int) -> Path:
    """Folder of a policy version, complete if it exists: the trainer's word on its weights, and if they are stored the
    weights themselves."""
    return run_dir / "weights" / f"v{version:06d}"


SHARED_MEMORY = Path("/dev/shm")
"""Where the system shows shared memory as files."""


MANAGER = "torch_shm_manager"
"""Program that keeps shared memory for torch."""


@dataclass(frozen=True, kw_only=True)
class ManagerNote:
    """A process that keeps a trainer's shared memory, and may outlive it as long as an engine has a piece mapped."""

    pid: int
    socket: str
    """In a folder of its own."""


def shared_memory_notes(run_dir: Path) -> Path:
    """Folder with an empty file for each piece of shared memory that a trainer of the run has made, by its name, and a
    `ManagerNote` for each process that keeps them."""
    return run_dir / "work" / "shared_memory"


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Folder of the checkpoint after a step, complete if it exists."""
    return run_dir / "checkpoints" / f"step-{step:06d}"
