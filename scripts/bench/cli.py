"""How long `agentrl --help` takes: seconds of wall time, best and median of several fresh processes.

Must stay under 0.5 s (the bound is checked by hand; the tests check which modules are imported, which does not depend
on the machine). Usage: python scripts/bench/cli.py [--runs N]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

BOUND_S = 0.5


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    agentrl = str(Path(sys.executable).parent / "agentrl")
    bare = statistics.median(seconds([sys.executable, "-c", "pass"]) for _ in range(runs))
    times = [seconds([agentrl, "--help"]) for _ in range(runs)]
    median = statistics.median(times)
    print(f"agentrl --help: median {median:.3f} s, best {min(times):.3f} s of {runs} (bound {BOUND_S} s)")
    print(f"python -c pass:  median {bare:.3f} s; ratio {median / bare:.1f}")
    if median > BOUND_S:
        sys.exit(f"over the bound of {BOUND_S} s")


if __name__ == "__main__":
    main()
