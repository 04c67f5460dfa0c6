"""Runs a job in this terminal: view, signals, summary, exit code. What `launch` and `resume` share."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import sqlite3
import sys
from typing import TYPE_CHECKING

from agentrl.observe.config import LiveView

if TYPE_CHECKING:
    from agentrl.config.schema import JobConfig
    from agentrl.controller.lifecycle.job import Ended
    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.observe.events import Observer

EXIT_INTERRUPTED = 130


def drive(run: RunDirectory, config: JobConfig, view: LiveView) -> int:
    """Hold the run, run it to its end, say how it went. Returns the exit code: 0 finished, 1 failed, 130 stopped."""
    import asyncio

    from agentrl.controller.lifecycle.job import Outcome
    from agentrl.observe.events import Observers
    from agentrl.observe.plain import PlainLines

    run.hold()
    run.logs.mkdir(exist_ok=True)
    with (run.logs / "controller.log").open("a", encoding="utf-8") as log:
        logging.basicConfig(stream=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        observer = Observers(PlainLines(log), _observer(view, config.observe.refresh_s))
        ended = asyncio.run(_run(run, config, observer))
        _report(run, config, ended, observer, as_json=view is LiveView.json)
    codes = {Outcome.FINISHED: 0, Outcome.STOPPED: EXIT_INTERRUPTED, Outcome.PAUSED: 1, Outcome.FAILED: 1}
    return codes[ended.outcome]


async def _run(run: RunDirectory, config: JobConfig, observer: Observer) -> Ended:
    """First Ctrl-C (or SIGTERM): stop cleanly. Second: end at once."""
    import asyncio

    from agentrl.controller.lifecycle.job import record_stopped, run_job
    from agentrl.errors import LedgerError

    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            with contextlib.suppress(LedgerError, sqlite3.Error):  # `agentrl stop` can still write it
                record_stopped(run, "ended at once, as asked")
            # Engines, trainer and sandboxes die with this process: each has a parent-death signal.
            os._exit(EXIT_INTERRUPTED)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    return await run_job(run, config, observer, stop)


def _observer(view: LiveView, refresh_s: float) -> Observer:
    from rich.console import Console

    from agentrl.observe.files import JsonLines
    from agentrl.observe.live import TerminalView
    from agentrl.observe.plain import PlainLines

    if view is LiveView.json:
        return JsonLines(sys.stdout)
    if view is LiveView.rich or (view is LiveView.auto and sys.stdout.isatty()):
        return TerminalView(Console(), refresh_s=refresh_s)
    return PlainLines(sys.stdout)


def _report(run: RunDirectory, config: JobConfig, ended: Ended, observer: Observer, *, as_json: bool) -> None:
    """Write the summary files and print the last words."""
    from agentrl.config.kubernetes import in_cluster
    from agentrl.controller.lifecycle.summary import as_text, summarise
    from agentrl.ledger.reader import LedgerReader
    from agentrl.observe.events import RunEnded, Warned
    from agentrl.observe.plain import write_line

    reader = LedgerReader.open(run.ledger)
    summary = summarise(reader, name=run.name, seed=config.seed)
    reader.close()
    text = as_text(summary, str(run.path))
    try:
        run.summary_json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        run.summary_text.write_text(text, encoding="utf-8")
    except OSError as error:
        observer.emit(Warned(message=f"the summary could not be written: {error}"))
    observer.emit(RunEnded(status=ended.outcome.value, detail=ended.detail, summary=summary))
    if as_json:
        return
    write_line(sys.stdout, f"\n{text}")
    if ended.outcome.value != "finished":
        which = f"-k {run.name}" if in_cluster(config) else shlex.quote(str(run.path))
        write_line(sys.stdout, f"Go on with: agentrl resume {which}")
