"""Two real engines: the swing one gives its memory up and comes back, the other one takes its requests meanwhile."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.state import EngineState
from agentrl.controller.fleet.weights import Weights
from agentrl.inference.client import SGLangClient
from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.rollout.active_time import ActiveTime
from tests.fixtures.engine import EngineProcess, running_engine, save_random_model, tiny_llama_config

PROMPT = list(range(5, 25))


def resident_bytes(engine: EngineProcess) -> int:
    fields = Path(f"/proc/{engine.process.pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


async def sample_whole(fleet: Fleet, episode: str, num_tokens: int) -> list[Generation]:
    """All parts of one message."""
    parts: list[Generation] = []
    ids = list(PROMPT)
    while not parts or parts[-1].finish is FinishReason.ABORT:
        left = num_tokens - (len(ids) - len(PROMPT))
        params = SamplingParams(max_new_tokens=left, seed=len(parts))
        parts.append(await fleet.sample(episode, f"{episode}.{len(parts):02d}", ids, params))
        ids += parts[-1].ids
    return parts


async def test_a_swing_engine_is_lent_and_taken_back_for_real(tmp_path: Path) -> None:
    large = tiny_llama_config(hidden_size=512, intermediate_size=2048, vocab_size=4000)
    folder = save_random_model(tmp_path, large)
    weights_bytes = (folder / "model.safetensors").stat().st_size
    (tmp_path / "swing").mkdir()
    (tmp_path / "dedicated").mkdir()
    failed: list[str] = []
    fleet = Fleet(
        Weights(str(folder), 0),
        ActiveTime(),
        turn_timeout_s=60.0,
        control_timeout_s=60.0,
        on_failure=failed.append,
        swing=("swing",),
    )
    with running_engine(folder, tmp_path / "swing") as swing, running_engine(folder, tmp_path / "dedicated") as other:
        clients = [
            SGLangClient("swing", swing.url, request_timeout_s=60.0),
            SGLangClient("dedicated", other.url, request_timeout_s=60.0),
        ]
        for client in clients:
            await fleet.admit(client)
        running = [asyncio.create_task(sample_whole(fleet, f"e{number}", 200)) for number in range(4)]
        while (await clients[0].load()).num_running == 0:
            pass
        full = resident_bytes(swing)  # what the requests take themselves is there already
        await fleet.lend()
        assert fleet.state("swing") is EngineState.LENT
        assert full - resident_bytes(swing) > 0.7 * weights_bytes
        messages = [await task for task in running]
        assert [sum(len(part.ids) for part in parts) for parts in messages] == [200] * 4
        assert any(len(parts) > 1 for parts in messages), "some were aborted on the swing engine, and went on"
        await fleet.suspend()
        await fleet.publish(Weights(str(folder), 1))
        await fleet.resume()
        await fleet.take_back()
        assert resident_bytes(swing) > full - 0.5 * weights_bytes
        assert [await client.version() for client in clients] == [1, 1]
        again = [await sample_whole(fleet, f"f{number}", 4) for number in range(4)]
        assert {version for (part,) in again for version in part.versions} == {1}
        assert failed == []
        for client in clients:
            await client.close()
