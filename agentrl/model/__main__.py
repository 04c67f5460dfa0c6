"""`python -m agentrl.model --job FILE`: make the starting weights in a process of its own.

Progress goes to stdout, one line each. Exit code 0: the folder is there; 2: the user's mistake, said in one line.
The process dies with the one that started it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path

import msgspec

from agentrl.errors import UserError
from agentrl.model.prepare import PrepareJob, prepare_model

_PR_SET_PDEATHSIG = 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.model", description="Make a run's starting weights.")
    parser.add_argument("--job", type=Path, required=True, help="JSON file of a PrepareJob")
    job_file: Path = parser.parse_args().job
    _die_with_parent()
    try:
        job = _read(job_file)
        os.environ["OMP_NUM_THREADS"] = str(job.threads)  # read by torch when it is imported
        folder = prepare_model(job.config, job.seed, Path(job.out), report=_say)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _say(f"model {folder}")
    return 0


def _read(file: Path) -> PrepareJob:
    try:
        return msgspec.json.decode(file.read_bytes(), type=PrepareJob)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{file}: not a job: {error}") from error


def _say(line: str) -> None:
    print(line, flush=True)


def _die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent dies. A parent that is already gone would never send it."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
