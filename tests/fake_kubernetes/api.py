"""The verbs on objects, as the API server does them; no HTTP in here."""

from __future__ import annotations

import base64
import json
import random
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from . import apply, errors, patch, selectors, validation
from .access import Access, User
from .admission import Admission
from .defaults import carry_over, fill, select_own_pods
from .errors import Object, copied, new_uid
from .resources import CLUSTER_ROLES, JOBS, NAMESPACES, PODS, ROLES, Catalog, Resource, Target
from .store import Store, now_text

RETURNS_DELETED = frozenset({"pods", "persistentvolumeclaims", "services", "serviceaccounts", "resourcequotas"})
"""Resources of the core group whose deletion answers with the object instead of a ``Status``."""

HAS_GENERATION = frozenset({"jobs", "statefulsets", "deployments", "networkpolicies"})
OWN_METADATA = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)


@dataclass(frozen=True)
class Options:
    """What the query of a request says, beside selectors."""

    dry_run: bool = False
    validation: str = "Warn"
    manager: str = ""
    force: bool = False


@dataclass(frozen=True)
class DeleteOptions:
    """How to delete. ``grace_s`` and ``propagation`` are None where the resource decides."""

    grace_s: int | None = None
    propagation: str | None = None
    uid: str | None = None
    version: str | None = None
    dry_run: bool = False


@dataclass
class Answer:
    """An object, and the warnings that go into the headers."""

    thing: Object
    warnings: list[str] = field(default_factory=list)


