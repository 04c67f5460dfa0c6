"""`python -m agentrl.trainer --job FILE`: one rank. Usually started by torchrun; alone it is a world of one.

Dies with whoever started it. SIGTERM keeps its default action, immediate death: everything on disk is complete or
hidden at any moment, so there is nothing to finish.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from agentrl.errors import AgentrlError
from agentrl.trainer.job import ExitCode, ExitReport, TrainerExit, TrainerJob

log = logging.getLogger("agentrl.trainer")

_PR_SET_PDEATHSIG = 1
_CONNECT_TIMEOUT_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.trainer")
    parser.add_argument("--job", type=Path, required=True, help="JSON of agentrl.trainer.job.TrainerJob")
    job_file: Path = parser.parse_args().job
    _die_with_parent()
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING,
        format=f"%(asctime)s rank {rank} %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    if rank == 0:
        ExitReport.remove(job_file)
    report = ExitReport(code=ExitCode.FINISHED, message="finished")
    try:
        _train(TrainerJob.load(job_file))
    except TrainerExit as error:
        report = ExitReport(code=error.code, message=str(error), episodes=error.episodes)
    except AgentrlError as error:
        report = ExitReport(code=ExitCode.CRASHED, message=str(error))
    except Exception as error:
        report = ExitReport(code=ExitCode.CRASHED, message=f"{type(error).__name__}: {error}".splitlines()[0])
        raise
    finally:
        if rank == 0:
            report.save(job_file)
    if report.code is not ExitCode.FINISHED:
        log.error("%s", report.message)
    return report.code


def _train(job: TrainerJob) -> None:
    import torch

    from agentrl.trainer.worker import Worker
    from agentrl.trainer.world import World

    torch.set_num_threads(job.trainer.threads)
    world = World.join(job.trainer.collective_timeout_s)
    Worker(job, world).run()
    world.leave()


def _die_with_parent() -> None:
    """SIGKILL for this process when its parent ends, even by SIGKILL: no rank outlives its torchrun agent."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not _agent_lives():
        sys.exit("the torchrun agent ended before its rank had started")


def _agent_lives() -> bool:
    """Whether the agent's store listens. The parent's pid does not tell: torchrun may be process 1 of a container."""
    try:
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
