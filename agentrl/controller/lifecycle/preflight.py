"""What a run needs of this machine and of the user's folders, checked before anything is written or started."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from agentrl.config.schema import JobConfig
from agentrl.errors import UserError
from agentrl.inference.attached import check_attached
from agentrl.inference.config import EngineBackend, Router
from agentrl.inference.servers import router_python
from agentrl.inference.sglang_checks import check_environment, check_router
from agentrl.model.config import Recipe
from agentrl.model.prepare import check_folder
from agentrl.rollout.chat import Chat
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.loop import initial_messages
from agentrl.sandbox import bare
from agentrl.sandbox.bubblewrap.host import check_host
from agentrl.sandbox.config import Isolation
from agentrl.tasks.dataset import load_dataset, within_limits, without_isolation
from agentrl.tasks.task import Task


def preflight(config: JobConfig, *, state_dir: Path | None = None) -> list[str]:
    """Returns warnings. Raises UserError for what would make the run fail, or every episode be empty.

    `state_dir`: where an earlier controller of the run kept records of its sandboxes.
    """
    left: Collection[str] = ()
    if config.sandbox.isolation is Isolation.none:
        left = bare.left_folders(state_dir) if state_dir is not None else ()
        bare.check_machine(left)
    else:
        check_host()
    if config.inference.backend is EngineBackend.sglang:
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
        dataset = within_limits(load_dataset(config.tasks, workspace=Path(folder)), config.sandbox)
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
