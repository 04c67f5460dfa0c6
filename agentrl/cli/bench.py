"""`agentrl bench`: the project's comparisons, in virtual time and for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import JsonOption, given
from agentrl.cli.outputs import check_file
from agentrl.cli.simulated import (
    HardwareOption,
    JobsOption,
    LawsArgument,
    SeedsOption,
    WorkloadOption,
    load_laws,
    print_table,
    progress,
)
from agentrl.errors import UserError

if TYPE_CHECKING:
    from agentrl.bench.balance import Balanced
    from agentrl.bench.collect import Collected
    from agentrl.simulation.config import Hardware, Workload
    from agentrl.simulation.policies import Policy

app = typer.Typer(help="Compare this controller with what else one could do.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="bench")


def complete_policy(incomplete: str) -> list[str]:
    from agentrl.simulation.policies import Policy

    return [name for name in [*(policy.value for policy in Policy), "all"] if name.startswith(incomplete)]


PolicyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--policy", "-p", metavar="NAME", help="A policy, or `all`; may be repeated.", autocompletion=complete_policy
    ),
]

LEGEND = """\
cold: from nothing running to the first complete batch. steady: mean time between batches with carry-over, the first
three dropped. In brackets: standard deviation over seeds. vs: share of a baseline's cold time that is saved. x bound:
times the lower bound of the same draws. bias: trained against launched. span: policy versions in a trajectory.
prefill: tokens prefilled per token generated. busy: share of engine time. infra: faults that entered with a reward.
lost: usable trajectories dropped."""


@app.command()
def collect(
    ctx: typer.Context,
    laws: LawsArgument = None,
    *,
    seeds: SeedsOption = 10,
    policy: PolicyOption = None,
    workload: WorkloadOption = None,
    hardware: HardwareOption = None,
    trials: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Replay public trials: setup_s, agent_s, verifier_s a row.")
    ] = None,
    jobs: JobsOption = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the times as bars.")] = None,
    real: Annotated[
        bool, typer.Option("--real", help="On this machine instead: engines, sandboxes and waits are real.")
    ] = False,
    batches: Annotated[int, typer.Option("--batches", min=5, help="With --real: batches that each side collects.")] = 8,
    json_: JsonOption = False,
) -> None:
    """Time to a trainable batch in virtual time: this controller, its mechanisms, and the baselines."""
    from agentrl.bench.collect import as_json
    from agentrl.bench.collect import collect as run

    _check_used(given(ctx), real=real)
    if real:
        _real(batches, as_json=json_)
        return
    policies = _policies(policy)
    of = workload or "w_tb"
    chosen, machine, name = load_laws(of, hardware, laws or [])
    if trials is not None:
        chosen = _replaying(chosen, trials)
    if plot is not None:
        check_file("--plot", plot, suffix=".svg")
    with progress(len(policies) * seeds, "simulating") as advance:
        results = run(policies, chosen, machine, seeds=seeds, jobs=jobs, on_done=advance)
    shown = of if trials is None else f"{of}, trials of {trials.name}"
    if json_:
        print(json.dumps(as_json(results, workload=shown, hardware=name, seeds=seeds), indent=2))
    else:
        _print_collected(results, f"{shown} on {name}, {seeds} seed{'s' if seeds > 1 else ''}")
    if plot is not None:
        _draw(results, f"Time to a trainable batch, {shown} on {name}", plot)


def _check_used(options: set[str], *, real: bool) -> None:
    """Raises UserError for what was given and has no effect."""
    if not real and "batches" in options:
        raise UserError("--batches needs --real", hint="in virtual time the number of batches is fixed")
    unused = [
        "KEY=VALUE" if name == "laws" else f"--{name}"
        for name in ("seeds", "policy", "workload", "hardware", "trials", "jobs", "plot", "laws")
        if name in options
    ]
    if real and unused:
        raise UserError(f"--real measures this machine, without {', '.join(unused)}", hint="leave it out")


def _real(batches: int, *, as_json: bool) -> None:
    import asyncio
    import sys
    import tempfile

    from agentrl.bench.real import GROUP_SIZE, GROUPS, measure
    from agentrl.bench.real_predicted import predict_real
    from agentrl.sandbox.bubblewrap.host import check_host

    check_host()
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder:
        measured = asyncio.run(
            measure(Path(folder), batches=batches, seed=0, say=lambda text: print(text, file=sys.stderr, flush=True))
        )
        predicted = predict_real(measured.config, measured.naive_ledger)
    off = predicted.ratio / measured.ratio - 1
    if as_json:
        sides = {
            name: {
                "naive_batches_s": list(side.naive_batches_s),
                "naive_s": side.naive_s,
                "full_cold_s": side.full_cold_s,
                "full_steady_s": side.full_steady_s,
                "ratio": side.ratio,
            }
            for name, side in (("real", measured), ("predicted", predicted))
        }
        tree = {"trajectories": GROUPS * GROUP_SIZE, "batches": batches, **sides, "ratio_difference": off}
        print(json.dumps(tree, indent=2))
        return
    rows = [
        (name, f"{side.naive_s:.2f}", f"{side.full_cold_s:.2f}", f"{side.full_steady_s:.2f}", f"{side.ratio:.3f}")
        for name, side in (("this machine", measured), ("simulated", predicted))
    ]
    columns = ("", "naive, s a batch", "full, first batch", "full, steady", "full / naive")
    print_table(columns, rows, title=f"{GROUPS * GROUP_SIZE} trajectories a batch, {batches} batches each")
    print(
        f"The simulated ratio is {100 * off:+.0f} % off. It comes from the naive side's ledger: laws fitted to it,\n"
        "and its episodes as they were."
    )


def _policies(names: list[str] | None) -> list[Policy]:
    """Those named, in their usual order; without names the ones that every report holds."""
    from agentrl.bench.collect import DEFAULT_POLICIES
    from agentrl.simulation.policies import Policy

    if not names:
        return list(DEFAULT_POLICIES)
    known = [policy.value for policy in Policy]
    for name in names:
        if name not in known and name != "all":
            raise UserError(f"--policy: no policy {name!r}", hint=f"policies: {', '.join(known)}, all")
    return [policy for policy in Policy if policy.value in names or "all" in names]


def _replaying(workload: Workload, trials: Path) -> Workload:
    import msgspec

    from agentrl.simulation.replay import read_trials

    return msgspec.structs.replace(workload, replay=read_trials(trials))


def _print_collected(results: dict[str, Collected], title: str) -> None:
    from agentrl.bench.collect import cuts
    from agentrl.bench.spread import percent

    saved = cuts(results)
    times = [
        (
            name,
            str(one.cold),
            percent(saved[name]["cut_cold_vs_naive"]),
            percent(saved[name]["cut_cold_vs_barrier"]),
            str(one.steady) if one.steady else "-",
            percent(saved[name]["cut_steady_vs_naive"]),
            percent(saved[name]["cut_steady_vs_barrier"]),
            f"{one.bound_ratio:.2f}",
        )
        for name, one in results.items()
    ]
    print_table(
        ("policy", "cold s", "vs naive", "vs barrier", "steady s", "vs naive", "vs barrier", "x bound"),
        times,
        title=title,
    )
    prices = [
        (
            name,
            percent(one.bias_turns, digits=1),
            percent(one.bias_tokens, digits=1),
            f"{one.span_median:g}, {one.span_p95}, {one.span_max}",
            f"{one.prefill_per_generated:.1f}",
            percent(one.busy),
            str(one.infra_as_reward),
            str(one.lost),
        )
        for name, one in results.items()
    ]
    print_table(("policy", "bias turns", "tokens", "span p50, p95, max", "prefill", "busy", "infra", "lost"), prices)
    print(LEGEND)


def _draw(results: dict[str, Collected], title: str, file: Path) -> None:
    from agentrl.bench.plot import Bar, bars_svg

    bars = []
    for name, one in results.items():
        bars.append(Bar(label=f"{name}, cold", value=one.cold, bound=None if one.steady else one.bound.mean))
        if one.steady is not None:
            bars.append(Bar(label=f"{name}, steady", value=one.steady, bound=one.bound.mean, color="#5a9a68"))
    try:
        file.write_text(bars_svg(title, bars), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--plot: {file}: {error.strerror}") from error


@app.command()
def balance(
    laws: LawsArgument = None,
    *,
    seeds: SeedsOption = 2,
    steps: Annotated[int, typer.Option("--steps", min=5, help="Steps of each run.")] = 50,
    swing: Annotated[
        list[int] | None,
        typer.Option("--swing", min=1, help="Swing engines of a balance; may be repeated. Default: 1/4 and 1/2."),
    ] = None,
    scale: Annotated[
        int, typer.Option("--scale", min=1, help="Simulate a cluster so many times smaller, at the same load.")
    ] = 4,
    workload: WorkloadOption = None,
    hardware: HardwareOption = None,
    jobs: JobsOption = None,
    json_: JsonOption = False,
) -> None:
    """Training counted: fixed splits of GPUs against the balance, on a steady and on a drifting workload."""
    from agentrl.bench.balance import as_json, drifting, modes
    from agentrl.bench.balance import balance as run

    of = workload or "w_tb"
    steady, machine, name = load_laws(of, hardware or "h8_train", laws or [])
    counts = swing or sorted({max(machine.engines // part, 1) for part in (4, 2)})
    if max(counts) > machine.engines:
        raise UserError(f"--swing {max(counts)}: there are {machine.engines} engines", hint="give at most as many")
    _check_scale(scale, steady, machine)
    chosen = modes(machine, counts)
    results = {}
    with progress(2 * len(chosen) * seeds, "simulating") as advance:
        for kind, drawn in (("steady", steady), ("drifting", drifting(steady, steps=steps))):
            results[kind] = run(
                chosen, drawn, machine, scale=scale, seeds=seeds, steps=steps, jobs=jobs, on_done=advance
            )
    if json_:
        tree = {kind: as_json(found) for kind, found in results.items()}
        print(json.dumps({"workload": of, "hardware": name, "seeds": seeds, "scale": scale} | tree, indent=2))
        return
    for kind, found in results.items():
        _print_balance(
            found,
            f"{kind}: {of} on {name} at 1/{scale} of the size, {steps} steps, {seeds} seed{'s' if seeds > 1 else ''}",
        )


def _check_scale(scale: int, workload: Workload, hardware: Hardware) -> None:
    from agentrl.simulation.balance_policies import largest_scale

    largest = largest_scale(workload, hardware)
    if scale > largest:
        raise UserError(
            f"--scale {scale}: at most {largest} with these laws",
            hint="an engine must hold one whole context, and a batch one group",
        )


def _print_balance(results: dict[str, Balanced], title: str) -> None:
    from agentrl.bench.balance import judge
    from agentrl.bench.spread import percent

    verdict = judge(results)
    rows = [
        (
            mode,
            str(result.step),
            percent(result.step.mean / verdict.median_split_s - 1) if verdict else "-",
            f"{result.lag_mean:.2f}",
            percent(result.gpu_share.get("generate")),
            percent(result.gpu_share.get("train")),
            percent(1 - sum(result.gpu_share.get(use, 0.0) for use in ("generate", "train"))),
        )
        for mode, result in results.items()
    ]
    print_table(("GPUs", "step, s", "against median split", "lag", "generate", "train", "lost"), rows, title=title)
    if verdict is not None:
        print(
            f"{verdict.balance} against the best split, {verdict.best_split}: {percent(verdict.over_best, digits=1)}"
            f"; against the median of all splits: {percent(verdict.over_median, digits=1)} (negative is shorter)\n"
        )
