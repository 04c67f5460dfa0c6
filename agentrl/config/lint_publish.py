"""The rules of the lint on how new weights reach the engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from agentrl.config.kubernetes import in_cluster
from agentrl.config.lint import Finding, LintFacts, error, warning
from agentrl.config.schema import JobConfig
from agentrl.controller.config import PublishMethod, num_swing
from agentrl.inference.config import Device, EngineBackend


def something_is_stored(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """With storage, folders are all there is: between two whole ones there must be what has changed."""
    publish = config.publish
    if publish.method is not PublishMethod.storage:
        return
    if publish.storage_every > 1 and not publish.delta:
        message = f"{publish.storage_every}: with method storage no engine would get the versions between"
        yield error("publish.storage_every", message, "set publish.delta=true, or it to 1")
    if publish.storage_every == 1 and publish.delta:
        yield warning("publish.delta", "is ignored: every version is stored whole", "raise publish.storage_every")


def changes_are_checked(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """The checksum lies with the probe, and where not all weights travel it is what shows that all are right."""
    if config.publish.delta and not config.publish.probe:
        yield error("publish.delta", "needs the checksum that comes with publish.probe", "set publish.probe=true")


def something_changes_alone(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Full training changes every tensor in every step: a digest of each is then for nothing."""
    if config.publish.delta and config.trainer.lora_rank == 0:
        yield warning("publish.delta", "without adapters every tensor changes in every step", "choose trainer=lora")


def shared_is_on_one_host(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Memory is shared within a host, and pods are hosts: a server elsewhere would be given names of what it does not
    have."""
    if config.publish.method is not PublishMethod.shared:
        return
    if in_cluster(config):
        yield error("publish.method", "shared: pods do not share memory", "choose direct or storage")
    if config.inference.backend is not EngineBackend.attached:
        return
    for url in config.inference.urls:
        if not _is_local(url):
            message = f"shared: the server at {url} is on another host"
            yield error("publish.method", message, "choose direct, or servers at 127.0.0.1")


def direct_reaches_the_trainer(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """The trainer's address is found from the way to the controller, which is loopback: no other host reaches that."""
    publish = config.publish
    if publish.method is not PublishMethod.direct:
        if publish.address is not None:
            yield warning("publish.address", f"is ignored: publish.method is {publish.method.name}", "remove it")
        return
    if config.inference.backend is EngineBackend.attached and publish.address is None:
        for url in config.inference.urls:
            if not _is_local(url):
                message = f"the server at {url} cannot reach the trainer at a loopback address"
                yield error("publish.address", message, "set it to this machine's address on their network")


def direct_has_gpus_of_its_own(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """NCCL refuses two ranks on one GPU, and a swing engine's is the trainer's."""
    inference = config.inference
    on_gpus = inference.backend is not EngineBackend.embedded and inference.sglang.device is Device.cuda
    swings = num_swing(config.schedule.swing, inference.num_engines) > 0
    if config.publish.method is PublishMethod.direct and on_gpus and swings:
        message = "direct needs a GPU for the trainer alone, and swing engines share theirs with it"
        yield error("publish.method", message, "choose shared, or schedule.swing=none")


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


PUBLISH_RULES: tuple[Callable[[JobConfig, LintFacts], Iterator[Finding]], ...] = (
    something_is_stored,
    changes_are_checked,
    something_changes_alone,
    shared_is_on_one_host,
    direct_reaches_the_trainer,
    direct_has_gpus_of_its_own,
)
