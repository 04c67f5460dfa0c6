"""`agentrl control`: what the controller's pod runs. Not for people, and so not in the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(hidden=True)(control)


def control(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")],
    config: Annotated[Path, typer.Option("--config", help="Folder with the run's resolved configuration.")],
) -> int:
    """Begin a run in its pod, or go on with it, and write down how it ended."""
    import asyncio

    import msgspec

    from agentrl.cli.foreground import drive
    from agentrl.cluster.kubernetes.control import CONFIG_FILE, CONFIG_TEXT
    from agentrl.config.schema import JobConfig
    from agentrl.controller.lifecycle.clusters import connect_to_cluster
    from agentrl.controller.lifecycle.preflight import preflight
    from agentrl.controller.lifecycle.record import write_record
    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.observe.config import LiveView

    job = msgspec.json.decode((config / CONFIG_FILE).read_bytes(), type=JobConfig)
    runs_dir = Path(job.cluster.runs_dir)
    directory = RunDirectory(runs_dir / run)
    if not directory.config.is_file():
        text = (config / CONFIG_TEXT).read_text(encoding="utf-8")
        directory = RunDirectory.create(runs_dir, run, stem=run, config_text=text, config=job)
    for warning in preflight(job, state_dir=directory.sandboxes):
        print(f"warning: {warning}", flush=True)
    code = drive(directory, job, LiveView.plain)

    async def write_end() -> None:
        async with await connect_to_cluster() as client:
            await write_record(client, directory)

    asyncio.run(write_end())
    return code
