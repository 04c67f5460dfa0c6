"""The objects of a run: what the published schemas say of them, how they are hardened, owned, placed and shared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from agentrl.cluster.kubernetes.checks import quantity
from agentrl.cluster.kubernetes.once import once_per_cluster
from agentrl.cluster.kubernetes.pods import toleration
from agentrl.cluster.kubernetes.rendered import Rendered, for_gitops, rendered
from agentrl.cluster.kubernetes.site import check_run_name
from agentrl.config.compose import load
from agentrl.config.kubernetes import settled_config, submission_of
from agentrl.errors import UserError
from agentrl.kubernetes.strict import pod_template_problems, problems

EXAMPLE = Path(__file__).parents[2] / "conf" / "kubernetes.yaml"
ALL_GROUPS = frozenset({"resource.k8s.io", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "trainer.kubeflow.org"})
VERSION = "1.36"
OURS = ("jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "trainer.kubeflow.org")
"""Kinds that Kubernetes' own schemas do not have."""

VARIANTS = {
    "plain": [],
    "pods": ["cluster.kubernetes.engine_kind=pod"],
    "job": ["cluster.kubernetes.trainer_kind=job", "cluster.kubernetes.gpu_sharing=visible"],
    "two nodes": ["cluster.kubernetes.trainer.nodes=2"],
    "many": [
        *("schedule.swing=none", "cluster.kubernetes.trainer_kind=job", "cluster.kubernetes.trainer.nodes=2"),
        *("cluster.kubernetes.engine.nodes=2", "inference.sglang.gpus_per_engine=16"),
    ],
    "trainjob": ["cluster.kubernetes.trainer_kind=trainjob", "cluster.kubernetes.gpu_sharing=visible"],
    "queue": ["cluster.kubernetes.queue=team"],
    "one node": ["cluster.kubernetes.volume.access=ReadWriteOnce"],
    "claims": ["sandbox=agent_sandbox"],
}


def render(*overrides: str, groups: frozenset[str] = ALL_GROUPS) -> Rendered:
    config = settled_config(load(EXAMPLE, overrides).config, groups)
    return rendered(submission_of("exp-001", config), "team")


def everything(objects: Rendered) -> list[dict[str, Any]]:
    return [*objects.sent, *objects.made]


