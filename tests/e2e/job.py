"""Launches real runs in processes of their own, watches their events, and finds what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.ledger.reader import LedgerReader

MARK = "AGENTRL_TEST_MARK"

YAML = """
defaults:
  - agentrl
  - override /model: folder
  - override /tasks: boxes
  - override /agent: line
  - _self_
name: job
model: {{path: {model}}}
tasks: {{num_train: 8, num_heldout: 2}}
agent: {{max_turns: 3, max_turn_tokens: 8, max_episode_tokens: 128}}
inference: {{context_length: 160}}
algorithm: {{group_size: 4}}
schedule:
  {{steps: 4, groups_per_step: 2, window_groups: 4, max_live_episodes: 8, drop_zero_variance: false, eval_tasks: 2}}
sandbox: {{max_sandboxes: 10, warm_max: 2}}
trainer: {{world_size: 2}}
cluster: {{runs_dir: {runs}}}
"""


@dataclass
class Job:
    """One `agentrl launch` or `resume`, and the events it prints."""

    process: subprocess.Popen[str]
    mark: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read events until one is wanted."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            if wanted(event):
                return event
        raise AssertionError(f"ended with {self.process.wait()} before that; events: {self.events[-5:]}")

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda e: e["event"] == "step" and e["step"] == step)

    def wait_for_phase(self, phase: str, detail: str) -> None:
        self.wait_for(lambda e: e["event"] == "phase" and (e["phase"], e["detail"]) == (phase, detail))

    def end(self) -> int:
        """Read the rest and return the exit code."""
        assert self.process.stdout is not None
        self.events += [json.loads(line) for line in self.process.stdout]
        return self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def pids(self, *words: str) -> list[int]:
        """Living processes of this job whose command line contains all words."""
        return [pid for pid, command in marked(self.mark) if all(word in command for word in words)]


def marked(mark: str) -> list[tuple[int, str]]:
    """Living processes that inherited a mark, with their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment:
            found.append((int(entry.name), command))
    return found


class Lab:
    """A folder with a YAML file and the runs it leads to."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.run = self.runs / "job"
        self.mark = uuid.uuid4().hex
        self.file = folder / "job.yaml"
        self.file.write_text(YAML.format(model=model, runs=self.runs))

    def launch(self, *overrides: str) -> Job:
        return self._start("launch", str(self.file), *overrides)

    def resume(self) -> Job:
        return self._start("resume", "job", "--runs-dir", str(self.runs))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "agentrl", *words, "--runs-dir", str(self.runs)],
            capture_output=True,
            text=True,
            env=self._env(),
            check=False,
        )

    def left_over(self) -> list[tuple[int, str]]:
        return marked(self.mark)

    def summary(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.run / "summary.json").read_text())
        return data

    def check_each_group_trained_at_most_once(self, steps: int) -> None:
        """Every step made once, from a batch of its own, and every trajectory in one batch."""
        reader = LedgerReader.open(self.run / "ledger.sqlite")
        rows = reader.steps()
        assert [row.step for row in rows] == list(range(1, steps + 1))
        assert all(row.applied_at and row.published_at for row in rows)
        assert len({row.batch_id for row in rows}) == steps
        episodes = [t.episode for row in rows for t in reader.load_batch(row.step)]
        assert len(episodes) == len(set(episodes))
        assert len(episodes) == steps * 8
        reader.close()

    def _start(self, *words: str) -> Job:
        process = subprocess.Popen(
            [sys.executable, "-m", "agentrl", *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=(self.folder / "stderr.log").open("a"),
            text=True,
            env=self._env(),
        )
        return Job(process, self.mark)

    def _env(self) -> dict[str, str]:
        return {**os.environ, MARK: self.mark}