class Api:
    """Create, read, change and delete."""

    def __init__(self, store: Store, catalog: Catalog, access: Access, admission: Admission) -> None:
        self.store = store
        self.catalog = catalog
        self.access = access
        self.admission = admission
        self._pages: dict[str, tuple[int, list[Object]]] = {}

    # Read

    def list(
        self, resource: Resource, namespace: str, *, labels: str = "", fields: str = "", limit: int = 0, token: str = ""
    ) -> Object:
        """One page of a list. Later pages are of the same moment as the first."""
        if token:
            page = self._pages.pop(token, None)
            if page is None:
                raise errors.expired()
            version, items = page
        else:
            version = self.store.version
            matches_labels, matches_fields = selectors.labels(labels), selectors.fields(fields, resource)
            items = [t for t in self.store.all(resource, namespace) if matches_labels(t) and matches_fields(t)]
        meta: Object = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            items, rest = items[:limit], items[limit:]
            said = {"v": "meta.k8s.io/v1", "rv": version, "start": f"{len(self._pages)}-{secrets.token_hex(4)}"}
            meta["continue"] = base64.urlsafe_b64encode(json.dumps(said).encode()).decode()
            if not labels and not fields:
                meta["remainingItemCount"] = len(rest)
            self._pages[meta["continue"]] = (version, rest)
        return {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta, "items": items}

    def forget_pages(self) -> None:
        """As after a compaction: a list that is half read answers 410."""
        self._pages.clear()

    # Write

    def create(self, user: User, target: Target, body: Any, options: Options) -> Answer:
        """Store a new object."""
        resource = target.resource
        read = validation.decode(body, resource, options.validation)
        thing, meta = read.thing, read.thing.setdefault("metadata", {})
        if resource.namespaced:
            if meta.setdefault("namespace", target.namespace) != target.namespace:
                raise errors.bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            self._check_namespace(resource, target.namespace, meta.get("name", ""))
        else:
            meta.pop("namespace", None)
        for key in OWN_METADATA:
            meta.pop(key, None)
        while not meta.get("name") and meta.get("generateName"):
            name = meta["generateName"][:58] + _suffix()
            if self.store.find(resource, meta.get("namespace", ""), name) is None:
                meta["name"] = name
        if meta.get("name") and self.store.find(resource, meta.get("namespace", ""), meta["name"]):
            raise errors.already_exists(resource, meta["name"])
        meta["uid"] = new_uid()
        if "status" in resource.subresources:
            thing.pop("status", None)
        if not read.causes:
            fill(resource, thing)
            if resource == JOBS:
                select_own_pods(thing)
        if resource.plural in HAS_GENERATION or not resource.model:
            meta["generation"] = 1
        validation.validate(resource, thing, read.causes)
        self._check_grant(user, resource, thing)
        self.admission.admit(resource, thing, "CREATE")
        if options.dry_run:
            shown = {**_with_kind(resource, thing), "metadata": {**meta, "creationTimestamp": now_text()}}
            return Answer(shown, read.warnings)
        return Answer(self.store.create(resource, thing), read.warnings)

    def replace(self, user: User, target: Target, body: Any, options: Options) -> Answer:
        """Store an object in place of the one that is there."""
        read = validation.decode(body, target.resource, options.validation)
        before = self._get(target)
        if (said := read.thing.get("metadata", {}).get("name", target.name)) != target.name:
            raise errors.bad_request(
                f"the name of the object ({said}) does not match the name on the URL ({target.name})"
            )
        return self._store_change(user, target, before, read, options)

    def patch(self, user: User, target: Target, body: Any, kind: str, options: Options) -> Answer:
        """Change by a patch of a content type; ``apply`` creates what is not there."""
        if kind.startswith("application/apply-patch"):
            if not options.manager:
                raise errors.bad_request(
                    'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
                )
            return self._apply(user, target, body, options)
        before = self._get(target)
        changed = patch.patched(before, body, kind, strategic=target.resource.model is not None)
        asked = body.get("metadata", {}).get("resourceVersion") if isinstance(body, dict) else None
        read = validation.decode(copied(changed), target.resource, options.validation)
        if asked is None:
            read.thing["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        return self._store_change(user, target, before, read, options)

    def _apply(self, user: User, target: Target, body: Any, options: Options) -> Answer:
        resource = target.resource
        said = validation.decode(body, resource, options.validation)
        before = self.store.find(resource, target.namespace, target.name)
        merged = apply.merge(target, before, said.thing, options.manager, force=options.force)
        if before is None:
            merged.setdefault("metadata", {})["name"] = target.name
            answer = self.create(user, target, merged, options)
        else:
            merged["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            read = validation.decode(merged, resource, "Ignore")
            answer = self._store_change(user, target, before, read, options)
        return Answer(answer.thing, said.warnings + answer.warnings)

    def _get(self, target: Target) -> Object:
        return self.store.get(target.resource, target.namespace, target.name)

    def _store_change(
        self, user: User, target: Target, before: Object, read: validation.Decoded, options: Options
    ) -> Answer:
        resource, thing = target.resource, read.thing
        meta, old = thing.setdefault("metadata", {}), before["metadata"]
        wanted = meta.get("resourceVersion")
        if wanted and wanted != old["resourceVersion"]:
            raise errors.conflict(resource, target.name)
        if meta.get("uid", old["uid"]) != old["uid"]:
            raise _precondition(resource, old, "UID", meta["uid"], old["uid"])
        for key in (*OWN_METADATA, "name", "namespace", "generateName"):
            meta.pop(key, None)
            if key in old:
                meta[key] = old[key]
        if target.subresource == "status":
            thing = {**before, "status": thing.get("status") or {}, "metadata": {**old, **meta}}
        elif "status" in resource.subresources:
            thing.pop("status", None)
            if "status" in before:
                thing["status"] = before["status"]
        if thing.get("spec") != before.get("spec") and "generation" in old:
            thing["metadata"]["generation"] = old["generation"] + 1
        carry_over(resource, thing, before)
        validation.validate(resource, thing, read.causes, before)
        self._check_grant(user, resource, thing)
        self.admission.admit(resource, thing, "UPDATE")
        if options.dry_run:
            return Answer(_with_kind(resource, thing), read.warnings)
        stored = self.store.update(resource, _with_kind(resource, thing))
        self.finish_deletion(resource, stored)
        return Answer(stored, read.warnings)

    # Delete

    def delete(self, resource: Resource, namespace: str, name: str, options: DeleteOptions) -> Object:
        """Delete as the resource does: at once, after a grace period, or when finalizers are gone."""
        before = self.store.get(resource, namespace, name)
        meta = before["metadata"]
        if options.uid and options.uid != meta["uid"]:
            raise _precondition(resource, meta, "UID", options.uid, meta["uid"])
        if options.version and options.version != meta["resourceVersion"]:
            raise _precondition(resource, meta, "ResourceVersion", options.version, meta["resourceVersion"])
        if options.dry_run:
            return _deleted(resource, before)
        grace = self._grace(resource, before, options)
        finalizers = _finalizers(resource, meta, options)
        waits = bool(finalizers) or grace > 0 or resource == NAMESPACES
        if not waits:
            return _deleted(resource, self.store.remove(resource, namespace, name))

        def mark(thing: Object) -> None:
            marked = thing["metadata"]
            if finalizers:
                marked["finalizers"] = finalizers
            else:
                marked.pop("finalizers", None)
            sooner = grace < marked.get("deletionGracePeriodSeconds", grace + 1)
            if "deletionTimestamp" not in marked or sooner:
                marked["deletionTimestamp"] = now_text(datetime.now(UTC) + timedelta(seconds=grace))
                marked["deletionGracePeriodSeconds"] = grace
            if resource == NAMESPACES:
                thing["status"] = {"phase": "Terminating"}

        return self.store.change(resource, namespace, name, mark) or before

    def delete_all(
        self, resource: Resource, namespace: str, options: DeleteOptions, *, labels: str = "", fields: str = ""
    ) -> Object:
        listed = self.list(resource, namespace, labels=labels, fields=fields)
        for thing in listed["items"]:
            self.delete(resource, thing["metadata"].get("namespace", ""), thing["metadata"]["name"], options)
        return listed

    def finish_deletion(self, resource: Resource, thing: Object) -> None:
        """An object that was only kept by finalizers goes with the last of them."""
        meta = thing["metadata"]
        if resource == NAMESPACES or meta.get("finalizers") or "deletionTimestamp" not in meta:
            return
        if resource == PODS and meta.get("deletionGracePeriodSeconds"):
            return
        self.store.remove(resource, meta.get("namespace", ""), meta["name"])

    def _grace(self, resource: Resource, thing: Object, options: DeleteOptions) -> int:
        if resource != PODS:
            return 0
        done = thing.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if not thing["spec"].get("nodeName") or done:
            return 0
        default = thing["spec"].get("terminationGracePeriodSeconds", 30)
        return default if options.grace_s is None else max(options.grace_s, 0)

    # Conditions of writing

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        found = self.store.find(NAMESPACES, "", namespace)
        if found is None:
            raise errors.not_found(NAMESPACES, namespace)
        if found["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = errors.Cause(
                "NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace"
            )
            raise errors.forbidden(resource, name, why, causes=[cause])

    def _check_grant(self, user: User, resource: Resource, thing: Object) -> None:
        if resource in (ROLES, CLUSTER_ROLES):
            self.access.may_grant(user, thing, resource, thing["metadata"].get("namespace", ""))


def _precondition(resource: Resource, meta: Object, what: str, asked: str, have: str) -> errors.ApiError:
    why = f"Precondition failed: {what} in precondition: {asked}, {what} in object meta: {have}"
    return errors.conflict(resource, meta["name"], why)


def _finalizers(resource: Resource, meta: Object, options: DeleteOptions) -> list[str]:
    finalizers = [one for one in meta.get("finalizers") or [] if one not in ("orphan", "foregroundDeletion")]
    propagation = options.propagation or ("Orphan" if resource == JOBS else "Background")
    if propagation == "Orphan":
        finalizers.append("orphan")
    elif propagation == "Foreground":
        finalizers.append("foregroundDeletion")
    return finalizers


def _deleted(resource: Resource, thing: Object) -> Object:
    if not resource.group and resource.plural in RETURNS_DELETED:
        return thing
    details: Object = {"name": thing["metadata"]["name"], "kind": resource.plural, "uid": thing["metadata"]["uid"]}
    if resource.group:
        details["group"] = resource.group
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _with_kind(resource: Resource, thing: Object) -> Object:
    return {"kind": resource.kind, "apiVersion": resource.api_version, **thing}


def _suffix() -> str:
    alphabet = "bcdfghjklmnpqrstvwxz2456789"
    return "".join(random.choices(alphabet, k=5))
