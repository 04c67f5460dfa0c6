"""`agentrl tune`: search in simulation for settings that make a job's steps shorter."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.arguments import FileArgument, JsonOption, OverridesArgument
from agentrl.cli.simulated import (
    HardwareOption,
    JobsOption,
    WorkloadOption,
    laws_of_job,
    load_job,
    print_table,
    progress,
)
from agentrl.errors import ProcessFailed

if TYPE_CHECKING:
    from agentrl.cli.simulated import ChosenLaws
    from agentrl.config.schema import JobConfig
    from agentrl.simulation.tune import Candidate, Run, Settings


def register(app: typer.Typer) -> None:
    app.command()(tune)


def tune(
    file: FileArgument,
    overrides: OverridesArgument = None,
    *,
    workload: WorkloadOption = None,
    hardware: HardwareOption = None,
    budget: Annotated[int, typer.Option("--budget", min=14, help="Simulations in all.")] = 60,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of each simulation.")] = 8,
    max_bias: Annotated[
        float, typer.Option("--max-bias", min=0, max=1, help="Selection bias in turns that counts as fair.")
    ] = 0.05,
    best: Annotated[int, typer.Option("--best", min=1, help="How many to print.")] = 5,
    jobs: JobsOption = None,
    json_: JsonOption = False,
) -> None:
    """Search over swing and dedicated GPUs, live episodes, sandboxes and the window; print the best as overrides."""
    from agentrl.simulation.job import simulated_job
    from agentrl.simulation.tune import grid, num_candidates, num_simulations, sample, search

    config = load_job(file, overrides or [])
    laws = laws_of_job(config, workload, hardware)
    notes = simulated_job(config, laws.workload, laws.hardware, steps=steps).notes
    candidates = sample(_allowed(grid(config), config), num_candidates(budget), seed=config.seed)
    with progress(num_simulations(len(candidates)), "simulating") as advance:
        run = _runner(config, laws, steps=steps, jobs=jobs, on_done=advance)
        found = search(candidates, run=run, max_bias=max_bias)
    own = next(candidate for candidate in found if candidate.settings == candidates[0])
    if own.problem is not None and found[0].problem is not None:
        raise ProcessFailed(f"the simulated run failed: {found[0].problem}")
    shown = [candidate for candidate in found if candidate.problem is None][:best]
    if json_:
        tree = {"workload": laws.workload_name, "hardware": laws.hardware_name, "notes": list(notes)}
        rows = {"now": _as_json(own, own), "best": [_as_json(candidate, own) for candidate in shown]}
        print(json.dumps(tree | {"simulations": sum(len(one.outcomes) for one in found)} | rows, indent=2))
        return
    print(f"{file}: {laws.workload_name} on {laws.hardware_name}{laws.why}")
    for note in notes:
        print(f"  note: {note}")
    _print_best(shown, own, file)


def _allowed(settings: Sequence[Settings], config: JobConfig) -> list[Settings]:
    """Those that a launch would not refuse; the first, the job's own, always."""
    from agentrl.config.lint import Severity, lint
    from agentrl.simulation.tune import with_settings

    def refused(choice: Settings) -> bool:
        return any(finding.severity is Severity.ERROR for finding in lint(with_settings(config, choice)))

    return [settings[0], *(choice for choice in settings[1:] if not refused(choice))]


def _runner(config: JobConfig, laws: ChosenLaws, *, steps: int, jobs: int | None, on_done: Callable[[], None]) -> Run:
    """Simulates candidates in as many processes as there are cores."""
    from agentrl.simulation.job import simulated_job
    from agentrl.simulation.parallel import run_all
    from agentrl.simulation.predict import Outcome, at_seed, predict
    from agentrl.simulation.tune import with_settings

    def run(tasks: Sequence[tuple[Settings, int]]) -> Sequence[Outcome]:
        scenarios = [
            at_seed(
                simulated_job(with_settings(config, settings), laws.workload, laws.hardware, steps=steps).scenario,
                config.seed + number,
            )
            for settings, number in tasks
        ]
        return run_all(predict, scenarios, jobs=jobs, on_done=on_done)

    return run


def _changes(candidate: Candidate, own: Candidate) -> list[str]:
    """Overrides that lead from the job's own settings to these."""
    return [text for text in candidate.overrides if text not in own.overrides]


def _as_json(candidate: Candidate, own: Candidate) -> dict[str, Any]:
    if not candidate.runs:
        return {"overrides": _changes(candidate, own), "problem": candidate.problem}
    runs = candidate.runs
    return {
        "overrides": _changes(candidate, own),
        "step_s": candidate.step_s,
        "time_to_batch_s": sum(run.steady_time_to_batch_s for run in runs) / len(runs),
        "bias_turns": candidate.bias,
        "lag_max": max(run.lag_max for run in runs),
        "busy": sum(run.figures.busy for run in runs) / len(runs),
        "bound_by": runs[0].bound.resource,
        "seeds": len(candidate.outcomes),
        "problem": candidate.problem,
    }


def _print_best(shown: Sequence[Candidate], own: Candidate, file: Path) -> None:
    def row(name: str, candidate: Candidate) -> tuple[str, ...]:
        figures = _as_json(candidate, own)
        if "step_s" not in figures:
            return (name, "failed", "-", "-", "-", "-", "-", str(candidate.problem))
        return (
            name,
            f"{figures['step_s']:.4g}",
            f"{100 * (figures['step_s'] / own.step_s - 1):+.0f} %" if own.runs else "-",
            f"{figures['time_to_batch_s']:.4g}",
            f"{100 * figures['bias_turns']:.1f} %",
            str(figures["lag_max"]),
            f"{100 * figures['busy']:.0f} %",
            f"{figures['bound_by']}, {figures['seeds']} seeds",
        )

    rows = [row("now", own), *(row(str(number), candidate) for number, candidate in enumerate(shown, start=1))]
    columns = ("", "step, s", "against now", "time to batch, s", "bias turns", "lag max", "engines busy", "bound by")
    print_table(columns, rows, text_last=True)
    for number, candidate in enumerate(shown, start=1):
        print(f"{number}: {' '.join(_changes(candidate, own)) or 'the settings it has'}")
    changes = _changes(shown[0], own) if shown else []
    if changes:
        print(f"\ntry: agentrl simulate {file} {' '.join(changes)}")
