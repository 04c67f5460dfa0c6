"""Starts what a harness needs of a run: the endpoint that it asks, and a place for its processes."""

from __future__ import annotations

from contextlib import AsyncExitStack

from agentrl.cluster.local import LocalCluster, ProcessBook
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.rollout.chat import Chat
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.harness.agent import STOP_GRACE_S, HarnessAgent, MakeAgent
from agentrl.rollout.harness.endpoint import Endpoint


async def open_harness(
    agent: AgentConfig, chat: Chat, book: ProcessBook, run: RunDirectory, stack: AsyncExitStack
) -> MakeAgent | None:
    """Who makes the agent, once it is known who samples and who records; None for the built-in agent.

    Its processes are children of this one wherever the run's others are. All ends with `stack`.
    """
    if not agent.harness.command:
        return None
    endpoint = Endpoint(model=agent.harness.model, tool_role=agent.observation_role)
    await endpoint.start()
    stack.push_async_callback(endpoint.close)
    cluster = LocalCluster(book)
    stack.push_async_callback(cluster.close, STOP_GRACE_S)
    return lambda sampler, recorder: HarnessAgent(
        agent,
        chat,
        sampler,
        recorder,
        endpoint=endpoint,
        cluster=cluster,
        folder=run.work / "harness",
        logs=run.logs / "harness",
    )
