"""Whether an engine is believed: its log-probs against the trainer's."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import msgspec
import pytest

from agentrl.controller.config import InFlight, PublishConfig
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.mistrust import cause
from agentrl.controller.fleet.publication import difference, read_probe, tolerance
from agentrl.controller.fleet.weights import Weights
from agentrl.errors import EngineMistrusted, EngineRequestError
from agentrl.inference.config import Dtype
from agentrl.inference.engine import FinishReason, Generation, PauseMode, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from agentrl.simulation.instant import InstantEngine
from agentrl.wire import PROBE_FILE, Probe

PROBE = Probe(ids=[1, 2, 3, 4], ends=[1, 3], logprobs=[-1.0, -2.0])
RID = "g0.m0.a0.t000.s000"


def test_the_difference_is_the_mean_of_absolute_ones() -> None:
    assert difference(PROBE, [-1.0, -2.0]) == 0
    assert difference(PROBE, [-1.5, -1.7]) == pytest.approx(0.4)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_what_is_no_number_is_no_agreement(value: float) -> None:
    assert difference(PROBE, [-1.0, value]) == math.inf


def test_the_tolerance_follows_the_number_format_unless_it_is_set() -> None:
    assert tolerance(PublishConfig(), Dtype.float32) < tolerance(PublishConfig(), Dtype.bfloat16)
    assert tolerance(PublishConfig(probe_tolerance=0.2), Dtype.float32) == 0.2


def test_a_probe_is_read_beside_its_weights(tmp_path: Path) -> None:
    assert read_probe(str(tmp_path)) is None
    (tmp_path / PROBE_FILE).write_bytes(msgspec.json.encode(PROBE))
    assert read_probe(str(tmp_path)) == PROBE


class Told(InstantEngine):
    """Says of each weights that it loads what it is told to."""

    def __init__(self, name: str, *told: list[float]) -> None:
        """`told`: what it says after its first load, after its second, and so on; the last one stays."""
        super().__init__(name, [[1, 2, 9]])
        self.loads: list[str] = []
        self._told = told

    async def update_weights(self, path: str, version: int, *, flush_cache: bool = True) -> None:
        await super().update_weights(path, version, flush_cache=flush_cache)
        self.loads.append(path)

    async def best_logprobs(self, ids: list[int], ends: list[int]) -> list[float]:
        assert (ids, ends) == (PROBE.ids, PROBE.ends)
        assert self._open.is_set(), "a paused engine answers nothing"
        await asyncio.sleep(0)
        return self._told[min(len(self.loads), len(self._told)) - 1]


def fleet_of(quarantined: list[str], in_flight: InFlight = InFlight.abort_resume) -> Fleet:
    return Fleet(
        Weights("/w0", 0),
        ActiveTime(),
        turn_timeout_s=60.0,
        control_timeout_s=5.0,
        on_failure=lambda _: None,
        on_quarantine=lambda name, why: quarantined.append(f"{name}: {why}"),
        in_flight=in_flight,
    )


async def publish(fleet: Fleet, version: int = 1) -> int:
    await fleet.suspend()
    serving = await fleet.publish(Weights(f"/w{version}", version, PROBE))
    await fleet.resume()
    return serving


async def test_one_that_disagrees_is_named_and_gets_nothing_while_the_rest_goes_on() -> None:
    quarantined: list[str] = []
    fleet = fleet_of(quarantined)
    good, bad = Told("a", [-1.0, -2.0]), Told("b", [-1.0, -2.5])
    await fleet.admit(good)
    await fleet.admit(bad)
    assert await publish(fleet) == 1
    (only,) = quarantined
    assert only.startswith("b: log-probs differ by 0.25 ")
    for number in range(4):
        assert (await fleet.sample(f"e{number}", RID, [5], SamplingParams(max_new_tokens=8))).versions == [1] * 3
    assert fleet.probe_difference == 0


async def test_it_comes_back_when_it_was_given_the_weights_again_and_agrees() -> None:
    quarantined: list[str] = []
    fleet = fleet_of(quarantined)
    engine = Told("a", [-9.0, -9.0], [-9.0, -9.0], [-1.0, -2.0])
    await fleet.admit(engine)
    assert await publish(fleet) == 0
    with pytest.raises(EngineMistrusted, match="version 1"):
        await fleet.admit(engine)
    assert fleet.num_up == 0
    await fleet.admit(engine)
    assert (engine.loads, fleet.num_up, len(quarantined)) == (["/w1"] * 3, 1, 2)


async def test_one_that_comes_with_the_right_version_and_other_weights_is_not_let_in() -> None:
    quarantined: list[str] = []
    fleet = fleet_of(quarantined)
    await publish(fleet)
    stale = Told("a", [-3.0, -3.0])
    await stale.update_weights("/w0", 1)
    with pytest.raises(EngineMistrusted):
        await fleet.admit(stale)
    assert len(quarantined) == 1


async def test_one_that_refuses_the_probe_is_quarantined() -> None:
    class Refuses(InstantEngine):
        async def best_logprobs(self, ids: list[int], ends: list[int]) -> list[float]:
            raise EngineRequestError("no such ids")

    quarantined: list[str] = []
    fleet = fleet_of(quarantined)
    await fleet.admit(Refuses("a", [[9]]))
    assert await publish(fleet) == 0
    assert "no such ids" in quarantined[0]


async def test_what_an_engine_samples_before_it_is_found_out_is_thrown_away() -> None:
    class InFlightOne(Told):
        """Holds its first request across an update; its tokens are of both versions then."""

        async def generate(self, rid: str, input_ids: list[int], params: SamplingParams) -> Generation:
            if self._version == 0:
                while self._version == 0 or not self._open.is_set():  # noqa: ASYNC110 (as the fleet goes on)
                    await asyncio.sleep(0)
                return Generation(ids=[1, 9], logprobs=[-1.0, -1.0], versions=[0, 1], finish=FinishReason.STOP)
            return await super().generate(rid, input_ids, params)

    for told, accepted in (([-1.0, -2.0], [0, 1]), ([-5.0, -5.0], [1, 1, 1])):
        quarantined: list[str] = []
        fleet = fleet_of(quarantined, in_flight=InFlight.in_place)
        await fleet.admit(InFlightOne("a", told))
        asked = asyncio.create_task(fleet.sample("e", RID, [5], SamplingParams(max_new_tokens=8)))
        await asyncio.sleep(0)
        await publish(fleet)
        if quarantined:
            await fleet.admit(Told("b", [-1.0, -2.0]))
        assert (await asked).versions == accepted


async def test_an_answer_from_weights_that_an_engine_was_not_given_makes_it_stale() -> None:
    class Older(Told):
        async def generate(self, rid: str, input_ids: list[int], params: SamplingParams) -> Generation:
            return Generation(ids=[9], logprobs=[-1.0], versions=[0], finish=FinishReason.STOP)

    quarantined: list[str] = []
    fleet = fleet_of(quarantined)
    await fleet.admit(Older("a", [-1.0, -2.0]))
    await publish(fleet)
    asked = asyncio.create_task(fleet.sample("e", RID, [5], SamplingParams(max_new_tokens=8)))
    while not quarantined:  # noqa: ASYNC110 (the fleet has nothing to wait for)
        await asyncio.sleep(0)
    assert quarantined[0].startswith("a: sampled from version 0, but 1 was proven")
    await fleet.admit(Told("b", [-1.0, -2.0]))
    assert (await asked).versions == [1, 1, 1]


async def test_what_a_failure_left_in_an_engine_is_ended_before_it_gets_weights() -> None:
    said: list[str] = []

    class Noted(Told):
        async def pause(self, mode: PauseMode = PauseMode.ABORT) -> None:
            said.append(mode.value)
            await super().pause(mode)

        async def update_weights(self, path: str, version: int, *, flush_cache: bool = True) -> None:
            said.append("update")
            await super().update_weights(path, version, flush_cache=flush_cache)

    fleet = fleet_of([])
    engine = Noted("a", [-1.0, -2.0])
    await fleet.admit(engine)
    fleet.dismiss("a")
    await publish(fleet)
    await fleet.admit(engine)
    assert said == ["abort", "update"]


@pytest.mark.parametrize(
    ("difference", "older", "dtype", "named"),
    [
        (0.3, (4, 0.0), "float32", "stale, these are the weights of version 4"),
        (0.3, (4, 0.2), "float32", "perturbed"),
        (0.02, (4, 0.2), "bfloat16", "precision, it computes in bfloat16"),
        (0.02, None, "bfloat16", "precision"),
        (0.02, (4, 0.2), None, "perturbed"),
        (0.3, (4, 0.2), "bfloat16", "perturbed"),
        (0.02, None, "float32", "stale or perturbed"),
        (math.inf, (4, math.inf), "bfloat16", "perturbed"),
    ],
)
def test_an_engine_that_does_not_agree_is_named_by_what_it_does(
    difference: float, older: tuple[int, float] | None, dtype: str | None, named: str
) -> None:
    assert cause(difference, older=older, dtype=dtype, tolerance=1e-3).startswith(named)
