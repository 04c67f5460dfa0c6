"""`ClaimProvider`: sandboxes that agent-sandbox keeps warm (agents.x-k8s.io v1beta1), one claim each.

For each kind of sandbox there is a SandboxTemplate and a SandboxWarmPool. A claim names no environment, which would
force a cold start, and always has a lifecycle, without which it would live for ever. What it is given is a pod like any
other, so all else is as with plain pods.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agentrl.clock import wall
from agentrl.errors import SandboxError, UserError
from agentrl.kubernetes.client import Object
from agentrl.kubernetes.merge import merged
from agentrl.kubernetes.names import EPOCH, ROLE, RUN, label_value, labels, object_name, selector
from agentrl.kubernetes.resources import SANDBOX_CLAIMS, SANDBOX_TEMPLATES, SANDBOX_WARM_POOLS, SANDBOXES
from agentrl.kubernetes.watch import Watched
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.owner import SandboxOwner
from agentrl.sandbox.pods.pod import ROLE as SANDBOX_ROLE
from agentrl.sandbox.pods.pod import metadata, pod_spec
from agentrl.sandbox.pods.provider import PodProvider
from agentrl.sandbox.pods.views import PodView, PodViews
from agentrl.sandbox.provider import SandboxSpec

POD_NAME = "agents.x-k8s.io/pod-name"
"""Annotation of a Sandbox whose pod has another name: one that came from a warm pool."""


class ClaimProvider(PodProvider):
    """Implements `SandboxProvider`. `sandbox.warm_max` should be 0: the cluster keeps the warm ones."""

    def __init__(self, config: SandboxConfig, owner: SandboxOwner, *, state_dir: Path) -> None:
        super().__init__(config, owner, state_dir=state_dir)
        self._claims = PodViews()
        self._claim_of: dict[str, str] = {}
        """By pod."""
        self._claim_numbers = itertools.count(1)
        self._pools: dict[SandboxSpec, asyncio.Task[str]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """See `SandboxProvider.close`: claims, pools and templates go, and their pods with them."""
        await super().close()
        if self._watching is not None:
            self._watching.cancel()

    async def _connect(self) -> None:
        await super()._connect()
        if not await self.cluster.client.serves(SANDBOX_CLAIMS):
            raise UserError(
                f"sandbox.backend agent_sandbox: the cluster does not serve {SANDBOX_CLAIMS.api_version}",
                hint="install agent-sandbox with its extensions, or choose sandbox=kubernetes",
            )
        chosen = selector({RUN: label_value(self._owner.run), ROLE: SANDBOX_ROLE, EPOCH: str(self._owner.epoch)})
        watched = Watched(self.cluster.client, SANDBOX_CLAIMS, labels=chosen, on_change=self._claims.tell)
        self._watching = asyncio.create_task(watched.run(), name="watch of claims")

    async def _make(self, spec: SandboxSpec, on_begin: Callable[[], None]) -> PodView:
        pool = await self._pool(replace(spec, owner=None))
        name = object_name(self._owner.run, self._owner.epoch, f"sb-{next(self._claim_numbers)}")
        claim = self._claims.add(name)
        try:
            await self.cluster.create(SANDBOX_CLAIMS, self._claim(name, pool, spec))
            on_begin()
            pod_name = await self._pod_of(claim)
        except BaseException:
            await asyncio.shield(self._unmake_claim(name))
            raise
        self._claim_of[pod_name] = name
        return self.cluster.view(pod_name)

    async def _delete(self, view: PodView) -> bool:
        """Release the claim; its pod goes with it."""
        name = self._claim_of.get(view.name)
        if name is None:
            return False
        existed = await self.cluster.delete(SANDBOX_CLAIMS, name)
        self._claims.forget(name)
        del self._claim_of[view.name]
        return existed

    async def _unmake_claim(self, name: str) -> None:
        try:
            await self.cluster.delete(SANDBOX_CLAIMS, name)
        except SandboxError:
            return  # its shutdownTime ends it
        finally:
            self._claims.forget(name)

    async def _pod_of(self, claim: PodView) -> str:
        """The pod that a claim was given. Raises SandboxError."""
        if not await claim.until(lambda claim: bool(_given(claim.object)), within_s=self._config.start_timeout_s):
            raise SandboxError(
                f"claim {claim.name} was given no sandbox in {self._config.start_timeout_s:g} s: {_why(claim.object)}"
            )
        sandbox = _given(claim.object)
        found = await self.cluster.client.find(SANDBOXES, sandbox)
        annotations = {} if found is None else found["metadata"].get("annotations") or {}
        return str(annotations.get(POD_NAME) or sandbox)

    async def _pool(self, kind: SandboxSpec) -> str:
        """The warm pool of a kind, made when it is first asked for."""
        if kind not in self._pools:
            self._pools[kind] = asyncio.create_task(self._make_pool(kind))
        making = self._pools[kind]
        try:
            return await asyncio.shield(making)
        except Exception:
            self._pools.pop(kind, None)
            raise

    async def _make_pool(self, kind: SandboxSpec) -> str:
        spec = pod_spec(kind, self._config, self._owner)
        digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:10]
        name = object_name(self._owner.run, self._owner.epoch, digest)
        for resource, body in ((SANDBOX_TEMPLATES, self._template(name, spec)), (SANDBOX_WARM_POOLS, self._warm(name))):
            await self.cluster.share(resource, body)
        return name

    def _template(self, name: str, spec: Object) -> Object:
        own = labels(self._owner.run, role=SANDBOX_ROLE, epoch=self._owner.epoch)
        return {
            "apiVersion": SANDBOX_TEMPLATES.api_version,
            "kind": SANDBOX_TEMPLATES.kind,
            "metadata": metadata(self._owner, name),
            "spec": {
                "podTemplate": merged({"metadata": {"labels": own}, "spec": spec}, self._config.kubernetes.overrides),
                # The policy of all sandboxes of the run holds for these too; a managed one would let them out.
                "networkPolicyManagement": "Unmanaged",
                "envVarsInjectionPolicy": "Disallowed",
            },
        }

    def _warm(self, name: str) -> Object:
        return {
            "apiVersion": SANDBOX_WARM_POOLS.api_version,
            "kind": SANDBOX_WARM_POOLS.kind,
            "metadata": metadata(self._owner, name),
            "spec": {
                "replicas": self._config.kubernetes.warm_replicas,
                "sandboxTemplateRef": {"name": name},
                "updateStrategy": {"type": "OnReplenish"},
            },
        }

    def _claim(self, name: str, pool: str, spec: SandboxSpec) -> Object:
        until = datetime.fromtimestamp(wall(), UTC) + timedelta(seconds=self._config.kubernetes.active_deadline_s)
        meta = metadata(self._owner, name)
        meta["labels"] = labels(self._owner.run, role=SANDBOX_ROLE, epoch=self._owner.epoch, episode=spec.owner)
        return {
            "apiVersion": SANDBOX_CLAIMS.api_version,
            "kind": SANDBOX_CLAIMS.kind,
            "metadata": meta | {"annotations": {"agentrl.dev/pool": pool}},
            "spec": {
                "warmPoolRef": {"name": pool},
                "lifecycle": {
                    "shutdownTime": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "shutdownPolicy": "Delete",
                    "ttlSecondsAfterFinished": 60,
                },
            },
        }


def _given(claim: Object | None) -> str:
    """Name of the Sandbox that a claim has; empty while it has none."""
    return "" if claim is None else ((claim.get("status") or {}).get("sandbox") or {}).get("name") or ""


def _why(claim: Object | None) -> str:
    conditions = [] if claim is None else (claim.get("status") or {}).get("conditions") or []
    return "; ".join(f"{one['type']} {one['status']}: {one.get('reason')} {one.get('message')}" for one in conditions)
