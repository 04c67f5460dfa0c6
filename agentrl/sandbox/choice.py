"""The provider that a configuration names, and the removal of what one of an earlier process left."""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agentrl.sandbox import bare, bubblewrap
from agentrl.sandbox.bubblewrap.images import cache_folder
from agentrl.sandbox.config import Isolation, SandboxBackend, SandboxConfig
from agentrl.sandbox.owner import SandboxOwner
from agentrl.sandbox.provider import SandboxProvider


def make_provider(config: SandboxConfig, *, state_dir: Path, owner: SandboxOwner | None = None) -> SandboxProvider:
    """Raises UserError, with the fix, where this machine cannot start its sandboxes.

    `owner` names them in a cluster; None for those of no run, which go by a name of their own.
    """
    if config.backend.runs_containers:
        from agentrl.sandbox.pods.claims import ClaimProvider
        from agentrl.sandbox.pods.provider import PodProvider

        kind = PodProvider if config.backend is SandboxBackend.kubernetes else ClaimProvider
        known = owner or SandboxOwner(run=f"agentrl-{secrets.token_hex(4)}", epoch=0)
        return kind(config, known, state_dir=state_dir)
    if config.isolation is Isolation.none:
        return bare.BareProvider(config, state_dir=state_dir)
    return bubblewrap.BubblewrapProvider(config, state_dir=state_dir)


def reap(config: SandboxConfig, *, state_dir: Path, run: str) -> None:
    """Whatever isolation they had; in a cluster, those of this run. Safe beside running owners of other runs."""
    if config.backend.runs_containers:
        from agentrl.sandbox.pods.cluster import reap as reap_pods

        with ThreadPoolExecutor(1) as thread:  # whoever calls may be inside an event loop
            thread.submit(asyncio.run, reap_pods(config, run)).result()
    bare.reap(state_dir)
    bubblewrap.reap(state_dir, cache_folder(config.cache_dir))
