"""Tokens a second of the embedded engine, over HTTP, against transformers' `generate` on the same model and prompts.

    .venv/bin/python scripts/bench/engine.py [--model FOLDER] [--json]

For 1, 8 and 32 requests at once: the engine serves them as separate concurrent requests; transformers gets them as one
padded batch, and one by one. All run with one thread and sample at temperature 1; every request yields the same number
of tokens. The sides take turns and each is represented by its best round, so that a busy machine hurts them alike.
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
from typing import Any

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
class Result:
    """Tokens a second."""

    model: str
    concurrency: int
    engine: float
    transformers_batch: float
    transformers_one_by_one: float

    @property
    def over_batch(self) -> float:
        return self.engine / self.transformers_batch

    @property
    def over_one_by_one(self) -> float:
        return self.engine / self.transformers_one_by_one


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

    def __init__(self, url: str) -> None:
        self._url = url

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


def seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


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
        engine = Engine(process.url)
        return [measure_at(concurrency, name, engine, transformers, load) for concurrency in CONCURRENCY]


def measure_at(concurrency: int, name: str, engine: Engine, transformers: Transformers, load: Load) -> Result:
    generator = torch.Generator().manual_seed(concurrency)
    shape = (concurrency, load.prompt_tokens)
    prompts: list[list[int]] = torch.randint(transformers.vocab_size, shape, generator=generator).tolist()
    new = load.new_tokens
    sides: dict[str, Callable[[], None]] = {
        "engine": lambda: asyncio.run(engine.generate(prompts, new)),
        "batch": lambda: transformers.generate(prompts, new),
        # One request stands for all: they would take equally long.
        "single": lambda: transformers.generate(prompts[:1], new),
    }
    best = {side: min(seconds(action) for _ in range(1)) for side, action in sides.items()}  # warm-up round
    best = {side: float("inf") for side in best}
    for _ in range(load.rounds):
        for side, action in sides.items():
            best[side] = min(best[side], seconds(action))
    return Result(
        model=name,
        concurrency=concurrency,
        engine=concurrency * new / best["engine"],
        transformers_batch=concurrency * new / best["batch"],
        transformers_one_by_one=new / best["single"],
    )


def report(results: list[Result]) -> None:
    print(f"{'model':<12}{'at once':>8}{'engine':>12}{'generate':>12}{'one by one':>12}{'ratio':>8}{'ratio 1':>9}")
    for r in results:
        speeds = f"{r.engine:>8.0f} t/s{r.transformers_batch:>8.0f} t/s{r.transformers_one_by_one:>8.0f} t/s"
        print(f"{r.model:<12}{r.concurrency:>8}{speeds}{r.over_batch:>7.2f}x{r.over_one_by_one:>8.2f}x")
    for model in dict.fromkeys(r.model for r in results):
        alone, crowded = (next(r for r in results if (r.model, r.concurrency) == (model, n)) for n in (1, 32))
        for holds, text in (
            (alone.over_batch >= AT_LEAST_ALONE, f"{alone.over_batch:.2f}x at 1 (needed {AT_LEAST_ALONE:g}x)"),
            (
                crowded.over_one_by_one >= AT_LEAST_CROWDED,
                f"{crowded.over_one_by_one:.2f}x at 32 against one by one (needed {AT_LEAST_CROWDED:g}x)",
            ),
        ):
            print(f"{'ok  ' if holds else 'MISS'} {model}: {text}")


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
        rows: list[dict[str, Any]] = [
            asdict(r) | {"over_batch": r.over_batch, "over_one_by_one": r.over_one_by_one} for r in results
        ]
        print(json.dumps(rows))
    else:
        report(results)


if __name__ == "__main__":
    main()
