"""Who asks, and what roles let them do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import errors
from .errors import Object
from .resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, Resource
from .store import Store


@dataclass(frozen=True)
class User:
    """An authenticated user. Members of ``system:masters`` may do everything."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def is_master(self) -> bool:
        return "system:masters" in self.groups


ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))


def service_account(namespace: str, name: str) -> User:
    return User(
        f"system:serviceaccount:{namespace}:{name}",
        ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"),
    )


@dataclass(frozen=True)
class Attempt:
    """What a request wants to do. ``name`` is empty where it is about all objects of a kind."""

    verb: str
    group: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def said(self) -> str:
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


@dataclass
class Access:
    """Tokens of users, and the rules of the roles in the store."""

    store: Store
    tokens: dict[str, User] = field(default_factory=dict)

    def token_of(self, user: User) -> str:
        for token, owner in self.tokens.items():
            if owner == user:
                return token
        token = secrets.token_urlsafe(24)
        self.tokens[token] = user
        return token

    def user(self, authorization: str) -> User:
        """Who an ``Authorization`` header belongs to.

        Raises:
            ApiError: 401.
        """
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or token not in self.tokens:
            raise errors.unauthorized()
        return self.tokens[token]

    def check(self, user: User, attempt: Attempt, resource: Resource) -> None:
        """Raises:
        ApiError: 403, no role of the user allows it.
        """
        if self.allows(user, attempt):
            return
        where = f' in the namespace "{attempt.namespace}"' if attempt.namespace else " at the cluster scope"
        why = (
            f'User "{user.name}" cannot {attempt.verb} resource "{attempt.said}" in API group "{attempt.group}"{where}'
        )
        raise errors.forbidden(resource, attempt.name, why)

    def allows(self, user: User, attempt: Attempt) -> bool:
        return user.is_master or any(_covers(rule, attempt) for rule in self.rules(user, attempt.namespace))

    def rules(self, user: User, namespace: str) -> Iterator[Object]:
        """The rules that are bound to a user, those of the whole cluster included."""
        for binding in self.store.all(CLUSTER_ROLE_BINDINGS):
            if _binds(binding, user):
                yield from self._role(binding["roleRef"], "")
        if namespace:
            for binding in self.store.all(ROLE_BINDINGS, namespace):
                if _binds(binding, user):
                    yield from self._role(binding["roleRef"], namespace)

    def may_grant(self, user: User, role: Object, resource: Resource, namespace: str) -> None:
        """Nobody may write a role with rights that they do not have.

        Raises:
            ApiError: 403.
        """
        lacking = [
            rule
            for rule in role.get("rules") or []
            if not all(self.allows(user, attempt) for attempt in _attempts(rule, namespace))
        ]
        if lacking:
            shown = " ".join(_shown(rule) for rule in lacking)
            raise errors.forbidden(
                resource,
                role["metadata"]["name"],
                f'user "{user.name}" (groups={list(user.groups)}) is attempting to grant RBAC permissions not '
                f"currently held:\n{shown}",
            )

    def _role(self, reference: Object, namespace: str) -> list[Object]:
        cluster_wide = reference["kind"] == "ClusterRole"
        found = (
            self.store.find(CLUSTER_ROLES, "", reference["name"])
            if cluster_wide
            else self.store.find(ROLES, namespace, reference["name"])
        )
        return list((found or {}).get("rules") or [])


def _binds(binding: Object, user: User) -> bool:
    for subject in binding.get("subjects") or []:
        if subject["kind"] == "ServiceAccount":
            if user.name == f"system:serviceaccount:{subject.get('namespace', '')}:{subject['name']}":
                return True
        elif subject["name"] in (user.groups if subject["kind"] == "Group" else (user.name,)):
            return True
    return False


def _covers(rule: Object, attempt: Attempt) -> bool:
    def has(key: str, value: str) -> bool:
        return bool({"*", value} & set(rule.get(key) or ()))

    resources = set(rule.get("resources") or ())
    named = rule.get("resourceNames")
    return (
        has("verbs", attempt.verb)
        and has("apiGroups", attempt.group)
        and bool(resources & {"*", attempt.said, f"*/{attempt.subresource}" if attempt.subresource else "*"})
        and (not named or attempt.name in named)
    )


def _shown(rule: Object) -> str:
    parts = []
    for key, name in (("apiGroups", "APIGroups"), ("resources", "Resources"), ("verbs", "Verbs")):
        words = " ".join(f'"{one}"' for one in rule.get(key) or [])
        parts.append(f"{name}:[{words}]")
    return "{" + ", ".join(parts) + "}"


def _attempts(rule: Object, namespace: str) -> Iterator[Attempt]:
    for verb in rule.get("verbs") or []:
        for group in rule.get("apiGroups") or []:
            for said in rule.get("resources") or []:
                plural, _, subresource = said.partition("/")
                for name in rule.get("resourceNames") or [""]:
                    yield Attempt(verb, group, plural, namespace, name, subresource)
