"""A cluster of its own process: ``python -m tests.fake_kubernetes FOLDER``. Says where its kubeconfig is, runs until
its standard input ends, then says what it was asked: for benchmarks that measure the other side alone."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import NodeSpec, PodLaw, running


def main() -> None:
    """Run a cluster without processes: pods become ready by the law."""
    parser = argparse.ArgumentParser(prog="python -m tests.fake_kubernetes", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--pull-s", type=float, default=0.0, help="seconds to pull an image that a node lacks")
    parser.add_argument("--start-s", type=float, default=0.0, help="seconds to start a container")
    asked = parser.parse_args()
    nodes = [NodeSpec(f"node-{number}") for number in range(asked.nodes)]
    law = PodLaw(pull_s=asked.pull_s, start_s=asked.start_s)
    with running(asked.folder, nodes=nodes, law=law) as cluster:
        print(json.dumps({"kubeconfig": str(cluster.kubeconfig())}), flush=True)
        sys.stdin.read()
        counts = {" ".join(key): count for key, count in sorted(cluster.counts.items())}
        print(json.dumps({"requests": counts, "busiest_second": cluster.busiest_second()}), flush=True)


if __name__ == "__main__":
    main()
