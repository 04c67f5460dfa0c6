"""What others write down through the controller's ledger."""

from __future__ import annotations

from typing import Any

from agentrl.clock import wall
from agentrl.controller.scheduling.progress import Progress
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.rows import ProcessRow
from agentrl.rollout.edges import TurnRecord
from agentrl.sandbox.provider import ExecResult
from agentrl.wire import encode


def result_facts(result: ExecResult) -> dict[str, Any]:
    """What a command did, without its output: what the agent saw of that is the observation."""
    return {name: value for name, value in vars(result).items() if name not in ("stdout", "stderr")}


class LedgerRecords:
    """Turns and processes into the ledger: `Recorder` of the rollout and `ProcessBook` of the cluster."""

    def __init__(self, ledger: Ledger, progress: Progress | None = None) -> None:
        """`progress` is told of turns, too."""
        self._ledger = ledger
        self._progress = progress

    def record_turn(self, record: TurnRecord) -> None:
        mask = record.segment.mask
        num_prompt = len(mask) - len(mask.lstrip(b"\0"))
        result = record.result
        self._ledger.record_turn(
            **{**vars(record), "segment": encode(record.segment), "result": result and result_facts(result)},
            exit_code=result.exit_code if result else None,
            num_sampled=mask.count(1),
            num_prompt=num_prompt,
            num_observed=mask.count(0) - num_prompt,
        )
        if self._progress is not None:
            seconds = record.generation_s + record.tool_s
            self._progress.turn(record.episode, num_tokens=len(mask), seconds=seconds)

    def started(self, *, pid: int, start_ticks: int, role: str) -> None:
        self._ledger.record_process(ProcessRow(pid, start_ticks, role, wall()))

    def ended(self, *, pid: int, start_ticks: int) -> None:
        self._ledger.end_process(pid, start_ticks)
