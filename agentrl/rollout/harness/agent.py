"""The `Agent` that is a harness: one process of it for each episode, on the controller's machine.

It is told where the policy answers, where commands run and what the task is (docs/agents.md), and everything it asks
goes through its `Session`. Its exit with 0 ends the agent's part of an episode; budgets end it before.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.cluster.cluster import Cluster, Process, ProcessSpec
from agentrl.errors import HarnessFailed, UserError
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.chat import Chat
from agentrl.rollout.config import AgentConfig
from agentrl.rollout.edges import Recorder, Sampler
from agentrl.rollout.evidence import End, Harness
from agentrl.rollout.harness.endpoint import Endpoint
from agentrl.rollout.harness.session import Session
from agentrl.rollout.speaking import Speaker
from agentrl.rollout.watched import WatchedSandbox
from agentrl.tasks.task import Step

CLIENT = Path(__file__).parent / "client"
"""Put on the harness's PYTHONPATH: the module `agentrl_harness`, for tools that are written in Python."""
_INSTRUCTION = "instruction.md"
STOP_GRACE_S = 2.0
_LOG_CHARS = 2000

MakeAgent = Callable[[Sampler, Recorder], "HarnessAgent"]


class HarnessAgent:
    """Runs `agent.harness.command`."""

    def __init__(
        self,
        agent: AgentConfig,
        chat: Chat,
        sampler: Sampler,
        recorder: Recorder,
        *,
        endpoint: Endpoint,
        cluster: Cluster,
        folder: Path,
        logs: Path,
    ) -> None:
        """`folder`: where each process gets a folder of its own; `logs`: where what they print is kept."""
        self._agent = agent
        self._chat = chat
        self._speaker = Speaker(agent, chat, sampler)
        self._recorder = recorder
        self._endpoint = endpoint
        self._cluster = cluster
        self._folder = folder
        self._logs = logs
        self._command = resolve(agent.harness.command)

    def tell(self, attempt: Attempt, step: Step | None) -> bool:
        """The harness finds the instruction in a file."""
        return True

    async def act(self, attempt: Attempt, step: Step | None, watched: WatchedSandbox, deadline: float) -> End:
        """Raises HarnessFailed too."""
        session = Session(
            attempt,
            watched,
            deadline,
            agent=self._agent,
            chat=self._chat,
            speaker=self._speaker,
            recorder=self._recorder,
        )
        name = attempt.spec.episode + (f".{step.name}" if step else "")
        folder = self._folder / name
        log = self._logs / f"{name}.log"
        process: Process | None = None
        code: int | None = None
        try:
            instruction = step.instruction if step else attempt.spec.task.instruction
            process = await self._start(session, name, _own_folder(folder, instruction), log)
            end, code = await self._wait(process, session, attempt, deadline)
        finally:
            if process is not None:
                await process.stop(STOP_GRACE_S)
            await session.close()
            self._endpoint.forget(session)
            shutil.rmtree(folder, ignore_errors=True)
            attempt.harness = Harness(
                exit_code=code,
                num_answered=attempt.num_turns,
                num_refused=session.num_refused,
                num_unread=session.num_unread,
                refusal=session.refusal,
            )
        if end is None:
            tail = log.read_bytes()[-_LOG_CHARS:].decode(errors="replace").strip() if log.is_file() else ""
            attempt.harness = Harness(**{**vars(attempt.harness), "log_tail": tail})
            raise HarnessFailed(f"{name}: the harness ended with {code}", hint=f"its output is in {log}")
        return end

    async def _start(self, session: Session, name: str, folder: Path, log: Path) -> Process:
        url = self._endpoint.open(session)
        paths = [str(CLIENT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": session.token,
            "AGENTRL_EXEC_URL": f"{url}/exec",
            "AGENTRL_MODEL": self._agent.harness.model,
            "AGENTRL_TASK": str(folder / _INSTRUCTION),
            "AGENTRL_EPISODE": name,
            "PYTHONPATH": os.pathsep.join(paths),
        }
        argv = ["env", "-C", str(folder), *self._command]
        return await self._cluster.start(ProcessSpec(role=f"harness-{name}", argv=argv, env=env, log=log))

    async def _wait(
        self, process: Process, session: Session, attempt: Attempt, deadline: float
    ) -> tuple[End | None, int | None]:
        """(how the agent's part ended, the process's exit code if it ended by itself); no end: the harness failed."""
        exited = asyncio.create_task(process.wait())
        try:
            while not session.ended.done() and not exited.done():
                remaining_s = deadline - attempt.active_now()
                if remaining_s <= 0:
                    return (End.TIME_BUDGET if attempt.num_turns else None), None
                watched: set[asyncio.Future[Any]] = {exited, session.ended}
                await asyncio.wait(watched, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not exited.done():
                exited.cancel()
        if session.ended.done():
            return session.ended.result(), None
        code = exited.result()
        return (End.FINISHED if code == 0 and attempt.num_turns else None), code


def _own_folder(folder: Path, instruction: str) -> Path:
    """An empty folder with the instruction in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _INSTRUCTION).write_text(instruction, encoding="utf-8")
    return folder


def resolve(command: list[str]) -> list[str]:
    """The command with its program's absolute path, since it runs in a folder of its own. Raises UserError."""
    program = shutil.which(command[0])
    if program is None:
        raise UserError(f"agent.harness.command: there is no program {command[0]}")
    return [str(Path(program).absolute()), *command[1:]]
