"""The controller's HTTP API lets in who has the run's token, and nobody else."""

from __future__ import annotations

from typing import Any, cast

import aiohttp
import pytest

from agentrl.controller.api import ControllerApi
from agentrl.controller.trainer_desk import TrainerDesk
from agentrl.controller.weights_desk import WeightsDesk
from agentrl.wire import NextRequest, RunFinished, decode, encode


class Desk:
    """Answers that the run is finished."""

    async def next(self, request: NextRequest) -> RunFinished:
        return RunFinished(reason="enough")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Bearer other"}, 401), ({"Authorization": "Bearer secret"}, 200)],
)
async def test_requests_without_the_runs_token_are_refused(headers: dict[str, str], status: int) -> None:
    api = ControllerApi(cast(TrainerDesk, Desk()), WeightsDesk(epoch=1, patience_s=1.0), "secret")
    await api.start()
    try:
        body = encode(NextRequest(epoch=1, version=0, batch_id=None))
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{api.url}/trainer/next", data=body, headers=headers) as reply,
        ):
            assert reply.status == status
            answer: Any = await reply.read()
    finally:
        await api.close()
    if status == 200:
        assert decode(answer, RunFinished) == RunFinished(reason="enough")
