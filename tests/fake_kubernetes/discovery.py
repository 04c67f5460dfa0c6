"""What the server tells of itself: versions, groups and resources."""

from __future__ import annotations

from .errors import Object
from .resources import Catalog, Resource

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2026-08-12T00:00:00Z",
    "goVersion": "go1.25.6",
    "compiler": "gc",
    "platform": "linux/amd64",
}


def answer(catalog: Catalog, path: str) -> Object | None:
    """The answer to a path of discovery or health; None for every other path."""
    parts = tuple(part for part in path.split("/") if part)
    if parts == ("version",):
        return VERSION
    if parts and parts[0] in ("healthz", "livez", "readyz"):
        return {"ok": True}
    if parts == ("api",):
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ("api", "v1"):
        return _resources(catalog, "", "v1")
    if parts == ("apis",):
        groups = sorted({resource.group for resource in catalog.resources if resource.group})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(catalog, group) for group in groups]}
    if parts[:1] == ("apis",) and len(parts) == 2 and any(r.group == parts[1] for r in catalog.resources):
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(catalog, parts[1])}
    if parts[:1] == ("apis",) and len(parts) == 3:
        known = any((r.group, r.version) == parts[1:] for r in catalog.resources)
        return _resources(catalog, parts[1], parts[2]) if known else None
    return None


def _group(catalog: Catalog, group: str) -> Object:
    versions = sorted({resource.version for resource in catalog.resources if resource.group == group})
    shown = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": shown, "preferredVersion": shown[-1]}


def _resources(catalog: Catalog, group: str, version: str) -> Object:
    listed: list[Object] = []
    for resource in catalog.resources:
        if (resource.group, resource.version) != (group, version):
            continue
        listed.append(_entry(resource, resource.plural, list(resource.verbs)))
        for subresource in resource.subresources:
            verbs = {"exec": ["create", "get"], "log": ["get"], "eviction": ["create"], "token": ["create"]}
            name = f"{resource.plural}/{subresource}"
            listed.append(_entry(resource, name, verbs.get(subresource, ["get", "patch", "update"])))
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": listed}


def _entry(resource: Resource, name: str, verbs: list[str]) -> Object:
    return {
        "name": name,
        "singularName": resource.kind.lower() if "/" not in name else "",
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": verbs,
    }