def templates(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and pod template of everything that makes pods itself."""
    for obj in objects:
        spec = obj.get("spec") or {}
        if obj["kind"] in ("Job", "StatefulSet"):
            yield obj["kind"], spec["template"]
        elif obj["kind"] == "Pod":
            yield obj["kind"], obj
        elif obj["kind"] == "JobSet":
            for group in spec["replicatedJobs"]:
                yield obj["kind"], group["template"]["spec"]["template"]
        elif obj["kind"] == "LeaderWorkerSet":
            yield obj["kind"], spec["leaderWorkerTemplate"]["leaderTemplate"]
            yield obj["kind"], spec["leaderWorkerTemplate"]["workerTemplate"]


def of(objects: Rendered, kind: str) -> list[dict[str, Any]]:
    return [obj for obj in everything(objects) if obj["kind"] == kind]


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_objects_of_the_shipped_example_are_valid_by_the_published_schemas(overrides: list[str]) -> None:
    objects = everything(render(*overrides))
    for obj in objects:
        assert problems(obj) == []
        if not obj["apiVersion"].startswith(OURS):
            kubernetes_validate.validate(obj, VERSION, strict=True)
    for _, template in templates(objects):
        assert pod_template_problems({"metadata": template["metadata"], "spec": template["spec"]}) == []


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    job = next(obj for obj in render().sent if obj["kind"] == "Job")
    job["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    assert problems(job) == [
        "spec.template.spec.containers[0].imagePullPolcy: unknown field (did you mean imagePullPolicy?)"
    ]


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_pod_is_hardened_and_only_the_controller_has_a_token(overrides: list[str]) -> None:
    for _, template in templates(everything(render(*overrides))):
        spec = template["spec"]
        is_controller = template["metadata"]["labels"]["agentrl.dev/role"] == "controller"
        assert spec["automountServiceAccountToken"] is is_controller
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {"name": "ndots", "value": "1"} in spec["dnsConfig"]["options"]
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()


def test_what_a_controller_makes_carries_run_and_epoch_and_names_fit() -> None:
    for obj in render().made:
        assert obj["metadata"]["labels"]["agentrl.dev/run"] == "exp-001"
        assert obj["metadata"]["labels"]["agentrl.dev/epoch"] == "1"
        assert "-e1-" in obj["metadata"]["name"]


def test_the_record_and_the_volume_do_not_carry_the_runs_label() -> None:
    for obj in render().sent:
        stays = obj["kind"] in ("ConfigMap", "PersistentVolumeClaim")
        assert ("agentrl.dev/run" in obj["metadata"]["labels"]) is not stays


def test_swing_engines_and_trainer_share_one_claim_each_engine_by_its_own_request() -> None:
    objects = render()
    (claim,) = of(objects, "ResourceClaim")
    assert [one["name"] for one in claim["spec"]["devices"]["requests"]] == ["engine-0", "engine-1"]
    engines = [obj["spec"]["template"]["spec"] for obj in of(objects, "StatefulSet")]
    used = [spec["containers"][0]["resources"].get("claims") for spec in engines]
    assert used == [[{"name": "gpus", "request": "engine-0"}], [{"name": "gpus", "request": "engine-1"}], None, None]
    assert "nvidia.com/gpu" not in engines[0]["containers"][0]["resources"]["limits"]
    assert engines[3]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    (group,) = of(objects, "JobSet")[0]["spec"]["replicatedJobs"]
    trainer = group["template"]["spec"]["template"]["spec"]
    assert trainer["resourceClaims"] == [{"name": "gpus", "resourceClaimName": claim["metadata"]["name"]}]
    assert trainer["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]


def test_each_trainer_node_has_a_claim_of_its_own_and_a_rank() -> None:
    objects = render("cluster.kubernetes.trainer.nodes=2")
    names = [claim["metadata"]["name"] for claim in of(objects, "ResourceClaim")]
    groups = of(objects, "JobSet")[0]["spec"]["replicatedJobs"]
    specs = [group["template"]["spec"]["template"]["spec"] for group in groups]
    assert [spec["resourceClaims"][0]["resourceClaimName"] for spec in specs] == names
    for rank, spec in enumerate(specs):
        env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
        assert (env["PET_NNODES"], env["PET_NODE_RANK"]) == ("2", str(rank))
        assert env["PET_MASTER_ADDR"] == "exp-001-trainer-e1-1-node-0-0-0.exp-001-trainer-e1-1"


def test_without_claims_the_trainer_goes_to_the_swing_engines_and_sees_their_gpus() -> None:
    objects = render(groups=frozenset())
    trainer = next(obj for obj in of(objects, "Job") if "trainer" in obj["metadata"]["name"])
    spec = trainer["spec"]["template"]["spec"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in spec["containers"][0]["env"]
    (term,) = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"]["agentrl.dev/swing"] == "true"
    assert of(objects, "StatefulSet")[0]["spec"]["template"]["metadata"]["labels"]["agentrl.dev/swing"] == "true"


def test_ranks_of_an_indexed_job_meet_at_its_first_pod() -> None:
    objects = render(*VARIANTS["many"])
    (service,) = of(objects, "Service")
    trainer = next(obj for obj in of(objects, "Job") if "trainer" in obj["metadata"]["name"])
    spec = trainer["spec"]["template"]["spec"]
    assert spec["subdomain"] == service["metadata"]["name"]
    env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert env["PET_MASTER_ADDR"] == f"{trainer['metadata']['name']}-0.{service['metadata']['name']}"
    assert (trainer["spec"]["completionMode"], trainer["spec"]["completions"]) == ("Indexed", 2)
    labels = trainer["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_an_engine_over_several_nodes_knows_its_rank_from_its_group() -> None:
    group = of(render(*VARIANTS["many"]), "LeaderWorkerSet")[0]["spec"]["leaderWorkerTemplate"]
    command = group["leaderTemplate"]["spec"]["containers"][0]["command"]
    assert command[command.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert group["size"] == 2
    assert group["leaderTemplate"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_a_queue_suspends_what_can_be_suspended() -> None:
    objects = render("cluster.kubernetes.queue=team")
    for obj in objects.made:
        if obj["kind"] != "ResourceClaim":
            assert obj["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert of(objects, "JobSet")[0]["spec"]["suspend"] is True


def test_overrides_are_merged_by_name_and_typos_in_them_are_refused() -> None:
    text = "{metadata: {annotations: {a: b}}, spec: {containers: [{name: engine, env: [{name: X, value: y}]}]}}"
    config = load(EXAMPLE).config
    kubernetes = config.cluster.kubernetes

    def with_overrides(overrides: str) -> Rendered:
        changed = replace(kubernetes, engine=replace(kubernetes.engine, overrides=overrides))
        job = replace(config, cluster=replace(config.cluster, kubernetes=changed))
        return rendered(submission_of("exp-001", settled_config(job, ALL_GROUPS)), "team")

    template = of(with_overrides(text), "StatefulSet")[0]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert {"name": "X", "value": "y"} in container["env"]
    assert container["image"].endswith("/engine:0.1.0")
    with pytest.raises(UserError, match=r"engine\.overrides: spec\.hostNetwrk: unknown field .*hostNetwork"):
        with_overrides("spec: {hostNetwrk: true}")
    with pytest.raises(UserError, match=r"spec\.hostNetwork: Input should be a valid boolean"):
        with_overrides("spec: {hostNetwork: maybe}")


def test_nobody_speaks_to_anybody_but_who_must() -> None:
    policies = {obj["metadata"]["name"]: obj["spec"] for obj in of(render(), "NetworkPolicy")}
    assert policies["exp-001-all"]["egress"] == policies["exp-001-all"]["ingress"] == []
    (to_controller,) = policies["exp-001-controller"]["ingress"]
    assert to_controller["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "trainer"


def test_whoever_may_launch_has_every_right_that_a_controller_is_given() -> None:
    submission = submission_of("exp-001", settled_config(load(EXAMPLE).config, ALL_GROUPS))
    role = next(obj for obj in rendered(submission, "team").sent if obj["kind"] == "Role")
    launcher = next(obj for obj in once_per_cluster(submission, "team") if obj["kind"] == "Role")

    def rights(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
        return {(g, r, v) for one in rules for g in one["apiGroups"] for r in one["resources"] for v in one["verbs"]}

    assert rights(role["rules"]) <= rights(launcher["rules"])
    assert not any("*" in right for right in rights(launcher["rules"]))


def test_applied_by_something_else_the_controller_starts_at_once() -> None:
    (job,) = [obj for obj in for_gitops(render().sent) if obj["kind"] == "Job"]
    assert job["spec"]["suspend"] is False
    assert of(render(), "Job")[0]["spec"]["suspend"] is True


@pytest.mark.parametrize("name", ["Exp", "1st", "a_b", "a" * 33, "a-"])
def test_names_that_objects_cannot_have_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot name objects"):
        check_run_name(name)


def test_taints_are_written_as_kubectl_writes_them() -> None:
    assert toleration("gpu=yes:NoSchedule") == {
        "key": "gpu",
        "operator": "Equal",
        "value": "yes",
        "effect": "NoSchedule",
    }
    assert toleration("gpu") == {"key": "gpu", "operator": "Exists"}
    with pytest.raises(UserError, match="tolerations"):
        toleration("gpu:Never")


@pytest.mark.parametrize(("text", "value"), [("500m", 0.5), ("2", 2.0), ("4096Mi", 4096 * 2**20), ("1k", 1000.0)])
def test_quantities_are_numbers(text: str, value: float) -> None:
    assert quantity(text) == value
