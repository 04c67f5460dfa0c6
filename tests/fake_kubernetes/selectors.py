"""Label and field selectors, as text of a query and as objects in specs."""

from __future__ import annotations

import re
from collections.abc import Callable

from .errors import Object, bad_request
from .resources import EVENTS, JOBS, NAMESPACES, NODES, PODS, SECRETS, Resource

Match = Callable[[Object], bool]

_SET = re.compile(r"^(?P<key>[\w./-]+)\s+(?P<op>in|notin)\s+\((?P<values>[^)]*)\)$")
_COMPARE = re.compile(r"^(?P<key>[\w./-]+)\s*(?P<op>==|=|!=)\s*(?P<value>[\w./-]*)$")
_EXISTS = re.compile(r"^(?P<no>!?)\s*(?P<key>[\w./-]+)$")

FIELDS: dict[Resource, frozenset[str]] = {
    PODS: frozenset(
        ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
         "status.phase", "status.podIP", "status.nominatedNodeName")
    ),
    EVENTS: frozenset(
        ("involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
         "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
         "reportingComponent", "source", "type")
    ),
    NODES: frozenset(("spec.unschedulable",)),
    NAMESPACES: frozenset(("status.phase",)),
    SECRETS: frozenset(("type",)),
    JOBS: frozenset(("status.successful",)),
}  # fmt: skip
"""Fields that a resource can be selected by, beside its name and namespace."""


def labels(text: str) -> Match:
    """What a ``labelSelector`` selects.

    Raises:
        ApiError: 400, the text is no selector.
    """
    tests = [_requirement(part.strip(), text) for part in re.split(r",(?![^(]*\))", text) if part.strip()]
    return lambda thing: all(test(thing["metadata"].get("labels") or {}) for test in tests)


def _requirement(part: str, whole: str) -> Callable[[dict[str, str]], bool]:
    if found := _SET.match(part):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["op"] == "in":
            return lambda have: have.get(key) in values
        return lambda have: have.get(key) not in values
    if found := _COMPARE.match(part):
        key, value = found["key"], found["value"]
        if found["op"] == "!=":
            return lambda have: have.get(key) != value
        return lambda have: have.get(key) == value
    if found := _EXISTS.match(part):
        key, wanted = found["key"], not found["no"]
        return lambda have: (key in have) is wanted
    raise bad_request(f"unable to parse requirement: found '{part}', in selector '{whole}'")


def fields(text: str, resource: Resource) -> Match:
    """What a ``fieldSelector`` selects.

    Raises:
        ApiError: 400, the resource cannot be selected by such a field.
    """
    tests: list[Match] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = re.match(r"^([\w.\[\]-]+)(==|=|!=)(.*)$", part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        path, operator, value = found.groups()
        if path not in {"metadata.name", "metadata.namespace"} | FIELDS.get(resource, frozenset()):
            raise bad_request(f"field label not supported: {path}")
        tests.append(_field_test(path, operator != "!=", value))
    return lambda thing: all(test(thing) for test in tests)


def _field_test(path: str, equal: bool, value: str) -> Match:
    def test(thing: Object) -> bool:
        at: object = thing
        for part in path.split("."):
            at = at.get(part) if isinstance(at, dict) else None
        return (("" if at is None else str(at)) == value) is equal

    return test


def of_spec(selector: Object | None) -> Match:
    """What a ``LabelSelector`` object selects; nothing where there is none."""
    if selector is None:
        return lambda _: False
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for need in selector.get("matchExpressions") or []:
        values = ",".join(need.get("values") or [])
        parts.append(
            {
                "In": f"{need['key']} in ({values})",
                "NotIn": f"{need['key']} notin ({values})",
                "Exists": need["key"],
                "DoesNotExist": f"!{need['key']}",
            }[need["operator"]]
        )
    return labels(",".join(parts))
