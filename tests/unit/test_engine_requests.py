"""What the engine accepts in a request, and how it refuses the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl.inference.embedded.requests import BadRequest, ServedModel, parse_generate
from agentrl.inference.embedded.sequence import Sampling

MODEL = ServedModel(vocab_size=50, stop_ids=frozenset({3}), context_length=64)


def parse(sampling: Any = None, **body: Any) -> list[Sampling]:
    data = json.dumps({"input_ids": [1, 2], "sampling_params": sampling or {}} | body).encode()
    return [prompt.sampling for prompt in parse_generate(data, MODEL).prompts]


BAD_BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "input_ids is missing"),
    "not JSON": (b"{", "malformed|truncated"),
    "not UTF-8": (b'{"rid": "\xff"}', "."),
    "not an object": (b"[1]", "Expected `object`"),
    "NaN": (b'{"input_ids": [1], "sampling_params": {"temperature": NaN}}', "malformed"),
    "infinite": (b'{"input_ids": [1], "sampling_params": {"temperature": 1e999}}', "."),
    "no ids": (b'{"input_ids": []}', "empty"),
    "an empty batch": (b'{"input_ids": [[]]}', "empty"),
    "null ids": (b'{"input_ids": null}', "input_ids"),
    "ids of strings": (b'{"input_ids": ["a"]}', "input_ids"),
    "ids of floats": (b'{"input_ids": [1.5]}', "input_ids"),
    "ids of booleans": (b'{"input_ids": [true]}', "input_ids"),
    "an id too large": (b'{"input_ids": [50]}', "50, outside the vocabulary of 50"),
    "an id too small": (b'{"input_ids": [-1]}', "-1, outside the vocabulary"),
    "an id beyond 64 bits": (b'{"input_ids": [99999999999999999999999]}', "."),
    "a prompt too long": (json.dumps({"input_ids": [1] * 64}).encode(), "context length of 64"),
    "text": (b'{"text": "hello"}', "text is not served"),
    "an unknown key": (b'{"input_ids": [1], "sampling_parms": {}}', "sampling_parms"),
    "an unknown sampling key": (b'{"input_ids": [1], "sampling_params": {"temprature": 1}}', "temprature"),
    "sampling of a wrong type": (b'{"input_ids": [1], "sampling_params": {"temperature": "hot"}}', "temperature"),
    "sampling that is no object": (b'{"input_ids": [1], "sampling_params": 3}', "sampling_params"),
    "an empty rid": (b'{"input_ids": [1], "rid": ""}', "rid"),
    "rids that repeat": (b'{"input_ids": [[1], [2]], "rid": ["a", "a"]}', "rid"),
    "too few rids": (b'{"input_ids": [[1], [2]], "rid": ["a"]}', "rid"),
    "too few sampling_params": (b'{"input_ids": [[1], [2]], "sampling_params": [{}]}', "1 sampling_params for 2"),
    "a streamed batch": (b'{"input_ids": [[1], [2]], "stream": true}', "streamed"),
    "input log-probs": (b'{"input_ids": [1], "logprob_start_len": 0}', "logprob_start_len"),
    "top log-probs": (b'{"input_ids": [1], "top_logprobs_num": 2}', "top_logprobs_num"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_bodies_are_refused_with_a_reason(name: str) -> None:
    data, message = BAD_BODIES[name]
    with pytest.raises(BadRequest, match=message) as caught:
        parse_generate(data, MODEL)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": -0.1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"top_k": -2},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"max_new_tokens": -1},
        {"max_new_tokens": 63},
        {"min_new_tokens": 1},
        {"n": 2},
        {"stop": ["x"]},
        {"stop_regex": "x"},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"regex": "a+"},
        {"json_schema": "{}"},
        {"logit_bias": {"1": 2.0}},
    ],
)
def test_sampling_out_of_range_or_not_served_is_refused(sampling: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(sampling))):
        parse(sampling)


def test_defaults_are_sglangs_within_the_context() -> None:
    [sampling] = parse()
    assert sampling == Sampling(max_new_tokens=62, temperature=1.0, stop_ids=frozenset({3}))
    assert not sampling.filtered


def test_neutral_values_of_what_is_not_served_are_accepted() -> None:
    neutral = {
        "n": 1, "min_new_tokens": 0, "stop": [], "frequency_penalty": 0.0, "presence_penalty": 0, "regex": None,
        "repetition_penalty": 1.0, "skip_special_tokens": False, "top_k": -1, "top_p": None, "logit_bias": None,
    }  # fmt: skip
    assert parse(neutral) == parse()


def test_stop_tokens_are_the_models_and_the_requests_unless_ignored() -> None:
    assert parse({"stop_token_ids": [7, 9]})[0].stop_ids == {3, 7, 9}
    assert parse({"stop_token_ids": [7], "ignore_eos": True})[0].stop_ids == set()


def test_greedy_needs_no_filter() -> None:
    [sampling] = parse({"temperature": 1e-9, "top_k": 5, "top_p": 0.5, "min_p": 0.2})
    assert (sampling.temperature, sampling.filtered) == (0.0, False)


def test_a_batch_shares_or_brings_sampling_and_rids() -> None:
    shared = parse_generate(b'{"input_ids": [[1], [2]], "rid": "a", "sampling_params": {"max_new_tokens": 5}}', MODEL)
    assert shared.is_batch
    assert [prompt.rid for prompt in shared.prompts] == ["a_0", "a_1"]
    assert [prompt.sampling.max_new_tokens for prompt in shared.prompts] == [5, 5]
    own = parse_generate(
        b'{"input_ids": [[1], [2]], "sampling_params": [{"max_new_tokens": 5}, {"sampling_seed": 4}]}', MODEL
    )
    assert [prompt.sampling.max_new_tokens for prompt in own.prompts] == [5, 63]
    assert [prompt.seed for prompt in own.prompts] == [None, 4]
    assert len({prompt.rid for prompt in own.prompts}) == 2
