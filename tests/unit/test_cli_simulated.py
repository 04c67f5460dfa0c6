"""simulate, tune and bench on the command line, with jobs so small that they take a second."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.cli.bench import complete_policy
from agentrl.cli.simulated import complete_laws
from agentrl.config.catalog import PACKAGED
from agentrl.controller.lifecycle.run_directory import RunDirectory
from agentrl.ledger.ledger import Ledger
from agentrl.simulation.loop import simulate
from agentrl.simulation.run import build
from tests.simulation.test_predict import quickstart, small_job
from tests.unit.test_cli import Agentrl

SMALL = [
    "schedule.groups_per_step=4", "schedule.window_groups=8", "algorithm.group_size=4", "agent.max_turns=3",
    "agent.max_turn_tokens=8", "agent.max_episode_tokens=128", "inference.context_length=160",
]  # fmt: skip
LAWS = [
    "groups=4", "group_size=4", "turns.median=4", "turns.cap=12", "prompt_tokens=300", "engines=2", "sandboxes=24",
    "engine.kv_tokens=140000",
]  # fmt: skip


@pytest.fixture
def agentrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Agentrl:
    return Agentrl(tmp_path, monkeypatch, capsys)


def test_simulate_predicts_a_job_and_says_by_which_laws(agentrl: Agentrl) -> None:
    found = agentrl(
        "simulate", "job.yaml", *SMALL, "tasks.num_heldout=3", "--seeds", "1", "--steps", "2", "--jobs", "1"
    )
    assert found.code == 0, found.err
    for words in (
        "quickstart on laptop (inference.backend is embedded", "note: 2 of 25 steps are simulated", "time to batch, s",
        "lower bound of a step by", "binds:", "window over groups", "generate", "one seed",
        "note: evaluations on 3 held-out tasks",
    ):  # fmt: skip
        assert words in found.out
    assert "(sd)" not in found.out and "(0.0)" not in found.out
    assert agentrl.files() == {agentrl.folder / "job.yaml"}, "nothing is written"


def test_simulate_prints_json_and_writes_the_same_trace_twice(agentrl: Agentrl) -> None:
    options = ["--seeds", "1", "--steps", "2", "--jobs", "1", "--no-mechanisms", "--json"]
    traces = []
    for name in ("a.jsonl", "b.jsonl"):
        found = agentrl("simulate", "job.yaml", *SMALL, *options, "--trace", name)
        assert found.code == 0, found.err
        tree = json.loads(found.out)
        assert tree["workload"] == "quickstart" and tree["steps"] == 2 and tree["step_s"] > 0
        assert set(tree["bounds_s"]) == {"longest trajectory", "engines", "sandboxes", "sandbox starts", "trainer"}
        traces.append((agentrl.folder / name).read_bytes())
    assert traces[0] == traces[1] and traces[0].count(b"\n") > 20


def test_simulate_fits_the_laws_of_a_run_and_compares_it_with_its_simulation(agentrl: Agentrl) -> None:
    config = small_job()
    run = RunDirectory.create(agentrl.folder / "runs", "mine", stem="mine", config_text="", config=config)
    chosen = quickstart(replace(config, observe=replace(config.observe, keep_trajectories=0)), steps=3)

    async def main() -> None:
        await build(chosen, Ledger.take(run.ledger)).run()

    simulate(main(), seed=0)
    options = ["--seeds", "1", "--steps", "2", "--jobs", "1", "--no-mechanisms", "--from-run", "mine"]
    found = agentrl("simulate", "job.yaml", *SMALL, *options, "--write-laws", "laws")
    assert found.code == 0, found.err
    for words in ("Laws fitted to", "KS distance", "tool_s", "simulated", "step, mean s", "laws of run mine"):
        assert words in found.out
    again = agentrl(
        "simulate", "job.yaml", *SMALL, *options[:-2], "--workload", "laws/workload.yaml", "--hardware",
        "laws/hardware.yaml", "--json",
    )  # fmt: skip
    assert again.code == 0, again.err
    assert json.loads(again.out)["step_s"] > 0


def test_tune_prints_overrides_to_paste(agentrl: Agentrl) -> None:
    found = agentrl("tune", "job.yaml", *SMALL, "--budget", "14", "--steps", "1", "--jobs", "1", "--json")
    assert found.code == 0, found.err
    tree = json.loads(found.out)
    assert tree["simulations"] <= 14
    assert tree["best"] and all("=" in text for one in tree["best"] for text in one["overrides"])
    best = tree["best"][0]
    pasted = agentrl(
        "simulate", "job.yaml", *SMALL, *best["overrides"], "--seeds", "1", "--steps", "1", "--jobs", "1",
        "--no-mechanisms",
    )  # fmt: skip
    assert pasted.code == 0, pasted.err


def test_bench_collect_prints_tables_and_draws(agentrl: Agentrl) -> None:
    found = agentrl(
        "bench", "collect", *LAWS, "-p", "naive", "-p", "keep_all", "--seeds", "1", "--jobs", "1", "--plot", "bars.svg"
    )
    assert found.code == 0, found.err
    assert (
        "w_tb on h8, 1 seed\n" in found.out
        and "(0.0)" not in found.out
        and "keep_all" in found.out
        and "x bound" in found.out
    )
    assert (agentrl.folder / "bars.svg").read_text().startswith("<svg")


def test_bench_balance_prints_its_verdict(agentrl: Agentrl) -> None:
    found = agentrl("bench", "balance", *LAWS, "--scale", "1", "--steps", "5", "--seeds", "1", "--jobs", "1", "--json")
    assert found.code == 0, found.err
    tree = json.loads(found.out)
    assert set(tree["steady"]["modes"]) == {"split_1", "balance_1"}
    assert tree["drifting"]["verdict"]["best_split"] == "split_1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "collect", "turnss.sigma=1"], "no law 'turnss' in 'turnss.sigma=1' (did you mean turns?)"),
        (["bench", "collect", "--policy", "best"], "--policy: no policy 'best' (policies: naive"),
        (["bench", "collect", "--trials", "none.csv"], "none.csv: cannot be read"),
        (["bench", "collect", "--plot", "no/where.svg"], "--plot: no is not a folder"),
        (["bench", "collect", "--real", "-p", "naive"], "--real measures this machine, without --policy"),
        (["bench", "balance", "--swing", "9"], "--swing 9: there are 8 engines"),
        (["bench", "collect", "--real", "--seeds", "3", "--jobs", "1"], "without --seeds, --jobs"),
        (["bench", "collect", "--batches", "6"], "--batches needs --real"),
        (["bench", "collect", "--plot", "x.png"], "--plot: x.png: only .svg files are written (name it x.svg)"),
        (["bench", "collect", "--plot", "/proc/x.svg"], "--plot: /proc/x.svg: cannot be written"),
        (["simulate", "job.yaml", "--trace", "/proc/x"], "--trace: /proc/x: cannot be written"),
        (["simulate", "job.yaml", "--trace", "/proc"], "--trace: /proc: cannot be written"),
        (["simulate", "job.yaml", "--runs-dir", "."], "--runs-dir needs --from-run"),
        (["simulate", "job.yaml", "--from-run", "r", "--write-laws", "/proc/laws"], "--write-laws: /proc/laws: cannot"),
        (["simulate", "job.yaml", "--from-run", "r", "--write-laws", "a/b"], "no run 'r'"),
        (["bench", "balance", "--scale", "32"], "--scale 32: at most 4 with these laws"),
        (["simulate", "job.yaml", "--workload", "w_tbb"], "no workload 'w_tbb' (packaged: "),
        (["simulate", "job.yaml", "--write-laws", "x"], "--write-laws needs --from-run"),
        (["simulate", "job.yaml", "--from-run", "r", "--workload", "w_tb"], "the laws come from one of them"),
        (["simulate", "job.yaml", "--from-run", "r"], "no run 'r'"),
        (["simulate", "job.yaml", "schedule.stpes=1"], "unknown key 'schedule.stpes'"),
        (["simulate", "job.yaml", "schedule.window_groups=2"], "schedule.window_groups"),
        (["tune", "job.yaml", "schedule.window_groups=2"], "schedule.window_groups"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing_behind(agentrl: Agentrl, arguments: list[str], message: str) -> None:
    found = agentrl(*arguments)
    assert found.code == 2
    assert message in found.err and found.err.count("\n") == 1
    assert found.out == ""
    assert agentrl.files() == {agentrl.folder / "job.yaml"}


def test_a_simulated_run_that_fails_is_a_failure_and_no_mistake(agentrl: Agentrl) -> None:
    laws = (PACKAGED / "workload" / "quickstart.yaml").read_text()
    (agentrl.folder / "broken.yaml").write_text(laws.replace("failure_share: 0.0", "failure_share: 1.0"))
    found = agentrl("simulate", "job.yaml", *SMALL, "--workload", "broken.yaml", "--seeds", "1", "--no-mechanisms")
    assert found.code == 1
    assert "the simulated run failed" in found.err and "infra" in found.err


def test_laws_and_policies_are_completed() -> None:
    assert complete_laws("workload")("") == ["quickstart", "terminal_bench", "w_tb"]
    assert complete_laws("hardware")("h8") == ["h8", "h8_train"]
    assert "over_1.25" in complete_policy("over") and complete_policy("al") == ["all"]
