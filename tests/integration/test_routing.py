"""Real engines under both routings, our own and SGLang's router: engines come, are drained, are killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentrl.cluster.local import LocalCluster
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.places import Places, Pool
from agentrl.controller.fleet.routed import Routed
from agentrl.controller.fleet.state import EngineState
from agentrl.controller.fleet.weights import Weights
from agentrl.controller.lifecycle.router import RouterSupervisor
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.inference.client import SGLangClient
from agentrl.inference.config import InferenceConfig, Router
from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.observe.events import Event, ProcessChanged
from agentrl.rollout.active_time import ActiveTime
from tests.fixtures.engine import EngineProcess, running_engine, save_random_model, tiny_llama_config

PROMPT = list(range(5, 25))
LONG = 1500
"""Tokens of a message in the middle of which something happens."""
OPTIONS = ("--context-length", "2048")
NAMES = ("engine-0", "engine-1")


class Book:
    """No process is written down."""

    def started(self, *, pid: int, start_ticks: int, role: str) -> None:
        return

    def ended(self, *, pid: int, start_ticks: int) -> None:
        return


@dataclass
class Site:
    """Two engines, the first one a swing engine; requests go as `router` says."""

    model: Path
    router: Router
    processes: dict[str, EngineProcess]
    fleet: Fleet
    failed: list[str] = field(default_factory=list)
    clients: dict[str, SGLangClient] = field(default_factory=dict)

    async def admit(self, name: str) -> None:
        signed = self.router is not Router.direct
        client = SGLangClient(name, self.processes[name].url, request_timeout_s=60.0, signed=signed)
        self.clients[name] = client
        await self.fleet.admit(client)

    async def message(self, episode: str, num_tokens: int) -> list[Generation]:
        """All parts of one message."""
        parts: list[Generation] = []
        ids = list(PROMPT)
        while not parts or parts[-1].finish is FinishReason.ABORT:
            params = SamplingParams(max_new_tokens=num_tokens - (len(ids) - len(PROMPT)), seed=len(parts))
            parts.append(await self.fleet.sample(episode, f"{episode}.{len(parts):02d}", ids, params))
            ids += parts[-1].ids
        return parts

    async def until_busy(self, name: str) -> None:
        """Until the engine runs a request."""
        while not (await self.clients[name].load()).num_running:  # noqa: ASYNC110 (it happens in the engine)
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"), tiny_llama_config(max_position_embeddings=2048))


@pytest.fixture(scope="module")
def engines(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, EngineProcess]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running_engine(model, tmp_path_factory.mktemp(name), *OPTIONS)) for name in NAMES
        }


@pytest.fixture(params=list(Router), ids=lambda router: router.name)
async def site(
    request: pytest.FixtureRequest, model: Path, engines: dict[str, EngineProcess], tmp_path: Path
) -> AsyncIterator[Site]:
    router: Router = request.param
    failed: list[str] = []
    routed = None if router is Router.direct else Routed(control_timeout_s=30.0)
    fleet = Fleet(
        Weights(str(model), 0),
        ActiveTime(),
        turn_timeout_s=60.0,
        control_timeout_s=30.0,
        on_failure=failed.append,
        swing=NAMES[:1],
        places=(Places if routed is None else Pool)(kv_share=1.0),
        routed=routed,
    )
    site = Site(model, router, dict(engines), fleet, failed)
    cluster = LocalCluster(Book())
    keeping = None
    if routed is not None:
        run = RunDirectory(tmp_path / "run")
        run.logs.mkdir(parents=True)
        up = Up()
        supervisor = RouterSupervisor(InferenceConfig(), run=run, cluster=cluster, observer=up)
        keeping = asyncio.create_task(supervisor.keep(routed))
        await up.up.wait()
    for name in NAMES:
        await site.admit(name)
    yield site
    if keeping is not None:
        keeping.cancel()
        await asyncio.wait({keeping})
    await cluster.close(1.0)
    for client in site.clients.values():
        await client.close()


class Up:
    """Tells when the router serves."""

    def __init__(self) -> None:
        self.up = asyncio.Event()

    def emit(self, event: Event) -> None:
        if isinstance(event, ProcessChanged) and event.state == "up":
            self.up.set()


async def test_an_engine_that_is_added_gets_episodes_and_one_that_is_killed_loses_them(
    site: Site, tmp_path: Path
) -> None:
    turns = {f"e{n}": [(await site.message(f"e{n}", 8))[0] for _ in range(2)] for n in range(4)}
    assert all(second.cached_tokens >= len(PROMPT) - 1 for _, second in turns.values())
    with running_engine(site.model, tmp_path, *OPTIONS) as third:
        site.processes["engine-2"] = third
        await site.admit("engine-2")
        running = [asyncio.create_task(site.message(f"f{number}", LONG)) for number in range(8)]
        await site.until_busy("engine-2")
        third.process.kill()
        assert [sum(len(part.ids) for part in parts) for parts in await asyncio.gather(*running)] == [LONG] * 8
    assert site.failed == ["engine-2"]
    assert site.fleet.num_up == 2


async def test_an_engine_is_drained_while_its_episodes_go_on_elsewhere_and_comes_back_to_new_weights(
    site: Site,
) -> None:
    running = [asyncio.create_task(site.message(f"e{number}", LONG)) for number in range(8)]
    await site.until_busy("engine-0")
    await site.fleet.lend()
    assert site.fleet.state("engine-0") is EngineState.LENT
    messages = await asyncio.gather(*running)
    assert [sum(len(part.ids) for part in parts) for parts in messages] == [LONG] * 8
    assert any(parts[0].finish is FinishReason.ABORT and parts[0].ids for parts in messages), "sampled, and kept"
    await site.fleet.suspend()
    assert await site.fleet.publish(Weights(str(site.model), 1)) == 1
    await site.fleet.resume()
    await site.fleet.take_back()
    later = await asyncio.gather(*(site.message(f"f{number}", 40) for number in range(8)))
    assert {version for parts in later for part in parts for version in part.versions} == {1}
    assert site.fleet.num_up == 2
    assert site.failed == []


async def test_weights_change_under_requests_that_run(site: Site) -> None:
    running = [asyncio.create_task(site.message(f"e{number}", LONG)) for number in range(8)]
    await site.until_busy("engine-0")
    await site.fleet.suspend()
    assert await site.fleet.publish(Weights(str(site.model), 1)) == 2
    await site.fleet.resume()
    for parts in await asyncio.gather(*running):
        assert [set(part.versions) <= {0} for part in parts[:-1]] == [True] * (len(parts) - 1)
        assert set(parts[-1].versions) == {1}
    assert site.failed == []
