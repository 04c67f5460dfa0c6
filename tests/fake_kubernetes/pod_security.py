"""Pod security admission: what a namespace that enforces ``restricted`` refuses. Other levels are not known here."""

from __future__ import annotations

from .errors import Object

ENFORCE = "pod-security.kubernetes.io/enforce"
VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)


def violations(spec: Object) -> str:
    """What of a pod is not restricted, as the API's message lists it; empty where all is."""
    containers = [*(spec.get("initContainers") or []), *spec["containers"]]
    pods = spec.get("securityContext") or {}
    contexts = {one["name"]: one.get("securityContext") or {} for one in containers}

    def lacking(name: str, missing: list[str], setting: str) -> list[str]:
        some = "containers" if len(missing) > 1 else "container"
        shown = ", ".join(f'"{one}"' for one in missing)
        return [f"{name} ({some} {shown} must set {setting})"] if missing else []

    found: list[str] = []
    if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
        found.append(
            "host namespaces ("
            + ", ".join(f"{k}=true" for k in ("hostNetwork", "hostPID", "hostIPC") if spec.get(k))
            + ")"
        )
    found += lacking(
        "allowPrivilegeEscalation != false",
        [name for name, one in contexts.items() if one.get("allowPrivilegeEscalation") is not False],
        "securityContext.allowPrivilegeEscalation=false",
    )
    found += lacking(
        "unrestricted capabilities",
        [name for name, one in contexts.items() if "ALL" not in ((one.get("capabilities") or {}).get("drop") or [])],
        'securityContext.capabilities.drop=["ALL"]',
    )
    bad = [one["name"] for one in spec.get("volumes") or [] if not VOLUMES & set(one)]
    if bad:
        found.append("restricted volume types (" + ", ".join(f'volume "{name}"' for name in bad) + ")")
    found += lacking(
        "runAsNonRoot != true",
        [name for name, one in contexts.items() if one.get("runAsNonRoot", pods.get("runAsNonRoot")) is not True],
        "securityContext.runAsNonRoot=true",
    )
    if any(one.get("runAsUser", pods.get("runAsUser")) == 0 for one in contexts.values()):
        found.append("runAsUser=0 (pod must not set runAsUser=0)")
    found += lacking(
        "seccompProfile",
        [
            name
            for name, one in contexts.items()
            if (one.get("seccompProfile") or pods.get("seccompProfile") or {}).get("type")
            not in ("RuntimeDefault", "Localhost")
        ],
        'securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"',
    )
    return ", ".join(found)
