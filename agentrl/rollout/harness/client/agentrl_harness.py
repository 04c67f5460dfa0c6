"""For harnesses that are written in Python: the task, and commands in the episode's sandbox. Standard library only.

On the command line: `python -m agentrl_harness task` prints the instruction, `python -m agentrl_harness exec COMMAND`
runs a command and passes on what it prints and its exit code. `python -m agentrl_harness mini [ARGUMENT]...` runs
mini-swe-agent on the task.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TIMED_OUT = 124
"""Exit code for a command that ran out of time, as of coreutils' `timeout`."""


class EpisodeOver(RuntimeError):
    """The episode has ended; there is nothing left to do."""


def task() -> str:
    """The instruction."""
    return Path(os.environ["AGENTRL_TASK"]).read_text(encoding="utf-8")


def execute(command: str, timeout_s: float | None = None) -> dict[str, Any]:
    """Run a shell command in the sandbox: exit_code (None if killed), signal, stdout, stderr, timed_out, truncated.

    `timeout_s` can only lower the run's agent.tool_timeout_s. Raises EpisodeOver.
    """
    body = json.dumps({"command": command, "timeout_s": timeout_s}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["AGENTRL_EXEC_URL"], data=body, headers=headers)
    try:
        with urllib.request.urlopen(request) as response:
            result: dict[str, Any] = json.load(response)
            return result
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise EpisodeOver(error.read().decode(errors="replace")) from error
        raise


class MiniSweEnvironment:
    """An environment of mini-swe-agent 2: `--environment-class agentrl_harness.MiniSweEnvironment`."""

    def __init__(self, **config: Any) -> None:
        """`timeout`: seconds for a command; anything else is only shown to templates."""
        self.config = config

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        command = str(action.get("command", ""))
        done = execute(f"cd {cwd}\n{command}" if cwd else command, timeout or self.config.get("timeout"))
        output = done["stdout"] + done["stderr"]
        code = -1 if done["exit_code"] is None else done["exit_code"]
        problem = "the command ran out of time" if done["timed_out"] else "" if code != -1 else "the command was killed"
        self._check_finished(output, code)
        return {"output": output, "returncode": code, "exception_info": problem}

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        return {**self.config, **platform.uname()._asdict(), **more}

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"environment": self.config, "environment_type": "agentrl_harness"}}}

    def _check_finished(self, output: str, code: int) -> None:
        """The agent's word that it is done, as mini-swe-agent's own environments have it."""
        from minisweagent.exceptions import Submitted

        first, _, rest = output.lstrip().partition("\n")
        if first.strip() == "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" and code == 0:
            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})


def mini(arguments: list[str]) -> None:
    """mini-swe-agent's own command line, without questions to a person."""
    quiet = {"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}
    os.environ.update(quiet, MSWEA_GLOBAL_CONFIG_DIR=str(Path.cwd()), LITELLM_LOCAL_MODEL_COST_MAP="True")
    from minisweagent.run.mini import app

    model = f"openai/{os.environ['AGENTRL_MODEL']}"
    environment = "agentrl_harness.MiniSweEnvironment"
    fixed = ["--task", task(), "--yolo", "--exit-immediately", "--cost-limit", "0", "--output", "trajectory.json"]
    app([*fixed, "--model", model, "--environment-class", environment, *arguments])


def main(words: list[str]) -> int:
    match words:
        case ["mini", *arguments]:
            mini(arguments)
            return 0
        case ["task"]:
            print(task())
            return 0
        case ["exec", *command] if command:
            done = execute(" ".join(command))
            sys.stdout.write(done["stdout"])
            sys.stderr.write(done["stderr"])
            if done["timed_out"]:
                return TIMED_OUT
            return int(done["exit_code"] if done["exit_code"] is not None else 128 + (done["signal"] or 0))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
