"""The engine without threads or HTTP: scheduler, model, KV cache and sampler, driven one step at a time.

Everything here happens in one thread. Commands take effect between two steps.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from agentrl.inference.embedded.batch import make_batch
from agentrl.inference.embedded.kv import KvCache
from agentrl.inference.embedded.model import CausalModel
from agentrl.inference.embedded.requests import BadRequest
from agentrl.inference.embedded.sampling import Sampler
from agentrl.inference.embedded.scheduler import Limits, Scheduler
from agentrl.inference.embedded.sequence import End, Sequence, Snapshot
from agentrl.inference.embedded.stats import Stats, Totals
from agentrl.inference.embedded.weights import WeightsError, delta_base, read_safetensors
from agentrl.inference.engine import PauseMode
from agentrl.inference.labels import parse_label
from agentrl.transfer.digest import digest

WEIGHTS, KV_CACHE = "weights", "kv_cache"
MEMORY_TAGS = (WEIGHTS, KV_CACHE, "cuda_graph")
"""Tags of SGLang's memory calls; there is nothing under the last one here."""


@dataclass(frozen=True)
class Update:
    """Weights to serve when the scheduler has drained."""

    source: Path | Mapping[str, torch.Tensor]
    """A folder, or tensors that take the place of those with the same names."""
    version: str | None
    flush: bool


