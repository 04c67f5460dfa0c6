"""What the API server's answers mean. The bodies are as a 1.36 server sends them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl.errors import UserError
from agentrl.kubernetes import errors
from agentrl.kubernetes.limits import LONGEST_PAUSE_S, RateLimit, pause_s, retry_after_s


def answer(code: int, reason: str, message: str, **details: Any) -> bytes:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code}
    return json.dumps(status | {"reason": reason, "message": message, "details": details}).encode()


NO_RIGHT = (
    'pods is forbidden: User "system:serviceaccount:rl:agentrl" cannot create resource "pods" in API group "" in the'
    ' namespace "rl"'
)
NO_QUOTA = (
    'pods "a" is forbidden: exceeded quota: compute, requested: requests.cpu=1, used: requests.cpu=4, limited:'
    " requests.cpu=4"
)
CASES = {
    "exists": (answer(409, "AlreadyExists", 'pods "a" already exists'), 409, errors.AlreadyExists, False),
    "conflict": (answer(409, "Conflict", "the object has been modified"), 409, errors.Conflict, False),
    "no right": (answer(403, "Forbidden", NO_RIGHT), 403, errors.Forbidden, False),
    "quota": (answer(403, "Forbidden", NO_QUOTA), 403, errors.QuotaExceeded, False),
    "webhook": (
        answer(403, "Forbidden", 'admission webhook "policy.example.com" denied the request: no'),
        403,
        errors.Refused,
        False,
    ),
    "gone": (answer(410, "Expired", "too old resource version: 1 (9)"), 410, errors.Gone, False),
    "not there": (answer(404, "NotFound", 'pods "a" not found'), 404, errors.NotFound, False),
    "not served": (b"404 page not found\n", 404, errors.NotFound, False),
    "login": (answer(401, "Unauthorized", "Unauthorized"), 401, errors.Unauthorized, False),
    "throttled": (b"Too many requests, please try again later.\n", 429, errors.Throttled, True),
    "starting": (answer(503, "ServiceUnavailable", "apiserver is shutting down"), 503, errors.ServerFault, True),
    "fault": (answer(500, "InternalError", "etcdserver: request timed out"), 500, errors.ServerFault, True),
    "gateway": (b"<html>Bad Gateway</html>", 502, errors.ServerFault, True),
}


@pytest.mark.parametrize("case", CASES)
def test_answers_become_errors(case: str) -> None:
    body, status, kind, transient = CASES[case]
    error = errors.error_of(status, body, what="create pods in rl")
    assert type(error) is kind
    assert error.transient is transient
    assert (error.status, "\n" in str(error)) == (status, False)
    assert str(error).startswith("create pods in rl: ")


def test_missing_rights_come_with_what_grants_them() -> None:
    error = errors.error_of(403, answer(403, "Forbidden", NO_RIGHT), what="create pods in rl")
    assert isinstance(error, UserError)
    assert error.hint == (
        "kubectl create role agentrl-create-pods -n rl --verb=create --resource=pods && kubectl create rolebinding"
        " agentrl-create-pods -n rl --role=agentrl-create-pods --serviceaccount=rl:agentrl"
    )
    assert errors.grant("get", "nodes", "", "ann", None) == (
        "kubectl create clusterrole agentrl-get-nodes --verb=get --resource=nodes && kubectl create clusterrolebinding"
        " agentrl-get-nodes --clusterrole=agentrl-get-nodes --user=ann"
    )
    assert "--resource=jobs.batch/status " in errors.grant("patch", "jobs/status", "batch", "ann", "rl")


def test_malformed_objects_are_told_field_by_field() -> None:
    causes = [
        {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers[0].image"},
        {"reason": "FieldValueInvalid", "message": "Invalid value: -1", "field": "spec.priority"},
    ]
    body = answer(422, "Invalid", 'Pod "a" is invalid: [...]', kind="Pod", name="a", causes=causes)
    error = errors.error_of(422, body, what="create pods in rl")
    assert isinstance(error, errors.Invalid | UserError)
    assert str(error) == (
        "create pods in rl: Pod a: spec.containers[0].image: Required value; spec.priority: Invalid value: -1"
    )


def test_a_wait_that_the_server_asks_for_is_kept() -> None:
    error = errors.error_of(429, b"", what="x", headers={"Retry-After": "7"})
    assert retry_after_s(error, 0, 0.5) == pytest.approx(7, abs=0.5)
    told = answer(429, "TooManyRequests", "disruption budget", retryAfterSeconds=10)
    error = errors.error_of(429, told, what="x")
    assert (retry_after_s(error, 0, 0.5) or 0) >= 10
    assert retry_after_s(errors.Invalid("x"), 0, 0.5) is None


def test_pauses_double_and_are_bounded() -> None:
    pauses = [pause_s(attempt, 0.0) for attempt in range(20)]
    assert pauses[:3] == [0.125, 0.25, 0.5]
    assert max(pauses) == LONGEST_PAUSE_S / 2
    assert pause_s(99, 0.999) < LONGEST_PAUSE_S
    assert pause_s(3, 0.0) < pause_s(3, 0.5) < pause_s(3, 0.99)


def test_the_rate_is_bounded_and_a_burst_is_let_through() -> None:
    limit = RateLimit(per_s=10, burst=5)
    delays = [limit.take(100.0) for _ in range(8)]
    assert delays == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.2, 0.3])
    assert limit.take(200.0) == 0
    used = [at + limit.take(at) for at in [300 + 0.01 * number for number in range(300)]]
    assert max(sum(1 for one in used if start <= one < start + 1) for start in used) <= 15
