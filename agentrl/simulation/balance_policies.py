"""What a division of GPUs between generation and training comes to, with training counted: fixed splits and balance.

A split `split_G` gives G GPUs to engines and the rest to a trainer of its own (`swing: none`). `balance_K` gives every
GPU an engine, of which K swing. All meet the same episodes.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from agentrl.ledger.accounts import read_balance, read_gpu_time
from agentrl.ledger.ledger import Ledger
from agentrl.ledger.reader import LedgerReader
from agentrl.simulation.config import Hardware, Workload
from agentrl.simulation.loop import START_S, simulate
from agentrl.simulation.run import Scenario, build, reference_config
from agentrl.trainer.config import TrainerConfig

WARM_UP_STEPS = 3
"""Steps that are not counted: the first batches begin with nothing running."""
_OVER_PROVISION = 1.25
_WINDOW_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class BalanceFigures:
    """One run of one mode. Times in seconds."""

    mode: str
    step_s: float
    """Mean time between the ends of two steps, the first ones dropped."""
    gpu_share: dict[str, float]
    """Share of all GPU time by use; adds up to 1."""
    lag_mean: float
    """Versions between a trained episode's oldest token and its training."""
    choices: dict[str, int]
    """How often the balance chose what."""
    prediction_error: float | None
    """Mean of |realised - predicted| / realised over the decisions that predicted something."""


def splits(hardware: Hardware) -> tuple[str, ...]:
    """Every fixed split of as many GPUs as there are engines."""
    return tuple(f"split_{engines}" for engines in range(1, hardware.engines))


def measure_balance(mode: str, workload: Workload, hardware: Hardware, *, seed: int, steps: int = 50) -> BalanceFigures:
    """One run of `split_G` or `balance_K` over `steps` steps. Equal seeds draw equal episodes for all modes."""
    kind, _, number = mode.partition("_")
    num_gpus = hardware.engines
    fixed = kind == "split"
    if fixed:
        trainer = msgspec.structs.replace(hardware.trainer, gpus=num_gpus - int(number))
        hardware = msgspec.structs.replace(hardware, engines=int(number), trainer=trainer)
    live = int(_OVER_PROVISION * min(workload.groups * workload.group_size, hardware.sandboxes))
    config = reference_config(
        workload,
        hardware,
        seed=seed,
        steps=steps,
        window_groups=_WINDOW_BATCHES * workload.groups,
        live=live,
        warm_max=live,
    )
    config = replace(
        config,
        schedule=replace(config.schedule, swing="none" if fixed else number),
        trainer=TrainerConfig(
            step_timeout_s=config.trainer.step_timeout_s, world_size=hardware.trainer.gpus if fixed else int(number)
        ),
    )
    scenario = Scenario(config=config, workload=workload, hardware=hardware, hygiene=True)

    async def run() -> BalanceFigures:
        ledger = Ledger.take(":memory:")
        await build(scenario, ledger).run()
        return _figures(mode, LedgerReader.of(ledger))

    return simulate(run(), seed=seed, horizon_s=400 * 86_400.0)


def scaled(workload: Workload, hardware: Hardware, *, by: int) -> tuple[Workload, Hardware]:
    """A model at 1 / `by` of the size: so many groups fewer, on GPUs that are each so much smaller.

    An engine with a share of the KV capacity, slots, prefill speed and decoding speed per request has the same step
    time at the same relative load, so every mode keeps its place; single requests are prefilled more slowly, and small
    batches are luckier. Raises ValueError if a full context does not fit the smaller KV capacity.
    """
    engine, trainer = hardware.engine, hardware.trainer
    engine = msgspec.structs.replace(
        engine,
        kv_tokens=engine.kv_tokens // by,
        max_running=engine.max_running // by,
        prefill_tokens_per_s=engine.prefill_tokens_per_s / by,
        step_per_running_s=engine.step_per_running_s * by,
        step_per_context_token_s=engine.step_per_context_token_s * by,
    )
    engine.__post_init__()
    trainer = msgspec.structs.replace(trainer, step_per_token_s=trainer.step_per_token_s * by)
    smaller = msgspec.structs.replace(
        hardware,
        engine=engine,
        trainer=trainer,
        sandboxes=hardware.sandboxes // by,
        sandbox_starts=max(hardware.sandbox_starts // by, 1),
    )
    growth_groups = max(workload.turns_growth_groups // by, 1)
    fewer = msgspec.structs.replace(workload, groups=workload.groups // by, turns_growth_groups=growth_groups)
    return fewer, smaller


def largest_scale(workload: Workload, hardware: Hardware) -> int:
    """The largest `by` that `scaled` takes: engines hold a full context and run something, a batch has a group."""
    most = 1
    for by in range(2, min(workload.groups, hardware.engine.max_running, hardware.sandboxes) + 1):
        try:
            scaled(workload, hardware, by=by)
        except ValueError:
            break
        most = by
    return most


def _figures(mode: str, reader: LedgerReader) -> BalanceFigures:
    ends = [step.applied_at - START_S for step in reader.steps() if step.applied_at is not None]
    counted = min(WARM_UP_STEPS, len(ends) - 1)
    decisions = read_balance(reader)
    return BalanceFigures(
        mode=mode,
        step_s=(ends[-1] - ends[counted - 1]) / (len(ends) - counted) if counted else ends[0],
        gpu_share=_shares(reader),
        lag_mean=_lag(reader),
        choices=dict(Counter(row.choice for row in decisions)),
        prediction_error=_error([(r.predicted_s, r.realised_s) for r in decisions]),
    )


def _shares(reader: LedgerReader) -> dict[str, float]:
    spent: Counter[str] = Counter()
    for row in read_gpu_time(reader):
        spent[row.use] += row.num_gpus * row.spent_us
    total = spent.total()
    return {use: spent_us / total for use, spent_us in sorted(spent.items())}


def _lag(reader: LedgerReader) -> float:
    steps = {group.id: group.step for group in reader.groups(["batched"])}
    lags = [
        step - 1 - row.oldest_version
        for row in reader.episodes()
        if (step := steps.get(row.group)) is not None and row.oldest_version is not None and row.reward is not None
    ]
    return statistics.mean(lags)


def _error(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    errors = [abs(real - said) / real for said, real in pairs if said and real]
    return statistics.mean(errors) if errors else None
