"""The rules of the lint about `sandbox.isolation=none`: what nothing holds then must not seem to hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentrl.config.fields import schema
from agentrl.config.lint import Finding, LintFacts, error, warning
from agentrl.config.schema import JobConfig
from agentrl.sandbox.config import Isolation

_WITHOUT_EFFECT = (
    *("start_concurrency", "warm_idle_s", "memory_mb", "seccomp", "pids", "cpus", "disk_mb", "writable_system"),
    *("cache_dir", "build_network", "build_timeout_s", "build_disk_mb"),
)
"""Settings of the sandbox that need isolation."""


def isolation_is_given_up(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Without isolation a model can do to this machine whatever its user can."""
    if config.sandbox.isolation is Isolation.none:
        message = "none: commands of the model run on this machine, with your rights, your files and its network"
        yield warning("sandbox.isolation", message, "only where the machine is thrown away afterwards")


def one_episode_without_isolation(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Paths such as /app and /tests are there once, and so is the sandbox; a warm one would be the only one."""
    sandbox = config.sandbox
    if sandbox.isolation is not Isolation.none:
        return
    if sandbox.max_sandboxes != 1:
        message = f"{sandbox.max_sandboxes}: without isolation there is one at a time"
        yield error("sandbox.max_sandboxes", message, "choose sandbox=bare, or set it to 1")
    if sandbox.warm_max != 0:
        message = f"{sandbox.warm_max}: without isolation a warm sandbox would take the only place"
        yield error("sandbox.warm_max", message, "choose sandbox=bare, or set it to 0")


def no_snapshots_without_isolation(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A snapshot is a layer of an overlay, and on the bare machine there is none."""
    if config.sandbox.isolation is not Isolation.none:
        return
    asked = {
        "sandbox.fork_groups": config.sandbox.fork_groups,
        "sandbox.snapshot_every_turns": config.sandbox.snapshot_every_turns > 0,
        "tasks.branch_from": config.tasks.branch_from is not None,
    }
    for key in (key for key, wanted in asked.items() if wanted):
        yield error(key, "needs snapshots, which sandbox.isolation none has not", "leave it out")


def limits_without_isolation(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A limit that was set and that nothing holds is a misunderstanding."""
    if config.sandbox.isolation is not Isolation.none:
        return
    for name in _WITHOUT_EFFECT:
        if getattr(config.sandbox, name) != schema().leaves[f"sandbox.{name}"].default:
            yield warning(f"sandbox.{name}", "is ignored: sandbox.isolation is none", "remove it")


BARE_RULES: tuple[Callable[[JobConfig, LintFacts], Iterator[Finding]], ...] = (
    isolation_is_given_up,
    one_episode_without_isolation,
    no_snapshots_without_isolation,
    limits_without_isolation,
)
