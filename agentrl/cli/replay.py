"""`agentrl replay`: an episode's commands once more, its tokens under another checkpoint, or all of it in one file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.arguments import JsonOption
from agentrl.cli.outputs import check_file
from agentrl.cli.runs import _RUNS, RunsDirOption
from agentrl.errors import UserError

if TYPE_CHECKING:
    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.ledger.stories import Stories, Story
    from agentrl.rollout.bundle import Bundle
    from agentrl.rollout.replay import Outcome, Replayed
    from agentrl.tasks.task import Task

_SHOWN_LINES = 8

WhatArgument = Annotated[str, typer.Argument(metavar="EPISODE|FILE", help="Id of an episode, or a file of --bundle.")]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="The run that it is of. Default: the newest that has it.")
]
PolicyOption = Annotated[
    int | None, typer.Option("--policy", min=0, help="Score its tokens under this policy version instead.")
]
BundleOption = Annotated[
    Path | None, typer.Option("--bundle", help="Write all that a replay needs to this file instead.")
]


def replay(
    what: WhatArgument,
    *,
    run: RunOption = None,
    policy: PolicyOption = None,
    bundle: BundleOption = None,
    json_: JsonOption = False,
    runs_dir: RunsDirOption = _RUNS,
) -> None:
    """Run an episode's commands again in a fresh sandbox and say what differs. Exits with 1 if something does."""
    import asyncio

    from agentrl.cli.episodes import find_episode

    if policy is not None and bundle is not None:
        raise UserError("--policy and --bundle cannot be given together")
    if Path(what).is_file() and (policy is not None or bundle is not None or run is not None):
        raise UserError(f"{what}: a bundle has no tokens and no run", hint="leave out --run, --policy and --bundle")
    if bundle is not None:
        check_file("--bundle", bundle)
    with tempfile.TemporaryDirectory(prefix="agentrl-replay-") as scratch:
        if Path(what).is_file():
            from agentrl.rollout.bundle import read_bundle

            packed, folder = read_bundle(Path(what), Path(scratch) / "bundle")
        else:
            directory, stories, story = find_episode(what, run, runs_dir)
            if policy is not None:
                _score(directory, stories, story, policy, Path(scratch), json_=json_)
                return
            packed, folder = _pack(directory, stories, story)
        if bundle is not None:
            from agentrl.rollout.bundle import write_bundle

            write_bundle(bundle, packed, folder)
            print(f"{packed.episode} is in {bundle}; `agentrl replay {bundle}` runs it anywhere")
            return
        replayed = asyncio.run(_run(packed, folder, Path(scratch) / "sandboxes"))
    _print(packed.outcome, replayed, json_=json_)
    if not replayed.reproduced(packed.outcome):
        raise typer.Exit(1)


def _pack(directory: RunDirectory, stories: Stories, story: Story) -> tuple[Bundle, Path]:
    """All that a replay needs, and the task's folder. Raises UserError if the task is gone."""
    from agentrl.rollout.bundle import FORMAT, Bundle, versions
    from agentrl.rollout.replay import Outcome, Recorded

    config = directory.load_config()
    turns = [
        Recorded(
            turn=turn.turn,
            command=turn.command,
            timeout_s=turn.timeout_s,
            exit_code=turn.exit_code,
            observation=turn.observation,
        )
        for turn in stories.turns(story.episode)
    ]
    stories.close()
    task = _task(directory, story.task)
    outcome = Outcome(verdict=story.verdict, cause=story.cause, reward=story.reward)
    packed = Bundle(
        format=FORMAT,
        episode=story.episode,
        task=story.task,
        outcome=outcome,
        turns=turns,
        agent=config.agent,
        sandbox=config.sandbox,
        offline=config.tasks.offline,
        versions=versions(),
    )
    return packed, task.folder


def _task(directory: RunDirectory, name: str) -> Task:
    from agentrl.tasks.dataset import load_dataset

    dataset = load_dataset(directory.load_config().tasks, workspace=directory.tasks)
    for task in (*dataset.train, *dataset.heldout):
        if task.name == name:
            return task
    raise UserError(f"task {name} is not among the run's tasks any more", hint="its folder was moved or changed")


async def _run(packed: Bundle, folder: Path, state_dir: Path) -> Replayed:
    from agentrl.errors import ImageError, TaskError
    from agentrl.rollout.replay import replay
    from agentrl.sandbox.bubblewrap import BubblewrapProvider
    from agentrl.tasks.folders import load_task

    try:
        task = load_task(folder, offline=packed.offline)
    except TaskError as error:
        raise UserError(error.message, hint=error.hint) from error
    verified = packed.outcome.verdict is not None
    provider = BubblewrapProvider(packed.sandbox, state_dir=state_dir)
    try:
        return await replay(task, packed.turns, packed.agent, provider, verified=verified)
    except ImageError as error:
        raise UserError(f"the image of {task.name} cannot be made here: {error}") from error
    finally:
        await provider.close()


