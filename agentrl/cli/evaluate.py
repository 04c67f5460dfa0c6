"""`agentrl eval`: how good given weights are, apart from any run, and what that can be compared with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.arguments import JsonOption, OverridesArgument
from agentrl.cli.runs import _RUNS, RunsDirOption
from agentrl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl.config.schema import JobConfig
    from agentrl.controller.evaluation.session import Evaluated, EvaluationJob
    from agentrl.controller.evaluation.subject import Subject, Workplace
    from agentrl.controller.lifecycle.run_directory import RunDirectory
    from agentrl.ledger.evaluations import EvaluationLedger, EvaluationRecord

_SHOWN = 10
"""Earlier evaluations that are listed after a new one."""
_CONCERNED = ("model", "agent", "inference", "sandbox")
"""Sections whose settings an evaluation uses."""

SubjectArgument = Annotated[
    str, typer.Argument(metavar="RUN|FOLDER", help="A run, or a folder of weights in Hugging Face layout.")
]
TasksOption = Annotated[
    str,
    typer.Option("--tasks", metavar="heldout|train|FAMILY|DIR", help="The run's own, a shipped family's, or a folder."),
]
SamplesOption = Annotated[int, typer.Option("--samples", "-n", min=1, help="Samples of each task.")]
KsOption = Annotated[
    list[int] | None,
    typer.Option("-k", min=1, help="A k of pass@k; again for more. Default: 1 and --samples.", show_default=False),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", min=0.0, help="Default: the run's. 0 is greedy.", show_default=False),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Fixes what is sampled.")]
VersionOption = Annotated[
    int | None, typer.Option("--version", min=0, help="Policy version of the run. Default: the newest published.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="YAML file of the job, for weights of no run.")
]
HistoryOption = Annotated[bool, typer.Option("--history", help="Only list the evaluations that there were.")]


def register(app: typer.Typer) -> None:
    app.command("eval")(evaluate)


def evaluate(
    what: SubjectArgument,
    overrides: OverridesArgument = None,
    *,
    tasks: TasksOption = "heldout",
    samples: SamplesOption = 1,
    k: KsOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = 0,
    version: VersionOption = None,
    config: ConfigOption = None,
    history: HistoryOption = False,
    json_: JsonOption = False,
    runs_dir: RunsDirOption = _RUNS,
) -> None:
    """Measure pass@k of a run's or a folder's weights. Exits with 1 if a sample has no usable verdict."""
    from dataclasses import replace

    from agentrl.controller.evaluation.session import EvaluationJob
    from agentrl.controller.evaluation.subject import find_subject, with_weights, workplace
    from agentrl.controller.evaluation.task_choice import choose, chosen_tasks
    from agentrl.ledger.evaluations import EvaluationLedger, read_evaluations

    subject = find_subject(what, runs_dir, version)
    if history:
        _print_history(read_evaluations(subject.ledger), json_=json_)
        return
    job_config = _config(subject, config, overrides or [])
    ks = tuple(sorted(set(k or (1, samples))))
    if ks[-1] > samples:
        raise UserError(f"-k {ks[-1]} needs as many samples of a task, and -n is {samples}", hint=f"-n {ks[-1]}")
    heat = job_config.agent.temperature if temperature is None else temperature
    if heat == 0 and samples > 1:
        raise UserError(f"-n {samples}: at temperature 0 all samples of a task are the same", hint="leave -n out")
    earlier = read_evaluations(subject.ledger)
    with workplace(what, runs_dir, version) as work:
        own = any(text.startswith("tasks.include=") for text in overrides or [])
        choice = choose(job_config.tasks, tasks, include=job_config.tasks.include if own else None)
        job_config = replace(with_weights(job_config, work.weights), tasks=choice.tasks)
        _check(job_config, work)
        job = EvaluationJob(
            config=job_config,
            weights=work.weights,
            version=work.subject.version,
            tasks_name=tasks,
            tasks=chosen_tasks(job_config, choice, work.place.tasks),
            num_samples=samples,
            ks=ks,
            temperature=heat,
            seed=seed,
            subject=str(work.subject.weights),
        )
        ledger = EvaluationLedger.open(subject.ledger)
        try:
            evaluated = _run(job, work.place, ledger, quiet=json_)
        finally:
            ledger.close()
    records = read_evaluations(subject.ledger)
    newest = next(record for record in records if record.id == evaluated.number)
    if json_:
        print(json.dumps(_as_json(newest, newest), indent=1))
    else:
        _print(newest)
        if earlier:
            print()
            _print_history([*earlier[-_SHOWN:], newest], json_=False)
    if evaluated.figures["num_unusable"]:
        raise typer.Exit(1)


def _config(subject: Subject, file: Path | None, overrides: list[str]) -> JobConfig:
    """The job's settings. Raises UserError."""
    from agentrl.config.changed import changed
    from agentrl.config.compose import load

    if file is not None:
        return load(file, overrides).config
    if subject.run is None:
        raise UserError(f"{subject.weights} is of no run, so nothing says how its agent acts", hint="--config FILE")
    return changed(subject.run.load_config(), overrides)


def _check(config: JobConfig, work: Workplace) -> None:
    """What a launch would refuse, but for what concerns training alone, and engines that a live run has. Prints
    warnings. Raises UserError."""
    import sys

    from agentrl.config.lint import lint, raise_on_errors
    from agentrl.controller.lifecycle.preflight import preflight
    from agentrl.inference.config import EngineBackend

    raise_on_errors([found for found in lint(config) if found.where.partition(".")[0] in _CONCERNED])
    attached, run = config.inference.backend is EngineBackend.attached, work.subject.run
    if attached and run is not None and run.holder() is not None:
        shared = set(config.inference.urls) & set(run.load_config().inference.urls)
        if shared:
            raise UserError(
                f"run {run.name} is live and uses {shared.pop()}: evaluating would change its weights",
                hint="stop it first, or give other servers: 'inference.urls=[...]'",
            )
    for warning in preflight(config, state_dir=work.place.sandboxes):
        print(f"warning: {warning}", file=sys.stderr)


