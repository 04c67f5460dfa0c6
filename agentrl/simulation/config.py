"""What a simulation assumes about the world: a workload's laws and a machine's, read from YAML.

Not part of `JobConfig`: a real run has a real world. Packaged ones lie in `agentrl/conf/workload` and `hardware`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from msgspec import Meta

from agentrl.errors import UserError
from agentrl.simulation.laws import Above0, AnyLaw, AtLeast0, LogNormal, Quantiles, ShareOf1
from agentrl.simulation.replay import Replay

_PACKAGED = Path(__file__).resolve().parent.parent / "conf"

AtLeast1 = Annotated[int, Meta(ge=1)]


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Laws of what agents do and of the sandboxes they do it in. Times in seconds."""

    groups: AtLeast1
    """Groups in a batch."""
    group_size: AtLeast1
    turns: LogNormal | Quantiles
    """Generations of one episode."""
    turns_growth: Annotated[float, Meta(ge=1)] = 1.0
    """Factor by which `turns` have grown after `turns_growth_groups` groups, evenly: a workload that drifts."""
    turns_growth_groups: AtLeast1 = 1
    turns_group_share: ShareOf1
    """Share of the log-variance of `turns` that a task's episodes have in common."""
    generated_tokens: AnyLaw
    """Of one turn."""
    max_turn_tokens: AtLeast1
    """Cap of them; a message that long is whole."""
    observation_tokens: AnyLaw
    """Of one tool call's output."""
    prompt_tokens: AtLeast1
    max_episode_tokens: AtLeast1
    """Prompt, generated and observation tokens of an episode; one that reaches it is graded as it is."""
    tool_s: AnyLaw
    """One tool call."""
    verifier_s: AnyLaw
    start_cold_s: AnyLaw
    """A sandbox from nothing."""
    start_hang_share: ShareOf1
    """Of cold starts that take `start_hang_s` instead."""
    start_hang_s: AnyLaw
    start_warm_s: AnyLaw
    """A sandbox that was started before."""
    failure_share: ShareOf1
    """Episodes that lose their sandbox, at a uniform point of their turns, where nothing is done against it."""
    failure_share_hygiene: ShareOf1
    """The same with health checks and reaping. These episodes would also be lost without."""
    success: AnyLaw
    """Probability, between 0 and 1, with which a task's episodes succeed."""
    hardware: str = "h8"
    """What it is simulated on where nothing else is said."""
    replay: Replay | None = None
    """Recorded episodes that take the place of drawn ones."""


class EngineLaw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast one engine is, and what it holds."""

    kv_tokens: AtLeast1
    """KV capacity, shared by running requests and the prefix cache."""
    context_tokens: AtLeast1
    """Longest prompt plus completion."""
    max_running: AtLeast1
    """Requests decoded together."""
    prefill_tokens_per_s: Above0
    """One request at a time."""
    decode_share_while_prefilling: Annotated[float, Meta(gt=0, le=1)]
    """Speed of decoding meanwhile."""
    step_s: Above0
    """One decoding step, which gives every running request one token: fixed part."""
    step_per_running_s: AtLeast0
    """Per running request."""
    step_per_context_token_s: AtLeast0
    """Per token in the contexts of running requests."""
    reserve_tokens: Annotated[int, Meta(ge=0)]
    """KV that must stay free, per running request, for another one to be admitted: without it, one that has just come
    in pushes another out."""
    request_s: AtLeast0
    """From sending a request to its arrival; control requests are answered as long after they were carried out."""
    update_weights_s: AtLeast0
    release_memory_s: AtLeast0
    resume_memory_s: AtLeast0
    restart_s: AtLeast0
    """From a lost engine to one that serves again."""

    def __post_init__(self) -> None:
        if self.context_tokens >= self.kv_tokens:
            raise ValueError("kv_tokens must exceed context_tokens: one request must always fit")


class TrainerLaw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a step takes."""

    step_s: AtLeast0
    """Fixed part."""
    step_per_token_s: AtLeast0
    """Per token of the batch, on one GPU."""
    gpus: AtLeast1 = 1
    """Of its own; where it shares the swing engines' GPUs, it has as many as these. They share a batch evenly."""
    restart_s: AtLeast0
    """From a lost trainer to one that asks for a batch."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machines of a run."""

    engines: AtLeast1
    engine: EngineLaw
    trainer: TrainerLaw
    sandboxes: AtLeast1
    """Alive at once."""
    sandbox_starts: AtLeast1
    """Starting at once."""


S = TypeVar("S")


def load_workload(name: str, overrides: Sequence[str] = ()) -> Workload:
    """A packaged workload (`w_tb`) or a YAML file, with overrides such as `turns.sigma=0.5`. Raises UserError."""
    return _load("workload", name, overrides, Workload)


def load_hardware(name: str, overrides: Sequence[str] = ()) -> Hardware:
    """Packaged hardware (`h8`) or a YAML file, with overrides such as `engine.kv_tokens=300000`. Raises UserError."""
    return _load("hardware", name, overrides, Hardware)


def split_changes(changes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Changes of a workload's laws and of a machine's, told apart by their first key. Raises UserError."""
    of_workload: list[str] = []
    of_hardware: list[str] = []
    for change in changes:
        key = change.partition("=")[0].partition(".")[0]
        if key in Workload.__struct_fields__:
            of_workload.append(change)
        elif key in Hardware.__struct_fields__:
            of_hardware.append(change)
        else:
            known = [*Workload.__struct_fields__, *Hardware.__struct_fields__]
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"laws: {', '.join(known)}"
            raise UserError(f"no law {key!r} in {change!r}", hint=hint)
    return of_workload, of_hardware


def _load(group: str, name: str, overrides: Sequence[str], kind: type[S]) -> S:
    path = Path(name) if name.endswith(".yaml") else _PACKAGED / group / f"{name}.yaml"
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in (_PACKAGED / group).glob("*.yaml")))
        raise UserError(f"no {group} {name!r}", hint=f"packaged: {known}; or a file that ends in .yaml") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    for override in overrides:
        _override(tree, override, group)
    try:
        return msgspec.convert(tree, kind, strict=False)  # 1e-3 is a string in YAML 1.1
    except msgspec.ValidationError as error:
        raise UserError(f"{group} {name}: {error}") from error


def _override(tree: Any, override: str, group: str) -> None:
    """Set what is there already; a new key is a mistake."""
    key, equals, text = override.partition("=")
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        node = node.get(parent) if isinstance(node, dict) else None
    if not equals or not isinstance(node, dict) or last not in node:
        known = ", ".join(node) if isinstance(node, dict) else ", ".join(tree)
        raise UserError(f"{group}: cannot set {override!r}", hint=f"KEY=VALUE with one of the keys: {known}")
    try:
        node[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{group}: {override!r} is not YAML: {' '.join(str(error).split())}") from error