def _print(outcome: Outcome, replayed: Replayed, *, json_: bool) -> None:
    from dataclasses import asdict

    summary = replayed.summary(outcome)
    if json_:
        recorded = {"verdict": outcome.verdict, "cause": outcome.cause, "reward": outcome.reward}
        print(
            json.dumps(
                {
                    "summary": summary,
                    "reproduced": replayed.reproduced(outcome),
                    "recorded": recorded,
                    **asdict(replayed),
                },
                indent=1,
            )
        )
        return
    for line in _difference_lines(replayed):
        print(line)
    print(summary)


def _difference_lines(replayed: Replayed) -> list[str]:
    """Each difference as a diff of what was shown to the agent."""
    import difflib

    from agentrl.cli.story_page import safe

    lines: list[str] = []
    for found in replayed.differences:
        before, now = found.exit_code
        codes = f", exit code {before} then, {now} now" if before != now else ""
        lines.append(f"turn {found.turn}: $ {safe(found.command.splitlines()[0] if found.command else '')}{codes}")
        diff = list(difflib.ndiff(found.observation[0].splitlines(), found.observation[1].splitlines()))
        changed = [line for line in diff if line.startswith(("- ", "+ "))]
        lines += [f"  {safe(line)}" for line in changed[:_SHOWN_LINES]]
        if len(changed) > _SHOWN_LINES:
            lines.append(f"  ... {len(changed) - _SHOWN_LINES} more lines differ: --json")
    return lines


def _score(
    directory: RunDirectory, stories: Stories, story: Story, version: int, scratch: Path, *, json_: bool
) -> None:
    """Log-probs of the episode's sampled tokens under another version, computed in a process with torch."""
    import subprocess
    import sys

    import numpy as np

    sequences = stories.tokens(story.episode)
    stories.close()
    if not any(any(sequence.mask) for sequence in sequences):
        raise UserError(
            f"{story.episode}: its tokens are not kept any more, or it has none",
            hint="observe.keep_trajectories says for how long",
        )
    out = scratch / "score.json"
    masks = [np.frombuffer(sequence.mask, dtype=np.uint8) for sequence in sequences]
    job = {
        "model_path": str(_weights(directory, version)),
        "sequences": [
            {"ids": np.frombuffer(sequence.ids, dtype=np.int32).tolist(), "mask": mask.tolist()}
            for sequence, mask in zip(sequences, masks, strict=True)
        ],
        "temperature": directory.load_config().agent.temperature,
        "out": str(out),
    }
    job_file = scratch / "job.json"
    job_file.write_text(json.dumps(job))
    run = [sys.executable, "-m", "agentrl.trainer.score", str(job_file)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"scoring failed: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    now = np.asarray(json.loads(out.read_text()))
    mask = np.concatenate(masks)
    then = np.frombuffer(b"".join(s.logprobs for s in sequences), dtype=np.float32)[mask == 1]
    versions = np.frombuffer(b"".join(s.versions for s in sequences), dtype=np.int32)[mask == 1]
    figures = _compare(then, now)
    if json_:
        tokens = [
            {"version": int(v), "logprob": float(a), "scored": float(b)}
            for v, a, b in zip(versions, then, now, strict=True)
        ]
        print(json.dumps({"episode": story.episode, "policy": version, **figures, "tokens": tokens}, indent=1))
        return
    sampled = f"version {versions.min()}" if versions.min() == versions.max() else f"{versions.min()}-{versions.max()}"
    print(f"{story.episode}: {len(now)} tokens, sampled under {sampled}, scored under version {version}")
    print(f"  mean log-prob {figures['mean_then']:.4f} when sampled, {figures['mean_now']:.4f} now")
    print(f"  largest difference {figures['max_difference']:.4f}, k3 {figures['k3']:.5f}")


def _compare(then: Any, now: Any) -> dict[str, float]:
    """k3 is r - 1 - log r, of the ratio now / then, in the mean (Schulman's estimator of the divergence)."""
    import numpy as np

    log_ratio = now - then
    return {
        "mean_then": float(then.mean()),
        "mean_now": float(now.mean()),
        "max_difference": float(np.abs(log_ratio).max()),
        "k3": float((np.exp(log_ratio) - 1 - log_ratio).mean()),
    }


def _weights(directory: RunDirectory, version: int) -> Path:
    """Folder of a policy version. Raises UserError if it is not kept."""
    config = directory.load_config()
    if version == 0:
        folder = Path(config.model.path) if config.model.path else directory.model
    else:
        folder = directory.weights / f"v{version:06d}"
    if not (folder / "config.json").is_file():
        kept = sorted(path.name for path in directory.weights.glob("v*"))
        raise UserError(
            f"--policy: version {version} is not kept", hint=f"there are: 0, {', '.join(kept) or 'no others'}"
        )
    return folder
