"""Sandboxes on Kubernetes at scale: what the controller's side of thousands of pods costs, and what a warm one saves.

    .venv/bin/python scripts/bench/pods.py [--pods N] [--kubeconfig FILE] [--json]

The cluster is a fake API server in a process of its own, whose pods are a law (0.5 to 1.0 s from creation to running,
as on a small real node) and run nothing; with --kubeconfig, a real one. First N pods are made, handed out and closed:
CPU time and memory are this process's, which holds nothing but the provider; requests are as it counts them. Then warm
hand-outs from the pool and creations of the same pod alternate, in one run. The figure to look at is their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from agentrl.sandbox.config import SandboxBackend, SandboxConfig
from agentrl.sandbox.owner import SandboxOwner
from agentrl.sandbox.pods.config import PodConfig
from agentrl.sandbox.pods.provider import PodProvider
from agentrl.sandbox.provider import Image, SandboxSpec
from agentrl.sandbox.warm_pool import WarmPool

HERE = Path(__file__).resolve().parents[2]
SPEC = SandboxSpec(image=Image(workdir="/app"))
PER_NODE = 110
"""Pods of a node, as kubelets allow."""


def serve(folder: str, num_nodes: int) -> None:
    """The fake cluster, until stdin ends. Prints the kubeconfig."""
    from functools import partial

    from tests.fake_kubernetes import NodeSpec, PodLaw, machine, running
    from tests.fake_kubernetes.law_runtime import ExecAnswer, LawRuntime

    def answer(_pod: str, _command: list[str], stdin: bytes) -> ExecAnswer:
        """As the runner says that all is well."""
        secret = stdin.split(b" ", 1)[0]
        return ExecAnswer(b"\n%s end\n" % secret, b"\n%s end 0\n" % secret)

    machine.LawRuntime = partial(LawRuntime, answer=answer)  # type: ignore[attr-defined,misc]
    size = {"ephemeral-storage": "10Ti"}
    nodes = [NodeSpec(f"node-{number}", pods=PER_NODE, resources=size) for number in range(num_nodes)]
    law = PodLaw(start_s=lambda chance: chance.uniform(0.5, 1.0), stop_s=0.2)
    with running(Path(folder), nodes=nodes, law=law, history=100_000) as cluster:
        print(cluster.kubeconfig(), flush=True)
        sys.stdin.read()


class Rate:
    """Requests by second."""

    def __init__(self, provider: PodProvider) -> None:
        self._provider = provider
        self.by_second: list[int] = []

    async def run(self) -> None:
        before = 0
        while True:
            now = sum(self._provider.cluster.client.requests.values())
            self.by_second.append(now - before)
            before = now
            await asyncio.sleep(1.0)


async def many(config: SandboxConfig, state: Path, num_pods: int) -> dict[str, Any]:
    """Make `num_pods`, hand each out, close it when all are there."""
    provider = PodProvider(config, SandboxOwner(run="bench", epoch=1), state_dir=state)
    # Start what all share first, so that its cost is not counted per pod.
    await (await provider.create(SPEC)).close()
    cpu, began, memory = time.process_time(), time.monotonic(), _memory_mb()
    rate = Rate(provider)
    counting = asyncio.create_task(rate.run())
    waits: list[float] = []

    async def one() -> Any:
        asked = time.monotonic()
        sandbox = await provider.create(SPEC)
        await sandbox.assign("g000000.m000.a00")
        waits.append(time.monotonic() - asked)
        return sandbox

    sandboxes = await asyncio.gather(*(one() for _ in range(num_pods)))
    up_s, up_cpu, up_memory = time.monotonic() - began, time.process_time() - cpu, _memory_mb()
    cpu, idle_from = time.process_time(), time.monotonic()
    await asyncio.sleep(5.0)
    idle_cpu = (time.process_time() - cpu) / (time.monotonic() - idle_from)
    cpu = time.process_time()
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    close_cpu = time.process_time() - cpu
    counting.cancel()
    requests = Counter(provider.cluster.client.requests)
    await provider.close()
    return {
        "pods": num_pods,
        "all_up_s": up_s,
        "queue_to_hand_out_p50_s": statistics.median(waits),
        "queue_to_hand_out_max_s": max(waits),
        "cpu_ms_a_pod": 1000 * up_cpu / num_pods,
        "cpu_ms_a_close": 1000 * close_cpu / num_pods,
        "cpu_share_while_all_live": idle_cpu,
        "memory_kib_a_pod": 1024 * (up_memory - memory) / num_pods,
        "requests_a_pod": sum(requests.values()) / num_pods,
        "busiest_second": max(rate.by_second),
        "requests_per_s_limit": config.kubernetes.requests_per_s,
        "lists_and_watches": requests["GET", "pods"] + requests["GET", "pods/watch"],
    }


async def warm(config: SandboxConfig, state: Path, rounds: int) -> dict[str, Any]:
    """Warm hand-outs beside creations of the same pod."""
    config = replace(config, warm_max=4)
    provider = PodProvider(config, SandboxOwner(run="bench-warm", epoch=1), state_dir=state)
    pool = WarmPool(provider, config, entropy=Random(0))
    running = asyncio.create_task(pool.run())
    warm_s: list[float] = []
    cold_s: list[float] = []
    for _ in range(rounds):
        pool.expect([(SPEC, 2)], due=2)
        while pool.figures().warm < 2:  # noqa: ASYNC110 (the pool tells nobody)
            await asyncio.sleep(0.05)
        began = time.perf_counter()
        sandbox = await pool.create(replace(SPEC, owner="g000000.m000.a00"))
        warm_s.append(time.perf_counter() - began)
        began = time.perf_counter()
        fresh = await provider.create(SPEC)
        await fresh.assign("g000000.m001.a00")
        cold_s.append(time.perf_counter() - began)
        await sandbox.close()
        await fresh.close()
    pool.expect([], due=0)
    await pool.close()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    hit, made = statistics.median(warm_s), statistics.median(cold_s)
    return {"warm_p50_ms": 1000 * hit, "create_and_wait_p50_ms": 1000 * made, "ratio": hit / made}


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kubeconfig")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], int(options.serve[1]))
        return
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as scratch:
        argv = [sys.executable, __file__, "--serve", f"{scratch}/cluster", str(options.pods // PER_NODE + 2)]
        env = os.environ | {"PYTHONPATH": str(HERE)}
        server = None
        try:
            kubeconfig = options.kubeconfig
            if kubeconfig is None:
                server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
                assert server.stdout is not None
                kubeconfig = server.stdout.readline().strip()
            pods = PodConfig(kubeconfig=kubeconfig, cpu_request=0.01, requests_per_s=200.0, request_burst=200)
            config = SandboxConfig(
                backend=SandboxBackend.kubernetes,
                kubernetes=pods,
                max_sandboxes=options.pods + 1,
                start_concurrency=64,
                start_timeout_s=600.0,
                memory_mb=64,
            )
            found = asyncio.run(_both(config, Path(scratch), options.pods, options.rounds))
        finally:
            if server is not None:
                server.kill()
                server.wait()
    print(
        json.dumps(found, indent=1)
        if options.json
        else "\n".join(f"{key:28} {value:10.4g}" for key, value in found.items())
    )


async def _both(config: SandboxConfig, scratch: Path, num_pods: int, rounds: int) -> dict[str, Any]:
    return await many(config, scratch / "many", num_pods) | await warm(config, scratch / "warm", rounds)


if __name__ == "__main__":
    main()
