"""Whether an engine serves the weights that it was given: the trainer's word against its own.

The trainer leaves a `Probe` beside each version's weights, so that it is there for whoever loads them, whenever, and
whatever has died since.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from agentrl.controller.config import InFlight, PublishConfig
from agentrl.inference.config import Dtype
from agentrl.inference.engine import PauseMode
from agentrl.wire import PROBE_FILE, Probe, whole_checksum

ProbeOf = Callable[[str], Probe | None]
"""What the trainer says of the weights in a folder."""

PAUSES = {
    InFlight.abort_resume: PauseMode.ABORT,
    InFlight.drain: PauseMode.ABORT,
    InFlight.retract: PauseMode.RETRACT,
    InFlight.in_place: PauseMode.IN_PLACE,
}
"""What stops an engine before its weights change."""

TOLERANCES = {Dtype.float32: 1e-3, Dtype.bfloat16: 0.05}
"""Mean absolute difference of log-probs, by the engine's number format; the trainer computes in float32. Equal weights
were seen to differ by 6e-6 (SGLang on CPU, float32) and by up to 0.02 (bfloat16) a token."""


def read_probe(weights_path: str) -> Probe | None:
    """The probe in a folder of weights; None where there is none, as for those that a run starts from."""
    try:
        return msgspec.json.decode((Path(weights_path) / PROBE_FILE).read_bytes(), type=Probe)
    except FileNotFoundError:
        return None


def tolerance(config: PublishConfig, dtype: Dtype) -> float:
    """Difference up to which an engine is believed."""
    return TOLERANCES[dtype] if config.probe_tolerance is None else config.probe_tolerance


def difference(probe: Probe, told: Sequence[float]) -> float:
    """Mean absolute difference between the trainer's and an engine's log-probs; infinite where they have no number.

    Each is of whichever token the respective side holds for the most probable: the maximum of a log-softmax moves by
    no more than its inputs, so a tie that the two break differently is no difference.
    """
    pairs = list(zip(probe.logprobs, told, strict=True))
    mean = math.fsum(abs(trainer - engine) for trainer, engine in pairs) / len(pairs)
    return mean if math.isfinite(mean) else math.inf


class Checksums:
    """What a version's tensors must be, bit by bit, where only changes travel."""

    def __init__(self, *, exact: bool) -> None:
        """`exact`: engines name and cut tensors as the trainer does, so that they are held against its word. Otherwise
        the first engine of a version that has passed the probe is believed, and the others must have what it has."""
        self._exact = exact
        self._first: tuple[int, str] | None = None

    def agree(self, version: int, probe: Probe, told: Mapping[str, str]) -> bool:
        """Whether an engine has the weights of a version."""
        found = whole_checksum(told)
        if self._exact:
            return found == probe.checksum
        if self._first is None or self._first[0] != version:
            self._first = version, found
        return found == self._first[1]
