"""Puts the controller's parts together on any edges: real ones in `job`, simulated ones in `agentrl.simulation`.

So there is one brain: what is wired, recovered and run here is what runs in production and under virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from random import Random
from typing import Protocol

from agentrl.config.schema import JobConfig
from agentrl.controller.balance.gpu_account import GpuAccount
from agentrl.controller.balance.gpu_time import TRAINER
from agentrl.controller.balance.switching import Switching
from agentrl.controller.config import num_swing
from agentrl.controller.controller import Controller, Trainer
from agentrl.controller.evaluation.heldout import BEFORE
from agentrl.controller.fleet.delivery import make_delivery
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.places import Places, Pool
from agentrl.controller.fleet.publication import Checksums, ProbeOf, read_probe, tolerance
from agentrl.controller.fleet.routed import Routed
from agentrl.controller.fleet.weights import weights_of
from agentrl.controller.lifecycle.records import LedgerRecords
from agentrl.controller.lifecycle.recovery import Recovered, load_batch, recover
from agentrl.controller.lifecycle.watchdog import Watchdog
from agentrl.controller.scheduling.collector import Collector
from agentrl.controller.scheduling.groups import GroupBook
from agentrl.controller.scheduling.progress import Progress
from agentrl.controller.scheduling.ready_pool import ReadyPool
from agentrl.controller.trainer_desk import TrainerDesk
from agentrl.controller.weights_desk import WeightsDesk
from agentrl.errors import LedgerError, Superseded
from agentrl.inference.config import EngineBackend, Router
from agentrl.ledger.accounts import Accounts
from agentrl.ledger.ledger import Ledger
from agentrl.observe.events import Event, Observer, Observers, Warned
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.branch import Branch, Origin
from agentrl.rollout.edges import ChatFormat
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.harness.agent import MakeAgent
from agentrl.sandbox.provider import SandboxProvider
from agentrl.sandbox.warm_pool import WarmPool
from agentrl.tasks.dataset import Dataset


class Engines(Protocol):
    """Whoever starts engines and keeps them up."""

    def report_failure(self, role: str) -> None:
        """The fleet lost faith in this engine."""
        ...

    async def keep(self, fleet: Fleet) -> None:
        """Admit engines to the fleet, replace the lost ones; until cancelled."""
        ...


@dataclass(frozen=True, kw_only=True)
class Brain:
    """A run, recovered from its ledger and ready to go on."""

    config: JobConfig
    recovered: Recovered
    fleet: Fleet
    desk: TrainerDesk
    weights_desk: WeightsDesk
    start_weights: str
    """Folder of version 0."""
    collector: Collector
    runner: EpisodeRunner
    sandboxes: WarmPool
    dataset: Dataset
    ledger: Ledger
    observer: Observer
    watchdog: Watchdog
    engines: Engines
    account: GpuAccount
    accounts: Accounts
    entropy: Random
    probe_of: ProbeOf

    async def run(self, trainer: Trainer) -> None:
        """To the last step, with the trainer's end. Raises what any of the parts raises."""
        self.account.start()
        controller = Controller(
            self.config,
            recovered=self.recovered,
            heldout=self.dataset.heldout,
            collector=self.collector,
            fleet=self.fleet,
            desk=self.desk,
            switching=Switching(
                self.config,
                fleet=self.fleet,
                collector=self.collector,
                accounts=self.accounts,
                observer=self.observer,
            ),
            trainer=trainer,
            runner=self.runner,
            ledger=self.ledger,
            accounts=self.accounts,
            observer=self.observer,
            entropy=self.entropy,
            probe_of=self.probe_of,
            start_weights=self.start_weights,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(self.watchdog.watch(), name="watchdog"),
                    tasks.create_task(self.engines.keep(self.fleet), name="engines"),
                    tasks.create_task(self.sandboxes.run(), name="sandboxes"),
                ]
                self._expect_first()
                trained = tasks.create_task(trainer.keep(), name="trainer")
                await controller.run()
                await trained
                for task in background:
                    task.cancel()
        finally:
            with contextlib.suppress(LedgerError, Superseded):  # why it cannot be written is said already
                self.account.settle()

    def _expect_first(self) -> None:
        """Have the first sandboxes started while the engines come up."""
        heldout = self.dataset.heldout[: self.config.schedule.eval_tasks]
        if heldout and BEFORE not in self.recovered.evaluated:
            self.sandboxes.expect([(task.spec, 1) for task in heldout], due=len(heldout))
        else:
            self.collector.expect_first()


