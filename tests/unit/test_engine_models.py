"""Both model implementations against transformers' full forward pass, driven through the engine's core."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.errors import UserError
from agentrl.inference.embedded.core import EngineCore, Update
from agentrl.inference.embedded.llama import LlamaModel
from agentrl.inference.embedded.model import open_model, stop_token_ids
from agentrl.inference.embedded.scheduler import Limits, PauseMode
from agentrl.inference.embedded.sequence import End, Sampling, Sequence, Snapshot
from agentrl.inference.embedded.weights import WeightsError
from tests.fixtures.engine import reference_logprobs, save_random_model, tiny_llama_config

CONTEXT = 256
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def qwen2_config() -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=89, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


def gpt_neox_config() -> Any:
    from transformers import GPTNeoXConfig

    return GPTNeoXConfig(
        vocab_size=83, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512, initializer_range=0.2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


CONFIGS = {
    "llama": tiny_llama_config,
    "llama-untied-biased": lambda: tiny_llama_config(tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
    "llama-all-heads": lambda: tiny_llama_config(num_key_value_heads=4, head_dim=24),
    "llama-one-kv-head": lambda: tiny_llama_config(num_key_value_heads=1),
    "llama-rope-llama3": lambda: tiny_llama_config(rope_parameters=LLAMA3_ROPE),
    "llama-rope-linear": lambda: tiny_llama_config(
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
    ),
    "llama-rope-yarn": lambda: tiny_llama_config(
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    ),
    "qwen2": qwen2_config,
    "gpt-neox": gpt_neox_config,
}


def make_core(
    folder: Path, *, max_running: int = 8, prefill_tokens: int = 48, dtype: Any = torch.float32
) -> EngineCore:
    return EngineCore(
        open_model(folder, dtype=dtype, context_length=CONTEXT),
        folder,
        limits=Limits(max_running=max_running, max_total_tokens=4096, prefill_tokens=prefill_tokens),
        context_length=CONTEXT,
        version="0",
        dtype=dtype,
    )


def make_sequence(key: int, ids: list[int], new: int, *, seed: int | None = None, temperature: float = 1.0) -> Sequence:
    return Sequence(
        key=key,
        rid=f"r-{key:04}",
        tokens=list(ids),
        num_prompt=len(ids),
        sampling=Sampling(max_new_tokens=new, temperature=temperature),
        seed=key if seed is None else seed,
    )


def run(core: EngineCore, sequences: list[Sequence]) -> list[Snapshot]:
    """Submit and run to the end; snapshots in the order of `sequences`."""
    with torch.inference_mode():
        ended = {}
        for sequence in sequences:
            core.submit(sequence)
        while (snapshots := core.step()) is not None:
            ended |= {snapshot.key: snapshot for snapshot in snapshots if snapshot.end is not None}
    return [ended[sequence.key] for sequence in sequences]


def random_prompts(vocab: int, count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(rng.randrange(1, 120))] for _ in range(count)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("llama"), tiny_llama_config())


@pytest.mark.parametrize("name", CONFIGS)
def test_logprobs_of_a_busy_batch_equal_transformers(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]()
    folder = save_random_model(tmp_path, config)
    core = make_core(folder)
    sequences = [
        make_sequence(key, prompt, 5 + key, temperature=0.7)
        for key, prompt in enumerate(random_prompts(config.vocab_size, 14))
    ]
    for sequence, snapshot in zip(sequences, run(core, sequences), strict=True):
        expected = reference_logprobs(folder, sequence.tokens, temperature=0.7)
        told = [
            expected[sequence.num_prompt + index - 1, token].item() for index, token in enumerate(snapshot.output_ids)
        ]
        assert len(told) == sequence.sampling.max_new_tokens
        assert snapshot.logprobs == pytest.approx(told, abs=1e-4)


def test_llama_is_served_by_the_lean_implementation_and_the_rest_by_transformers(llama: Path, tmp_path: Path) -> None:
    other = save_random_model(tmp_path, qwen2_config())
    assert isinstance(open_model(llama, dtype=torch.float32, context_length=CONTEXT), LlamaModel)
    assert not isinstance(open_model(other, dtype=torch.float32, context_length=CONTEXT), LlamaModel)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_seeded_sequence_is_the_same_alone_in_a_busy_batch_and_from_the_prefix_cache(
    name: str, tmp_path: Path
) -> None:
    config = CONFIGS[name]()
    folder = save_random_model(tmp_path, config)
    prompts = random_prompts(config.vocab_size, 12, seed=1)
    core = make_core(folder)

    def sample(keys: range, *, fresh: bool) -> list[tuple[list[int], list[float], int]]:
        outcomes = []
        for batch in [[key] for key in keys] if fresh else [list(keys)]:
            if fresh:
                core.flush()
            made = [make_sequence(1000 + key, prompts[key], 40, seed=key) for key in batch]
            outcomes += [(s.output_ids, s.logprobs, s.cached_tokens) for s in run(core, made)]
        return outcomes

    alone = sample(range(12), fresh=True)
    core.flush()
    busy = sample(range(12), fresh=False)
    cached = sample(range(12), fresh=False)
    assert [ids for ids, _, _ in alone] == [ids for ids, _, _ in busy] == [ids for ids, _, _ in cached]
    for (_, first, _), (_, second, _), (_, third, _) in zip(alone, busy, cached, strict=True):
        assert first == pytest.approx(second, abs=1e-4)
        assert first == pytest.approx(third, abs=1e-4)
    assert all(hit >= len(prompts[key]) - 1 for key, (_, _, hit) in enumerate(cached) if len(prompts[key]) > 16)


def test_a_sequence_resubmitted_half_way_with_its_seed_goes_on_the_same(llama: Path) -> None:
    core = make_core(llama)
    [whole] = run(core, [make_sequence(1, [5, 6, 7], 30, seed=3)])
    core.flush()
    [rest] = run(core, [make_sequence(2, [5, 6, 7, *whole.output_ids[:12]], 18, seed=3)])
    assert rest.output_ids == whole.output_ids[12:]


def test_greedy_takes_the_likeliest_and_tells_logprobs_at_temperature_one(llama: Path) -> None:
    [snapshot] = run(make_core(llama), [make_sequence(1, [9, 8, 7], 20, temperature=0.0)])
    expected = reference_logprobs(llama, [9, 8, 7, *snapshot.output_ids])
    assert snapshot.output_ids == expected[2:-1].argmax(-1).tolist()
    assert snapshot.logprobs == pytest.approx(expected[2:-1].max(-1).values.tolist(), abs=1e-4)


def test_bfloat16_is_close_to_float32(llama: Path) -> None:
    [low] = run(make_core(llama, dtype=torch.bfloat16), [make_sequence(1, list(range(30)), 20)])
    expected = reference_logprobs(llama, [*range(30), *low.output_ids])
    told = [expected[29 + index, token].item() for index, token in enumerate(low.output_ids)]
    assert low.logprobs == pytest.approx(told, abs=0.3)


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.IN_PLACE])
def test_an_update_in_mid_sequence_is_told_by_spans_and_new_tokens_are_of_new_weights(
    mode: PauseMode, llama: Path, tmp_path: Path
) -> None:
    newer = save_random_model(tmp_path, tiny_llama_config(), seed=1)
    core = make_core(llama)
    sequence = make_sequence(1, list(range(40)), 12)
    with torch.inference_mode():
        core.submit(sequence)
        for _ in range(5):
            core.step()
        core.pause(mode)
        assert core.update(Update(newer, "1", flush=mode is PauseMode.RETRACT)) == 1
        core.scheduler.resume()
    snapshot = finish(core, sequence)
    assert snapshot.spans == [("0", 0, 5), ("1", 5, 12)]
    before, after = (reference_logprobs(folder, sequence.tokens) for folder in (llama, newer))
    positions = list(enumerate(snapshot.output_ids, start=39))
    assert snapshot.logprobs[:5] == pytest.approx([before[p, t].item() for p, t in positions[:5]], abs=1e-4)
    if mode is PauseMode.RETRACT:
        assert snapshot.logprobs[5:] == pytest.approx([after[p, t].item() for p, t in positions[5:]], abs=1e-4)


def finish(core: EngineCore, sequence: Sequence) -> Snapshot:
    with torch.inference_mode():
        while sequence.end is None:
            snapshots = core.step() or []
    return snapshots[-1]


@contextmanager
def still_serving(core: EngineCore) -> Iterator[None]:
    """What happens inside changes nothing that the core answers."""

    def probe(key: int) -> tuple[list[int], list[float]]:
        core.flush()
        [snapshot] = run(core, [make_sequence(key, [1, 2, 3], 8, seed=0)])
        return snapshot.output_ids, snapshot.logprobs

    before = probe(9001)
    yield
    assert probe(9002) == before


def spoil(tensors: dict[str, torch.Tensor], how: str) -> dict[str, torch.Tensor]:
    name = "model.layers.1.mlp.down_proj.weight"
    match how:
        case "missing":
            del tensors[name]
        case "misshapen":
            tensors[name] = tensors[name][:, :-1].contiguous()
        case "nan":
            tensors[name][0, 0] = math.nan
        case "infinite":
            tensors[name][0, 0] = math.inf
        case "unknown":
            tensors["model.layers.2.mlp.down_proj.weight"] = tensors[name].clone()
    return tensors


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "missing"),
        ("misshapen", "shape|mismatched"),
        ("nan", "not finite"),
        ("infinite", "not finite"),
        ("unknown", "does not have|unexpected"),
    ],
)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_bad_weights_are_refused_and_the_old_ones_still_serve(
    name: str, how: str, message: str, tmp_path: Path
) -> None:
    folder = save_random_model(tmp_path / "good", CONFIGS[name]())
    bad = save_random_model(tmp_path / "bad", CONFIGS[name](), seed=1)
    save_file(spoil(load_file(bad / "model.safetensors"), how), bad / "model.safetensors", metadata={"format": "pt"})
    core = make_core(folder)
    with still_serving(core), torch.inference_mode(), pytest.raises(WeightsError, match=message):
        core.update(Update(bad, "1", flush=True))
    assert core.scheduler.version == "0"


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all", b"\xff" * 64])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_unreadable_weights_are_refused_and_the_old_ones_still_serve(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    good = save_random_model(tmp_path / "good", CONFIGS[name]())
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.json").write_bytes((good / "config.json").read_bytes())
    if content is not None:
        (bad / "model.safetensors").write_bytes(content)
    core = make_core(good)
    with still_serving(core), torch.inference_mode():
        for folder in (bad, tmp_path / "nowhere"):
            with pytest.raises(WeightsError):
                core.update(Update(folder, "1", flush=True))


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_weights_do_not_depend_on_their_file_once_loaded(name: str, tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, CONFIGS[name]())
    core = make_core(folder)
    with still_serving(core), (folder / "model.safetensors").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(0)
        file.write(b"\x55" * size)


def test_weights_in_shards_are_found_by_their_index(llama: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(llama)
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert not (tmp_path / "model.safetensors").exists()
    core = make_core(llama)
    with still_serving(core), torch.inference_mode():
        core.update(Update(tmp_path, "1", flush=True))
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(WeightsError, match="index"):
        core.update(Update(tmp_path, "2", flush=True))


def test_released_memory_is_dropped_and_comes_back_with_the_same_weights(llama: Path) -> None:
    core = make_core(llama)
    with still_serving(core), torch.inference_mode():
        core.release(None)
        assert core._kv is None
        assert isinstance(core._model, LlamaModel)
        assert core._model._weights is None
        waiting = make_sequence(1, [1, 2, 3], 4)
        core.submit(waiting)
        assert core.step() is None
        with pytest.raises(WeightsError, match="released"):
            core.update(Update(llama, "1", flush=True))
        core.reclaim(["weights"])
        assert core.step() is None, "the KV cache is still released"
        core.reclaim(["kv_cache"])
        assert finish(core, waiting).end is End.LENGTH


def test_memory_is_not_released_under_running_requests(llama: Path) -> None:
    core = make_core(llama)
    with torch.inference_mode():
        core.submit(make_sequence(1, [1, 2, 3], 40))
        core.step()
        with pytest.raises(ValueError, match="running"):
            core.release(None)
        with pytest.raises(ValueError, match="unknown tags"):
            core.release(["everything"])


def test_logits_that_overflow_end_the_request_with_an_error(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, tiny_llama_config(tie_word_embeddings=False))
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] *= 1e38
    tensors["model.norm.weight"] *= 1e4
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    [snapshot] = run(make_core(folder), [make_sequence(1, [1, 2, 3], 4)])
    assert (snapshot.end, snapshot.output_ids) == (End.ERROR, [])


def test_a_model_that_cannot_be_served_is_refused_in_one_line(tmp_path: Path) -> None:
    from transformers import MambaConfig, MistralConfig

    too_long = save_random_model(tmp_path / "short", tiny_llama_config(max_position_embeddings=64))
    sliding = save_random_model(
        tmp_path / "sliding",
        MistralConfig(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            sliding_window=16,
        ),
    )
    recurrent = save_random_model(
        tmp_path / "mamba", MambaConfig(vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=1)
    )
    cases = [
        (too_long, "context length"),
        (sliding, "window"),
        (recurrent, "mamba"),
        (tmp_path / "none", "cannot read"),
    ]
    for folder, message in cases:
        with pytest.raises(UserError, match=message) as caught:
            open_model(folder, dtype=torch.float32, context_length=CONTEXT)
        assert "\n" not in str(caught.value)


def test_end_of_sequence_ids_come_from_both_configs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    assert stop_token_ids(tmp_path) == {5, 7}
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text('{"eos_token_id": null}')
    assert stop_token_ids(tmp_path) == frozenset()
