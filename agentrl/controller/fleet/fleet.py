"""The engines as one: where episodes sample, and how engines are suspended, given new weights, lent and taken back.

Order of a publication: the gate closes (nothing new is sent), every engine stops what runs in the way that
`publish.in_flight` says and holds what still arrives; weights change; the gate opens again. What was aborted goes back
to the episodes, which ask for the rest then.

Order of lending: no episode is sent to the engine any more, it aborts what runs, and gives up its memory. Episodes that
were there go on where there is room; the others wait, with clock and sandbox standing still. On return: memory, the
newest weights, then episodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from agentrl.clock import monotonic
from agentrl.controller.config import InFlight
from agentrl.controller.fleet.delivery import Delivery, FromFolders
from agentrl.controller.fleet.member import Duty, Member
from agentrl.controller.fleet.places import Places
from agentrl.controller.fleet.publication import PAUSES, TOLERANCES, Checksums
from agentrl.controller.fleet.routed import RETRY_S, Routed
from agentrl.controller.fleet.state import EngineState
from agentrl.controller.fleet.waiting import Waiting
from agentrl.controller.fleet.weights import Weights
from agentrl.errors import EngineError, EngineMistrusted, WeightsGone
from agentrl.inference.config import Dtype
from agentrl.inference.engine import Engine, Generation, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.hold import Hold

log = logging.getLogger(__name__)


class Fleet:
    """All engines that are up. Implements `agentrl.rollout.episode.Sampler`."""

    def __init__(
        self,
        weights: Weights,
        active_time: ActiveTime,
        *,
        turn_timeout_s: float,
        control_timeout_s: float,
        on_failure: Callable[[str], None],
        on_quarantine: Callable[[str, str], None] = lambda name, why: None,
        in_flight: InFlight = InFlight.abort_resume,
        probe_tolerance: float = TOLERANCES[Dtype.float32],
        delivery: Delivery | None = None,
        checksums: Checksums | None = None,
        swing: Collection[str] = (),
        places: Places | None = None,
        routed: Routed | None = None,
    ) -> None:
        """`control_timeout_s` bounds each order to an engine (pause, update, lend); one that misses it leaves.

        `delivery`: how engines get weights, by default from folders. `checksums`: what theirs are held against, by
        default the trainer's word. `swing`: the engines that can be lent. `places`: an empty one; by default whatever
        fits the engines has room. `routed`: requests go through a router, with a `Pool` for their places.
        """
        self.weights = weights
        """Changed only by `suspend` and `publish`."""
        self._renewed = asyncio.Event()
        """Set, and replaced, when they change."""
        self.sampled_tokens = 0
        """For training since the start, over all engines."""
        self.delivery = delivery or FromFolders()
        self.swing = tuple(swing)
        self.routed = routed
        """What goes through the router; None: the fleet itself chooses engines."""
        self._active_time = active_time
        self._turn_timeout_s = turn_timeout_s
        self._control_timeout_s = control_timeout_s
        self._on_failure = on_failure
        self._on_quarantine = on_quarantine
        self._in_flight = in_flight
        proof = checksums or Checksums(exact=True)
        self._member = partial(Member, delivery=self.delivery, checksums=proof, probe_tolerance=probe_tolerance)
        self._draining = False
        """The gate is closed, and what runs is waited for."""
        self._members: dict[str, Member] = {}
        self._dismissed: dict[str, Member] = {}
        """Known, and not in the fleet: lost, or about to be admitted."""
        self._started_on: dict[str, Weights] = {}
        """What servers that have not been admitted yet were started on."""
        self._places = Places(kv_share=1.0) if places is None else places
        self._lent = False
        self._gate = asyncio.Event()
        self._gate.set()
        self._waiting = Waiting(self._places, self._gate)
        self._any_up = asyncio.Event()
        self._all_ours = asyncio.Event()
        self._all_ours.set()
        """No engine is lent."""
        self._on_change: Callable[[], None] = lambda: None
        self._on_state: Callable[[], None] = lambda: None

    @property
    def num_up(self) -> int:
        """Engines in service."""
        return len(self._places)

    @property
    def lent(self) -> bool:
        """Whether the swing engines are the trainer's."""
        return self._lent

    @property
    def num_waiting(self) -> int:
        """Episodes that wait for room on an engine."""
        return self._waiting.num

    @property
    def kv_capacity_tokens(self) -> int:
        """KV capacity of the engines in service, in tokens."""
        return self._places.capacity_tokens

    @property
    def probe_difference(self) -> float | None:
        """The largest difference from the trainer's log-probs of an engine in service; None if none was compared."""
        found = [member.difference for member in self._in_service() if member.difference is not None]
        return max(found, default=None)

    @property
    def weights_in_use(self) -> set[str]:
        """Folders that some engine serves, will come back with, or is being started on."""
        members = (*self._members.values(), *self._dismissed.values())
        loaded = (path for member in members for path in member.folders)
        return {*self.weights.folders, *(weights.path for weights in self._started_on.values()), *loaded}

    @property
    def engines(self) -> list[Engine]:
        """Those in service."""
        return [member.engine for member in self._in_service()]

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Be told whenever an engine has come into service or left it. One listener."""
        self._on_change = on_change

    def watch(self, on_state: Callable[[], None]) -> None:
        """Be told whenever what `state` says of an engine has changed. One listener."""
        self._on_state = on_state

    def state(self, name: str) -> EngineState:
        member = self._members.get(name)
        if member is None:
            return EngineState.DOWN
        if name not in self._places:
            return EngineState.LENT if member.lent and self._lent else EngineState.SWITCHING
        if not self._gate.is_set() and not (self._draining and member.busy):
            return EngineState.HELD
        return EngineState.BUSY if member.busy else EngineState.FREE

    def version_of(self, name: str) -> int | None:
        """Policy version that an engine in the fleet was last known to serve; None: not known."""
        member = self._members.get(name)
        return member.holds.version if member is not None and member.holds is not None else None

    async def wait_up(self) -> None:
        """Until at least one engine is in service."""
        await self._any_up.wait()

    # --- engines come and go

    async def until_startable(self, name: str) -> None:
        """Until a server for this engine may be started: while it is lent, its memory is the trainer's."""
        if name in self.swing:
            await self._all_ours.wait()

    def start_weights(self, name: str) -> Weights:
        """A new server for this engine must be started on their `path`, as version `stored`; it is given what is newer
        when it is admitted. The folder is in use until it is known to have loaded something else."""
        self._started_on[name] = self.weights
        return self.weights

    async def admit(self, engine: Engine) -> None:
        """Let a started engine serve, or wait with the trainer. One that holds older weights gets the current ones
        first, and it must agree with the trainer about them. Raises EngineError."""
        member = self._dismissed.get(engine.name)
        if member is None or member.engine is not engine:
            member = self._member(engine, started_on=self._started_on.pop(engine.name, None))
        self._dismissed[engine.name] = member
        try:
            duty = await self._prepare(member)
        except EngineError as error:
            member.distrust()
            self._tell_mistrust(engine.name, error)
            raise
        del self._dismissed[engine.name]
        self._members[engine.name] = member
        self._enter(member, duty)

    def dismiss(self, name: str) -> None:
        """The engine is gone, or not to be trusted until it is admitted again."""
        member = self._members.pop(name, None)
        if member is None:
            return
        member.distrust()
        self._dismissed[name] = member
        if self.routed is not None:
            self.routed.drop(name)
        self._leave(name)

    async def _prepare(self, member: Member) -> Duty:
        """Bring an engine to its duty, and say which that is.

        Every call takes time in which its duty or the weights may change: it is ready only when nothing has changed
        since it was made so.
        """
        while True:
            weights, duty, renewed = self.weights, self._duty(member.engine.name), self._renewed
            if self.routed is not None and duty is Duty.LEND:
                await self.routed.cut(member.engine.name)
            try:
                await member.bring(weights, duty)
            except WeightsGone:
                member.distrust()
                await renewed.wait()  # the trainer has made the next version, which is about to be published
                continue
            if self.routed is not None and duty is not Duty.LEND:
                await self.routed.add(member.engine)
            if weights is self.weights and duty is self._duty(member.engine.name):
                return duty

    def _enter(self, member: Member, duty: Duty) -> None:
        """Into service, unless it is lent."""
        if duty is not Duty.LEND:
            self._places.add(member.engine.name, member.capacity_tokens)
            self._any_up.set()
            self._waiting.grant()
            self._on_change()
        self._on_state()

    async def _switch(self, member: Member) -> None:
        """To or from the trainer, unless the engine is lost on the way."""
        duty = await self._prepare(member)
        if self._members.get(member.engine.name) is member:
            self._enter(member, duty)

    def _duty(self, name: str) -> Duty:
        if self._lent and name in self.swing:
            return Duty.LEND
        return Duty.SERVE if self._gate.is_set() else Duty.HOLD

    def _leave(self, *names: str) -> None:
        """Out of service."""
        for name in names:
            self._places.remove(name)
        if not self._places.engines:
            self._any_up.clear()
        self._waiting.grant()
        self._on_change()
        self._on_state()

    def _fail(self, member: Member, problem: str | EngineError) -> None:
        name = member.engine.name
        if self._members.get(name) is member:
            log.warning("engine %s: %s", name, problem)
            self.dismiss(name)
            self._tell_mistrust(name, problem)
            self._on_failure(name)

    def _tell_mistrust(self, name: str, problem: str | EngineError) -> None:
        if isinstance(problem, EngineMistrusted):
            self._on_quarantine(name, str(problem))

    # --- sampling

    async def sample(
        self, episode: str, rid: str, ids: list[int], params: SamplingParams, hold: Hold | None = None
    ) -> Generation:
        """Sample on the episode's engine; on another one if that fails. Raises EngineError at the turn's deadline.

        `hold` stands still while the episode waits for room; without it only a suspension stops the turn's clock.
        """
        active_now = hold.active_now if hold else self._active_now
        deadline = active_now() + self._turn_timeout_s
        problem = "no engine is up"
        hung: list[Member] = []
        while True:
            name = await self._waiting.place(episode, len(ids), hold)
            remaining_s = deadline - active_now()
            if remaining_s <= 0:
                if hung:
                    await self._blame(hung, EngineError(problem))
                raise EngineError(f"turn not sampled in {self._turn_timeout_s:g} s of active time: {problem}")
            asked = self._candidates(episode, name)
            try:
                async with asyncio.timeout(remaining_s) as timer:
                    if asked:
                        return await self._generate(asked, episode, rid, ids, params, timer=timer)
                    await self._any_up.wait()
            except TimeoutError:
                # Time may have stood still meanwhile, or the engine was lent: the loop's head decides.
                problem = f"no answer from {name}" if name else "no engine is up"
                hung = asked
            except EngineError as error:
                problem = str(error)
                await self._blame(asked, error)

    def _candidates(self, episode: str, name: str | None) -> list[Member]:
        """The engines that a request may be served by; none where none is in service."""
        if name is None:
            return []
        return [self._members[name]] if self.routed is None else self.routed.candidates(episode, self._in_service())

    async def _generate(
        self,
        asked: list[Member],
        episode: str,
        rid: str,
        ids: list[int],
        params: SamplingParams,
        *,
        timer: asyncio.Timeout,
    ) -> Generation:
        """Open on every engine that it may be on, so that none is lent while it may be running there."""
        idle, sent_under = not all(member.busy for member in asked), self.weights
        params = replace(params, priority=self._waiting.age(episode, sent_under.version))
        try:
            with ExitStack() as stack:
                for member in asked:
                    stack.enter_context(member.request(timer))
                if idle:
                    self._on_state()
                if self.routed is None:
                    member, generation = asked[0], await asked[0].engine.generate(rid, ids, params)
                else:
                    generation = await self.routed.generate(episode, sent_under.version, rid, ids, params)
                    member = self._answered_by(generation)
                await self._believe(member, sent_under, generation)
        finally:
            if not all(member.busy for member in asked):
                self._on_state()
        if not self._waiting.chosen(episode):
            self.sampled_tokens += len(generation.ids)
        self._places.idle(episode, len(ids) + len(generation.ids), monotonic())
        self._waiting.grant()
        return generation

    def _answered_by(self, generation: Generation) -> Member:
        """Raises EngineError for an engine that has left the fleet: nobody knows what it serves."""
        if (member := self._members.get(generation.engine or "")) is None:
            raise EngineError(f"the router's answer is from {generation.engine}, which is not in the fleet")
        return member

    async def _believe(self, member: Member, sent_under: Weights, generation: Generation) -> None:
        try:
            await member.believe(sent_under, generation)
        except EngineMistrusted as error:
            self._fail(member, error)
            raise

    async def _blame(self, asked: list[Member], error: EngineError) -> None:
        """Through a router a failure says nothing of who failed: the engines that sample nothing when asked have."""
        if self.routed is None:
            for member in asked:
                self._fail(member, error)
        elif not isinstance(error, EngineMistrusted):
            for member in await self.routed.silent([member for member in asked if self._serves(member)]):
                if self._serves(member):
                    self._fail(member, error)
            await self.routed.sync()
            await asyncio.sleep(RETRY_S)

    def _serves(self, member: Member) -> bool:
        """Whether it would answer a request now, if it is well."""
        return self._gate.is_set() and member in self._in_service()

    def let_only(self, some: Callable[[str], bool] | None) -> None:
        """Until this is called again, other episodes wait before their next message as if there was no room, and what
        these sample is not counted. None: all may sample."""
        self._waiting.only = some
        self._waiting.grant()

    def _active_now(self) -> float:
        return self._active_time.read(monotonic())

    def forget(self, episode: str) -> None:
        self._places.forget(episode)
        self._waiting.forget(episode)
        if self.routed is not None:
            self.routed.forget(episode)
        self._waiting.grant()

    async def num_short_of_kv(self) -> int:
        """Episodes that wait for room in a KV cache: for a place, or in the queue of an engine that is full."""
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(member.num_short_of_kv(self._control_timeout_s)) for member in self._in_service()
            ]
        return self._waiting.num_allowed + sum(task.result() for task in asked)

    async def gauges(self) -> dict[str, dict[str, float]]:
        """What the engines in service say of their work; those that do not answer are left out."""
        async with asyncio.TaskGroup() as group:
            asked = {member.engine.name: group.create_task(member.gauges()) for member in self._in_service()}
        return {name: told for name, task in asked.items() if (told := task.result()) is not None}

    # --- suspension and publication

    async def suspend(self, weights: Weights | None = None) -> None:
        """Stop all generation; clocks that bound agents stand still. Idempotent. `weights` are about to be published:
        an engine that comes meanwhile is brought to these."""
        if weights is not None:
            self._renew(weights)
        if not self._gate.is_set():
            return
        self._gate.clear()
        self._active_time.pause(monotonic())
        self._draining = self._in_flight is InFlight.drain
        self._on_state()
        if self._draining:
            await self._drain()
        await self._each("pause", self._in_service(), lambda member: member.hold(PAUSES[self._in_flight]))

    async def _drain(self) -> None:
        """Until nothing is open. Each request ends by its turn's deadline at the latest, and is then sent anew."""
        try:
            async with asyncio.TaskGroup() as group:
                for member in self._in_service():
                    group.create_task(member.drained())
        finally:
            self._draining = False

    async def resume(self) -> None:
        """Let generation go on. Idempotent."""
        if self._gate.is_set():
            return
        # The gate first: an engine that is admitted meanwhile must find it open. What comes too early is held.
        self._gate.set()
        self._active_time.resume(monotonic())
        self._on_state()
        self._waiting.grant()
        await self._each("resume", self._in_service(), lambda member: member.hold(None))

    async def publish(self, weights: Weights) -> int:
        """Make every engine in service serve new weights; only while suspended. Returns how many do.

        An engine that fails, misses the deadline, then reports another version or has other log-probs than the trainer
        is dismissed and reported as failed; it comes back when it was given the weights again and agrees, or restarted
        on them. Lent engines get theirs when they come back.
        """
        assert not self._gate.is_set(), "publish only while suspended"
        self._renew(weights)
        weights = self.weights
        flush_cache = self._in_flight is not InFlight.in_place
        serving = self._in_service()
        await self._each("update weights", serving, lambda member: member.renew(weights, flush_cache=flush_cache))
        if self.routed is not None:
            await self.routed.sync()
        self._places.flushed()
        return len(self._places)

    def _renew(self, weights: Weights) -> None:
        if weights != self.weights or weights.probe != self.weights.probe:
            self.weights = replace(weights, before=replace(self.weights, before=None))
        self._renewed.set()
        self._renewed = asyncio.Event()

    # --- lending

    async def lend(self) -> None:
        """Give the swing engines' GPUs to the trainer. Idempotent. An engine that fails leaves the fleet."""
        if self._lent:
            return
        self._lent = self._waiting.crowded = True
        self._all_ours.clear()
        members = [self._members[name] for name in self.swing if name in self._members]
        self._leave(*self.swing)
        await self._each("lend", members, self._switch)

    async def take_back(self) -> None:
        """Let the swing engines serve again, with the newest weights. Idempotent."""
        if not self._lent:
            return
        self._lent = False
        self._all_ours.set()
        self._on_state()
        members = [self._members[name] for name in self.swing if name in self._members]
        await self._each("take back", members, self._switch)
        self._waiting.crowded = False
        self._waiting.grant()

    def _in_service(self) -> list[Member]:
        return [self._members[name] for name in self._places.engines]

    async def _each(
        self, what: str, members: Iterable[Member], act: Callable[[Member], Coroutine[Any, Any, None]]
    ) -> None:
        """Do something with engines, all at once; the ones that fail leave the fleet."""

        async def guarded(member: Member) -> None:
            try:
                async with asyncio.timeout(self._control_timeout_s):
                    await act(member)
            except TimeoutError:
                self._fail(member, f"{what}: deadline passed")
            except EngineError as error:
                log.warning("engine %s: %s", member.engine.name, what)
                self._fail(member, error)

        async with asyncio.TaskGroup() as group:
            for member in members:
                group.create_task(guarded(member))
