"""Answers other than success, as the ``Status`` objects that the real API sends."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from .resources import Resource

Object = dict[str, Any]
T = TypeVar("T")


def new_uid() -> str:
    """A uid. Not from the kernel's source of randomness: thousands are made."""
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


def copied(thing: T) -> T:
    """A copy of an object, all of it. Objects are JSON: reading what was written is ten times as fast as deepcopy."""
    made: T = msgspec.json.decode(msgspec.json.encode(thing))
    return made


@dataclass(frozen=True)
class Cause:
    """One entry of ``details.causes``: why a field was refused."""

    reason: str
    message: str
    field: str

    def as_json(self) -> Object:
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(Exception):
    """A request that ends with a ``Status`` of failure."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        resource: Resource | None = None,
        name: str = "",
        details: Object | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.headers = headers or {}
        about: Object = {}
        if name:
            about["name"] = name
        if resource is not None:
            if resource.group:
                about["group"] = resource.group
            about["kind"] = resource.plural
        about.update(details or {})
        self.status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            **({"details": about} if about else {}),
            "code": code,
        }
        if not reason:
            del self.status["reason"]


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str, *, causes: list[Cause] | None = None) -> ApiError:
    said = f'{resource.qualified} "{name}"' if name else resource.qualified
    details = {"causes": [cause.as_json() for cause in causes]} if causes else None
    return ApiError(403, "Forbidden", f"{said} is forbidden: {why}", resource=resource, name=name, details=details)


def not_found(resource: Resource, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', resource=resource, name=name)


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", details={})


def not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def already_exists(resource: Resource, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', resource=resource, name=name)


def conflict(resource: Resource, name: str, why: str = "") -> ApiError:
    why = why or ("the object has been modified; please apply your changes to the latest version and try again")
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}',
        resource=resource,
        name=name,
    )


def expired(message: str = "The provided continue parameter is too old") -> ApiError:
    return ApiError(410, "Expired", message)


def too_old(asked: int, oldest: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def invalid(resource: Resource, name: str, causes: list[Cause]) -> ApiError:
    lines = [f"{cause.field}: {cause.message}" for cause in causes]
    said = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    details: Object = {"kind": resource.kind, "causes": [cause.as_json() for cause in causes]}
    return ApiError(
        422, "Invalid", f'{kind} "{name}" is invalid: {said}', resource=resource, name=name, details=details
    )


def too_many(retry_after_s: int) -> ApiError:
    return ApiError(
        429,
        "TooManyRequests",
        "the server has received too many requests and has asked us to try again later",
        details={"retryAfterSeconds": retry_after_s},
        headers={"Retry-After": str(retry_after_s)},
    )


def internal(message: str) -> ApiError:
    return ApiError(
        500, "InternalError", f"Internal error occurred: {message}", details={"causes": [{"message": message}]}
    )


def unavailable(message: str = "the server is currently unable to handle the request") -> ApiError:
    return ApiError(503, "ServiceUnavailable", message)
