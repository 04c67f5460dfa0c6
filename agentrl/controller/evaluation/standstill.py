"""Holds training episodes while an evaluation of the run itself has the engines."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from agentrl.controller.evaluation.heldout import is_evaluation
from agentrl.inference.engine import Generation, SamplingParams
from agentrl.rollout.episode import Sampler
from agentrl.rollout.hold import Hold


class Standstill:
    """A `Sampler` before another one. Between `begin` and `end` training episodes ask for no further message: each waits
    where it is, clock and sandbox standing still. What was asked for before is still answered."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._over = asyncio.Event()
        self._over.set()

    def begin(self) -> None:
        self._over.clear()

    def end(self) -> None:
        self._over.set()

    async def sample(
        self, episode: str, rid: str, ids: list[int], params: SamplingParams, hold: Hold | None = None
    ) -> Generation:
        if not self._over.is_set() and not is_evaluation(episode):
            async with hold.waiting() if hold else nullcontext():
                await self._over.wait()
        return await self._sampler.sample(episode, rid, ids, params, hold)

    def forget(self, episode: str) -> None:
        self._sampler.forget(episode)
