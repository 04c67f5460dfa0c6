"""What a pod prints, followed through the API server and taken up again where a connection broke off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

from agentrl.kubernetes.client import KubernetesClient, Request
from agentrl.kubernetes.errors import Invalid, KubernetesError, NotFound
from agentrl.kubernetes.limits import pause_s
from agentrl.kubernetes.resources import PODS

_SECOND = len("2026-01-01T00:00:00")
_SILENCE_S = 300.0
"""A log may say nothing for long; after this it is asked for again, in case the connection died silently."""


async def read_log(client: KubernetesClient, pod: str, *, tail: int | None = None) -> list[str]:
    """Lines of a pod's one container, the last `tail`. Raises KubernetesError; Invalid before the container starts."""
    query = {} if tail is None else {"tailLines": str(tail)}
    async with client.stream(_request(client, pod, query), silence_s=60.0) as lines:
        return [_text(line) async for line in lines]


async def follow_log(
    client: KubernetesClient, pod: str, *, entropy: Random, tail: int | None = None
) -> AsyncIterator[str]:
    """Lines as they come, from the first or the last `tail` on, each once,
    until the container has ended or the pod is gone.

    Times come with the lines and say what was had already: `sinceTime` knows whole seconds only.
    """
    last, failures = "", 0
    while True:
        query, had = {"follow": "true", "timestamps": "true"}, last
        if had:
            query["sinceTime"] = f"{had[:_SECOND]}Z"
        elif tail is not None:
            query["tailLines"] = str(tail)
        try:
            async with client.stream(_request(client, pod, query), silence_s=_SILENCE_S) as lines:
                async for line in lines:
                    time, _, text = _text(line).partition(" ")
                    if time > had:
                        last, failures = time, 0
                        yield text
            if await _has_ended(client, pod):
                return
        except NotFound:
            return
        except KubernetesError as error:
            # Invalid: the container has not started yet.
            if not (error.transient or isinstance(error, Invalid)):
                raise
        await asyncio.sleep(pause_s(failures, entropy.random()))
        failures += 1


async def _has_ended(client: KubernetesClient, pod: str) -> bool:
    """A log also ends where the server that passed it on is stopped."""
    found = await client.get(PODS, pod)
    return found.get("status", {}).get("phase") not in ("Pending", "Running")


def _request(client: KubernetesClient, pod: str, query: dict[str, str]) -> Request:
    path = PODS.path(client.namespace, pod, "log")
    return Request("GET", path, what=f"read the log of {pod}", counted="pods/log", query=query)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")
