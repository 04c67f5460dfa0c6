"""From what a run's ledger says to the laws of its workload and machine, and how well they fit.

What a ledger cannot tell is not made up: a run says nothing about warm sandboxes (they start as cold ones do), nor
about the cost of a long context (none), nor about what happens without hygiene (failures are those it had).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import yaml

from agentrl.config.schema import JobConfig
from agentrl.errors import UserError
from agentrl.simulation.config import EngineLaw, Hardware, TrainerLaw, Workload
from agentrl.simulation.fit import (
    fit_law,
    fit_success,
    fit_turns,
    group_share,
    ks_distance,
    least_squares,
    overlapping,
    service_times,
)
from agentrl.simulation.job import trainer_gpus
from agentrl.simulation.laws import AnyLaw, Constant, Quantiles
from agentrl.simulation.observed import Observed

MIN_EPISODES = 20
"""Ended episodes without which there is nothing to fit; 200 and more make laws that one can trust."""
_RESTART_S = 30.0
"""Of engine and trainer: ledgers of runs without losses do not tell."""
_LEAST_S = 1e-6
_ENGINE_TRIM = 0.98
"""Generations slower than this share of all are left out of the engine's law: they waited for something else."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One law against its samples."""

    name: str
    num_samples: int
    ks: float
    """Kolmogorov-Smirnov distance, 0 to 1: of draws from the law to the samples."""
    measured_p50: float
    measured_p95: float
    fitted_p50: float
    fitted_p95: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Laws fitted to a run."""

    workload: Workload
    hardware: Hardware
    fits: tuple[Fit, ...]

    def as_yaml(self, source: str) -> tuple[str, str]:
        """The text of a workload file and of a hardware file."""
        return _yaml(self.workload, source), _yaml(self.hardware, source)


def calibrate(observed: Observed, config: JobConfig) -> Calibration:
    """Laws from samples; sizes and limits are the configuration's. Raises UserError with too few episodes."""
    if len(observed.turns) < MIN_EPISODES or not observed.generations:
        raise UserError(
            f"{len(observed.turns)} usable episodes are too few to fit laws to",
            hint=f"at least {MIN_EPISODES}; 200 and more give laws to rely on",
        )
    asked, up = zip(*observed.starts, strict=True)
    starts = observed.starts_s or service_times(asked, up, at_once=config.sandbox.start_concurrency)
    samples: dict[str, Sequence[float]] = {
        "generated_tokens": observed.generated_tokens,
        "observation_tokens": observed.observation_tokens,
        "tool_s": observed.tool_s,
        "verifier_s": observed.verifier_s,
        "start_cold_s": starts,
    }
    laws: dict[str, AnyLaw] = {name: fit_law(values) for name, values in samples.items()}
    turns = fit_turns(observed.turns)
    engine, engine_fit = _engine(observed, config)
    workload = Workload(
        groups=config.schedule.groups_per_step,
        group_size=config.algorithm.group_size,
        turns=turns,
        turns_group_share=round(group_share(observed.turns_by_group), 3),
        generated_tokens=laws["generated_tokens"],
        max_turn_tokens=config.agent.max_turn_tokens,
        observation_tokens=laws["observation_tokens"],
        prompt_tokens=max(round(statistics.median(observed.prompt_tokens)), 1),
        max_episode_tokens=config.agent.max_episode_tokens,
        tool_s=laws["tool_s"],
        verifier_s=laws["verifier_s"],
        start_cold_s=laws["start_cold_s"],
        start_hang_share=0.0,
        start_hang_s=Constant(value=0.0),
        start_warm_s=laws["start_cold_s"],
        failure_share=round(observed.infrastructure_share, 4),
        failure_share_hygiene=round(observed.infrastructure_share, 4),
        success=fit_success(observed.rewards_by_group),
        hardware="laptop",
    )
    hardware = Hardware(
        engines=config.inference.num_engines,
        engine=engine,
        trainer=_trainer(observed, config),
        sandboxes=config.sandbox.max_sandboxes,
        sandbox_starts=config.sandbox.start_concurrency,
    )
    fits = [_fit("turns", observed.turns, turns), *(_fit(name, samples[name], law) for name, law in laws.items())]
    return Calibration(workload=workload, hardware=hardware, fits=(*fits, engine_fit))


