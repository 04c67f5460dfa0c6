"""What is evaluated: the weights of a run or a folder of weights, and the settings that they are evaluated with."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.config.schema import JobConfig
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.errors import UserError
from agentrl.ledger.reader import LedgerReader
from agentrl.model.config import Recipe

_LEDGER = "evaluations.sqlite"
_SCRATCH = "eval-"
_TRIES = 5
"""To link weights that a live run may remove."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Weights, and whose they are."""

    weights: Path
    version: int
    """The run's policy version; 0 for weights of no run."""
    ledger: Path
    """Where results go."""
    run: RunDirectory | None
    """None: a folder of weights of no run."""


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where an evaluation works."""

    subject: Subject
    place: RunDirectory
    """For what it writes and starts; removed at its end."""
    weights: Path
    """The subject's, which stay as they are until then."""


def is_weights(folder: Path) -> bool:
    """Whether this is a folder of weights. A run's directory has a config.json too, but no weights beside it."""
    return folder.is_dir() and any(folder.glob("*.safetensors"))


def find_subject(what: str, runs_dir: Path, version: int | None) -> Subject:
    """A run's newest published weights or those of `version`, or the weights in a folder. Raises UserError."""
    folder = Path(what)
    if is_weights(folder):
        if version is not None:
            raise UserError(f"--version: {what} is a folder of weights", hint="give the run, or leave --version out")
        return _of_folder(folder.absolute(), runs_dir)
    run = RunDirectory.find(what, runs_dir)
    known = published(run)
    chosen = known[-1] if version is None else version
    if chosen not in known:
        kept = ", ".join(str(number) for number in known)
        raise UserError(f"--version: {run.name} has published no version {chosen} that is kept", hint=f"kept: {kept}")
    return Subject(
        weights=weights_of(run, chosen),
        version=chosen,
        ledger=run.path / _LEDGER,
        run=run,
    )


def published(run: RunDirectory) -> list[int]:
    """Versions whose weights are on disk and were served, in order. Raises UserError if there is none."""
    reader = LedgerReader.open(run.ledger)
    steps = [0, *(step.step for step in reader.steps() if step.published_at is not None)]
    reader.close()
    kept = [version for version in steps if is_weights(weights_of(run, version))]
    if not kept:
        raise UserError(f"run {run.name} has no weights yet", hint="`agentrl status` says how far it is")
    return kept


def weights_of(run: RunDirectory, version: int) -> Path:
    """Folder of a policy version, whether it is there or not."""
    if version > 0:
        return run.weights / f"v{version:06d}"
    path = run.load_config().model.path
    return run.model if path is None else Path(path)


def _of_folder(folder: Path, runs_dir: Path) -> Subject:
    """In a run's directory the folder's name tells the version, and the run how to use it."""
    for parent, version in ((folder.parent, 0), (folder.parent.parent, _version(folder.name))):
        run = RunDirectory(parent)
        if version is not None and run.config_text.is_file() and run.ledger.is_file():
            return Subject(weights=folder, version=version, ledger=run.path / _LEDGER, run=run)
    return Subject(weights=folder, version=0, ledger=runs_dir.absolute() / _LEDGER, run=None)


def _version(name: str) -> int | None:
    digits = name.removeprefix("v")
    return int(digits) if digits.isdecimal() and name.startswith("v") else None


def with_weights(config: JobConfig, weights: Path) -> JobConfig:
    """The same job, of which these are the starting weights."""
    return replace(config, model=replace(config.model, recipe=Recipe.none, path=str(weights)))


@contextmanager
def workplace(what: str, runs_dir: Path, version: int | None) -> Iterator[Workplace]:
    """As `find_subject`, with a place to work in. What an evaluation that was killed has left is removed on the way.

    A live run removes old versions, and may do so while an engine loads them: so what it has published is linked here,
    or copied where the file system has no links. Raises UserError if the weights are gone.
    """
    run = find_subject(what, runs_dir, version).run
    if run is not None:
        run.work.mkdir(parents=True, exist_ok=True)
        _remove_left(run.work)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=None if run is None else run.work) as scratch:
        place = RunDirectory(Path(scratch))
        with _held(place.path):
            subject, weights = _take_weights(what, runs_dir, version, place)
            place.logs = subject.ledger.parent / "evaluation-logs"  # which stay
            yield Workplace(subject=subject, place=place, weights=weights)


def _take_weights(what: str, runs_dir: Path, version: int | None, place: RunDirectory) -> tuple[Subject, Path]:
    """The newest version may be an old one, and gone, by the time it is linked: then there is a newer one."""
    for _ in range(_TRIES):
        subject = find_subject(what, runs_dir, version)
        if subject.run is None or subject.version == 0:
            return subject, subject.weights
        target = place.weights / subject.weights.name
        try:
            shutil.copytree(subject.weights, target, copy_function=_link_file, dirs_exist_ok=True)
        except (OSError, shutil.Error):
            continue
        return subject, target
    raise UserError(f"{subject.weights}: removed by its run", hint="it keeps the newest publish.keep_versions versions")


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def _held(scratch: Path) -> Iterator[None]:
    """Its lock says, as long as this process lives, that it is in use."""
    with (scratch / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_left(parent: Path) -> None:
    for left in parent.glob(f"{_SCRATCH}*"):
        try:
            with (left / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
        except (FileNotFoundError, BlockingIOError):
            continue  # being made, or in use
