# Everything starts here:
#   make run      set up .venv and launch conf/exp.yaml (make run ARGS="seed=3" adds overrides)
#   make test     set up .venv, lint, run the tests
#   make test-sglang  the engine contract against a real SGLang on the CPU; makes .venv-sglang (2.4 GB) the first time
#   make test-harness  episodes of mini-swe-agent; makes .venv-mini-swe-agent (450 MB) first
#   make lint     ruff, mypy, import contracts, hadolint
#   make bench    the benchmarks, each a ratio in one run; makes .venv-trl for those against TRL
#   make smollm2  fetch and convert SmolLM2-135M-Instruct for conf/smollm2.yaml
#
# The environment is set up when pyproject.toml or TORCH changed, and only then: a second call needs no network.
# TORCH is what pip installs as torch. Plain PyPI serves a CUDA build for Linux, several GB large; to save them, give
# the CPU build's wheel: make run TORCH=/path/to/torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
STAMP := $(VENV)/installed-$(shell { cat pyproject.toml; echo '$(TORCH)'; } | sha256sum | cut -c1-16)
BENCHES := cli controller engine publish sandbox pods trainer_vs_trl losses_vs_trl lag collect_vs_trl
SMOLLM2 := models/smollm2-135m-instruct

# One thread a process: several small-model processes share few cores, and more threads only spin against each other.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup bwrap run test test-sglang test-harness lint format bench smollm2 clean

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

$(STAMP):
	@echo "setting up $(VENV) with $(TORCH)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)"
	$(PIP) --editable ".[dev]"
	@rm -f $(VENV)/installed-*
	@touch $@

bwrap:
	@scripts/system_packages.sh bwrap

run: setup bwrap
	$(BIN)/agentrl launch conf/exp.yaml $(ARGS)

test: setup bwrap lint
	$(BIN)/pytest $(ARGS)

test-sglang: setup
	TORCH='$(TORCH)' PYTHON='$(PYTHON)' scripts/sglang/setup_cpu.sh
	AGENTRL_TEST_SGLANG=$(CURDIR)/.venv-sglang/bin/python $(BIN)/pytest tests/integration/test_engine_contract.py \
	  tests/unit/test_sglang_checks.py $(ARGS)

test-harness: setup bwrap
	PYTHON='$(PYTHON)' scripts/harness/setup_mini_swe_agent.sh
	$(BIN)/pytest tests/integration/test_mini_swe_agent.py $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint scripts/images/*.Dockerfile

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup bwrap
	scripts/bench/setup_trl.sh
	@for name in $(BENCHES); do echo "== $$name"; $(BIN)/python scripts/bench/$$name.py || exit 1; done
	$(BIN)/agentrl bench collect --seeds 2

smollm2: $(SMOLLM2)/config.json

$(SMOLLM2)/config.json: | setup
	$(BIN)/python scripts/make_smollm2.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
