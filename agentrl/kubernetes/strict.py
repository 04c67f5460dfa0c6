"""Whether an object is what Kubernetes would take: fields known, values of their types, nothing missing.

The API server itself drops unknown fields unless it is asked to be strict; here a typo is found without one, against
the models of the official client (one release of the published OpenAPI schema). Importing them takes a second or two.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

_LIST = re.compile(r"list\[(.+)\]|List\[(.+)\]")
_MAP = re.compile(r"dict\(str, (.+)\)|[dD]ict\[str, (.+)\]")


def problems(obj: Object) -> list[str]:
    """What is wrong with an object, each with its path; [] if it is well-formed or of a kind that the client lacks."""
    kind, version = str(obj.get("kind", "")), str(obj.get("apiVersion", ""))
    model = _model_of(version, kind)
    return [] if model is None else check(model, obj)


def pod_template_problems(template: Object) -> list[str]:
    """What is wrong with a pod template, each with its path."""
    return check("V1PodTemplateSpec", template)


def unknown_fields(model: str, value: Any, path: str = "") -> Iterator[str]:
    """Fields in `value` that `model` (such as V1PodTemplateSpec) does not have, each with its path and a guess."""
    kind = _class(model)
    if kind is None or not isinstance(value, dict):
        return
    types = {json_name: kind.openapi_types[name] for name, json_name in kind.attribute_map.items()}
    for name, child in value.items():
        where = f"{path}.{name}" if path else str(name)
        if name not in types:
            close = difflib.get_close_matches(str(name), types, n=1)
            yield f"{where}: unknown field" + (f" (did you mean {close[0]}?)" if close else "")
        else:
            yield from _unknown_below(types[name], child, where)


def check(model: str, value: Any) -> list[str]:
    """Problems of `value` as `model`: unknown fields first; types and missing fields once there are none."""
    found = list(unknown_fields(model, value))
    if found:
        return found
    from pydantic import ValidationError

    kind = _class(model)
    assert kind is not None, model
    try:
        kind.model_validate(value)
    except ValidationError as error:
        return [f"{_path(one['loc'])}: {one['msg']}" for one in error.errors()]
    return []


def _unknown_below(kind: str, value: Any, path: str) -> Iterator[str]:
    if (match := _LIST.fullmatch(kind)) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown_below(match[1] or match[2], item, f"{path}[{index}]")
    elif (match := _MAP.fullmatch(kind)) and isinstance(value, dict):
        for name, item in value.items():
            yield from _unknown_below(match[1] or match[2], item, f"{path}.{name}")
    else:
        yield from unknown_fields(kind, value, path)


def _class(name: str) -> Any:
    from kubernetes.aio.client import models

    found = getattr(models, name, None)
    return found if hasattr(found, "openapi_types") else None


def _model_of(version: str, kind: str) -> str | None:
    """Name of the client's model: V1Pod of v1 Pod, V1Job of batch/v1 Job; None if it has none."""
    group, _, plain = version.rpartition("/")
    name = f"{(plain or version).capitalize()}{kind}"
    known = not group or "." not in group or group.endswith(".k8s.io")
    return name if known and not group.endswith(("x-k8s.io",)) and _class(name) is not None else None


def _path(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "object"
