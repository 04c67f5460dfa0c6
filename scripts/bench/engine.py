"""Tokens a second of the embedded engine, over HTTP, against transformers' `generate` on the same model and prompts.

    .venv/bin/python scripts/bench/engine.py [--model FOLDER] [--json]

For 1, 8 and 32 requests at once: the engine serves them as separate concurrent requests; transformers gets them as one
padded batch, and one by one. All run with one thread and sample at temperature 1; every request yields the same number
of tokens. The sides take turns and each is represented by its best round. Ratios are of wall time and, beside it, of
CPU time (the engine's whole process), which is what to look at when the machine is busy with something else.
Without --model a random model of 0.1M parameters is measured; with it, that folder too.

Needed: at 1 request at least 1.0 times transformers, at 32 at least 3 times transformers one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import aiohttp
import torch

from tests.fixtures.engine import running_engine, save_random_model, tiny_llama_config

CONCURRENCY = (1, 8, 32)
AT_LEAST_ALONE = 1.0
AT_LEAST_CROWDED = 3.0


@dataclass(frozen=True)
class Load:
    """What is asked of both sides."""

    prompt_tokens: int
    new_tokens: int
    rounds: int


@dataclass(frozen=True)
class Cost:
    """Seconds a token."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Result:
    model: str
    concurrency: int
    engine: Cost
    batch: Cost
    """transformers, all requests in one batch."""
    single: Cost
    """transformers, one request after another."""

    def ratios(self, other: Cost) -> tuple[float, float]:
        """How much faster the engine is than another side, by wall and by CPU time."""
        return other.wall_s / self.engine.wall_s, other.cpu_s / self.engine.cpu_s


class Transformers:
    """The other side, in this process."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.generation_config.pad_token_id = 0
        self._model.generation_config.eos_token_id = None
        self.vocab_size: int = self._model.config.vocab_size

    def generate(self, prompts: list[list[int]], new_tokens: int) -> None:
        """One padded batch."""
        ids = torch.tensor(prompts)
        out = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=new_tokens,
        )
        assert out.shape[1] == ids.shape[1] + new_tokens


class Engine:
    """The embedded engine, over HTTP with one connection a request."""

    def __init__(self, url: str, pid: int) -> None:
        self._url = url
        self.pid = pid

    async def generate(self, prompts: list[list[int]], new_tokens: int) -> None:
        """Separate concurrent requests; nothing is left in the prefix cache."""
        sampling = {"max_new_tokens": new_tokens, "ignore_eos": True}

        async def one(session: aiohttp.ClientSession, ids: list[int]) -> None:
            body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}
            async with session.post(self._url + "/generate", json=body) as reply:
                assert len((await reply.json())["output_ids"]) == new_tokens

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(one(session, ids) for ids in prompts))
            async with session.post(self._url + "/flush_cache") as reply:
                assert reply.status == 200


def process_cpu_s(pid: int) -> float:
    """CPU seconds that a process and its threads have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds(action: Callable[[], None], pid: int) -> tuple[float, float]:
    """(wall, CPU of process `pid`) seconds of an action."""
    wall, cpu = time.perf_counter(), process_cpu_s(pid)
    action()
    return time.perf_counter() - wall, process_cpu_s(pid) - cpu


def measure(name: str, folder: Path, load: Load) -> list[Result]:
    torch.set_num_threads(1)
    transformers = Transformers(folder)
    context = str(load.prompt_tokens + load.new_tokens)
    with (
        tempfile.TemporaryDirectory() as work,
        running_engine(
            folder, Path(work), "--context-length", context, "--max-running-requests", str(max(CONCURRENCY))
        ) as process,
    ):
        engine = Engine(process.url, process.process.pid)
        return [measure_at(concurrency, name, engine, transformers, load) for concurrency in CONCURRENCY]


def measure_at(concurrency: int, name: str, engine: Engine, transformers: Transformers, load: Load) -> Result:
    generator = torch.Generator().manual_seed(concurrency)
    shape = (concurrency, load.prompt_tokens)
    prompts: list[list[int]] = torch.randint(transformers.vocab_size, shape, generator=generator).tolist()
    new = load.new_tokens
    here = os.getpid()
    sides: dict[str, tuple[Callable[[], None], int, int]] = {
        "engine": (lambda: asyncio.run(engine.generate(prompts, new)), engine.pid, concurrency * new),
        "batch": (lambda: transformers.generate(prompts, new), here, concurrency * new),
        # One request stands for all: they would take equally long.
        "single": (lambda: transformers.generate(prompts[:1], new), here, new),
    }
    rounds: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(1 + load.rounds):
        for side, (action, process, _) in sides.items():
            rounds[side].append(seconds(action, process))
    costs = {}
    for side, (_, _, num_tokens) in sides.items():
        walls, cpus = zip(*rounds[side][1:], strict=True)  # the first round warms up
        costs[side] = Cost(min(walls) / num_tokens, min(cpus) / num_tokens)
    return Result(model=name, concurrency=concurrency, **costs)


def report(results: list[Result]) -> None:
    print("tokens a second, and the engine's ratio to each other side by wall time (by CPU time)")
    print(f"{'model':<20}{'at once':>8}{'engine':>10}{'generate':>10}{'':16}{'one by one':>10}")
    for r in results:
        cells = f"{1 / r.engine.wall_s:>10.0f}"
        for other in (r.batch, r.single):
            wall, cpu = r.ratios(other)
            cells += f"{1 / other.wall_s:>10.0f}{wall:>7.2f}x ({cpu:.2f}x)"
        print(f"{r.model:<20}{r.concurrency:>8}{cells}")
    for model in dict.fromkeys(r.model for r in results):
        alone, crowded = (next(r for r in results if (r.model, r.concurrency) == (model, n)) for n in (1, 32))
        verdict(model, "at 1 request", alone.ratios(alone.batch), AT_LEAST_ALONE)
        verdict(model, "at 32 requests against one by one", crowded.ratios(crowded.single), AT_LEAST_CROWDED)


def verdict(model: str, what: str, ratios: tuple[float, float], needed: float) -> None:
    wall, cpu = ratios
    print(f"{'ok  ' if wall >= needed else 'MISS'} {model} {what}: {wall:.2f}x (CPU {cpu:.2f}x), needed {needed:g}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder in Hugging Face layout to measure too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tiny = save_random_model(Path(folder), tiny_llama_config(hidden_size=64, intermediate_size=192))
        results = measure("tiny", tiny, Load(prompt_tokens=64, new_tokens=128, rounds=3))
    if options.model is not None:
        results += measure(
            options.model.name, options.model.absolute(), Load(prompt_tokens=64, new_tokens=24, rounds=2)
        )
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        report(results)


if __name__ == "__main__":
    main()
