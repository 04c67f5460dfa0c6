"""What the API server refuses or fails at, as errors: mapped once, from its answers' own words.

Mistakes of the user (rights, malformed objects) are `UserError`s too, with what would grant them. The others pass, or
tell something: `transient` says whether asking again can help.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from agentrl.errors import AgentrlError, UserError


class KubernetesError(AgentrlError, ConnectionError):
    """The API server did not do what it was asked."""

    transient: ClassVar[bool] = False
    """Whether the same request may succeed later."""

    def __init__(self, message: str, *, hint: str | None = None, status: int | None = None, reason: str = "") -> None:
        """`status`: of HTTP; None without an answer. `reason`: the API's own word, such as AlreadyExists."""
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason


class Unreachable(KubernetesError):
    """No answer: the connection was refused, broken off, or took too long."""

    transient = True


class ServerFault(KubernetesError):
    """HTTP 5xx: the server, or something behind it, failed."""

    transient = True


class Throttled(KubernetesError):
    """HTTP 429: asked too often, or, of an eviction, a disruption budget is in the way."""

    transient = True

    def __init__(self, message: str, *, retry_after_s: float | None = None, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.retry_after_s = retry_after_s


class AlreadyExists(KubernetesError):
    """HTTP 409: an object of this name is there."""


class Conflict(KubernetesError):
    """HTTP 409: the object has changed, or is another one than was meant."""


class NotFound(KubernetesError):
    """HTTP 404: no such object, or the cluster does not serve its kind."""


class Gone(KubernetesError):
    """HTTP 410: what a watch or a page wanted to go on from is forgotten; list again."""


class Unauthorized(KubernetesError, UserError):
    """HTTP 401: the credentials are not, or no longer, accepted."""


class Forbidden(KubernetesError, UserError):
    """HTTP 403: our rights do not include it; the hint grants it."""


class Refused(KubernetesError, UserError):
    """HTTP 403 of an admission plugin or webhook: rights are there, policy forbids the object."""


class QuotaExceeded(KubernetesError):
    """HTTP 403: a ResourceQuota has no room. It may have, later; so whoever waits for a place may wait on."""


class Invalid(KubernetesError, UserError):
    """HTTP 400 or 422: the object is malformed; the message names the fields."""


_RIGHTS = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>[\w*]+) resource "(?P<resource>[^"]*)"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)")?'
)
"""How the server says that rights are missing (k8s.io/apiserver, responsewriters.Forbidden)."""


def error_of(status: int, body: bytes, *, what: str, headers: Mapping[str, str] | None = None) -> KubernetesError:
    """The error that an answer stands for. `what` was asked, as in 'create pods in rl'."""
    answer = _status_object(body)
    text = str(answer.get("message") or body[:300].decode(errors="replace").strip() or f"HTTP {status}")
    reason = str(answer.get("reason") or "")
    message = f"{what}: {text}"
    known: dict[str, Any] = {"status": status, "reason": reason}
    if status == 401:
        return Unauthorized(message, hint="log in to the cluster again", **known)
    if status == 403:
        return _forbidden(message, text, known)
    if status == 404:
        return NotFound(message, **known)
    if status == 409:
        return (AlreadyExists if reason == "AlreadyExists" else Conflict)(message, **known)
    if status == 410:
        return Gone(message, **known)
    if status in (400, 405, 406, 413, 415, 422):
        return Invalid(f"{what}: {_causes(answer) or text}", **known)
    if status == 429:
        return Throttled(message, retry_after_s=_retry_after(answer, headers or {}), **known)
    return ServerFault(message, **known)


def grant(verb: str, resource: str, group: str, user: str, namespace: str | None) -> str:
    """The command that gives a user a right, in the words of kubectl."""
    kind, scope = ("role", f" -n {namespace}") if namespace else ("clusterrole", "")
    name = f"agentrl-{verb}-{resource.replace('/', '-')}"
    target = f"{resource}.{group}" if group else resource
    if "/" in resource and group:
        plural, _, subresource = resource.partition("/")
        target = f"{plural}.{group}/{subresource}"
    account = re.fullmatch(r"system:serviceaccount:([^:]+):(.+)", user)
    whom = f"--serviceaccount={account[1]}:{account[2]}" if account else f"--user={user}"
    return (
        f"kubectl create {kind} {name}{scope} --verb={verb} --resource={target} && "
        f"kubectl create {kind}binding {name}{scope} --{kind}={name} {whom}"
    )


def _forbidden(message: str, text: str, known: dict[str, Any]) -> KubernetesError:
    if "exceeded quota" in text or "failed quota" in text:
        return QuotaExceeded(message, hint="`kubectl describe resourcequota` shows what is used", **known)
    if found := _RIGHTS.search(text):
        return Forbidden(
            message,
            hint=grant(found["verb"], found["resource"], found["group"], found["user"], found["namespace"]),
            **known,
        )
    return Refused(message, **known)


def _status_object(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _causes(answer: dict[str, Any]) -> str:
    """Every field that is wrong, with why; empty where the answer names none."""
    details = answer.get("details") or {}
    causes = [cause for cause in details.get("causes") or () if cause.get("field")]
    said = "; ".join(f"{cause['field']}: {cause.get('message', '')}" for cause in causes)
    whose = " ".join(filter(None, (details.get("kind"), details.get("name"))))
    return f"{whose}: {said}" if said and whose else said


def _retry_after(answer: dict[str, Any], headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait."""
    said = headers.get("Retry-After") or (answer.get("details") or {}).get("retryAfterSeconds")
    try:
        return None if said is None else max(0.0, float(said))
    except ValueError:
        return None
