"""The provider that a configuration names, and the removal of what one of an earlier process left."""

from __future__ import annotations

from pathlib import Path

from agentrl.sandbox import bare, bubblewrap
from agentrl.sandbox.bubblewrap.images import cache_folder
from agentrl.sandbox.config import Isolation, SandboxConfig
from agentrl.sandbox.provider import SandboxProvider


def make_provider(config: SandboxConfig, *, state_dir: Path) -> SandboxProvider:
    """Raises UserError, with the fix, where this machine cannot start its sandboxes."""
    if config.isolation is Isolation.none:
        return bare.BareProvider(config, state_dir=state_dir)
    return bubblewrap.BubblewrapProvider(config, state_dir=state_dir)


def reap(config: SandboxConfig, *, state_dir: Path) -> None:
    """Whatever isolation they had. Safe beside running owners."""
    bare.reap(state_dir)
    bubblewrap.reap(state_dir, cache_folder(config.cache_dir))
