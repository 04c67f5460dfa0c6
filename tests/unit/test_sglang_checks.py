"""What is refused before a real SGLang is started, and what its command line looks like."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import UserError
from agentrl.inference.config import (
    Device,
    EngineBackend,
    InferenceConfig,
    SGLangConfig,
    Speculation,
    SpeculationConfig,
)
from agentrl.inference.servers import Listen, SGLangServer
from agentrl.inference.sglang_checks import PATHS, check_arguments, check_environment, missing_paths

KNOWN = {"--attention-backend", "--enable-torch-compile", "--port"}


def command(
    device: Device,
    *,
    index: int = 0,
    swing: bool = False,
    args: tuple[str, ...] = (),
    listen: Listen | None = None,
    **features: Any,
) -> list[str]:
    sglang = SGLangConfig(python="/env/python", device=device, gpus_per_engine=2, args=list(args), **features)
    config = InferenceConfig(backend=EngineBackend.sglang, sglang=sglang)
    server = SGLangServer(
        config, python="/env/python", first_gpu=2 * index, seed=3, swing=swing, listen=listen or Listen()
    )
    return server.command("/weights/v000007", "7").argv


def value(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_arguments_that_the_server_knows_pass() -> None:
    check_arguments(["--attention-backend=fa3", "--enable-torch-compile"], KNOWN)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--atention-backend=fa3", "did you mean --attention-backend"),
        ("--port=3", "follows from another setting"),
        ("fa3", "write a value as --name=value"),
    ],
)
def test_other_arguments_are_refused_with_what_to_do(argument: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_arguments([argument], KNOWN)


def test_an_environment_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="no interpreter"):
        check_environment(SGLangConfig(python="/nowhere/python"))


def test_an_environment_without_sglang_is_refused() -> None:
    with pytest.raises(UserError, match="no SGLang in the environment"):
        check_environment(SGLangConfig(python=sys.executable))


def test_an_old_sglang_is_refused_with_the_version_that_is_needed(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 0.5.9\n")
    python.chmod(0o755)
    with pytest.raises(UserError, match=r"SGLang 0\.5\.9 is too old, 0\.5\.23 is needed"):
        check_environment(SGLangConfig(python=str(python)))


def test_endpoints_that_a_server_lacks_are_named() -> None:
    assert missing_paths({"paths": {path: {} for path in PATHS}}) == []
    assert missing_paths({"paths": {path: {} for path in PATHS if path != "/v1/loads"}}) == ["/v1/loads"]
    assert missing_paths({}) == list(PATHS)


def test_an_engine_starts_on_the_weights_that_are_current() -> None:
    argv = command(Device.cuda)
    assert value(argv, "--model-path") == "/weights/v000007"
    assert value(argv, "--weight-version") == "7"


def test_engines_on_gpus_get_their_own_and_give_memory_up_only_if_they_swing() -> None:
    argv = command(Device.cuda, index=3)
    assert (value(argv, "--tp-size"), value(argv, "--base-gpu-id")) == ("2", "6")
    assert "--enable-memory-saver" not in argv
    assert "--enable-memory-saver" in command(Device.cuda, swing=True)


def test_further_arguments_come_last_so_that_they_win() -> None:
    assert command(Device.cpu, args=("--attention-backend=flashinfer",))[-1] == "--attention-backend=flashinfer"


def test_a_server_listens_where_it_is_told_to() -> None:
    argv = command(Device.cpu, listen=Listen(host="$(POD_IP)", port=30000))
    assert (value(argv, "--host"), value(argv, "--port")) == ("$(POD_IP)", "30000")


def test_each_feature_is_an_argument_of_the_server_and_off_by_default_but_for_priorities() -> None:
    plain = command(Device.cuda)
    assert "--enable-priority-scheduling" in plain and "--disable-priority-preemption" in plain
    assert "--enable-priority-scheduling" not in command(Device.cuda, priority_scheduling=False)
    assert "--enable-deterministic-inference" not in plain
    assert "--enable-deterministic-inference" in command(Device.cuda, deterministic=True)
    assert not any(argument.startswith("--speculative") for argument in plain)


def test_speculation_names_its_draft_and_leaves_to_sglang_what_is_not_chosen() -> None:
    draft = SpeculationConfig(algorithm=Speculation.EAGLE3, draft_model="/drafts/one", num_steps=3)
    argv = command(Device.cuda, speculation=draft)
    assert value(argv, "--speculative-algorithm") == "EAGLE3"
    assert value(argv, "--speculative-draft-model-path") == "/drafts/one"
    assert value(argv, "--speculative-num-steps") == "3"
    assert "--speculative-eagle-topk" not in argv


@pytest.mark.skipif("AGENTRL_TEST_SGLANG" not in os.environ, reason="needs an environment with SGLang")
def test_the_server_knows_every_argument_that_is_written() -> None:
    python = os.environ["AGENTRL_TEST_SGLANG"]
    told = subprocess.run([python, "-m", "sglang.launch_server", "--help"], capture_output=True, text=True, check=True)
    draft = SpeculationConfig(algorithm=Speculation.EAGLE, draft_model="/d", num_steps=3, topk=4, num_draft_tokens=8)
    features: dict[str, Any] = {"deterministic": True, "speculation": draft}
    argv = {*command(Device.cuda, swing=True, **features), *command(Device.cpu)}
    known = set(re.findall(r"--[a-z][a-z0-9-]*", told.stdout))
    assert {argument for argument in argv if argument.startswith("--")} <= known
