"""mini-swe-agent as a harness: a program of somebody else's plays whole episodes through the endpoint.

Needs scripts/harness/setup_mini_swe_agent.sh, or AGENTRL_TEST_MINI with the Python of an environment that has it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.rollout.config import ToolFormat
from agentrl.rollout.evidence import End
from agentrl.rollout.verdict import Verdict
from agentrl.tasks.config import Family
from agentrl.tasks.families import FAMILIES, write_tasks
from agentrl.tasks.folders import load_task
from tests.fixtures.sandboxes import bubblewrap
from tests.integration.test_harness import MINI_PYTHON, Stage

pytestmark = pytest.mark.skipif(
    not MINI_PYTHON.exists(), reason="mini-swe-agent is not installed: scripts/harness/setup_mini_swe_agent.sh"
)
BUDGETS = {"max_turn_tokens": 2000, "max_episode_tokens": 30000, "tool_timeout_s": 20.0, "episode_timeout_s": 150.0}
TEXT = r"""
agent: {system_template: You run commands., instance_template: "{{task}}"}
environment: {}
model:
  model_class: litellm_textbased
  action_regex: '```sh\n(.*?)\n```'
  observation_template: "{{output.output}}"
"""


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A shipped task in a real sandbox."""
    (task,) = FAMILIES[Family.shell_basics](1, 0)
    write_tasks([task], tmp_path / "tasks")
    folder = tmp_path / "tasks" / task.name
    async with bubblewrap(tmp_path / "state") as provider:
        yield Stage(tmp_path, provider, load_task(folder))


def solution(stage: Stage) -> str:
    return (stage.task.folder / "solution" / "solve.sh").read_text()


def call(command: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"


FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


async def test_a_shipped_task_is_solved_by_tool_calls(stage: Stage) -> None:
    says = [f"I look.\n{call('ls')}", "I forgot to call.", call(solution(stage)), call(FINISH)]
    result = await stage.play(None, *says, format=ToolFormat.hermes, observation_role="tool", **BUDGETS)
    assert (result.verdict, result.evidence.end, result.num_turns) == (Verdict.SUCCESS, End.FINISHED, 4)
    assert [turn.command for turn in stage.turns] == ["ls", None, solution(stage), FINISH]
    seen = result.evidence
    assert seen.harness is not None and seen.harness.num_refused == 0
    # A message without a call is not in its history any more when it asks again.
    assert (seen.sequences.num, seen.sequences.history_breaks) == (2, 1)


async def test_a_shipped_task_is_solved_by_its_text_based_model(stage: Stage) -> None:
    (stage.folder / "text.yaml").write_text(TEXT)
    says = [f"I do it.\n```sh\n{command}\n```" for command in (solution(stage), FINISH)]
    result = await stage.play(None, *says, arguments=["-c", str(stage.folder / "text.yaml")], **BUDGETS)
    assert (result.verdict, result.evidence.end, result.num_turns) == (Verdict.SUCCESS, End.FINISHED, 2)


async def test_a_policy_that_never_finds_the_format_is_ended_and_graded(stage: Stage) -> None:
    result = await stage.play(None, *["what?"] * 9, format=ToolFormat.hermes, observation_role="tool", **BUDGETS)
    assert (result.verdict, result.evidence.end) == (Verdict.MODEL_FAILURE, End.FINISHED)
    assert result.num_turns == 3  # as often as mini-swe-agent asks again
