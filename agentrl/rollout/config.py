"""How the agent acts: prompt, tool format, budgets, sampling."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from agentrl.bounds import Count, Penalty, Positive, PositiveShare, Seconds, Share, Text, TopK


class ToolFormat(Enum):
    """How a model's message names the command to run. Parsing is on text, for execution only; ids stay the truth."""

    line = "line"
    """The whole message is one command; `done` alone ends the episode."""
    fenced = "fenced"
    """The first ```bash block is the command; a message without one ends the episode."""
    hermes = "hermes"
    """<tool_call>{"name": "bash", "arguments": {"command": ...}}</tool_call>: Hermes, Qwen2.5, Qwen3. The first call of
    a message is run, and a message without one ends the episode, in this format and all below."""
    qwen_coder = "qwen_coder"
    """<tool_call><function=bash><parameter=command>...</parameter></function></tool_call>: Qwen3-Coder."""
    glm = "glm"
    """<tool_call>bash<arg_key>command</arg_key><arg_value>...</arg_value></tool_call>: GLM-4.5, GLM-4.6."""
    llama = "llama"
    """The whole message is {"name": "bash", "parameters": {"command": ...}}: Llama 3.1 to 3.3."""
    mistral = "mistral"
    """[TOOL_CALLS] and a list of calls, or [TOOL_CALLS]bash[ARGS]{"command": ...}: Mistral."""
    deepseek = "deepseek"
    """DeepSeek-V3, R1 and V3.1, between tokens of their own."""


class Reasoning(Enum):
    """How a message marks what the model thinks before it speaks. Nothing in it is run."""

    none = "none"
    """It does not: all of a message is read."""
    think = "think"
    """<think>...</think>."""
    brackets = "brackets"
    """[THINK]...[/THINK]: Magistral."""


class Shell(Enum):
    """What a command finds of the ones before it."""

    fresh = "fresh"
    """Their files and background processes: each command is a shell of its own, in the working folder."""
    session = "session"
    """Also their folder, variables, functions, aliases and options, as in a terminal."""


class OnBreak(Enum):
    """What becomes of what was sampled, when what comes next does not continue it token by token.

    The next turn is asked as the chat template writes the conversation, in a sequence of its own, either way.
    """

    branch = "branch"
    """It is trained on: all sequences of an episode are, with its reward."""
    drop = "drop"
    """It is not: only the sequence of the last turn is. The tokens are counted."""


@dataclass(frozen=True, kw_only=True)
class HarnessConfig:
    """A program of somebody else's as the agent, instead of the built-in loop (docs/agents.md)."""

    command: list[str] = field(default_factory=list)
    """Program and arguments, started once for each episode on the controller's machine, with its rights. Empty: the
    built-in loop."""

    model: Text = "policy"
    """Name of the model that its requests must ask for; AGENTRL_MODEL in its environment."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    format: ToolFormat = ToolFormat.fenced
    """How commands are read from messages."""

    reasoning: Reasoning = Reasoning.none
    """How messages mark reasoning. It is trained on like everything that was sampled."""

    harness: HarnessConfig = field(default_factory=HarnessConfig)

    shell: Shell = Shell.fresh
    """Whether folder and variables survive from command to command."""

    system_prompt: str | None = None
    """System message. None: no system message beyond what the chat template adds by itself."""

    examples: list[str] = field(default_factory=list)
    """Messages shown before the task, alternately user and assistant: a worked example for small models."""

    observation_role: Text = "user"
    """Chat role of a command's output: `tool` where the chat template knows it, else `user`."""

    max_turns: Count = 8
    """Model generations in one episode; the state left at the end is graded."""

    max_turn_tokens: Count = 64
    """Sampled tokens in one turn."""

    max_episode_tokens: Count = 448
    """Prompt, sampled and observation tokens of one episode (of each sequence, where it falls into several); must fit
    the engines' context_length."""

    on_break: OnBreak = OnBreak.branch
    """What becomes of what was sampled, when the chat template writes it otherwise afterwards (earlier reasoning left
    out, spaces trimmed) or a harness edits its history. Counted either way."""

    tool_timeout_s: Seconds = 10.0
    """Wall time of one command; when it passes in a healthy sandbox, that is the agent's doing."""

    tool_memory_mb: Count | None = None
    """Address space of each process of a command, in MiB. None: only sandbox.memory_mb holds, for all together."""

    tool_cpu_s: Count | None = None
    """CPU seconds of each process of a command; beyond it the process ends with SIGXCPU. None: no limit but time."""

    tool_pids: Count | None = None
    """Processes of its user while a command runs, those of earlier commands included. None: only sandbox.pids holds."""

    tool_file_mb: Count | None = None
    """Longest file that a command may write, in MiB; beyond it ends with SIGXFSZ. None: only the disk is a limit."""

    turn_timeout_s: Seconds = 60.0
    """Active time of one turn: generation plus command. Time suspended does not count."""

    episode_timeout_s: Seconds = 300.0
    """Active time of one episode. Lowered by a task's own agent timeout."""

    observation_chars: Count = 2000
    """Longest observation in characters; longer ones keep head and tail and say how much was cut."""

    temperature: Positive = 1.0
    """Sampling temperature of training episodes. Evaluation is greedy."""

    top_p: PositiveShare = 1.0
    """Nucleus filter. Anything but 1 makes log-probs not those of the sampling distribution: lint error."""

    top_k: TopK = -1
    """Top-k filter; -1 is off. Anything else is a lint error, as for top_p."""

    min_p: Share = 0.0
    """Min-p filter; 0 is off. Anything else is a lint error, as for top_p."""

    frequency_penalty: Penalty = 0.0
    """0 is off. Anything else is a lint error, as for top_p."""

    presence_penalty: Penalty = 0.0
    """0 is off. Anything else is a lint error, as for top_p."""
