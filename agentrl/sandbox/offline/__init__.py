"""Stand-ins for what scripts fetch from a network, for sandboxes that have none: apt-get, curl, pip, uv, pytest.

Public task sets begin their tests with `apt-get install curl`, then install uv by it, then pytest by that. Without a
network such a script fails in its first line and writes a reward of 0, whatever the agent did. The stand-ins serve
what the image or this package's own environment has (packages that are installed succeed, pytest is brought along),
and write down what they cannot serve, so that it can be said instead of scored.
"""

from agentrl.sandbox.offline.bring import BUILD_ROOT, bring, folder, missing, needed

__all__ = ["BUILD_ROOT", "bring", "folder", "missing", "needed"]
