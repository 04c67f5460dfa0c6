"""Commands about runs that exist: resume, stop, ps, status, watch, logs."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.cli import remote
from agentrl.cli.arguments import JsonOption
from agentrl.cli.remote import CtrlCOption, KubernetesOption, NamespaceOption, OnInterrupt
from agentrl.errors import UserError

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run in the runs directory, or its path.")]
RunsDirOption = Annotated[
    Path, typer.Option("--runs-dir", envvar="AGENTRL_RUNS_DIR", help="Folder of run directories.")
]
_RUNS = Path("runs")
_WATCHED_LINES = 20


def register(app: typer.Typer) -> None:
    for command in (resume, stop, ps, status, watch, logs):
        app.command()(command)


def resume(
    run: RunArgument,
    *,
    runs_dir: RunsDirOption = _RUNS,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="With -k: do not follow the run.")] = False,
    on_interrupt: CtrlCOption = OnInterrupt.DETACH,
    json_: JsonOption = False,
) -> int:
    """Go on with a run that was stopped, failed, or lost its controller."""
    if kubernetes:
        return remote.resume(run, namespace, detach=detach, on_interrupt=on_interrupt)

    from agentrl.cli.foreground import drive
    from agentrl.controller.lifecycle.overview import overview
    from agentrl.controller.lifecycle.preflight import preflight
    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.observe.config import LiveView

    directory = RunDirectory.find(run, runs_dir)
    config = directory.load_config()
    if overview(directory)["status"] == "finished":
        if json_:
            status(run, runs_dir=runs_dir, json_=True)
        else:
            print(f"{directory.name} has finished all its {config.schedule.steps} steps; there is nothing to resume")
        return 0
    preflight(config, state_dir=directory.sandboxes)
    return drive(directory, config, LiveView.json if json_ else config.observe.live)


def stop(
    run: RunArgument,
    *,
    runs_dir: RunsDirOption = _RUNS,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
) -> int:
    """Stop a run and everything it started; also clean up after one whose controller was killed."""
    if kubernetes:
        return remote.stop(run, namespace)

    from agentrl.controller.lifecycle.job import clean_up, record_stopped
    from agentrl.controller.lifecycle.overview import LOST, overview
    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.ledger.reader import LedgerReader

    directory = RunDirectory.find(run, runs_dir)
    config = directory.load_config()
    holder = directory.holder()
    if holder is not None:
        print(f"stopping {directory.name} (controller {holder.pid})", flush=True)
        if not _end(holder.pid, grace_s=2 * config.cluster.stop_grace_s + 10):
            print("it did not stop in time and was killed")
    left: list[str] = []
    if directory.ledger.is_file():
        reader = LedgerReader.open(directory.ledger)
        left = clean_up(directory, reader)
        reader.close()
    for role in left:
        print(f"ended {role}, which was left over")
    if overview(directory)["status"] == LOST:
        held = directory.hold()
        record_stopped(directory, "stopped after its controller was gone")
        os.close(held)
        print(f"{directory.name} had lost its controller and is stopped now")
    elif holder is None and not left:
        print(f"{directory.name} is not running; nothing was left over")
    return 0


def _end(pid: int, *, grace_s: float) -> bool:
    """SIGTERM, then after `grace_s` SIGKILL. Returns whether SIGTERM was enough."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    ended, _, _ = select.select([descriptor], [], [], grace_s)
    if not ended:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [])
    os.close(descriptor)
    return bool(ended)


def ps(
    *,
    runs_dir: RunsDirOption = _RUNS,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
    json_: JsonOption = False,
) -> None:
    """List the runs, oldest first."""
    rows = remote.ps(namespace) if kubernetes else _local_rows(runs_dir)
    if json_:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        print("no runs in the namespace" if kubernetes else f"no runs in {runs_dir}")
        return
    from agentrl.cli.table import Column, print_table

    columns = [Column("run"), Column("status"), Column("step"), Column("reward", spare=True)]
    cells = [
        [
            row["run"],
            row["status"],
            f"{row['step']} / {row['steps']}",
            f"{row['reward']:.3f}" if row["reward"] is not None else "-",
            str(row["controller"] or "-"),
        ]
        for row in rows
    ]
    print_table([*columns, Column("controller", spare=True)], cells)


