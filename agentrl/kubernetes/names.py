"""Names and labels of a run's objects: deterministic, so that asking twice makes one, and carrying the epoch, so that
no controller takes another's for its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

MAX_NAME_CHARS = 63
"""Of a DNS label, which a pod's name becomes; label values have the same limit."""

RUN, EPOCH, ROLE, EPISODE = "agentrl.dev/run", "agentrl.dev/epoch", "agentrl.dev/role", "agentrl.dev/episode"

_DIGEST_CHARS = 8


def dns_name(*parts: str) -> str:
    """Parts joined into a DNS label. Where something had to change, a digest keeps it unique."""
    whole = "-".join(parts)
    name = re.sub(r"[^a-z0-9-]", "-", whole.lower()).strip("-")
    if not name[:1].isalpha():
        name = f"r-{name}" if name else "r"
    if name == whole and len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_NAME_CHARS - _DIGEST_CHARS - 1].rstrip('-')}-{digest}"


def object_name(run: str, epoch: int, what: str) -> str:
    """Name of an object that one controller life made, such as a sandbox's pod."""
    return dns_name(dns_name(run), f"e{epoch}", what)


def label_value(text: str) -> str:
    """Text as a label's value: letters, digits, '-', '_' and '.', at most 63, with a letter or digit at both ends."""
    value = re.sub(r"[^A-Za-z0-9_.-]", "_", text).strip("-_.")
    if value == text and len(value) <= MAX_NAME_CHARS:
        return value
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{value[: MAX_NAME_CHARS - _DIGEST_CHARS - 1].rstrip('-_.')}.{digest}".lstrip(".")


def labels(run: str, *, role: str, epoch: int | None = None, episode: str | None = None) -> dict[str, str]:
    """Labels of an object of a run: Kubernetes' recommended ones, and ours."""
    found = {
        "app.kubernetes.io/name": "agentrl",
        "app.kubernetes.io/instance": label_value(run),
        "app.kubernetes.io/component": label_value(role),
        "app.kubernetes.io/managed-by": "agentrl",
        RUN: label_value(run),
        ROLE: label_value(role),
    }
    if epoch is not None:
        found[EPOCH] = str(epoch)
    if episode is not None:
        found[EPISODE] = label_value(episode)
    return found


def selector(wanted: Mapping[str, str | None]) -> str:
    """A label selector; None as a value asks only whether the label is there."""
    return ",".join(key if value is None else f"{key}={value}" for key, value in sorted(wanted.items()))
