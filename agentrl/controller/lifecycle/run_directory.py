"""The directory of a run: what lies where, who holds it, and how it is found again."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from agentrl.cluster.local import process_start_ticks
from agentrl.config.schema import JobConfig
from agentrl.errors import UserError


@dataclass(frozen=True)
class Holder:
    """The controller process that holds a run."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return process_start_ticks(self.pid) == self.start_ticks


class RunDirectory:
    """Names of the files in a run's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.config = self.path / "config.json"
        self.config_text = self.path / "config.yaml"
        self.ledger = self.path / "ledger.sqlite"
        self.metrics = self.path / "metrics.jsonl"
        self.logs = self.path / "logs"
        self.weights = self.path / "weights"
        self.model = self.path / "model"
        self.tasks = self.path / "tasks"
        self.branch = self.path / "branch.json"
        """Where its episodes begin, with tasks.branch_from."""
        self.work = self.path / "work"
        """Job files, ready files and the sandboxes' state: meaningless once the run has ended."""
        self.sandboxes = self.work / "sandboxes"
        """Records of what a sandbox provider made, and its stage."""
        self.summary_json = self.path / "summary.json"
        self.summary_text = self.path / "summary.md"
        self._holder = self.path / "controller.json"
        self._lock = self.path / "lock"

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, runs_dir: Path, name: str | None, stem: str, config_text: str, config: JobConfig) -> RunDirectory:
        """Make the directory of a new run: `name`, or `stem` with the first free number.

        Raises UserError if `name` is taken, or the directory cannot be written.
        """
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            path = _make_named(runs_dir, name) if name else _make_numbered(runs_dir, stem)
        except OSError as error:
            raise UserError(f"cluster.runs_dir: cannot write {runs_dir}: {error.strerror}") from error
        run = cls(path)
        run.config_text.write_text(config_text, encoding="utf-8")
        run.config.write_bytes(msgspec.json.format(msgspec.json.encode(_with_absolute_paths(config))))
        return run

    @classmethod
    def find(cls, run: str, runs_dir: Path) -> RunDirectory:
        """A run by name in `runs_dir`, or by path. Raises UserError."""
        for path in (runs_dir / run, Path(run)):
            if (path / "config.json").is_file():
                return cls(path)
        known = ", ".join(r.name for r in cls.all(runs_dir)) or "none"
        raise UserError(f"no run {run!r} in {runs_dir}", hint=f"runs there: {known}")

    @classmethod
    def all(cls, runs_dir: Path) -> list[RunDirectory]:
        """Every run in a folder, oldest first."""
        found = [path.parent for path in runs_dir.glob("*/config.json")]
        return [cls(path) for path in sorted(found, key=lambda p: (p / "config.json").stat().st_mtime)]

    def load_config(self) -> JobConfig:
        """The resolved configuration that the run was launched with. Raises UserError."""
        try:
            return msgspec.json.decode(self.config.read_bytes(), type=JobConfig)
        except (OSError, msgspec.DecodeError) as error:
            raise UserError(f"{self.config}: {error}", hint="it was written by another version of agentrl") from error

    def hold(self) -> int:
        """Become the run's controller for as long as this process lives. Returns the lock's descriptor.

        Raises UserError if another controller holds it.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            holder = self.holder()
            who = f"process {holder.pid}" if holder else "another process"
            raise UserError(f"run {self.name} is already controlled by {who}", hint="stop it first") from None
        me = {"pid": os.getpid(), "start_ticks": process_start_ticks(os.getpid())}
        self._holder.write_text(json.dumps(me))
        return descriptor

    def holder(self) -> Holder | None:
        """The live controller of this run, if there is one."""
        try:
            holder = Holder(**json.loads(self._holder.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return holder if holder.alive else None


def _with_absolute_paths(config: JobConfig) -> JobConfig:
    """The same job from any working directory: a run may be resumed from elsewhere."""
    model, tasks = config.model, config.tasks
    if model.path is not None:
        model = replace(model, path=str(Path(model.path).absolute()))
    if tasks.path is not None:
        tasks = replace(tasks, path=str(Path(tasks.path).absolute()))
    return replace(config, model=model, tasks=tasks)


def _make_named(runs_dir: Path, name: str) -> Path:
    path = runs_dir / name
    try:
        path.mkdir()
    except FileExistsError:
        raise name_taken(runs_dir, name) from None
    return path


def name_taken(runs_dir: Path, name: str) -> UserError:
    """For a run that shall have the name of another."""
    hint = f"resume it with `agentrl resume {name}`, or choose another name"
    return UserError(f"name: run {name!r} exists in {runs_dir}", hint=hint)


def _make_numbered(runs_dir: Path, stem: str) -> Path:
    number = 1
    while True:
        path = runs_dir / f"{stem}-{number:03d}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path
