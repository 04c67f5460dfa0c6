"""A simulated router: sticky by key, on the engine with the fewest requests, as SGLang's with `--policy manual`.

It learns of engines with a delay, and tells a request that its engine has died only by failing it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from agentrl.errors import EngineError
from agentrl.inference.engine import Generation, SamplingParams
from agentrl.simulation.engine import SimulatedEngine

ORDER_S = 0.05
"""Until a change of its engines holds; sglang-router took 0.02 to 0.08 s."""


class SimulatedRouter:
    """`engines`: whoever answers at an address now."""

    def __init__(self, engines: Mapping[str, SimulatedEngine]) -> None:
        self._engines = engines
        self._urls: tuple[str, ...] = ()
        self._of: dict[str, str] = {}
        self._num_open: Counter[str] = Counter()

    async def serve(self, urls: Collection[str]) -> None:
        await asyncio.sleep(ORDER_S)
        self._urls = tuple(urls)
        self._of = {key: url for key, url in self._of.items() if url in self._urls}

    async def generate(
        self, key: str, version: int, rid: str, input_ids: list[int], params: SamplingParams
    ) -> Generation:
        if key not in self._of:
            if not self._urls:
                raise EngineError("router: no engine")
            self._of[key] = min(self._urls, key=lambda url: (self._num_open[url], url))
        url = self._of[key]
        self._num_open[url] += 1
        try:
            return replace(await self._engines[url].generate(rid, input_ids, params), engine=self._engines[url].name)
        finally:
            self._num_open[url] -= 1
