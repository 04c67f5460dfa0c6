"""Commands about single episodes: `episodes` lists them, `why` explains one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import JsonOption
from agentrl.cli.runs import _RUNS, RunArgument, RunsDirOption
from agentrl.errors import UserError

if TYPE_CHECKING:
    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.ledger.stories import Stories, Story

EpisodeArgument = Annotated[str, typer.Argument(metavar="EPISODE", help="Id of an episode, such as g000003.m001.a00.")]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="The run that it is of. Default: the newest that has it.")
]
VerdictOption = Annotated[
    str | None, typer.Option("--verdict", help="Only these: success, model_failure, infra_failure or uncertain.")
]
TaskOption = Annotated[str | None, typer.Option("--task", help="Only tasks whose name matches this shell pattern.")]
LongestOption = Annotated[int | None, typer.Option("--longest", min=1, help="Only so many, the longest first.")]
FullOption = Annotated[bool, typer.Option("--full", help="Print whole messages and outputs.")]


def register(app: typer.Typer) -> None:
    from agentrl.cli import replay

    app.command()(episodes)
    app.command()(why)
    app.command()(replay.replay)


def episodes(
    run: RunArgument,
    *,
    verdict: VerdictOption = None,
    task: TaskOption = None,
    longest: LongestOption = None,
    json_: JsonOption = False,
    runs_dir: RunsDirOption = _RUNS,
) -> None:
    """List a run's episodes."""
    from dataclasses import asdict

    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.rollout.verdict import Verdict

    if verdict is not None and verdict not in set(Verdict):
        raise UserError(f"--verdict: {verdict}: no such verdict", hint=f"there are: {', '.join(Verdict)}")
    stories = _open(RunDirectory.find(run, runs_dir))
    found = stories.all(verdict=verdict, task=task)
    if task is not None and not found and not stories.all(task=task):
        raise UserError(f"--task: no episode of a task {task}", hint=_some(stories.tasks()))
    stories.close()
    if longest is not None:
        found = sorted(found, key=_duration_s, reverse=True)[:longest]
    if json_:
        print(json.dumps([asdict(story) for story in found], indent=1))
    else:
        _print_table(found)


def why(
    episode: EpisodeArgument,
    *,
    run: RunOption = None,
    full: FullOption = False,
    json_: JsonOption = False,
    runs_dir: RunsDirOption = _RUNS,
) -> None:
    """Tell an episode's story: its turns, where its time went, who waited for whom, the verdict and its evidence."""
    from dataclasses import asdict

    from agentrl.cli.story_page import page, print_page

    directory, stories, story = find_episode(episode, run, runs_dir)
    turns = stories.turns(story.episode)
    group = stories.of_group(story.group)
    stories.close()
    if json_:
        told = {"run": directory.name, **asdict(story), "turns": [asdict(turn) for turn in turns]}
        print(json.dumps(told, indent=1))
        return
    print_page(page(directory.name, story, turns, group, full=full))


def find_episode(episode: str, run: str | None, runs_dir: Path) -> tuple[RunDirectory, Stories, Story]:
    """The episode in that run, or in the newest run that has it. Raises UserError."""
    from agentrl.controller.lifecycle.run_directory import RunDirectory

    candidates = [RunDirectory.find(run, runs_dir)] if run else RunDirectory.all(runs_dir)[::-1]
    last: Stories | None = None
    for directory in candidates:
        if not directory.ledger.is_file():
            continue
        last = _open(directory)
        story = last.find(episode)
        if story is not None:
            return directory, last, story
    ids = [story.episode for story in last.all()] if last else []
    where = f"run {run}" if run else f"any run in {runs_dir}"
    raise UserError(f"no episode {episode!r} in {where}", hint=_near(episode, ids))


def _open(directory: RunDirectory) -> Stories:
    from agentrl.ledger.stories import Stories

    return Stories.open(directory.ledger)


def _near(episode: str, ids: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(episode, ids, n=1)
    return f"did you mean {near[0]}?" if near else "`agentrl episodes RUN` lists them"


def _some(names: list[str]) -> str:
    return f"tasks: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else "the run has no tasks yet"


def _duration_s(story: Story) -> float:
    return (story.ended_at or story.started_at) - story.started_at


def _print_table(stories: list[Story]) -> None:
    from agentrl.cli.table import Column, print_table

    columns = [
        Column("episode"),
        Column("task", folds=True),
        Column("verdict"),
        Column("cause", spare=True),
        *(Column(title, spare=True) for title in ("reward", "turns", "tokens", "seconds")),
    ]
    rows = []
    for story in stories:
        reward = "-" if story.reward is None else f"{story.reward:g}"
        verdict = story.verdict or ("running" if story.ended_at is None else story.cause or "unfinished")
        words = (story.episode, story.task, verdict, story.cause or "-", reward)
        numbers = (story.num_turns, story.num_tokens, round(_duration_s(story), 1) if story.ended_at else None)
        rows.append([*words, *("-" if number is None else f"{number:g}" for number in numbers)])
    print_table(columns, rows)
    print(f"{len(stories)} episodes")
