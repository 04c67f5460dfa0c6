"""What others write down through the controller's ledger."""

from __future__ import annotations

from agentrl.clock import wall
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.rows import ProcessRow
from agentrl.rollout.episode import TurnRecord
from agentrl.wire import encode


class LedgerRecords:
    """Turns and processes into the ledger: `Recorder` of the rollout and `ProcessBook` of the cluster."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def record_turn(self, record: TurnRecord) -> None:
        mask = record.segment.mask
        self._ledger.record_turn(
            **{**vars(record), "segment": encode(record.segment)},
            num_sampled=mask.count(1),
            num_context=mask.count(0),
        )

    def started(self, *, pid: int, start_ticks: int, role: str) -> None:
        self._ledger.record_process(ProcessRow(pid, start_ticks, role, wall()))

    def ended(self, *, pid: int, start_ticks: int) -> None:
        self._ledger.end_process(pid, start_ticks)
