"""What a run needs of this machine and of the user's folders, checked before anything is written or started."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from agentrl.cluster.config import ClusterBackend
from agentrl.config.inspect_job import model_shape
from agentrl.config.kubernetes import in_cluster
from agentrl.config.plan import PlanFacts, plan
from agentrl.config.schema import JobConfig
from agentrl.controller.lifecycle.run_directory import name_taken
from agentrl.errors import UserError
from agentrl.inference.attached import check_attached
from agentrl.inference.config import EngineBackend, Router
from agentrl.inference.servers import router_python
from agentrl.inference.sglang_checks import check_environment, check_router
from agentrl.model.config import Recipe
from agentrl.model.prepare import check_folder
from agentrl.rollout.chat import Chat
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.harness.agent import resolve
from agentrl.rollout.loop import initial_messages
from agentrl.sandbox import bare
from agentrl.sandbox.bubblewrap.host import check_host
from agentrl.sandbox.bubblewrap.layout import UNCOUNTED_MB
from agentrl.sandbox.bubblewrap.memory import total_bytes
from agentrl.sandbox.config import Isolation, SandboxBackend
from agentrl.tasks.dataset import load_dataset, within_limits, without_isolation
from agentrl.tasks.task import Task


def before_launch(config: JobConfig) -> list[str]:
    """What `plan` and `launch` look at beside the lint. Returns warnings; raises UserError. Leaves nothing behind.

    Of a run in a cluster nothing is here: its controller looks when it starts, and ends with 2 if something is wrong.
    """
    if in_cluster(config):
        return []
    if config.cluster.backend is ClusterBackend.local:
        check_place(Path(config.cluster.runs_dir), config.name)
        check_memory(config, total_bytes())
    return preflight(config)


def check_place(runs_dir: Path, name: str | None) -> None:
    """A run's directory can be made there, by making one. Raises UserError."""
    if name is not None and (runs_dir / name).exists():
        raise name_taken(runs_dir, name)
    there = next(folder for folder in (runs_dir.absolute(), *runs_dir.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=there):
            pass
    except OSError as error:
        raise UserError(f"cluster.runs_dir: cannot write {runs_dir}: {error.strerror}") from error


def check_memory(config: JobConfig, machine_bytes: int) -> None:
    """What the job needs at least is not more than this machine has altogether. Raises UserError."""
    sandbox = config.sandbox
    if sandbox.backend is SandboxBackend.bubblewrap and sandbox.isolation is Isolation.namespaces:
        most = sandbox.memory_mb + sandbox.disk_mb + UNCOUNTED_MB << 20
        if most > machine_bytes:
            raise UserError(
                f"sandbox.memory_mb: one sandbox may take {_gib(most)} with its disk, which limits nothing on a "
                f"machine of {_gib(machine_bytes)}",
                hint="lower sandbox.memory_mb and sandbox.disk_mb",
            )
    if config.inference.backend is not EngineBackend.embedded:
        return  # its memory is a GPU's
    shape = model_shape(Path(config.model.path)) if config.model.path else None
    processes = plan(config, PlanFacts(model=shape)).processes
    needed = {process.role: process.count * (process.memory_bytes or 0) for process in processes}
    if sum(needed.values()) > machine_bytes:
        role = max(needed, key=lambda role: needed[role])
        raise UserError(
            f"the job's processes need {_gib(sum(needed.values()))} at least, this machine has {_gib(machine_bytes)}",
            hint=f"most is for the {role}: {_gib(needed[role])}",
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"


def preflight(config: JobConfig, *, state_dir: Path | None = None) -> list[str]:
    """Returns warnings. Raises UserError for what would make the run fail, or every episode be empty.

    `state_dir`: where an earlier controller of the run kept records of its sandboxes.
    """
    left: Collection[str] = ()
    if config.sandbox.isolation is Isolation.none:
        left = bare.left_folders(state_dir) if state_dir is not None else ()
        bare.check_machine(left)
    elif not config.sandbox.backend.runs_containers:
        check_host()
    if config.agent.harness.command and not in_cluster(config):
        resolve(config.agent.harness.command)
    if config.inference.backend is EngineBackend.sglang and not in_cluster(config):
        check_environment(config.inference.sglang)
    elif config.inference.backend is EngineBackend.attached:
        check_attached(config.inference.urls)
    if config.inference.router is Router.sglang and config.inference.router_url is None:
        check_router(router_python(config.inference))
    return check_inputs(config, left=left)


def check_inputs(config: JobConfig, *, left: Collection[str] = ()) -> list[str]:
    """The user's model and tasks. Returns warnings; raises UserError. `left`: see `without_isolation`."""
    chat = Chat.load(check_folder(config.model)) if config.model.recipe is Recipe.none else None
    with tempfile.TemporaryDirectory(prefix="agentrl-preflight-") as folder:
        dataset = within_limits(
            load_dataset(config.tasks, workspace=Path(folder), sandbox=config.sandbox), config.sandbox
        )
        if config.sandbox.isolation is Isolation.none:
            dataset = without_isolation(dataset, left)
    if chat is not None:
        check_prompts(chat, config.agent, [*dataset.train, *dataset.heldout])
    warnings = [f"task {skipped.folder.name} is left out: {skipped.reason}" for skipped in dataset.skipped]
    if config.sandbox.isolation is Isolation.none:
        limited = [task for task in (*dataset.train, *dataset.heldout) if _has_limits(task)]
        if limited:
            warnings.append(f"{len(limited)} tasks ask for limits of memory, CPUs or disk, which nothing holds here")
    return warnings


def _has_limits(task: Task) -> bool:
    return any(limit is not None for limit in (task.spec.memory_mb, task.spec.cpus, task.spec.disk_mb))


def check_prompts(chat: Chat, agent: AgentConfig, tasks: Iterable[Task]) -> None:
    """The chat template knows the roles, and each task's prompt leaves room for a message. Raises UserError."""
    chat.bridge(agent.observation_role, "(no output)")
    for task in tasks:
        length = len(chat.prompt(initial_messages(agent, task.instruction)))
        if length >= agent.max_episode_tokens:
            raise UserError(
                f"agent.max_episode_tokens: the prompt of task {task.name} alone has {length} tokens, "
                f"of {agent.max_episode_tokens} for the whole episode",
                hint="raise it together with inference.context_length, or shorten agent.examples",
            )
