"""`python -m agentrl.model`: the folder is complete or absent, the same for a seed, and knows what RL builds on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.errors import UserError
from agentrl.model.config import ModelConfig, Recipe
from agentrl.model.prepare import prepare_model
from agentrl.rollout.chat import Chat, Message
from agentrl.tasks.families import boxes

QUICK = {"recipe": "tiny", "warmup_steps": 3, "warmup_batch": 4}
FILES = {"config.json", "generation_config.json", "model.safetensors", "recipe.json"} | {
    "tokenizer.json",
    "tokenizer_config.json",
}


def start(job: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "agentrl.model", "--job", str(job)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def write_job(folder: Path, config: dict[str, Any], *, seed: int = 0, out: str = "model") -> Path:
    job = folder / f"{out}.json"
    job.write_text(json.dumps({"config": config, "seed": seed, "out": str(folder / out)}))
    return job


def make(folder: Path, config: dict[str, Any], *, seed: int = 0, out: str = "model") -> Path:
    process = start(write_job(folder, config, seed=seed, out=out))
    output, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert output.splitlines()[-1] == f"model {folder / out}"
    return folder / out


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_a_seed_makes_the_same_model_again_and_another_seed_another(tmp_path: Path) -> None:
    first, again = make(tmp_path, QUICK, seed=1, out="first"), make(tmp_path, QUICK, seed=1, out="again")
    other = prepare_model(ModelConfig(recipe=Recipe.tiny, warmup_steps=3, warmup_batch=4), 2, tmp_path / "other")
    assert {file.name for file in first.iterdir()} == FILES
    assert weights(first) == weights(again) != weights(other)


def test_a_model_that_is_there_is_kept_if_its_recipe_is_the_same(tmp_path: Path) -> None:
    out = tmp_path / "model"
    config = ModelConfig(recipe=Recipe.tiny, warmup_steps=1, warmup_batch=2)
    lines: list[str] = []
    assert prepare_model(config, 0, out, report=lines.append) == out
    assert lines
    lines.clear()
    prepare_model(config, 0, out, report=lines.append)
    assert lines == []
    prepare_model(config, 1, out, report=lines.append)
    assert lines


def test_killed_while_it_learns_it_leaves_no_model_and_the_next_attempt_succeeds(tmp_path: Path) -> None:
    process = start(write_job(tmp_path, {"recipe": "tiny", "warmup_steps": 1_000_000}))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "model").exists()
    make(tmp_path, QUICK)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["model"]


def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    job = write_job(tmp_path, {"recipe": "tiny", "warmup_steps": 1_000_000})
    script = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'agentrl.model', '--job', {str(job)!r}])\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline().startswith("warm-up step")
    parent.kill()
    parent.wait()
    parent.stdout.read()  # ends when the child, which holds the pipe too, is gone


@pytest.mark.parametrize("text", ["", "{", "[]", '{"config": {"recipe": "huge"}, "seed": 0, "out": "x"}'])
def test_a_bad_job_is_one_line_and_exit_code_2(tmp_path: Path, text: str) -> None:
    job = tmp_path / "job.json"
    job.write_text(text)
    process = start(job)
    output, errors = process.communicate()
    assert (process.returncode, output, len(errors.splitlines())) == (2, "", 1)
    assert errors.startswith(f"error: {job}: not a job: ")


def test_a_folder_is_returned_when_it_holds_a_model(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors"):
        (tmp_path / name).touch()
    assert prepare_model(ModelConfig(path=str(tmp_path)), 0, tmp_path / "unused") == tmp_path


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "is not a folder"),
        ((), "has no config.json, tokenizer.json, *.safetensors"),
        (("config.json", "a.safetensors"), "has no tokenizer.json"),
        (("config.json", "tokenizer.json", "pytorch_model.bin"), "has no *.safetensors"),
    ],
)
def test_a_folder_without_a_model_is_the_users_mistake(
    tmp_path: Path, files: tuple[str, ...] | None, message: str
) -> None:
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name in files:
            (folder / name).touch()
    with pytest.raises(UserError) as caught:
        prepare_model(ModelConfig(path=str(folder)), 0, tmp_path / "unused")
    assert f"{folder} {message}" in str(caught.value)
    with pytest.raises(UserError, match=r"model\.path is not set"):
        prepare_model(ModelConfig(), 0, tmp_path / "unused")


def test_warm_up_teaches_to_use_a_note_and_mostly_not_to_read_it(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = make(tmp_path, {"recipe": "tiny"})
    chat, model = Chat.load(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids

    @torch.inference_mode()
    def next_token(*texts: str, said: str = "") -> Tensor:
        """Probabilities of the token after a conversation and the first words of the assistant's reply."""
        roles = ("user", "assistant")
        prompt = chat.prompt([Message(roles[i % 2], text) for i, text in enumerate(texts)])
        prompt += [ids(word) for word in said.split()]
        return model(torch.tensor([prompt])).logits[0, -1].softmax(-1)

    first = next_token(boxes.INSTRUCTION)
    assert 0.15 < first[ids("cat")] < 0.45 < first[ids("cp")]
    guess = next_token(boxes.INSTRUCTION, said="cp")
    assert all(guess[ids(box)] < 0.4 for box in boxes.NAMES)
    for box in boxes.NAMES:
        assert next_token(boxes.INSTRUCTION, "cat note", box, said="cp")[ids(box)] > 0.8
