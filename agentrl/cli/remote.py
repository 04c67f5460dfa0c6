"""Runs in a Kubernetes cluster, from any machine with a kubeconfig: what `-k` makes of the commands about runs."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from agentrl.cli.foreground import EXIT_INTERRUPTED
from agentrl.errors import UserError
from agentrl.kubernetes.names import ROLE

if TYPE_CHECKING:
    from agentrl.cluster.kubernetes.runs import Runs
    from agentrl.config.compose import Loaded

T = TypeVar("T")

KubernetesOption = Annotated[
    bool,
    typer.Option("--kubernetes", "-k", envvar="AGENTRL_KUBERNETES", help="Runs in the cluster of your kubeconfig."),
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", help="With -k: where they are. Else that of the kubeconfig's context.")
]


class OnInterrupt(StrEnum):
    """What Ctrl-C does to a run in a cluster that this terminal follows."""

    DETACH = "detach"
    STOP = "stop"


CtrlCOption = Annotated[
    OnInterrupt, typer.Option("--ctrl-c", help="In a cluster: what Ctrl-C does to the run that is followed.")
]


@asynccontextmanager
async def _runs(namespace: str | None) -> AsyncIterator[Runs]:
    from agentrl.cluster.kubernetes.runs import Runs
    from agentrl.kubernetes.client import KubernetesClient
    from agentrl.kubernetes.connection import connect

    async with KubernetesClient(await connect(namespace=namespace)) as client:
        yield Runs(client, entropy=SystemRandom())


def _with_runs(namespace: str | None, act: Callable[[Runs], Awaitable[T]]) -> T:
    import asyncio

    async def run() -> T:
        async with _runs(namespace) as runs:
            return await act(runs)

    return asyncio.run(run())


def launch(loaded: Loaded, *, detach: bool, on_interrupt: OnInterrupt) -> int:
    """Send a job's controller to the cluster, then follow what it prints."""
    from agentrl.cluster.kubernetes.site import check_run_name
    from agentrl.config.kubernetes import settled_config, submission_of

    config = loaded.config
    namespace = config.cluster.kubernetes.namespace
    if config.name is not None:
        check_run_name(config.name)

    async def submit(runs: Runs) -> str:
        run = config.name or await runs.free_name(loaded.file.stem)
        check_run_name(run)
        ready = settled_config(config, await runs.groups())
        await runs.submit(submission_of(run, ready), new=True)
        return run

    run = _with_runs(namespace, submit)
    return _follow(run, namespace, detach=detach, on_interrupt=on_interrupt)


def resume(run: str, namespace: str | None, *, detach: bool, on_interrupt: OnInterrupt) -> int:
    """Send the controller of a run that has ended to the cluster again."""
    import msgspec

    from agentrl.config.kubernetes import submission_of
    from agentrl.config.schema import JobConfig

    async def submit(runs: Runs) -> bool:
        config = msgspec.json.decode(await runs.config_of(run), type=JobConfig)
        if (await runs.status(run))["status"] == "finished":
            return False
        await runs.forget_ended(run)
        await runs.submit(submission_of(run, config), new=False)
        return True

    if not _with_runs(namespace, submit):
        print(f"{run} has finished all its steps; there is nothing to resume")
        return 0
    return _follow(run, namespace, detach=detach, on_interrupt=on_interrupt)


def _follow(run: str, namespace: str | None, *, detach: bool, on_interrupt: OnInterrupt) -> int:
    print(f"{run}: its controller is sent to the cluster", flush=True)
    if detach:
        print(_how_to_go_on(run, namespace))
        return 0
    return watch(run, namespace, on_interrupt=on_interrupt)


def watch(run: str, namespace: str | None, *, on_interrupt: OnInterrupt = OnInterrupt.DETACH) -> int:
    """Print what a run's controller prints, until the run ends. Ctrl-C leaves the run alone, or stops it."""

    async def follow(runs: Runs) -> str | None:
        await runs.record_of(run)
        async for line in runs.attach(run):
            print(line, flush=True)
        return await runs.outcome(run)

    try:
        outcome = _with_runs(namespace, follow)
    except KeyboardInterrupt:
        if on_interrupt is OnInterrupt.STOP:
            stop(run, namespace)
        else:
            print(f"\ndetached; {run} goes on\n{_how_to_go_on(run, namespace)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    if outcome is None:
        print(f"{run} is stopped; `agentrl resume -k {run}` goes on with it")
        return EXIT_INTERRUPTED
    return 0 if outcome == "Complete" else 1


def _how_to_go_on(run: str, namespace: str | None) -> str:
    where = f" --namespace {namespace}" if namespace else ""
    return f"agentrl watch -k{where} {run}    follows it\nagentrl stop -k{where} {run}     ends it"


def stop(run: str, namespace: str | None) -> int:
    """End a run, and delete everything of it but its record and its directory on the volume."""
    import msgspec

    from agentrl.config.schema import JobConfig

    async def end(runs: Runs) -> bool:
        config = msgspec.json.decode(await runs.config_of(run), type=JobConfig)
        print(f"stopping {run}", flush=True)
        return await runs.stop(run, grace_s=2 * config.cluster.stop_grace_s + 30.0)

    there = _with_runs(namespace, end)
    print(f"{run} is stopped, nothing of it is left" if there else f"{run} was not running; nothing was left over")
    return 0


def ps(namespace: str | None) -> list[dict[str, Any]]:
    """One row a run, oldest first."""
    return _with_runs(namespace, lambda runs: runs.overviews())


def status(run: str, namespace: str | None) -> dict[str, Any]:
    """What `agentrl status` shows of a run."""
    return _with_runs(namespace, lambda runs: runs.status(run))


def logs(run: str, namespace: str | None, *, role: str | None, lines: int, follow: bool) -> None:
    """Print what the pods of a run print."""
    import asyncio

    async def show(runs: Runs) -> None:
        await runs.record_of(run)
        pods = await runs.pods(run, role)
        if not pods:
            asked = f"no pod of {role!r}" if role else "no pods"
            raise UserError(f"run {run} has {asked} now", hint="what ended pods have printed is in its directory")
        async with asyncio.TaskGroup() as group:
            for pod in pods:
                group.create_task(_print_log(runs, pod, lines=lines, follow=follow))

    _with_runs(namespace, show)


async def _print_log(runs: Runs, pod: dict[str, Any], *, lines: int, follow: bool) -> None:
    role = pod["metadata"]["labels"][ROLE]
    async for line in runs.log(pod["metadata"]["name"], tail=lines, follow=follow):
        print(f"{role} | {line}", flush=True)