def assemble(
    config: JobConfig,
    *,
    ledger: Ledger,
    observer: Observer,
    dataset: Dataset,
    start_weights: str,
    chat: ChatFormat,
    provider: SandboxProvider,
    engines: Engines,
    entropy: Random,
    places: Places | None = None,
    origin: Origin | None = None,
    probe_of: ProbeOf = read_probe,
    harness: MakeAgent | None = None,
) -> Brain:
    """Recover the run from its ledger. `start_weights` are those of version 0; `entropy` names batches; `probe_of`
    finds what the trainer says of weights.

    With an `origin` the training episodes of its task begin there. `harness`: who acts, if not the built-in agent.
    """
    watchdog = Watchdog(stall_timeout_s=config.schedule.stall_timeout_s)
    late = _Late()
    observer = Observers(watchdog, late, observer)
    book, pool = _group_book(config), _ready_pool(config)
    recovered = recover(ledger, book, pool)
    progress = Progress(max_episode_tokens=config.agent.max_episode_tokens)
    for task, num_tokens in recovered.lengths:
        progress.remember(task, num_tokens)
    active_time = ActiveTime()
    if not config.publish.probe:
        probe_of = _no_probe
    folder = recovered.weights_path or start_weights
    weights_desk = WeightsDesk(epoch=ledger.epoch, patience_s=config.trainer.start_timeout_s + config.publish.timeout_s)
    fleet = Fleet(
        weights_of(recovered.applied, folder, probe_of(folder), config=config, start=start_weights),
        active_time,
        turn_timeout_s=config.agent.turn_timeout_s,
        control_timeout_s=config.publish.timeout_s,
        on_failure=engines.report_failure,
        on_quarantine=lambda name, why: observer.emit(Warned(message=f"{name} is quarantined: {why}")),
        in_flight=config.publish.in_flight,
        probe_tolerance=tolerance(config.publish, config.inference.dtype),
        delivery=make_delivery(config, weights_desk, engine_names(config)),
        checksums=Checksums(exact=config.inference.backend is EngineBackend.embedded),
        swing=engine_names(config)[: num_swing(config.schedule.swing, config.inference.num_engines)],
        places=places_for(config) if places is None else places,
        routed=routed_for(config),
    )
    desk = TrainerDesk(
        epoch=ledger.epoch,
        applied=recovered.applied,
        load_batch=lambda step: load_batch(recovered.reader, recovered.reader.step(step)),
    )
    sandboxes = WarmPool(provider, config.sandbox, entropy=entropy, on_start=ledger.record_start)
    records = LedgerRecords(ledger, progress)
    runner = EpisodeRunner(
        agent=config.agent,
        chat=chat,
        sampler=fleet,
        provider=sandboxes,
        recorder=records,
        active_time=active_time,
        snapshot_every_turns=config.sandbox.snapshot_every_turns,
        fork_groups=config.sandbox.fork_groups,
        branch=None if origin is None else Branch(origin, config.agent, chat, provider),
        harness=None if harness is None else harness(fleet, records),
    )
    collector = Collector(
        config,
        tasks=dataset.train,
        book=book,
        pool=pool,
        progress=progress,
        next_seq=recovered.next_seq,
        fleet=fleet,
        runner=runner,
        sandboxes=sandboxes,
        ledger=ledger,
        observer=observer,
    )
    accounts = Accounts(ledger)
    account = late.account = GpuAccount(
        _lanes(config), fleet=fleet, collector=collector, desk=desk, accounts=accounts, observer=observer
    )
    return Brain(
        config=config,
        recovered=recovered,
        fleet=fleet,
        desk=desk,
        weights_desk=weights_desk,
        start_weights=start_weights,
        collector=collector,
        runner=runner,
        sandboxes=sandboxes,
        dataset=dataset,
        ledger=ledger,
        observer=observer,
        watchdog=watchdog,
        engines=engines,
        account=account,
        accounts=accounts,
        entropy=entropy,
        probe_of=probe_of,
    )


def _no_probe(weights_path: str) -> None:
    """Nobody is compared with anything."""


def engine_names(config: JobConfig) -> tuple[str, ...]:
    """Whoever starts engines gives them these names; the first ones are the swing engines."""
    return tuple(f"engine-{index}" for index in range(config.inference.num_engines))


def _lanes(config: JobConfig) -> dict[str, int]:
    """Number of GPUs by lane."""
    lanes = dict.fromkeys(engine_names(config), 1)
    if num_swing(config.schedule.swing, config.inference.num_engines) == 0:
        lanes[TRAINER] = config.trainer.world_size
    return lanes


class _Late:
    """Passes events on to the account, which needs the parts that emit them."""

    account: GpuAccount | None = None

    def emit(self, event: Event) -> None:
        if self.account is not None:
            self.account.emit(event)


def places_for(config: JobConfig) -> Places:
    """Empty ones, with the job's rules."""
    kind = Places if config.inference.router is Router.direct else Pool
    return kind(kv_share=config.schedule.kv_share, keep_s=config.schedule.keep_context_s)


def routed_for(config: JobConfig) -> Routed | None:
    """None: the fleet itself chooses engines."""
    if config.inference.router is Router.direct:
        return None
    return Routed(control_timeout_s=config.publish.timeout_s)


def _group_book(config: JobConfig) -> GroupBook:
    return GroupBook(
        group_size=config.algorithm.group_size,
        max_infra_retries=config.schedule.max_infra_retries,
        min_usable=config.schedule.min_usable,
        extra_members=config.schedule.extra_members,
    )


def _ready_pool(config: JobConfig) -> ReadyPool:
    return ReadyPool(
        groups_per_step=config.schedule.groups_per_step,
        max_policy_lag=config.schedule.max_policy_lag,
        drop_zero_variance=config.schedule.drop_zero_variance,
        max_refill=config.schedule.max_refill,
    )
