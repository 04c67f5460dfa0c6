"""No isolation: commands run on this machine itself, one episode at a time. For machines that are thrown away."""

from agentrl.sandbox.bare.host import check_machine, danger, obstacle
from agentrl.sandbox.bare.provider import BareProvider
from agentrl.sandbox.bare.records import left_folders, reap

__all__ = ["BareProvider", "check_machine", "danger", "left_folders", "obstacle", "reap"]
