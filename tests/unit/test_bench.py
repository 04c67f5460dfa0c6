"""What benchmarks make of their runs: means, cuts, JSON, a picture."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from agentrl.bench.balance import Balanced, judge
from agentrl.bench.balance import as_json as balance_json
from agentrl.bench.collect import Collected, as_json, collect, cuts, summarise
from agentrl.bench.plot import Bar, bars_svg
from agentrl.bench.spread import Spread, cut, percent
from agentrl.simulation.figures import Figures
from agentrl.simulation.policies import Policy
from tests.simulation.small import hardware, workload

FIGURES = Figures(
    batches_s=(100.0,),
    cold_s=100.0,
    steady_s=None,
    busy=0.5,
    prefill_per_generated=1.5,
    retractions=2,
    bias_turns=-0.1,
    bias_tokens=-0.2,
    span_median=0,
    span_p95=1,
    span_max=2,
    verdicts={},
    infra_as_reward=0,
    lost=1,
    bound_s=50.0,
)
JSON_KEYS = {
    "cold_s", "steady_s", "cut_cold_vs_naive", "cut_cold_vs_barrier", "cut_steady_vs_naive", "cut_steady_vs_barrier",
    "bound_ratio", "bias_turns", "span_p95", "prefill_per_generated", "busy", "infra_as_reward", "lost",
}  # fmt: skip


def test_seeds_are_averaged_and_worst_cases_kept() -> None:
    steady = replace(FIGURES, steady_s=80.0, span_p95=3, span_max=7, lost=2)
    one = summarise([steady, replace(steady, cold_s=200.0, steady_s=100.0, span_p95=1)])
    assert one.cold == Spread(150.0, pytest.approx(70.71, abs=0.01))
    assert one.steady is not None and one.steady.mean == 90
    assert one.bound_ratio == pytest.approx((80 / 50 + 100 / 50) / 2), "of the steady interval, where there is one"
    assert (one.span_p95, one.span_max, one.lost, one.retractions) == (3, 7, 4, 4)


def test_cuts_are_against_what_the_baselines_take_for_a_batch() -> None:
    naive, full = summarise([FIGURES]), summarise([replace(FIGURES, cold_s=60.0, steady_s=25.0)])
    saved = cuts({"naive": naive, "full": full})["full"]
    assert saved["cut_cold_vs_naive"] == pytest.approx(0.4)
    assert saved["cut_steady_vs_naive"] == pytest.approx(0.75)
    assert saved["cut_cold_vs_barrier"] is None, "it was not run"
    assert cut(None, Spread(1, 0)) is None


def test_the_json_has_the_promised_keys_for_every_policy() -> None:
    results: dict[str, Collected] = collect([Policy.NAIVE, Policy.KEEP_ALL], workload(), hardware(), seeds=2, jobs=1)
    tree = json.loads(json.dumps(as_json(results, workload="small", hardware="h8", seeds=2)))
    assert (tree["workload"], tree["hardware"], tree["seeds"]) == ("small", "h8", 2)
    assert set(tree["policies"]) == {"naive", "keep_all"}
    assert all(set(policy) >= JSON_KEYS for policy in tree["policies"].values())
    assert tree["policies"]["naive"]["cut_cold_vs_naive"] == 0
    assert tree["policies"]["keep_all"]["bound_ratio"] >= 1


def test_numbers_are_shown_as_precisely_as_they_are_known() -> None:
    assert [str(Spread(2139.4, 349.2)), str(Spread(3.14, 0.5))] == ["2139 (349)", "3.1 (0.5)"]
    assert (percent(None), percent(0.234), percent(-0.016, digits=1)) == ("-", "23 %", "-1.6 %")


def test_the_plot_is_svg_with_a_bar_and_a_bound_for_each_time() -> None:
    bars = [
        Bar(label="naive <cold>", value=Spread(2000, 300), bound=1500),
        Bar(label="full, steady", value=Spread(550, 10)),
    ]
    root = ElementTree.fromstring(bars_svg("a & b", bars))
    space = "{http://www.w3.org/2000/svg}"
    widths = [float(bar.get("width", 0)) for bar in root.findall(f"{space}rect")[1:]]
    assert widths[0] / widths[1] == pytest.approx(2000 / 550, rel=0.01)
    assert len([line for line in root.findall(f"{space}line") if line.get("stroke") == "#c22"]) == 1
    assert {"a & b", "naive <cold>", "full, steady"} <= {text.text for text in root.findall(f"{space}text")}


def mode(step_s: float) -> Balanced:
    return Balanced(step=Spread(step_s, 0.0), gpu_share={"generate": 0.6, "train": 0.3, "switch": 0.1}, lag_mean=1.0)


def test_the_balance_is_judged_against_the_best_and_the_median_split() -> None:
    results = {"split_1": mode(300), "split_2": mode(200), "split_3": mode(400), "balance_2": mode(190)}
    verdict = judge(results)
    assert verdict is not None
    assert (verdict.best_split, verdict.balance, verdict.median_split_s) == ("split_2", "balance_2", 300)
    assert verdict.over_best == pytest.approx(-0.05)
    assert verdict.over_median == pytest.approx(190 / 300 - 1)
    assert verdict.beats_every_split
    assert json.loads(json.dumps(balance_json(results)))["verdict"]["beats_every_split"] is True
    assert judge({"split_1": mode(300)}) is None
