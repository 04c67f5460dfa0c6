"""What a controller in a cluster tells of its run: written into the run's record, where it is read without a pod."""

from __future__ import annotations

import asyncio
import json
import logging

from agentrl.cluster.kubernetes.control import OVERVIEW_FILE, STATUS_FILE
from agentrl.cluster.kubernetes.site import record_name
from agentrl.controller.lifecycle.clusters import connect_to_cluster
from agentrl.controller.lifecycle.overview import overview, status_of
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.errors import AgentrlError
from agentrl.kubernetes.client import KubernetesClient
from agentrl.kubernetes.resources import CONFIG_MAPS
from agentrl.observe.events import Event, Phase, ProcessChanged, Published, RunStarted

_PAUSE_S = 5.0
"""Between two writes: a run of short steps must not keep the API server busy."""

logger = logging.getLogger(__name__)


class RecordKeeper:
    """An observer that keeps a run's record up to date while it runs."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._news = asyncio.Event()

    def emit(self, event: Event) -> None:
        if isinstance(event, RunStarted | Phase | ProcessChanged | Published):
            self._news.set()

    async def keep(self) -> None:
        """Until cancelled. A record that cannot be written stops no run."""
        async with await connect_to_cluster() as client:
            while True:
                await self._news.wait()
                self._news.clear()
                try:
                    await write_record(client, self._run)
                except AgentrlError as error:
                    logger.warning("the record of the run: %s", error)
                await asyncio.sleep(_PAUSE_S)


async def write_record(client: KubernetesClient, run: RunDirectory) -> None:
    """What `agentrl ps` and `agentrl status` show of the run now."""
    data = {OVERVIEW_FILE: json.dumps(overview(run))}
    if run.ledger.is_file():
        data[STATUS_FILE] = json.dumps(status_of(run))
    await client.patch(CONFIG_MAPS, record_name(run.name), {"data": data})
