"""Sandboxes on this machine: bubblewrap in namespaces of their own, entered by one supervisor process."""

from agentrl.sandbox.bubblewrap.host import Host, check_host
from agentrl.sandbox.bubblewrap.provider import BubblewrapProvider
from agentrl.sandbox.bubblewrap.records import reap
from agentrl.sandbox.bubblewrap.sandbox import BubblewrapSandbox

__all__ = ["BubblewrapProvider", "BubblewrapSandbox", "Host", "check_host", "reap"]