class EngineCore:
    """One model being served."""

    def __init__(
        self, model: CausalModel, folder: Path, *, limits: Limits, context_length: int, version: str, dtype: torch.dtype
    ) -> None:
        self.scheduler = Scheduler(limits, version)
        self.folder = folder
        """Where the weights that serve now were loaded from."""
        self._model = model
        self._dtype = dtype
        self._context_length = context_length
        self._kv: KvCache | None = self._new_kv()
        self._sampler = Sampler(model.vocab_size)
        self._released: set[str] = set()
        self._whole = True
        """All that serves came from `folder`, and can be read there again."""
        self._weightless = False
        """Memory was taken back, but the weights were nowhere to be read: requests wait for an update."""
        self._totals = Totals()

    # --- requests ----------------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> Snapshot | None:
        """Queue a sequence. Returns its end at once if it asks for no tokens."""
        if sequence.sampling.max_new_tokens == 0:
            sequence.end = End.LENGTH
            return self._snapshot(sequence)
        self.scheduler.submit(sequence)
        return None

    def abort(self, rid_prefix: str) -> list[Snapshot]:
        """End the requests whose rid starts with `rid_prefix`, as SGLang matches them; "" is all."""
        return self._snapshots(self.scheduler.abort(lambda sequence: sequence.rid.startswith(rid_prefix), "aborted"))

    def forget(self, keys: set[int]) -> None:
        """End requests that nobody waits for any more."""
        self.scheduler.abort(lambda sequence: sequence.key in keys, "the client went away")

    def pause(self, mode: PauseMode) -> list[Snapshot]:
        return self._snapshots(self.scheduler.pause(mode))

    # --- weights and memory ------------------------------------------------------------------------------------

    def flush(self) -> bool:
        return self.scheduler.flush()

    def update(self, update: Update) -> int:
        """Serve other weights; returns how many requests were held meanwhile. Raises WeightsError: nothing changed."""
        if WEIGHTS in self._released:
            raise WeightsError("the weights are released: resume memory occupation first")
        if isinstance(update.source, Path):
            self._read(update.source)
        else:
            self._model.change(update.source)
            self._whole = False
        self._weightless = False
        self._block()
        num_held = len(self.scheduler.running) + len(self.scheduler.waiting)
        self.scheduler.weights_changed(update.version or self.scheduler.version, flush=update.flush)
        return num_held

    def label(self, version: str) -> None:
        """Call the weights that serve something else."""
        self.scheduler.weights_changed(version, flush=False)

    def digests(self) -> dict[str, str]:
        """Of each tensor that serves, by its name in a folder."""
        return {name: digest(tensor) for name, tensor in self._model.named().items()}

    def _read(self, folder: Path) -> None:
        """All of a folder, or what it says has changed since what serves."""
        base = delta_base(folder)
        if base is None:
            self._model.load(folder)
            self.folder, self._whole = folder, True
            return
        label = parse_label(self.scheduler.version)
        if label is None or label.version < base:
            raise WeightsError(f"{folder} is a change to version {base}, and {self.scheduler.version} serves")
        self._model.change(read_safetensors(folder))
        self._whole = False

    def release(self, tags: list[str] | None) -> None:
        """Give up weights and KV memory. Requests that come meanwhile wait. Raises BadRequest if something runs."""
        wanted = self._memory_tags(tags)
        if not self.scheduler.idle:
            raise BadRequest("requests are running: pause or abort them first")
        self.scheduler.flush()
        if WEIGHTS in wanted:
            self._model.release()
            self._weightless = False
        if KV_CACHE in wanted:
            self._kv = None
        self._released |= wanted
        self._block()
        _return_freed_memory()

    def reclaim(self, tags: list[str] | None) -> None:
        """Take back what was released; weights come from the folder last loaded. Raises BadRequest or WeightsError.

        They may have come from no folder, or old ones may have been removed meanwhile. Whoever sent or removed them has
        them, or newer ones: requests wait for these.
        """
        wanted = self._memory_tags(tags) & self._released
        if WEIGHTS in wanted:
            self._weightless = not (self._whole and self.folder.is_dir())
            if not self._weightless:
                self._model.load(self.folder)
        if KV_CACHE in wanted:
            self._kv = self._new_kv()
        self._released -= wanted
        self._block()

    # --- a step ------------------------------------------------------------------------------------------------

    def step(self) -> list[Snapshot] | None:
        """Compute one step. Returns what streams and what ended, or None if there was nothing to do."""
        now = time.monotonic()
        plan = self.scheduler.plan(now)
        if self._kv is None:
            return None
        for operation in plan.operations:
            self._kv.apply(operation)
        works = plan.works
        if not works:
            return None
        logits = self._model.forward(make_batch(plan), self._kv)
        sampling = [work.sequence for work in works if work.samples]
        samples = self._sampler.sample(logits, sampling) if sampling else []
        now = time.monotonic()
        ended = self.scheduler.commit(works, samples, now)
        self._totals.count_step(works, len(samples), now)
        streaming = [sequence for sequence in sampling if sequence.stream and sequence.end is None]
        return self._snapshots(streaming + ended, now)

    def stats(self) -> Stats:
        """Figures of this moment."""
        scheduler = self.scheduler
        num_running, num_waiting = len(scheduler.running), len(scheduler.waiting)
        return Stats(
            num_running=num_running,
            num_waiting=num_waiting,
            num_paused=num_running + num_waiting if scheduler.paused else 0,
            max_running=scheduler.limits.max_running,
            used_tokens=scheduler.used_tokens,
            parked_tokens=scheduler.parked_tokens,
            max_total_tokens=scheduler.limits.max_total_tokens,
            prompt_tokens_total=self._totals.prompt_tokens,
            cached_tokens_total=scheduler.num_cached_tokens,
            generation_tokens_total=self._totals.generation_tokens,
            gen_throughput=self._totals.throughput(time.monotonic()),
            blocked=scheduler.blocked,
            version=scheduler.version,
        )

    # --- inside ------------------------------------------------------------------------------------------------

    def _block(self) -> None:
        """Nothing is computed without weights or KV memory."""
        self.scheduler.released = self._weightless or bool(self._released & {WEIGHTS, KV_CACHE})

    def _new_kv(self) -> KvCache:
        return KvCache(
            self._model.geometry,
            num_slots=self.scheduler.limits.max_running,
            num_tokens=self._context_length,
            dtype=self._dtype,
        )

    def _memory_tags(self, tags: list[str] | None) -> set[str]:
        unknown = set(tags or ()) - set(MEMORY_TAGS)
        if unknown:
            raise BadRequest(f"unknown tags {sorted(unknown)}; there are {', '.join(MEMORY_TAGS)}")
        return set(tags or MEMORY_TAGS)

    def _snapshot(self, sequence: Sequence, now_s: float | None = None) -> Snapshot:
        return sequence.snapshot(self.scheduler.version, time.monotonic() if now_s is None else now_s)

    def _snapshots(self, sequences: list[Sequence], now_s: float | None = None) -> list[Snapshot]:
        return [self._snapshot(sequence, now_s) for sequence in sequences]


def _return_freed_memory() -> None:
    """Give what the C allocator holds back to the system; other C libraries than glibc do so by themselves."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
