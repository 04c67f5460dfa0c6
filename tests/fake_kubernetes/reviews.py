"""Questions that are asked by creating an object: may I, who am I, a token please."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from aiohttp import web

from .access import Access, Attempt, User, service_account
from .errors import Object
from .resources import SERVICE_ACCOUNTS, Target
from .store import now_text


@dataclass
class Reviews:
    """Answers the reviews of the one who asks, and token requests."""

    access: Access

    async def __call__(self, request: web.Request, user: User, target: Target) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        answer = {
            "selfsubjectaccessreviews": self._access,
            "selfsubjectrulesreviews": self._rules,
            "selfsubjectreviews": self._self,
            "serviceaccounts": self._token,
        }[target.resource.plural]
        made = {**body, "metadata": {"creationTimestamp": None}, "status": answer(body, user, target)}
        return web.Response(body=msgspec.json.encode(made), status=201, content_type="application/json")

    def _access(self, body: Object, user: User, target: Target) -> Object:
        asked: dict[str, Any] = body["spec"].get("resourceAttributes") or {}
        attempt = Attempt(
            asked.get("verb", ""), asked.get("group", ""), asked.get("resource", ""), asked.get("namespace", ""),
            asked.get("name", ""), asked.get("subresource", ""),
        )  # fmt: skip
        allowed = self.access.allows(user, attempt)
        return {"allowed": allowed, **({"reason": "RBAC: allowed"} if allowed else {})}

    def _rules(self, body: Object, user: User, target: Target) -> Object:
        everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        namespace = body["spec"].get("namespace", "default")
        rules = [everything] if user.is_master else list(self.access.rules(user, namespace))
        return {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}

    def _self(self, body: Object, user: User, target: Target) -> Object:
        return {"userInfo": {"username": user.name, "groups": list(user.groups)}}

    def _token(self, body: Object, user: User, target: Target) -> Object:
        self.access.store.get(SERVICE_ACCOUNTS, target.namespace, target.name)
        seconds = (body.get("spec") or {}).get("expirationSeconds") or 3600
        token = self.access.token_of(service_account(target.namespace, target.name))
        return {"token": token, "expirationTimestamp": now_text(datetime.now(UTC) + timedelta(seconds=seconds))}
