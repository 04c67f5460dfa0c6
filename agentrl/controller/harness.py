"""Starts what a harness needs of a run: the endpoint that it asks, and a place for its processes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from agentrl.cluster.cluster import Cluster
from agentrl.rollout.chat import Chat
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.harness.agent import HarnessAgent, MakeAgent
from agentrl.rollout.harness.endpoint import Endpoint


async def open_harness(
    agent: AgentConfig, chat: Chat, *, cluster: Cluster, work: Path, logs: Path, stack: AsyncExitStack
) -> MakeAgent | None:
    """Who makes the agent, once it is known who samples and who records; None for the built-in agent.

    The endpoint is closed with `stack`. `cluster` must start processes on this machine.
    """
    if not agent.harness.command:
        return None
    endpoint = Endpoint(model=agent.harness.model, tool_role=agent.observation_role)
    await endpoint.start()
    stack.push_async_callback(endpoint.close)
    return lambda sampler, recorder: HarnessAgent(
        agent,
        chat,
        sampler,
        recorder,
        endpoint=endpoint,
        cluster=cluster,
        folder=work / "harness",
        logs=logs / "harness",
    )
