"""One message of the policy, over as many requests as suspensions cut it into."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from agentrl.inference.engine import FinishReason, Generation, SamplingParams
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.edges import ChatFormat, Sampler


@dataclass(frozen=True, kw_only=True)
class Said:
    """What was sampled as one message."""

    generation: Generation
    complete: bool
    """Whether it ended by itself, and not at its budget."""
    closed: bool
    """Whether its ids end as the chat template ends a message."""


class Speaker:
    """Samples messages for episodes."""

    def __init__(self, agent: AgentConfig, chat: ChatFormat, sampler: Sampler) -> None:
        self._agent = agent
        self._chat = chat
        self._sampler = sampler

    async def speak(self, attempt: Attempt, ids: list[int], *, call: int, max_tokens: int | None = None) -> Said:
        """The answer to `ids`. `call` numbers the questions of an episode; `max_tokens` lowers the turn's budget.

        A suspended generation returns what it has; the rest is asked for under whatever version then serves.
        """
        spec = attempt.spec
        budget = min(self._agent.max_turn_tokens, self._agent.max_episode_tokens - len(ids))
        budget = budget if max_tokens is None else min(budget, max_tokens)
        ids = ids.copy()
        logprobs: list[float] = []
        versions: list[int] = []
        finish = FinishReason.ABORT
        segment = 0
        while finish is FinishReason.ABORT:
            rid = f"{spec.episode}.t{call:03d}.s{segment:03d}"
            params = SamplingParams(
                max_new_tokens=budget - len(logprobs),
                temperature=0.0 if spec.greedy else self._agent.temperature,
                stop_token_ids=self._chat.stop_ids,
                seed=request_seed(spec.seed, rid),
            )
            generation = await self._sampler.sample(spec.episode, rid, ids, params, attempt.hold)
            ids += generation.ids
            logprobs += generation.logprobs
            versions += generation.versions
            segment += 1
            finish = generation.finish
            if finish is FinishReason.ABORT and len(logprobs) >= budget:
                finish = FinishReason.LENGTH
        said = ids[len(ids) - len(logprobs) :]
        return Said(
            generation=Generation(ids=said, logprobs=logprobs, versions=versions, finish=finish),
            complete=finish is FinishReason.STOP,
            closed=said[-1:] == [self._chat.end_id],
        )


def request_seed(seed: int, rid: str) -> int:
    """Sampling seed of one request: a 31-bit hash of the run's seed and the request id, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}:{rid}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFF_FFFF
