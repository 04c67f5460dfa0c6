"""What a valid object is: names, labels, and the rules of pods, jobs and the like that the schema does not say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import custom, schema
from .errors import Cause, Object, bad_request, invalid
from .resources import CONFIG_MAPS, JOBS, NAMESPACES, PODS, ROLE_BINDINGS, SERVICES, STATEFUL_SETS, Resource

LABEL_MESSAGE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
SUBDOMAIN_MESSAGE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
DNS_LABEL_MESSAGE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_NAMES = frozenset({NAMESPACES, SERVICES})
"""Resources whose names are one DNS label."""

POD_FIELDS_THAT_CHANGE = frozenset({"activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations"})


def schema_of(resource: Resource) -> schema.Struct:
    return schema.of_model(resource.model) if resource.model else custom.SCHEMAS[resource.kind]


@dataclass
class Decoded:
    """An object without the fields that nobody knows, warnings of them, and what its schema refuses."""

    thing: Object
    warnings: list[str]
    causes: list[Cause]


def decode(thing: Any, resource: Resource, mode: str) -> Decoded:
    """Read an object as the API does.

    Args:
        mode: ``Strict``, ``Warn`` or ``Ignore``, as ``fieldValidation`` says.

    Raises:
        ApiError: 400, a field has the wrong type, or (strict) is unknown.
    """
    if not isinstance(thing, dict):
        raise bad_request("the object provided is unrecognized (must be of type Object)")
    for field, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        if thing.get(field, wanted) != wanted:
            raise bad_request(
                f"the {field} in the data ({thing[field]}) does not match the expected {field} ({wanted})"
            )
    fields = schema_of(resource)
    found = schema.check(thing, fields)
    said = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
    if found.wrong:
        raise bad_request(said + found.wrong[0])
    warnings = [f'unknown field "{path}"' for path in found.unknown]
    if warnings and mode == "Strict":
        raise bad_request(said + "strict decoding error: " + ", ".join(warnings))
    if found.unknown:
        thing = schema.prune(thing, fields)
    return Decoded(thing, warnings if mode != "Ignore" else [], found.invalid)


def validate(resource: Resource, thing: Object, known: list[Cause], before: Object | None = None) -> None:
    """Check an object that is about to be stored.

    Raises:
        ApiError: 422 with a cause a field.
    """
    causes = list(known)
    causes += _of_metadata(resource, thing["metadata"])
    if not causes:
        causes += RULES.get(resource, _no_rules)(thing)
        if before is not None:
            causes += _of_change(resource, thing, before)
    if causes:
        raise invalid(resource, thing["metadata"].get("name", ""), causes)


def _no_rules(_: Object) -> Iterator[Cause]:
    return iter(())


def _wrong(field: str, value: Any, message: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {message}", field)


def _of_metadata(resource: Resource, meta: Object) -> Iterator[Cause]:
    name = meta.get("name", "")
    if not name:
        yield Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")
    elif resource.group == "rbac.authorization.k8s.io":
        pass
    elif resource in LABEL_NAMES:
        if len(name) > 63:
            yield _wrong("metadata.name", name, "must be no more than 63 bytes")
        elif not DNS_LABEL.fullmatch(name):
            yield _wrong("metadata.name", name, DNS_LABEL_MESSAGE)
    elif len(name) > 253:
        yield _wrong("metadata.name", name, "must be no more than 253 bytes")
    elif not SUBDOMAIN.fullmatch(name):
        yield _wrong("metadata.name", name, SUBDOMAIN_MESSAGE)
    yield from _of_labels(meta.get("labels"), "metadata.labels")
    for key in meta.get("annotations") or {}:
        yield from _of_label_key(key, "metadata.annotations")


def _of_labels(labels: Any, field: str) -> Iterator[Cause]:
    for key, value in (labels or {}).items():
        yield from _of_label_key(key, field)
        if len(value) > 63:
            yield _wrong(field, value, "must be no more than 63 bytes")
        elif not LABEL_VALUE.fullmatch(value):
            yield _wrong(field, value, LABEL_MESSAGE)


def _of_label_key(key: str, field: str) -> Iterator[Cause]:
    prefix, _, name = key.rpartition("/")
    if prefix and not SUBDOMAIN.fullmatch(prefix):
        yield _wrong(field, key, "prefix part " + SUBDOMAIN_MESSAGE)
    if not name or len(name) > 63 or not LABEL_VALUE.fullmatch(name):
        yield _wrong(field, key, "name part must consist of alphanumeric characters, '-', '_' or '.'")


def _of_pod(thing: Object) -> Iterator[Cause]:
    yield from of_pod_spec(thing["spec"], "spec")


def of_pod_spec(spec: Object, at: str) -> Iterator[Cause]:
    """Rules of a pod, wherever a template of it is."""
    containers = spec.get("containers") or []
    if not containers:
        yield Cause("FieldValueRequired", "Required value", f"{at}.containers")
    volumes = [volume["name"] for volume in spec.get("volumes") or []]
    for index, name in enumerate(volumes):
        if not DNS_LABEL.fullmatch(name) or len(name) > 63:
            yield _wrong(f"{at}.volumes[{index}].name", name, DNS_LABEL_MESSAGE)
        if name in volumes[:index]:
            yield Cause("FieldValueDuplicate", f'Duplicate value: "{name}"', f"{at}.volumes[{index}].name")
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or []):
            yield from _of_container(container, f"{at}.{group}[{index}]", volumes, seen)
    if (policy := spec.get("restartPolicy", "Always")) not in ("Always", "OnFailure", "Never"):
        yield Cause(
            "FieldValueNotSupported",
            f'Unsupported value: "{policy}": supported values: "Always", "Never", "OnFailure"',
            f"{at}.restartPolicy",
        )
    if (deadline := spec.get("activeDeadlineSeconds")) is not None and deadline < 1:
        yield _wrong(f"{at}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive")
    if (hostname := spec.get("hostname")) and (len(hostname) > 63 or not DNS_LABEL.fullmatch(hostname)):
        yield _wrong(f"{at}.hostname", hostname, DNS_LABEL_MESSAGE)


def _of_container(container: Object, at: str, volumes: list[str], seen: set[str]) -> Iterator[Cause]:
    name = container["name"]
    if not DNS_LABEL.fullmatch(name) or len(name) > 63:
        yield _wrong(f"{at}.name", name, DNS_LABEL_MESSAGE)
    if name in seen:
        yield Cause("FieldValueDuplicate", f'Duplicate value: "{name}"', f"{at}.name")
    seen.add(name)
    if not container.get("image"):
        yield Cause("FieldValueRequired", "Required value", f"{at}.image")
    paths: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount["name"] not in volumes:
            yield Cause("FieldValueNotFound", f'Not found: "{mount["name"]}"', f"{at}.volumeMounts[{index}].name")
        if mount["mountPath"] in paths:
            yield _wrong(f"{at}.volumeMounts[{index}].mountPath", mount["mountPath"], "must be unique")
        paths.add(mount["mountPath"])
    limits = (container.get("resources") or {}).get("limits") or {}
    for what, asked in ((container.get("resources") or {}).get("requests") or {}).items():
        field = f"{at}.resources.requests"
        try:
            if what in limits and quantity(asked) > quantity(limits[what]):
                yield _wrong(field, str(asked), f"must be less than or equal to {what} limit of {limits[what]}")
        except ValueError:
            yield _wrong(field, str(asked), QUANTITY_MESSAGE)
    for what, limit in limits.items():
        if (
            "." in what
            and "/" in what
            and what not in ((container.get("resources") or {}).get("requests") or {what: 0})
        ):
            continue
        try:
            quantity(limit)
        except ValueError:
            yield _wrong(f"{at}.resources.limits", str(limit), QUANTITY_MESSAGE)


QUANTITY_MESSAGE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
SCALES = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def quantity(text: str | float) -> float:
    """The value of a quantity such as ``500m`` or ``2Gi``.

    Raises:
        ValueError: it is none.
    """
    found = re.fullmatch(r"([+-]?[0-9.]+)([a-zA-Z]*)", str(text))
    if found is None or found[2] not in SCALES:
        return float(text)
    return float(found[1]) * SCALES[found[2]]


def _of_job(thing: Object) -> Iterator[Cause]:
    spec = thing["spec"]
    template = spec["template"].get("spec") or {}
    at = "spec.template.spec"
    yield from of_pod_spec(template, at)
    if (policy := template.get("restartPolicy")) not in ("OnFailure", "Never"):
        yield Cause(
            "FieldValueRequired" if policy in (None, "Always") else "FieldValueNotSupported",
            'Required value: valid values: "OnFailure", "Never"'
            if policy is None
            else f'Unsupported value: "{policy}": supported values: "OnFailure", "Never"',
            f"{at}.restartPolicy",
        )
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        yield Cause("FieldValueRequired", "Required value: when completion mode is Indexed", "spec.completions")


def _of_stateful_set(thing: Object) -> Iterator[Cause]:
    spec = thing["spec"]
    template = spec["template"].get("spec") or {}
    yield from of_pod_spec(template, "spec.template.spec")
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    wanted = spec["selector"].get("matchLabels") or {}
    if not wanted:
        yield _wrong("spec.selector", "{}", "empty selector is invalid for statefulset")
    if any(labels.get(key) != value for key, value in wanted.items()):
        yield _wrong("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


def _of_service(thing: Object) -> Iterator[Cause]:
    spec = thing.get("spec") or {}
    if not spec.get("ports") and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield Cause("FieldValueRequired", "Required value", "spec.ports")


def _of_role_binding(thing: Object) -> Iterator[Cause]:
    for index, subject in enumerate(thing.get("subjects") or []):
        if subject["kind"] == "ServiceAccount" and not subject.get("namespace"):
            yield Cause("FieldValueRequired", "Required value", f"subjects[{index}].namespace")


RULES = {
    PODS: _of_pod,
    JOBS: _of_job,
    STATEFUL_SETS: _of_stateful_set,
    SERVICES: _of_service,
    ROLE_BINDINGS: _of_role_binding,
}


def _of_change(resource: Resource, thing: Object, before: Object) -> Iterator[Cause]:
    """What must not change. Finalizers of a deleted object must not become more."""
    if resource == PODS and not _same_pod(thing["spec"], before["spec"]):
        yield Cause(
            "FieldValueForbidden",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously "
            "negative)",
            "spec",
        )
    if resource == JOBS:
        old, new = before["spec"], thing["spec"]
        was_suspended = bool(old.get("suspend"))
        if old["template"] != new["template"] and not was_suspended:
            yield _wrong("spec.template", "core.PodTemplateSpec{...}", "field is immutable")
        if old.get("completions") != new.get("completions"):
            yield _wrong("spec.completions", new.get("completions"), "field is immutable")
    if resource == CONFIG_MAPS and before.get("immutable") and before.get("data") != thing.get("data"):
        yield Cause("FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set", "data")
    if resource == ROLE_BINDINGS and before["roleRef"] != thing["roleRef"]:
        yield _wrong("roleRef", thing["roleRef"]["name"], "cannot change roleRef")
    if before["metadata"].get("deletionTimestamp"):
        new_ones = set(thing["metadata"].get("finalizers") or ()) - set(before["metadata"].get("finalizers") or ())
        if new_ones:
            yield Cause(
                "FieldValueForbidden",
                f"Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
                f"{sorted(new_ones)}",
                "metadata.finalizers",
            )


def _same_pod(new: Object, old: Object) -> bool:
    def fixed(spec: Object) -> Object:
        kept = {key: value for key, value in spec.items() if key not in POD_FIELDS_THAT_CHANGE}
        for group in ("containers", "initContainers"):
            if group in kept:
                kept[group] = [{**container, "image": ""} for container in kept[group]]
        return kept

    return fixed(new) == fixed(old)