def _run(job: EvaluationJob, place: RunDirectory, ledger: EvaluationLedger, *, quiet: bool) -> Evaluated:
    """To its end, which SIGTERM brings too. Raises the first of the errors that ended it."""
    import asyncio
    import signal

    from agentrl.cli.simulated import progress
    from agentrl.controller.evaluation.session import evaluate_weights
    from agentrl.controller.lifecycle.job import leaves
    from agentrl.errors import AgentrlError

    async def interruptible() -> Evaluated:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with progress(0 if quiet else job.num_episodes, "evaluating") as advance:
            return await evaluate_weights(job, place, ledger, advance)

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except BaseExceptionGroup as errors:
        ours = [error for error in leaves(errors) if isinstance(error, AgentrlError)]
        raise (ours[0] if ours else errors) from None


def _print(record: EvaluationRecord) -> None:
    from agentrl.cli.table import Column, print_table

    start, figures = record.start, record.figures or {}
    greedy = start.fingerprint["agent.temperature"] == "0"
    how = "greedy" if greedy else f"temperature {start.fingerprint['agent.temperature']}, seed {start.seed}"
    print(f"weights   {start.weights} (version {start.version})")
    print(f"tasks     {start.tasks}: {start.num_tasks} x {start.num_samples} samples, {how}")
    print(f"engine    {_engine(start.fingerprint)}")
    print(f"proof     {_proof(record)}")
    rows = [
        (
            f"pass@{k}",
            f"{found['value']:.3f}",
            f"{found['low']:.3f} to {found['high']:.3f}",
            str(found["num_tasks"]),
            found["method"],
        )
        for k, found in figures["pass_at_k"].items()
        if found is not None
    ]
    titles = ("", "value", "95 % interval", "tasks", "by")
    print_table([Column(title, number=title in ("value", "tasks")) for title in titles], rows)
    reward = "-" if figures["reward"] is None else f"{figures['reward']:.3f}"
    verdicts = ", ".join(f"{name} {count}" for name, count in sorted(figures["verdicts"].items()))
    print(f"mean reward {reward}; {verdicts}")
    if figures["num_unusable"]:
        print(f"{figures['num_unusable']} of {figures['num_samples']} samples have no usable verdict and count nowhere")


def _figures(found: Mapping[str, Any]) -> tuple[str, str]:
    return f"{found['value']:.3f}", f"{found['low']:.3f} to {found['high']:.3f}"


def _engine(fingerprint: Mapping[str, str]) -> str:
    told = {name.removeprefix("engine."): value for name, value in fingerprint.items() if name.startswith("engine.")}
    version = told.pop("version", "?")
    return f"{fingerprint['inference.backend']} {version}; " + ", ".join(f"{k} {v}" for k, v in told.items())


def _proof(record: EvaluationRecord) -> str:
    figures = record.figures or {}
    tokens = f"{figures['num_tokens']:,} sampled tokens, all of version {record.start.version}"
    difference = figures["probe_difference"]
    if difference is None:
        return f"{tokens}; the trainer left no probe beside these weights, so the engines' word stands alone"
    return f"{tokens}; engines agree with the trainer's log-probs to {difference:.1g}"


def _print_history(records: list[EvaluationRecord], *, json_: bool) -> None:
    """Evaluations, the newest last, and whether each can be compared with it."""
    from datetime import datetime

    from agentrl.cli.table import Column, print_table
    from agentrl.controller.evaluation.fingerprint import differences

    newest = records[-1] if records else None
    if json_:
        print(json.dumps([_as_json(record, newest or record) for record in records], indent=1))
        return
    if newest is None:
        print("no evaluations yet")
        return
    rows = [
        (
            str(record.id),
            datetime.fromtimestamp(record.began_at).isoformat(sep=" ", timespec="minutes"),
            str(record.start.version),
            record.start.tasks,
            f"{record.start.num_tasks} x {record.start.num_samples}",
            _pass_at_1(record),
            _comparable(differences(record.start.fingerprint, newest.start.fingerprint)),
        )
        for record in records
    ]
    columns = [Column("no", number=True), Column("began", spare=True), Column("version", number=True), Column("tasks")]
    columns += [Column("samples"), Column("pass@1"), Column(f"comparable with {newest.id}", folds=True)]
    print_table(columns, rows)


def _pass_at_1(record: EvaluationRecord) -> str:
    if record.figures is None:
        return "did not end"
    found = record.figures["pass_at_k"].get("1")
    return "-" if found is None else "{} ({})".format(*_figures(found))


def _comparable(different: list[str]) -> str:
    if not different:
        return "yes"
    more = f", and {len(different) - 2} more" if len(different) > 2 else ""
    return f"no: {', '.join(different[:2])}{more}"


def _as_json(record: EvaluationRecord, newest: EvaluationRecord) -> dict[str, Any]:
    from dataclasses import asdict

    from agentrl.controller.evaluation.fingerprint import differences

    different = differences(record.start.fingerprint, newest.start.fingerprint)
    start = asdict(record.start)
    return {
        "evaluation": record.id,
        "began_at": record.began_at,
        "ended_at": record.ended_at,
        **start,
        "figures": record.figures,
        "compared_with": newest.id,
        "comparable": not different,
        "differences": different,
    }