def _local_rows(runs_dir: Path) -> list[dict[str, Any]]:
    from agentrl.controller.lifecycle.overview import overview
    from agentrl.controller.lifecycle.run_directory import RunDirectory

    if runs_dir != _RUNS and not runs_dir.is_dir():
        raise UserError(f"--runs-dir: {runs_dir} is not a folder")
    return [overview(directory) for directory in RunDirectory.all(runs_dir)]


def status(
    run: RunArgument,
    *,
    runs_dir: RunsDirOption = _RUNS,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
    json_: JsonOption = False,
) -> None:
    """Say how far a run is, and its figures so far."""
    from agentrl.controller.lifecycle.overview import status_of
    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.controller.lifecycle.summary import as_text

    if kubernetes:
        summary = remote.status(run, namespace)
        place = str(summary.get("directory") or "its directory")
    else:
        directory = RunDirectory.find(run, runs_dir)
        summary, place = status_of(directory), str(directory.path)
    if json_:
        print(json.dumps(summary, indent=2))
        return
    if "steps" not in summary:
        print(f"{run}: {summary['status']}; it has written nothing yet")
    else:
        print(as_text(summary, place), end="")
    if summary.get("detail"):
        print(f"\n{summary['detail']}")
    for role, found in summary["processes"].items():
        print(f"{role}: {found}" if kubernetes else f"{role}: process {found}")


def watch(
    run: RunArgument,
    *,
    runs_dir: RunsDirOption = _RUNS,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
    on_interrupt: CtrlCOption = OnInterrupt.DETACH,
) -> int:
    """Print what a run's controller prints, until the run ends."""
    if kubernetes:
        return remote.watch(run, namespace, on_interrupt=on_interrupt)
    logs(run, role="controller", lines=_WATCHED_LINES, follow=True, runs_dir=runs_dir)
    return 0


def logs(
    run: RunArgument,
    *,
    role: Annotated[str | None, typer.Option("--role", "-r", "-c", help="Process: engine-0, trainer, model.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines from the end of each log.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    runs_dir: RunsDirOption = _RUNS,
    kubernetes: KubernetesOption = False,
    namespace: NamespaceOption = None,
) -> None:
    """Print the output of a run's processes."""
    if kubernetes:
        remote.logs(run, namespace, role=role, lines=lines, follow=follow)
        return

    from agentrl.controller.lifecycle.run_directory import RunDirectory

    directory = RunDirectory.find(run, runs_dir)
    files = {path.stem: path for path in sorted(directory.logs.glob("*.log"))}
    if role is not None and role not in files:
        raise UserError(f"run {directory.name} has no log of {role!r}", hint=f"there are: {', '.join(files) or 'none'}")
    chosen = files if role is None else {role: files[role]}
    ends = {name: _print_tail(name, path, lines) for name, path in chosen.items()}
    while follow:
        follow = directory.holder() is not None
        for name, path in chosen.items():
            ends[name] = _print_from(name, path, ends[name])
        time.sleep(0.5 if follow else 0.0)


def _print_tail(name: str, path: Path, num_lines: int) -> int:
    data = path.read_bytes()
    for line in data.decode(errors="replace").splitlines()[-num_lines:]:
        print(f"{name} | {line}", flush=True)
    return len(data)


def _print_from(name: str, path: Path, start: int) -> int:
    """Print the whole lines after byte `start`; returns where the next call goes on."""
    with path.open("rb") as log:
        log.seek(start)
        data = log.read()
    end = data.rfind(b"\n") + 1
    for line in data[:end].decode(errors="replace").splitlines():
        print(f"{name} | {line}", flush=True)
    return start + end
