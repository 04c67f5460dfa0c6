"""Which run an object belongs to, what it is called, and how it is found again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from agentrl.errors import UserError
from agentrl.kubernetes.names import RUN, labels

Object = dict[str, Any]

PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"
RECORD = "agentrl.dev/record"
"""On the ConfigMap that remembers a run, which stays when it is stopped."""

_RUN_NAME = re.compile(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?")


def check_run_name(run: str) -> None:
    """Raises UserError for a name that cannot begin the names of objects."""
    if _RUN_NAME.fullmatch(run) is None:
        raise UserError(
            f"name: {run!r} cannot name objects in a cluster",
            hint="use at most 32 small letters, digits and dashes, a letter first",
        )


@dataclass(frozen=True, kw_only=True)
class Site:
    """A run in a namespace, as one of its controllers sees it."""

    run: str
    namespace: str
    epoch: int | None = None
    """Of the controller that makes the objects; None before there is one."""
    owner: Object | None = None
    """Reference to the controller's Job: whatever it owns goes when it is deleted."""

    def labels(self, role: str) -> dict[str, str]:
        """Of every object with this role, and of its pods."""
        return {**labels(self.run, role=role, epoch=self.epoch), COMPONENT: component(role)}

    def metadata(self, name: str, role: str) -> Object:
        made: Object = {"name": name, "namespace": self.namespace, "labels": self.labels(role)}
        return made if self.owner is None else {**made, "ownerReferences": [self.owner]}

    def name(self, role: str, attempt: int) -> str:
        """Of an object that a controller makes: the same call names the same object, and no other epoch's."""
        assert self.epoch is not None
        return f"{self.run}-{role}-e{self.epoch}-{attempt}"

    def select(self, **labels: str) -> Object:
        """Match labels of pods of this run."""
        return {"matchLabels": {RUN: self.run, **labels}}


def owner_reference(name: str, uid: str) -> Object:
    """To a run's Job. Not its controller: the Job's own pods are those it made itself."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name,
        "uid": uid,
        "controller": False,
        "blockOwnerDeletion": True,
    }


def record_name(run: str) -> str:
    """Of the ConfigMap that remembers a run."""
    return f"agentrl-{run}"


def component(role: str) -> str:
    """engine of engine-3; other roles are their own."""
    return "engine" if role.startswith("engine-") else role
