"""Drawing the next tokens of a batch, each from its own random stream.

The noise of a row depends on the sequence's seed and the token's position alone, never on what else is in the batch,
so a seeded request gives the same tokens alone, in a busy batch, or resubmitted half way. Axes: B rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from agentrl.inference.embedded.sequence import Sequence

UInt64Array = npt.NDArray[np.uint64]

MAX_SEED = 1 << 63
_UINT64 = (1 << 64) - 1


class Sampler:
    """Samples rows of logits."""

    def __init__(self, vocab_size: int) -> None:
        column = np.arange(vocab_size, dtype=np.uint64)
        self._columns_V = torch.from_numpy(_mix64(column).astype(np.uint32).view(np.int32))

    def sample(self, logits_BV: torch.Tensor, sequences: list[Sequence]) -> list[tuple[int, float]]:
        """(token, log-prob) a row. The log-prob is under the softmax of logits / temperature, whatever the filters.

        `logits_BV` is float32 and may be overwritten. A row with a logit that is not finite gives log-prob -inf.
        """
        temperatures = [sequence.sampling.temperature for sequence in sequences]
        greedy = [temperature == 0 for temperature in temperatures]
        if any(t not in (0, 1) for t in temperatures):
            logits_BV.div_(torch.tensor([t or 1.0 for t in temperatures])[:, None])
        probs_BV = logits_BV.softmax(-1)
        if all(greedy):
            tokens_B = logits_BV.argmax(-1)
        else:
            scores_BV = self._filter(probs_BV, sequences) / self._noise(sequences)
            tokens_B = scores_BV.argmax(-1)
            if any(greedy):
                tokens_B = torch.where(torch.tensor(greedy), logits_BV.argmax(-1), tokens_B)
        logprobs_B = probs_BV.gather(1, tokens_B[:, None])[:, 0].log_().nan_to_num_(nan=-torch.inf)
        return list(zip(tokens_B.tolist(), logprobs_B.tolist(), strict=True))

    def _noise(self, sequences: list[Sequence]) -> torch.Tensor:
        """Exponential variates [B, V]: argmax(p / E) is a draw from p (the exponential race)."""
        seeds = np.array([sequence.seed & _UINT64 for sequence in sequences], dtype=np.uint64)
        positions = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.uint64)
        keys = torch.from_numpy(_mix64(_mix64(seeds) + positions).view(np.int32).reshape(-1, 2))
        x_BV = self._columns_V ^ keys[:, :1]
        _mix32_(x_BV)
        x_BV.add_(keys[:, 1:])
        _mix32_(x_BV)
        # 31 bits, kept precise near 0, where the chances of improbable tokens are decided.
        uniform_BV = x_BV.bitwise_and_(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(-(2.0**-31))
        return uniform_BV.log1p_().neg_()

    @staticmethod
    def _filter(probs_BV: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
        """Probabilities with what the rows' filters exclude set to 0 (not normalised: the race does not need it)."""
        filtered = [row for row, sequence in enumerate(sequences) if sequence.sampling.filtered]
        if not filtered:
            return probs_BV
        result_BV = probs_BV.clone()
        for row in filtered:
            result_BV[row] = filter_probs(probs_BV[row], sequences[row])
        return result_BV


def filter_probs(probs_V: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """top-k, top-p on the full distribution's mass, min-p relative to the likeliest: in SGLang's order."""
    sampling = sequence.sampling
    sorted_V, order_V = probs_V.sort(descending=True)
    keep_V = torch.ones_like(sorted_V, dtype=torch.bool)
    if sampling.top_k > 0:
        keep_V[sampling.top_k :] = False
    if sampling.top_p < 1.0:
        keep_V &= (sorted_V.cumsum(0) - sorted_V) <= sampling.top_p
    if sampling.min_p > 0.0:
        keep_V &= sorted_V >= sorted_V[0] * sampling.min_p
    return torch.zeros_like(probs_V).index_copy_(0, order_V, sorted_V * keep_V)


def _mix64(x: UInt64Array) -> UInt64Array:
    """splitmix64's finaliser on uint64, wrapping."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInt64Array = x ^ (x >> np.uint64(31))
    return mixed


def _mix32_(x: torch.Tensor) -> None:
    """murmur3's finaliser on int32, in place; multiplications wrap, shifts are masked to be logical."""
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
    x.mul_(0x85EBCA6B - (1 << 32))
    x.bitwise_xor_((x >> 13).bitwise_and_(0x7FFFF))
    x.mul_(0xC2B2AE35 - (1 << 32))
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
