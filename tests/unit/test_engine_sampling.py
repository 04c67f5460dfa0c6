"""Sampling: the right distribution, streams of their own, filters in SGLang's order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.inference.embedded.sampling import Sampler, filter_probs
from agentrl.inference.embedded.sequence import Sampling, Sequence


def row(seed: int = 0, position: int = 1, **sampling: Any) -> Sequence:
    return Sequence(
        key=1,
        rid="r",
        tokens=[0] * position,
        num_prompt=position,
        sampling=Sampling(max_new_tokens=1, **sampling),
        seed=seed,
    )


def frequencies(logits: torch.Tensor, rows: list[Sequence]) -> torch.Tensor:
    drawn = Sampler(len(logits)).sample(logits.repeat(len(rows), 1), rows)
    return torch.bincount(torch.tensor([token for token, _ in drawn]), minlength=len(logits)) / len(rows)


@pytest.mark.parametrize("by", ["seed", "position"])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_tokens_come_with_their_probabilities(by: str, temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0, -6.0])
    count = 20_000 if by == "seed" else 3_000
    rows = [row(**{by: index + 1}, temperature=temperature) for index in range(count)]  # type: ignore[arg-type]
    expected = (logits / temperature).softmax(-1)
    observed = frequencies(logits, rows)
    deviation = (observed - expected) / (expected * (1 - expected) / len(rows)).sqrt()
    assert deviation.abs().max() < 4.5


def test_neighbouring_seeds_and_positions_are_independent() -> None:
    logits = torch.zeros(16)
    sampler = Sampler(16)

    def draw(seeds: range, position: int) -> np.ndarray[Any, Any]:
        rows = [row(seed=seed, position=position) for seed in seeds]
        return np.array([token for token, _ in sampler.sample(logits.repeat(len(rows), 1), rows)])

    base = draw(range(4000), 7)
    for other in (draw(range(4000), 8), draw(range(1, 4001), 7)):
        counts = np.histogram2d(base, other, bins=16)[0]
        expected = len(base) / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    rows = [row(seed=index, temperature=0.5 + index / 4) for index in range(8)]
    sampler = Sampler(50)
    together = sampler.sample(logits.clone(), rows)
    alone = [sampler.sample(logits[index : index + 1].clone(), [rows[index]])[0] for index in range(8)]
    assert [token for token, _ in together] == [token for token, _ in alone]
    assert [logprob for _, logprob in together] == pytest.approx([logprob for _, logprob in alone], abs=1e-6)


def test_improbable_tokens_are_neither_lost_nor_favoured() -> None:
    vocab = 50_000
    logits = torch.full((vocab,), -14.0)
    logits[0] = 0.0
    expected = 1 - logits.softmax(-1)[0].item()
    rows = [row(seed=seed) for seed in range(800)]
    sampler = Sampler(vocab)
    tail = 0
    for start in range(0, len(rows), 100):
        tail += sum(token != 0 for token, _ in sampler.sample(logits.repeat(100, 1), rows[start : start + 100]))
    assert abs(tail - expected * 800) < 5 * math.sqrt(800 * expected * (1 - expected))


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    sampled, greedy = Sampler(3).sample(logits.clone(), [row(seed=4), row(temperature=0.0)])
    assert greedy == (1, pytest.approx(logits[1].log_softmax(-1)[1].item()))
    assert sampled[1] == pytest.approx(logits[0].log_softmax(-1)[sampled[0]].item())


def test_a_row_that_is_not_finite_gives_no_logprob_and_spoils_no_other() -> None:
    logits = torch.zeros(4, 3)
    logits[1, 0], logits[2, 2] = math.nan, math.inf
    logprobs = [logprob for _, logprob in Sampler(3).sample(logits, [row(seed=index) for index in range(4)])]
    assert logprobs == [pytest.approx(-math.log(3)), -math.inf, -math.inf, pytest.approx(-math.log(3))]


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.3}, {0}),
        ({"min_p": 0.5}, {0, 1}),
        ({"top_k": 3, "min_p": 0.9}, {0}),
        ({"top_k": 1}, {0}),
    ],
)
def test_filters_keep_what_they_should(sampling: dict[str, Any], kept: set[int]) -> None:
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    filtered = filter_probs(probs, row(**sampling))
    assert set(filtered.nonzero()[:, 0].tolist()) == kept
    assert torch.equal(filtered[list(kept)], probs[list(kept)])


def test_a_filtered_row_tells_logprobs_of_the_whole_softmax() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    for seed in range(50):
        [(token, logprob)] = Sampler(4).sample(logits.clone(), [row(seed=seed, top_k=2)])
        assert token in (0, 1)
        assert logprob == pytest.approx(logits[0].log_softmax(-1)[token].item(), abs=1e-6)
