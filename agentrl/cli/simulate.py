"""`agentrl simulate`: what a job would come to, by its own controller in virtual time."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.arguments import FileArgument, JsonOption, OverridesArgument, given
from agentrl.cli.outputs import check_file, check_folder
from agentrl.cli.runs import RunsDirOption
from agentrl.cli.simulated import (
    ChosenLaws,
    HardwareOption,
    JobsOption,
    SeedsOption,
    WorkloadOption,
    laws_of_job,
    load_job,
    print_table,
    progress,
)
from agentrl.errors import ProcessFailed, UserError

if TYPE_CHECKING:
    from agentrl.bench.forecast import Forecast
    from agentrl.simulation.calibrate import Calibration
    from agentrl.simulation.compare import Compared
    from agentrl.simulation.job import SimulatedJob

StepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps", min=1, help="Steps to simulate. Default: 4 to 8, by the length of episodes.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(simulate)


def simulate(
    ctx: typer.Context,
    file: FileArgument,
    overrides: OverridesArgument = None,
    *,
    workload: WorkloadOption = None,
    hardware: HardwareOption = None,
    from_run: Annotated[
        str | None, typer.Option("--from-run", metavar="RUN", help="Fit the laws to a run, and say how well they fit.")
    ] = None,
    write_laws: Annotated[
        Path | None,
        typer.Option("--write-laws", metavar="DIR", help="Write the fitted workload.yaml and hardware.yaml here."),
    ] = None,
    seeds: SeedsOption = 3,
    steps: StepsOption = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write the first seed's events, a JSON line each.")
    ] = None,
    mechanisms: Annotated[
        bool, typer.Option("--mechanisms/--no-mechanisms", help="Also simulate the job without each mechanism.")
    ] = True,
    jobs: JobsOption = None,
    runs_dir: RunsDirOption = Path("runs"),
    json_: JsonOption = False,
) -> None:
    """Predict what the job in FILE would come to, in virtual time. Starts no process of the job."""
    from agentrl.bench.forecast import as_json, forecast, num_simulations
    from agentrl.simulation.job import simulated_job
    from agentrl.simulation.predict import Failed, predict

    _check(from_run, workload, hardware, write_laws, trace)
    if from_run is None and "runs_dir" in given(ctx):
        raise UserError("--runs-dir needs --from-run", hint="leave it out: no run is read")
    config = load_job(file, overrides or [])
    fitted = None if from_run is None else _fit(from_run, runs_dir, seeds=seeds, jobs=jobs)
    laws = laws_of_job(config, workload, hardware) if fitted is None else fitted.laws
    job = simulated_job(config, laws.workload, laws.hardware, steps=steps)
    total = num_simulations(job.scenario, seeds=seeds, mechanisms=mechanisms)
    with progress(total, "simulating") as advance:
        found = forecast(
            job.scenario,
            seeds=seeds,
            full_steps=config.schedule.steps,
            mechanisms=mechanisms,
            jobs=jobs,
            on_done=advance,
        )
    if isinstance(found, Failed):
        raise ProcessFailed(f"the simulated run failed: {found.problem}")
    if trace is not None:
        with trace.open("w", encoding="utf-8") as lines:
            predict(job.scenario, trace=lines)
    if fitted is not None and write_laws is not None:
        _write(fitted.calibration, write_laws, fitted.run)
    if json_:
        tree = {"workload": laws.workload_name, "hardware": laws.hardware_name, "notes": list(job.notes)}
        print(json.dumps(tree | as_json(found) | ({} if fitted is None else fitted.as_json()), indent=2))
        return
    if fitted is not None:
        _print_fits(fitted)
    _print_forecast(found, job, f"{file}: {laws.workload_name} on {laws.hardware_name}{laws.why}")


def _check(
    from_run: str | None, workload: str | None, hardware: str | None, write_laws: Path | None, trace: Path | None
) -> None:
    """What contradicts itself, before anything is simulated. Raises UserError."""
    if from_run is not None and (workload or hardware):
        raise UserError("--from-run and --workload or --hardware: the laws come from one of them", hint="leave one out")
    if write_laws is not None and from_run is None:
        raise UserError("--write-laws needs --from-run", hint="it writes the laws that were fitted to a run")
    if trace is not None:
        check_file("--trace", trace)
    if write_laws is not None:
        check_folder("--write-laws", write_laws)


class _Fitted:
    """Laws of a run, and what they predict for it."""

    def __init__(self, run: str, calibration: Calibration, compared: tuple[Compared, ...], num_episodes: int) -> None:
        self.run = run
        self.calibration = calibration
        self.compared = compared
        self.num_episodes = num_episodes
        self.laws = ChosenLaws(calibration.workload, calibration.hardware, f"laws of run {run}", "its machine", why="")

    def as_json(self) -> dict[str, Any]:
        return {
            "from_run": {
                "run": self.run,
                "episodes": self.num_episodes,
                "fits": [asdict(fit) for fit in self.calibration.fits],
                "compared": [asdict(one) | {"difference": one.difference} for one in self.compared],
            }
        }


def _fit(run: str, runs_dir: Path, *, seeds: int, jobs: int | None) -> _Fitted:
    """Fit laws to a run, and simulate that run with them."""
    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.ledger.reader import LedgerReader
    from agentrl.simulation.calibrate import calibrate
    from agentrl.simulation.compare import compare, real_steps
    from agentrl.simulation.job import simulated_job
    from agentrl.simulation.observed import observe
    from agentrl.simulation.parallel import run_all
    from agentrl.simulation.predict import Predicted, at_seed, predict

    directory = RunDirectory.find(run, runs_dir)
    config = directory.load_config()
    reader = LedgerReader.open(directory.ledger)
    observed, real = observe(reader), real_steps(reader)
    reader.close()
    calibration = calibrate(observed, config)
    job = simulated_job(config, calibration.workload, calibration.hardware)
    with progress(seeds, "simulating the run") as advance:
        scenarios = [at_seed(job.scenario, config.seed + index) for index in range(seeds)]
        outcomes = run_all(predict, scenarios, jobs=jobs, on_done=advance)
    runs = [outcome for outcome in outcomes if isinstance(outcome, Predicted)]
    return _Fitted(directory.name, calibration, compare(real, runs), observed.num_episodes)


def _write(calibration: Calibration, folder: Path, run: str) -> None:
    texts = calibration.as_yaml(f"run {run}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in zip(("workload.yaml", "hardware.yaml"), texts, strict=True):
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--write-laws: {folder}: {error.strerror}") from error


def _print_fits(fitted: _Fitted) -> None:
    rows = [
        (
            fit.name,
            str(fit.num_samples),
            f"{fit.ks:.3f}",
            f"{fit.measured_p50:.3g}, {fit.measured_p95:.3g}",
            f"{fit.fitted_p50:.3g}, {fit.fitted_p95:.3g}",
        )
        for fit in fitted.calibration.fits
    ]
    title = f"Laws fitted to {fitted.num_episodes} episodes of {fitted.run}"
    print_table(("law", "samples", "KS distance", "measured p50, p95", "fitted p50, p95"), rows, title=title)
    if not fitted.compared:
        print("The run has too few steps to compare its times with.\n")
        return
    compared = [
        (one.name, f"{one.real:.3g}", f"{one.predicted:.3g}", f"{100 * one.difference:+.0f} %")
        for one in fitted.compared
    ]
    print_table(("this run", "real", "simulated", "difference"), compared)


def _print_forecast(found: Forecast, job: SimulatedJob, title: str) -> None:
    from agentrl.bench.spread import percent

    print(title)
    for note in (*job.notes, *(f"a seed's run failed: {problem}" for problem in found.problems)):
        print(f"  note: {note}")
    times = [
        ("first batch, s", str(found.first_batch)),
        ("time to batch, s", str(found.time_to_batch)),
        ("step, s", str(found.step)),
        ("the whole run, s", f"{found.run_s:.0f}"),
        ("policy lag, p95 and max", f"{found.lag_p95}, {found.lag_max}"),
        ("selection bias, turns and tokens", f"{percent(found.bias_turns, digits=1)}, {percent(found.bias_tokens)}"),
        ("prefilled / generated tokens", f"{found.prefill_per_generated:.2f}"),
        ("infra faults as reward; lost", f"{found.infra_as_reward}; {found.lost}"),
    ]
    print_table(("predicted", f"mean of {found.seeds} seeds (sd)" if found.seeds > 1 else "one seed"), times)
    print_table(("GPU time", "share"), [(name, percent(share, digits=1)) for name, share in found.gpu_shares.items()])
    print_table(
        ("lower bound of a step by", "seconds", ""),
        [
            (name, f"{seconds:.2f}", f"binds: a step takes {found.step.mean / seconds:.2f} times it")
            if name == found.binding
            else (name, f"{seconds:.2f}", "")
            for name, seconds in found.bounds.items()
        ],
        text_last=True,
    )
    if found.without:
        print_table(
            ("without", "step, s", "longer by", "what happens then"),
            [
                (one.name, str(one.step or "failed"), percent(one.cost), one.problem or one.meaning)
                for one in found.without
            ],
            text_last=True,
        )
