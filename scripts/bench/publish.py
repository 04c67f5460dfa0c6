"""Publication by each method in one run: how long an engine takes new weights for, and how many bytes travel.

    .venv/bin/python scripts/bench/publish.py [--hidden 512] [--layers 8] [--versions 6]

One real embedded engine and the trainer's own publisher, in two processes, a random Llama of about 30M parameters. Per
version: the folder or the copy that the trainer makes (`write`), and from the order to the engine's answer (`deliver`).
`delta` changes one tensor in eight, as adapters on one projection do. Medians; ratios are to storage of this run.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentrl.config.schema import JobConfig
from agentrl.controller.api import ControllerApi
from agentrl.controller.config import PublishConfig, PublishMethod, ScheduleConfig
from agentrl.controller.fleet.delivery import Delivery, FromFolders, FromTrainer
from agentrl.controller.fleet.weights import weights_of
from agentrl.controller.trainer_desk import TrainerDesk
from agentrl.controller.weights_desk import WeightsDesk
from agentrl.inference.client import SGLangClient
from agentrl.trainer.job import Publication, TrainerJob, weights_folder
from agentrl.trainer.link import ControllerLink
from agentrl.wire import Probe
from tests.fixtures.engine import running_engine, save_random_model, tiny_llama_config

NAME = "engine-0"


@dataclass
class Figures:
    write_s: list[float] = field(default_factory=list)
    deliver_s: list[float] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)


async def measure(
    method: Literal["storage", "direct", "shared"], model: Path, *, delta: bool, versions: int
) -> Figures:
    """Publish some versions to an engine that starts on `model`."""
    from safetensors.torch import load_file

    from agentrl.trainer.publish import Publisher

    every = versions + 2 if delta or method != "storage" else 1
    config = JobConfig(
        publish=PublishConfig(method=PublishMethod(method), storage_every=every, delta=delta),
        schedule=ScheduleConfig(steps=10 * every),
    )
    desk = WeightsDesk(epoch=1, patience_s=60.0)
    api = ControllerApi(TrainerDesk(epoch=1, applied=0, load_batch=_no_batch), desk, "token")
    await api.start("127.0.0.1", 0)
    figures = Figures()
    with tempfile.TemporaryDirectory() as run_dir, running_engine(model, Path(run_dir)) as engine:
        client = SGLangClient(NAME, engine.url, request_timeout_s=120.0)
        job = TrainerJob(
            controller_url=api.url, token="token", epoch=1, run_dir=run_dir, model_path=str(model), temperature=1.0,
            seed=0, total_steps=10 * every,
            publication=Publication(send=None if method == "storage" else method, every=every, delta=delta),
        )  # fmt: skip
        publisher = Publisher(job, ControllerLink(job.controller_url, token="token", retry_s=5.0))
        delivery: Delivery = FromFolders() if method == "storage" else FromTrainer(desk, {NAME: [-1]})
        weights = load_file(model / "model.safetensors")
        publisher.resume(0, weights)
        for version in range(1, versions + 1):
            for place, name in enumerate(weights):
                if not delta or place % 8 == 0:
                    weights[name] = weights[name] + 1e-3
            probe = Probe(ids=[1], ends=[1], logprobs=[0.0])
            began, before = time.perf_counter(), delivery.num_bytes
            await asyncio.to_thread(publisher.write, version, weights, probe)
            publisher.offer()
            written = time.perf_counter()
            folder = str(weights_folder(Path(run_dir), version))
            target = weights_of(version, folder, probe, config=config, start=str(model))
            await client.pause()
            await delivery.deliver(client, target, base=version - 1, careful=False, flush_cache=True)
            await client.resume()
            assert await client.version() == version
            figures.deliver_s.append(time.perf_counter() - written)
            figures.write_s.append(written - began)
            figures.num_bytes.append(delivery.num_bytes - before)
        publisher.close()
        await client.close()
    await api.close()
    return figures


def _no_batch(step: int) -> Any:
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--versions", type=int, default=6)
    options = parser.parse_args()
    shape = tiny_llama_config(
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        vocab_size=8192,
    )
    with tempfile.TemporaryDirectory() as folder:
        model = save_random_model(Path(folder), shape)
        print("method           write s  deliver s  MiB a version  deliver/storage")
        base = 0.0
        for method in ("storage", "direct", "shared"):
            for delta in (False, True):
                found = asyncio.run(measure(method, model, delta=delta, versions=options.versions))  # type: ignore[arg-type]
                write, deliver = statistics.median(found.write_s), statistics.median(found.deliver_s)
                base = base or deliver
                size = statistics.median(found.num_bytes) / (1 << 20)
                label = f"{method}{' delta' if delta else ''}"
                print(f"{label:<15}  {write:7.3f}  {deliver:9.3f}  {size:13.1f}  {deliver / base:15.2f}")


if __name__ == "__main__":
    main()
