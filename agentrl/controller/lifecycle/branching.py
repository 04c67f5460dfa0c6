"""Finds where a run's episodes begin that `tasks.branch_from` puts into the middle of another episode."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np

from agentrl.config.schema import JobConfig
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.errors import UserError
from agentrl.ledger.stories import Stories, Story
from agentrl.rollout.branch import Origin
from agentrl.rollout.replay import Recorded
from agentrl.tasks.dataset import Dataset

_FORM = re.compile(r"(?:(?P<run>.+)/)?(?P<episode>[^/@]+)@(?P<turn>\d+)")


def load_origin(run: RunDirectory, config: JobConfig) -> Origin | None:
    """Where `tasks.branch_from` points; None if it is not set. Kept in the run's directory from the first call on.

    Raises UserError if there is no such episode, if it has no more turns than that, or if its tokens are gone.
    """
    text = config.tasks.branch_from
    if text is None:
        return None
    if run.branch.is_file():
        return msgspec.json.decode(run.branch.read_bytes(), type=Origin)
    match = _FORM.fullmatch(text)
    if match is None:
        raise UserError(f"tasks.branch_from: {text}: not of the form EPISODE@TURN or RUN/EPISODE@TURN")
    origin = _read(run, Path(config.cluster.runs_dir), match["run"], match["episode"], int(match["turn"]))
    run.branch.write_bytes(msgspec.json.encode(origin))
    return origin


def only_its_task(dataset: Dataset, origin: Origin) -> Dataset:
    """Training on the origin's task alone. Raises UserError if it is not among the run's."""
    found = [task for task in (*dataset.train, *dataset.heldout) if task.name == origin.task]
    if not found:
        raise UserError(
            f"tasks.branch_from: {origin.episode} is of task {origin.task}, which is not among the run's tasks",
            hint="set tasks.path, or family, seed and include, as its run did",
        )
    if found[0].steps:
        raise UserError(f"tasks.branch_from: {origin.task} is a task of several steps")
    heldout = tuple(task for task in dataset.heldout if task.name != origin.task)
    return Dataset(train=(found[0],), heldout=heldout, skipped=dataset.skipped)


def _read(run: RunDirectory, runs_dir: Path, name: str | None, episode: str, turn: int) -> Origin:
    stories, story = _find(run, runs_dir, name, episode)
    turns = stories.turns(episode)
    tokens = stories.tokens(episode)
    stories.close()
    if not 0 < turn < len(turns):
        raise UserError(
            f"tasks.branch_from: {episode}@{turn}: it has {len(turns)} turns", hint=f"take 1 to {len(turns) - 1}"
        )
    if not tokens:
        raise UserError(f"tasks.branch_from: the tokens of {episode} are not kept any more")
    if len(tokens) > 1:
        raise UserError(f"tasks.branch_from: {episode} is no single sequence of tokens", hint="docs/agents.md says why")
    num_tokens = sum(one.num_tokens for one in turns[:turn])
    return Origin(
        episode=episode,
        task=story.task,
        ids=np.frombuffer(tokens[0].ids, dtype=np.int32)[:num_tokens].tolist(),
        turns=[
            Recorded(
                turn=one.turn,
                command=one.command,
                timeout_s=one.timeout_s,
                exit_code=one.exit_code,
                observation=one.observation,
            )
            for one in turns[:turn]
        ],
    )


def _find(run: RunDirectory, runs_dir: Path, name: str | None, episode: str) -> tuple[Stories, Story]:
    """The episode in the named run, or in the newest other one that has it."""
    candidates = [RunDirectory.find(name, runs_dir)] if name else RunDirectory.all(runs_dir)[::-1]
    for directory in candidates:
        if directory.path != run.path and directory.ledger.is_file():
            stories = Stories.open(directory.ledger)
            story = stories.find(episode)
            if story is not None:
                return stories, story
            stories.close()
    where = f"run {name}" if name else f"any other run in {runs_dir}"
    raise UserError(f"tasks.branch_from: no episode {episode!r} in {where}", hint="`agentrl episodes RUN` lists them")
