"""What a job is made of in a cluster, and what the cluster lacks for it: the end of `agentrl plan`, and `manifest`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from agentrl.cli.arguments import FileArgument, OverridesArgument
from agentrl.errors import UserError

if TYPE_CHECKING:
    from agentrl.cluster.kubernetes.checks import Missing
    from agentrl.cluster.kubernetes.rendered import Rendered
    from agentrl.cluster.kubernetes.workload import Submission
    from agentrl.config.compose import Loaded
    from agentrl.config.schema import JobConfig

_NO_CLUSTER_GROUPS = frozenset({"resource.k8s.io"})
"""What a Kubernetes of today serves by itself, where none can be asked."""
_SENT, _MADE = "", "made-by-the-controller"
"""Folders of `agentrl plan -o`."""


def register(app: typer.Typer) -> None:
    app.command()(manifest)


def manifest(file: FileArgument, overrides: OverridesArgument = None) -> None:
    """Print what to apply once per cluster before FILE can be launched there: namespace, volume, rights to launch."""
    from agentrl.cluster.kubernetes.once import once_per_cluster
    from agentrl.config.compose import load
    from agentrl.config.kubernetes import in_cluster, settled_config, submission_of

    config = load(file, overrides or []).config
    if not in_cluster(config):
        raise UserError("the job runs in no cluster", hint="add cluster=kubernetes")
    submission = submission_of("any", settled_config(config, _NO_CLUSTER_GROUPS))
    print(_as_yaml(once_per_cluster(submission, config.cluster.kubernetes.namespace or "default")), end="")


def print_yaml(loaded: Loaded) -> None:
    """All objects of a job, as YAML documents, those that are sent first."""
    import asyncio

    _, objects, _ = asyncio.run(_plan(loaded, look=False))
    print(_as_yaml([*objects.sent, *objects.made]), end="")


def print_objects(loaded: Loaded, out: Path | None) -> bool:
    """A table of the objects, and what the cluster lacks, if one can be reached. Returns whether nothing is missing."""
    import asyncio

    from agentrl.cli.table import Column, print_table

    where, objects, problems = asyncio.run(_plan(loaded, look=True))
    print()
    rows = [(obj["kind"], obj["metadata"]["name"], "launch") for obj in objects.sent]
    rows += [(obj["kind"], obj["metadata"]["name"], "its controller") for obj in objects.made]
    print_table([Column("object"), Column("name"), Column("made by")], rows)
    if out is not None:
        _write(out, objects)
        print(f"\nwritten to {out}: `kubectl apply -k {out}` starts the run")
    print(f"\n{where}")
    for problem in problems:
        print(f"missing  {problem.what}\n         {problem.fix}")
    if where.startswith("cluster") and not problems:
        print("nothing is missing")
    return not problems


async def _plan(loaded: Loaded, *, look: bool) -> tuple[str, Rendered, list[Missing]]:
    """Which cluster was asked, the objects of the job, and what is missing. Raises UserError for malformed objects."""
    from agentrl.cluster.kubernetes.checks import missing
    from agentrl.cluster.kubernetes.runs import Runs
    from agentrl.kubernetes.client import KubernetesClient
    from agentrl.kubernetes.connection import connect
    from agentrl.kubernetes.errors import Unreachable

    config = loaded.config
    namespace, name = config.cluster.kubernetes.namespace, config.name or f"{loaded.file.stem}-001"
    try:
        connection = await connect(namespace=namespace)
    except UserError as error:
        submission, objects = _render(name, config, _NO_CLUSTER_GROUPS, namespace or "default")
        return f"no cluster was asked: {error.message}", objects, []
    from random import SystemRandom

    async with KubernetesClient(connection, retry_for_s=5.0) as client:
        runs = Runs(client, entropy=SystemRandom())
        try:
            groups = await runs.groups()
            if config.name is None:
                name = await runs.free_name(loaded.file.stem)
        except Unreachable as error:
            _, objects = _render(name, config, _NO_CLUSTER_GROUPS, connection.namespace)
            return f"no cluster was asked: {error.message}", objects, []
        submission, objects = _render(name, config, groups, connection.namespace)
        problems = await missing(client, objects, submission.workload, groups) if look else []
    return f"cluster  {connection.host}, namespace {connection.namespace}", objects, problems


def _render(run: str, config: JobConfig, groups: frozenset[str], namespace: str) -> tuple[Submission, Rendered]:
    from agentrl.cluster.kubernetes.rendered import rendered
    from agentrl.cluster.kubernetes.site import check_run_name
    from agentrl.config.kubernetes import settled_config, submission_of
    from agentrl.kubernetes.strict import problems

    check_run_name(run)
    submission = submission_of(run, settled_config(config, groups))
    objects = rendered(submission, namespace)
    for obj in [*objects.sent, *objects.made]:
        if wrong := problems(obj):
            raise UserError(f"{obj['kind']} {obj['metadata']['name']}: {wrong[0]}")
    return submission, objects


def _write(out: Path, objects: Rendered) -> None:
    from agentrl.cluster.kubernetes.rendered import for_gitops

    names = []
    for folder, found in ((_SENT, for_gitops(objects.sent)), (_MADE, objects.made)):
        (out / folder).mkdir(parents=True, exist_ok=True)
        for obj in found:
            path = out / folder / f"{obj['kind'].lower()}-{obj['metadata']['name']}.yaml"
            path.write_text(_as_yaml([obj]), encoding="utf-8")
            names += [path.name] if folder == _SENT else []
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": names,
    }
    (out / "kustomization.yaml").write_text(_as_yaml([kustomization]), encoding="utf-8")


def _as_yaml(objects: list[dict[str, Any]]) -> str:
    import yaml

    class Plain(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML ships no types
        """Repeats what YAML would write as anchors, which not everything reads."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    text: str = yaml.dump_all(objects, Dumper=Plain, sort_keys=False, explicit_start=True, width=120)
    return text