def _engine(observed: Observed, config: JobConfig) -> tuple[EngineLaw, Fit]:
    """Least squares of a generation's seconds on one, its tokens, its tokens times those beside it, its new context."""
    generations = observed.generations
    seconds = np.array([g.ended - g.began for g in generations])
    tokens = np.array([float(g.num_sampled) for g in generations])
    running = np.array(overlapping([g.began for g in generations], [g.ended for g in generations]))
    running /= config.inference.num_engines
    context = np.array([float(g.num_new_context) for g in generations])
    columns = np.stack([np.ones_like(tokens), tokens, tokens * running, context], axis=1)
    usual = seconds <= np.quantile(seconds, _ENGINE_TRIM)
    request_s, step_s, per_running_s, prefill_s = least_squares(columns[usual], seconds[usual]).tolist()
    law = EngineLaw(
        kv_tokens=config.inference.max_total_tokens,
        context_tokens=config.inference.context_length,
        max_running=config.inference.max_running_requests,
        prefill_tokens_per_s=_round(1 / max(prefill_s, 1e-7)),
        decode_share_while_prefilling=1.0,
        step_s=_round(max(step_s, _LEAST_S)),
        step_per_running_s=_round(per_running_s),
        step_per_context_token_s=0.0,
        reserve_tokens=0,
        request_s=_round(request_s),
        update_weights_s=_round(statistics.median(observed.publish_s or [0.0])),
        release_memory_s=0.0,
        resume_memory_s=0.0,
        restart_s=_RESTART_S,
    )
    fitted = columns @ np.array([request_s, step_s, per_running_s, prefill_s])
    ordered, drawn = np.sort(seconds), np.sort(fitted)
    every = np.concatenate([ordered, drawn])
    shares = [np.searchsorted(values, every, side="right") / len(values) for values in (ordered, drawn)]
    fit = Fit(
        name="generation_s (engine)",
        num_samples=len(seconds),
        ks=float(np.abs(shares[0] - shares[1]).max()),
        measured_p50=float(np.quantile(seconds, 0.5)),
        measured_p95=float(np.quantile(seconds, 0.95)),
        fitted_p50=float(np.quantile(fitted, 0.5)),
        fitted_p95=float(np.quantile(fitted, 0.95)),
    )
    return law, fit


def _trainer(observed: Observed, config: JobConfig) -> TrainerLaw:
    """Least squares of a step's seconds on one and on its tokens, each GPU taking its part of these."""
    gpus = trainer_gpus(config)
    if not observed.train:
        return TrainerLaw(step_s=0.0, step_per_token_s=0.0, gpus=gpus, restart_s=_RESTART_S)
    tokens = np.array([tokens / gpus for tokens, _ in observed.train])
    seconds = np.array([seconds for _, seconds in observed.train])
    step_s, per_token_s = least_squares(np.stack([np.ones_like(tokens), tokens], axis=1), seconds).tolist()
    return TrainerLaw(step_s=_round(step_s), step_per_token_s=_round(per_token_s), gpus=gpus, restart_s=_RESTART_S)


def _fit(name: str, values: Sequence[float], law: AnyLaw) -> Fit:
    if not values:
        return Fit(name=name, num_samples=0, ks=0.0, measured_p50=0, measured_p95=0, fitted_p50=0, fitted_p95=0)
    p50, p95 = np.quantile(values, 0.5), np.quantile(values, 0.95)
    fitted = (law.at_share(0.5), law.at_share(0.95)) if isinstance(law, Quantiles) else _constant(law)
    return Fit(
        name=name,
        num_samples=len(values),
        ks=ks_distance(law, values),
        measured_p50=float(p50),
        measured_p95=float(p95),
        fitted_p50=fitted[0],
        fitted_p95=fitted[1],
    )


def _constant(law: AnyLaw) -> tuple[float, float]:
    assert isinstance(law, Constant)
    return law.value, law.value


def _round(value: float) -> float:
    """Four significant digits: laws are read by people too."""
    return float(f"{value:.4g}")


def _yaml(laws: Workload | Hardware, source: str) -> str:
    tree = {key: value for key, value in msgspec.to_builtins(laws).items() if value is not None}
    return f"# Fitted to {source}.\n" + "".join(_entry(key, value) for key, value in tree.items())


def _entry(key: str, value: Any) -> str:
    text: str = yaml.safe_dump({key: _rounded(value)}, default_flow_style=None, sort_keys=False, width=116)
    return text if isinstance(value, dict) else f"{key}: {_rounded(value)}\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return _round(value)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value
