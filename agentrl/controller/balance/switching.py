"""Carries out what the balance decides about the swing engines, measures what it took, and writes it down.

Decisions are in `balance`, what they are made of in `measured`; this module has the fleet, the clock and the ledger.
"""

from __future__ import annotations

from agentrl.clock import monotonic, wall
from agentrl.config.schema import JobConfig
from agentrl.controller.balance import balance
from agentrl.controller.balance.balance import Choice, Decision, Situation
from agentrl.controller.balance.measured import Measured, Mode
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.scheduling.collector import Collector
from agentrl.ledger.accounts import Accounts, BalanceRow
from agentrl.observe.events import BalanceDecided, BalanceRealised, Observer


class Switching:
    """One life of a controller. Its methods are called in the order of a step, by one caller."""

    def __init__(
        self, config: JobConfig, *, fleet: Fleet, collector: Collector, accounts: Accounts, observer: Observer
    ) -> None:
        self._schedule = config.schedule
        self._num_engines = config.inference.num_engines
        self._fleet = fleet
        self._collector = collector
        self._accounts = accounts
        self._observer = observer
        self._measured = Measured(monotonic(), fleet.sampled_tokens)
        self._waits = False
        """A batch is ready, and a second one is waited for."""
        self._open: tuple[int, float, Decision] | None = None
        """The decision that is being tried: its number, when it was made, and what it says."""

    @property
    def review_s(self) -> float | None:
        """After how long to ask `review` again while a batch is being collected; None: not at all."""
        return max(1.0, self._costs_s()) if self._fleet.lent else None

    # --- in the order of a step

    def collecting(self) -> None:
        """Generation goes on, by whoever is in service."""
        self._mode(Mode.DEDICATED if self._fleet.lent else Mode.ALL)

    async def review(self, step: int) -> None:
        """While a batch is collected without the swing engines: whether they should return after all."""
        if not self._fleet.lent:
            return
        decision = balance.after_training(self._situation(step))
        if decision.choice is Choice.RETURN:
            self._record(decision, step)
            await self.take_back()
            self.collecting()

    def wait_for_more(self, step: int) -> bool:
        """A batch is complete: whether to go on generating until a second one is."""
        if self._fleet.lent:
            return False
        decision = balance.when_ready(self._situation(step))
        waits = decision.choice is Choice.GENERATE
        if waits is not self._waits:
            self._waits = waits
            self._record(decision, step)
        return waits

    async def to_training(self, step: int) -> None:
        """The batch of a step is fixed: the swing engines go to the trainer, if they are not there."""
        self._measured.batch(self._fleet.sampled_tokens)
        if self._fleet.swing and not self._fleet.lent:
            self._mode(Mode.NOBODY)
            began = monotonic()
            await self._fleet.lend()
            self._measured.there_s.add(monotonic() - began)
        self._mode(self._while_training())
        self._realise(step)

    def trained(self, seconds: float) -> None:
        self._measured.train_s.add(seconds)

    def after_training(self, step: int) -> bool:
        """Whether the swing engines return to generation, for the batch of `step`."""
        decision = balance.after_training(self._situation(step))
        self._record(decision, step)
        return decision.choice is Choice.RETURN

    def publishing(self) -> None:
        """Generation stands still."""
        self._mode(Mode.NOBODY)

    async def take_back(self) -> None:
        """The swing engines return. Idempotent."""
        if not self._fleet.lent:
            return
        began = monotonic()
        await self._fleet.take_back()
        self._measured.back_s.add(monotonic() - began)

    # --- inside

    def _while_training(self) -> Mode:
        if not self._fleet.swing:
            return Mode.ALL
        return Mode.DEDICATED if len(self._fleet.swing) < self._num_engines else Mode.NOBODY

    def _mode(self, mode: Mode) -> None:
        self._measured.change(mode, monotonic(), self._fleet.sampled_tokens)

    def _costs_s(self) -> float:
        return (self._measured.there_s.value or 0.0) + (self._measured.back_s.value or 0.0)

    def _situation(self, step: int) -> Situation:
        """Before the batch of `step` is trained."""
        now, tokens = monotonic(), self._fleet.sampled_tokens
        num_swing, groups = len(self._fleet.swing), self._schedule.groups_per_step
        num_ready = self._collector.num_ready
        oldest = self._collector.oldest_ready_version
        age = 0 if oldest is None else step - 1 - oldest
        measured = self._measured
        return Situation(
            num_swing=num_swing,
            num_dedicated=self._fleet.num_up if self._fleet.lent else self._num_engines - num_swing,
            batch_ready=self._collector.complete,
            num_ready=num_ready,
            groups_per_step=groups,
            open_groups=self._collector.num_openable,
            spare_lag=self._schedule.max_policy_lag - age,
            rate_all=measured.rate(Mode.ALL, now, tokens),
            rate_dedicated=measured.rate(Mode.DEDICATED, now, tokens),
            remaining_tokens=measured.remaining(tokens, missing=max(1.0 - num_ready / groups, 0.0)),
            there_s=measured.there_s.value or 0.0,
            back_s=measured.back_s.value or 0.0,
            train_s=measured.train_s.value,
        )

    def _record(self, decision: Decision, step: int) -> None:
        inputs = balance.inputs(self._situation(step))
        number = self._accounts.record_decision(
            BalanceRow(
                step=step,
                decided_at=wall(),
                choice=decision.choice.value,
                reason=decision.reason,
                predicted_s=decision.predicted_s,
                alternative_s=decision.alternative_s,
                inputs=inputs,
            )
        )
        if decision.choice in (Choice.RETURN, Choice.STAY):
            self._open = number, monotonic(), decision
        self._observer.emit(
            BalanceDecided(
                step=step,
                choice=decision.choice.value,
                reason=decision.reason,
                predicted_s=decision.predicted_s,
                gain_s=decision.gain_s,
                inputs=inputs,
            )
        )

    def _realise(self, step: int) -> None:
        """Training starts: what the last decision came to."""
        if self._open is None:
            return
        number, decided, decision = self._open
        self._open = None
        realised_s = monotonic() - decided
        self._accounts.realise(number, realised_s)
        if decision.predicted_s is not None:
            self._measured.correct(decision.predicted_s, realised_s)
            self._observer.emit(BalanceRealised(step=step, predicted_s=decision.predicted_s, realised_s=realised_s))
