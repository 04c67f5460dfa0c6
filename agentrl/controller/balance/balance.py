"""Whether the swing engines generate or train. Pure: measured values in, a decision with its reasons out.

A complete batch is trained, unless waiting for a second one saves enough of the switches. After training the swing
engines go back to generation only if that brings the next batch sooner by more than the switches there and back cost,
and a margin. Times are seconds, rates sampled tokens a second over all engines that generate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

MARGIN = 0.25
"""Of the cost of switching there and back: by so much the predicted gain must exceed it. Predictions differ from what
comes by some per cent of a batch; without a margin two choices that are equally good would alternate."""
WORTH_WAITING = 0.1
"""Share of a step's time that a second batch before one switch must save: its data is a version older."""


class Choice(StrEnum):
    """What the swing engines do next."""

    TRAIN = "train"
    GENERATE = "generate"
    """A batch is ready, but a second one is waited for."""
    RETURN = "return"
    """After training: back to generation until the next batch is ready."""
    STAY = "stay"
    """After training: with the trainer until the next batch is ready."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a decision is made of. None: not measured yet."""

    num_swing: int
    num_dedicated: int
    """Dedicated engines in service."""
    batch_ready: bool
    """The next batch can be taken."""
    num_ready: int
    """Complete groups."""
    groups_per_step: int
    open_groups: int
    """Groups that may still be open at once beside the ready ones."""
    spare_lag: int
    """Steps by which the oldest ready group may still age."""
    rate_all: float | None
    """Tokens a second while the swing engines generate too."""
    rate_dedicated: float | None
    """While they do not."""
    remaining_tokens: float | None
    """Still to be sampled until the next batch is complete, by the mean of the last ones."""
    there_s: float
    """From a batch to the start of its training: routing cut, requests collected, memory released."""
    back_s: float
    """From the end of training until the swing engines serve again."""
    train_s: float | None
    """The last step."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    choice: Choice
    reason: str
    predicted_s: float | None = None
    """From the decision to the start of the next training, as chosen."""
    alternative_s: float | None = None
    """The same had the other been chosen."""

    @property
    def gain_s(self) -> float | None:
        """Predicted; None where nothing was compared."""
        if self.predicted_s is None or self.alternative_s is None:
            return None
        return self.alternative_s - self.predicted_s


def when_ready(now: Situation) -> Decision:
    """A batch is complete and the swing engines generate: TRAIN, or GENERATE until a second batch is complete too.

    With two batches before one switch each step pays half of it. That takes a second batch's worth of open groups, and
    data that may be a version older.
    """
    if not now.num_swing:
        return Decision(choice=Choice.TRAIN, reason="the trainer has GPUs of its own")
    if now.num_ready >= 2 * now.groups_per_step:
        return Decision(choice=Choice.TRAIN, reason="two batches are ready")
    if now.spare_lag < 1 or now.num_ready + now.open_groups < 3 * now.groups_per_step:
        return Decision(choice=Choice.TRAIN, reason="a second batch has no room")
    if now.rate_all is None or now.remaining_tokens is None or now.train_s is None:
        return Decision(choice=Choice.TRAIN, reason="not measured yet")
    saved_s = (now.there_s + now.back_s) / 2
    step_s = now.remaining_tokens / now.rate_all + now.train_s + now.there_s + now.back_s
    if saved_s <= WORTH_WAITING * step_s:
        return Decision(choice=Choice.TRAIN, reason="switching costs little")
    return Decision(
        choice=Choice.GENERATE,
        reason="one switch for two batches",
        predicted_s=step_s - saved_s,
        alternative_s=step_s,
    )


def after_training(now: Situation) -> Decision:
    """The swing engines are with the trainer, which has nothing to do: RETURN or STAY."""
    if not now.num_swing:
        return Decision(
            choice=Choice.STAY, reason="the trainer has GPUs of its own", predicted_s=_time(now, alone=False)
        )
    if now.batch_ready:
        return Decision(choice=Choice.STAY, reason="the next batch is ready", predicted_s=0.0)
    returned_s, stayed_s = _returned(now), _time(now, alone=True)
    if not now.num_dedicated:
        return Decision(choice=Choice.RETURN, reason="nobody else generates", predicted_s=returned_s)
    if returned_s is None or stayed_s is None:
        return Decision(choice=Choice.RETURN, reason="not measured yet", predicted_s=returned_s)
    margin_s = MARGIN * (now.there_s + now.back_s)
    if stayed_s - returned_s > margin_s:
        reason = "the next batch comes sooner"
        return Decision(choice=Choice.RETURN, reason=reason, predicted_s=returned_s, alternative_s=stayed_s)
    reason = "switching costs more than it brings"
    return Decision(choice=Choice.STAY, reason=reason, predicted_s=stayed_s, alternative_s=returned_s)


def _returned(now: Situation) -> float | None:
    """Until training starts if the swing engines go back now and come again when the batch is complete."""
    if now.rate_all is None or now.remaining_tokens is None:
        return None
    meanwhile = (_alone(now) or 0.0) * now.back_s
    return now.back_s + max(now.remaining_tokens - meanwhile, 0.0) / now.rate_all + now.there_s


def _time(now: Situation, *, alone: bool) -> float | None:
    """Until the next batch is complete if nothing is switched."""
    rate = _alone(now) if alone else now.rate_all
    if not rate or now.remaining_tokens is None:
        return None
    return now.remaining_tokens / rate


def _alone(now: Situation) -> float | None:
    """Rate of the dedicated engines; not measured yet, their share of the whole rate."""
    if now.rate_dedicated is not None or now.rate_all is None:
        return now.rate_dedicated
    return now.rate_all * now.num_dedicated / (now.num_dedicated + now.num_swing)


def inputs(now: Situation) -> dict[str, Any]:
    """For the record."""
    return asdict(now)
