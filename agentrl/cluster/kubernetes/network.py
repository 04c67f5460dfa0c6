"""Who of a run may speak to whom: nobody to anybody, and then only what the run needs."""

from __future__ import annotations

from agentrl.cluster.kubernetes.site import COMPONENT, Object, Site
from agentrl.cluster.kubernetes.workload import Workload

_API_PORTS = (443, 6443)
"""Where API servers listen: their addresses are outside what a policy can select by label."""


def policies(site: Site, workload: Workload) -> list[Object]:
    """NetworkPolicies of a run's own pods. The sandboxes' are made by their provider."""
    kubernetes = workload.kubernetes
    controller, engine = [_peer(site, "controller")], [_peer(site, "engine")]
    trainer = [_peer(site, "trainer")]
    to_api = {"ports": [_port(port) for port in _API_PORTS]}
    return [
        _policy(site, "all", site.select(), ingress=[], egress=[]),
        _policy(
            site,
            "controller",
            _pods(site, "controller"),
            ingress=[{"from": trainer, "ports": [_port(kubernetes.controller_port)]}],
            egress=[_dns(), to_api, {"to": engine, "ports": [_port(kubernetes.engine_port)]}],
        ),
        _policy(
            site,
            "engine",
            _pods(site, "engine"),
            # The ranks of one server on several nodes, and the trainer when it publishes weights by collectives, meet
            # on ports that they choose themselves.
            ingress=[{"from": controller, "ports": [_port(kubernetes.engine_port)]}, {"from": [*engine, *trainer]}],
            egress=[_dns(), {"to": [*engine, *trainer]}],
        ),
        _policy(
            site,
            "trainer",
            _pods(site, "trainer"),
            ingress=[{"from": [*trainer, *engine]}],
            egress=[
                _dns(),
                {"to": [*trainer, *engine]},
                {"to": controller, "ports": [_port(kubernetes.controller_port)]},
            ],
        ),
    ]


def _policy(site: Site, name: str, selector: Object, *, ingress: list[Object], egress: list[Object]) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": site.metadata(f"{site.run}-{name}", "network"),
        "spec": {
            "podSelector": selector,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _pods(site: Site, component: str) -> Object:
    return site.select(**{COMPONENT: component})


def _peer(site: Site, component: str) -> Object:
    return {"podSelector": _pods(site, component)}


def _port(port: int, protocol: str = "TCP") -> Object:
    return {"protocol": protocol, "port": port}


def _dns() -> Object:
    """To any resolver: clusters run theirs under different labels, or on the node."""
    return {"ports": [_port(53, "UDP"), _port(53)]}
