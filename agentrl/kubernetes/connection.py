"""Which cluster, as whom: from a kubeconfig (contexts, client certificates, tokens, exec plugins) or from inside a pod.

The official client reads all that and keeps tokens fresh; what it found is used for plain requests.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import UserError

if TYPE_CHECKING:
    import ssl

_IN_POD = "KUBERNETES_SERVICE_HOST"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How to reach one API server."""

    host: str
    """URL without a slash at the end."""
    namespace: str
    """Where requests go that name none."""
    ssl: ssl.SSLContext | bool
    authorization: Callable[[], Awaitable[str | None]]
    """The header's value, fresh at each request; None where a client certificate or nothing is what identifies us."""
    renew: Callable[[], Awaitable[None]]
    """Get new credentials: those that were had are not accepted any more."""
    proxy: str | None = None
    server_hostname: str | None = None
    """Name that the server's certificate must have, if not the host's."""


async def connect(
    *, kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None
) -> Connection:
    """The cluster that these name. With none of `kubeconfig` and `context`, in a pod: that pod's own cluster.

    `kubeconfig` None is $KUBECONFIG, else ~/.kube/config; `context` None the current one; `namespace` None that of the
    context, or of the pod. Raises UserError.
    """
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.client.rest import RESTClientObject
    from kubernetes.aio.config.config_exception import ConfigException

    settings: Any = Configuration()
    inside = kubeconfig is None and context is None and in_pod()
    load = _of_pod if inside else _of_file
    try:
        found = await load(settings, kubeconfig, context)
        tls = RESTClientObject(settings).ssl_context
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        where = "this pod's service account" if inside else kubeconfig or os.environ.get("KUBECONFIG", "~/.kube/config")
        raise UserError(
            f"no cluster can be reached by {where}: {error}", hint="`kubectl config current-context` must work"
        ) from error

    async def authorization() -> str | None:
        told = await settings.auth_settings()
        return told["BearerToken"]["value"] if "BearerToken" in told else None

    async def renew() -> None:
        await load(settings, kubeconfig, context)

    return Connection(
        host=settings.host.rstrip("/"),
        namespace=namespace or found or "default",
        ssl=tls if settings.host.startswith("https") else True,
        authorization=authorization,
        renew=renew,
        proxy=settings.proxy,
        server_hostname=settings.tls_server_name,
    )


def in_pod() -> bool:
    """Whether this is a pod that was given an account of its cluster."""
    return _IN_POD in os.environ and _SERVICE_ACCOUNT.is_dir()


async def _of_pod(settings: Any, _kubeconfig: str | None, _context: str | None) -> str | None:
    """Load what a pod is given; returns its namespace."""
    from kubernetes.aio.config.incluster_config import load_incluster_config

    load_incluster_config(settings)
    return (_SERVICE_ACCOUNT / "namespace").read_text().strip()


async def _of_file(settings: Any, kubeconfig: str | None, context: str | None) -> str | None:
    """Load a kubeconfig, which runs its exec plugin if it has one; returns the context's namespace."""
    from kubernetes.aio.config.kube_config import load_kube_config

    file = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube/config")
    if not _is_there(file):
        raise ValueError("there is no such file")
    loader = await load_kube_config(file, context=context, client_configuration=settings, persist_config=False)
    namespace = loader.current_context["context"].get("namespace")
    return None if namespace is None else str(namespace)


def _is_there(files: str) -> bool:
    """Whether one of the files of a path list is."""
    return any(Path(part).expanduser().is_file() for part in files.split(os.pathsep) if part)
