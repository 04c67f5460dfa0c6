"""Everything `agentrl doctor` looks at, in the order in which it is shown."""

from __future__ import annotations

import sys
from pathlib import Path

from agentrl.doctor import limits
from agentrl.doctor.check import Check
from agentrl.doctor.machine import check_machine
from agentrl.doctor.sandboxes import check_sandboxes


def examine(runs_dir: Path) -> list[Check]:
    """Look at this machine; starts a trial sandbox and leaves nothing behind."""
    checks = check_sandboxes()
    if sys.platform == "linux":
        checks += limits.judge(limits.look())
    return [*checks, *check_machine(runs_dir)]
