"""Servers that somebody else runs, asked before a run starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from agentrl.errors import EngineError, UserError
from agentrl.inference.client import SGLangClient

_TIMEOUT_S = 10.0


def check_attached(urls: Iterable[str]) -> None:
    """Every server answers, and has every endpoint that is asked. Raises UserError."""

    async def problems() -> list[str | None]:
        return await asyncio.gather(*map(_problem, urls))

    for problem in asyncio.run(problems()):
        if problem is not None:
            raise UserError(f"inference.urls: {problem}", hint="start the server, or correct the URL")


async def _problem(url: str) -> str | None:
    client = SGLangClient(url, url, request_timeout_s=_TIMEOUT_S)
    try:
        await client.check_api()
    except EngineError as error:
        return str(error)
    finally:
        await client.close()
    return None
