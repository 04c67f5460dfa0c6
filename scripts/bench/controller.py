"""Controller overhead: episodes of 5 turns a second on one core, with an engine and sandboxes that answer at once.

Everything but the engine and the sandbox is the real thing: scheduling, chat template, tool calls, trajectory, verdict,
verifier protocol, ready pool, and the ledger on disk. Printed beside it, in the same run: the same turns written by a
bare loop into the same tables, which is what durability alone costs.

    python scripts/bench/controller.py [--groups N] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from random import Random

from agentrl.config.schema import JobConfig
from agentrl.controller.config import ScheduleConfig
from agentrl.controller.fleet.fleet import Fleet
from agentrl.controller.fleet.weights import Weights
from agentrl.controller.lifecycle.records import LedgerRecords
from agentrl.controller.scheduling.collector import Collector
from agentrl.controller.scheduling.groups import GroupBook
from agentrl.controller.scheduling.progress import Progress
from agentrl.controller.scheduling.ready_pool import ReadyPool
from agentrl.ledger.ledger import Ledger
from agentrl.observe.events import Observers
from agentrl.rollout.active_time import ActiveTime
from agentrl.rollout.config import AgentConfig, ToolFormat
from agentrl.rollout.episode import EpisodeRunner
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, SandboxSpec
from agentrl.sandbox.warm_pool import WarmPool
from agentrl.simulation.instant import InstantEngine, InstantProvider
from agentrl.simulation.toy_chat import toy_chat
from agentrl.tasks.task import Task

GROUP_SIZE = 16
TURNS = 5


async def collect(folder: Path, num_groups: int) -> float:
    """CPU seconds of collecting `num_groups` groups."""
    chat = toy_chat()
    message = [*chat.encode("cat note"), chat.end_id]
    ledger = Ledger.take(folder / "ledger.sqlite")
    schedule = ScheduleConfig(groups_per_step=num_groups, window_groups=num_groups, drop_zero_variance=False)
    agent = AgentConfig(format=ToolFormat.line, max_turns=TURNS, max_episode_tokens=400)
    active_time, progress = ActiveTime(), Progress(max_episode_tokens=agent.max_episode_tokens)
    fleet = Fleet(
        Weights("/none", 0), active_time, turn_timeout_s=60.0, control_timeout_s=60.0, on_failure=lambda _: None
    )
    await fleet.admit(InstantEngine("engine-0", [message]))
    tests = folder / "task" / "tests"
    tests.mkdir(parents=True)
    (tests / "test.sh").write_text("true\n")
    task = Task(name="t", folder=tests.parent, instruction="do it", spec=SandboxSpec(image=Image()))
    sandboxes = WarmPool(InstantProvider(output=b"note 1 2\n"), SandboxConfig(), entropy=Random(0))
    runner = EpisodeRunner(
        agent=agent,
        chat=chat,
        sampler=fleet,
        provider=sandboxes,
        recorder=LedgerRecords(ledger, progress),
        active_time=active_time,
    )
    pool = ReadyPool(groups_per_step=num_groups, max_policy_lag=4, drop_zero_variance=False, max_refill=3.0)
    collector = Collector(
        JobConfig(schedule=schedule, agent=agent),
        tasks=(task,),
        book=GroupBook(group_size=GROUP_SIZE, max_infra_retries=3, min_usable=2),
        pool=pool,
        progress=progress,
        next_seq=0,
        fleet=fleet,
        runner=runner,
        sandboxes=sandboxes,
        ledger=ledger,
        observer=Observers(),
    )
    collecting = asyncio.create_task(collector.run())
    pooling = asyncio.create_task(sandboxes.run())
    began = time.process_time()
    collector.collect_for(1)
    await collector.wait_complete()
    spent = time.process_time() - began
    collecting.cancel()
    pooling.cancel()
    ledger.close()
    return spent


def bare_writes(folder: Path, num_episodes: int) -> float:
    """CPU seconds of writing as many turns, episodes and groups in a bare loop."""
    ledger = Ledger.take(folder / "bare.sqlite")
    began = time.process_time()
    for episode in range(num_episodes):
        if episode % GROUP_SIZE == 0:
            ledger.open_group(f"g{episode}", seq=episode, task="t")
        ledger.start_episode(f"e{episode}", group=f"g{episode - episode % GROUP_SIZE}", member=0, attempt=0)
        for turn in range(TURNS):
            ledger.record_turn(
                episode=f"e{episode}", turn=turn, began_at=0.0, message="cat note", command="cat note",
                timeout_s=1.0, exit_code=0, result=None, observation="note 1 2", generation_s=0.0, tool_s=0.0,
                suspended_s=0.0, num_sampled=3, num_prompt=0, num_observed=4,
                segment=bytes(120),
            )  # fmt: skip
        ledger.end_episode(
            f"e{episode}", verdict="success", cause="rewarded", num_turns=TURNS, num_tokens=50, active_s=0.0,
            evidence={}, trajectory=None,
        )  # fmt: skip
    spent = time.process_time() - began
    ledger.close()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    num_episodes = arguments.groups * GROUP_SIZE
    with tempfile.TemporaryDirectory() as folder:
        spent = asyncio.run(collect(Path(folder), arguments.groups))
        bare = bare_writes(Path(folder), num_episodes)
    result = {
        "episodes_per_cpu_s": round(num_episodes / spent, 1),
        "bare_ledger_episodes_per_cpu_s": round(num_episodes / bare, 1),
        "ratio_to_bare_ledger": round(spent / bare, 2),
        "ms_per_turn": round(1000 * spent / (num_episodes * TURNS), 3),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{num_episodes} episodes of {TURNS} turns on one core, instant engine and sandbox")
    for key, value in result.items():
        print(f"  {key:32} {value}")


if __name__ == "__main__":
    main()
