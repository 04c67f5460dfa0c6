#!/usr/bin/env bash
# Makes .venv-sglang: SGLang with what it needs to serve small models on a CPU, for tests and for trying out
# `inference=sglang` on a laptop. Its pins exclude agentrl's, so it lives in an environment of its own (2.4 GB).
#
# A plain `pip install sglang` pulls CUDA kernels by the gigabyte; the list below is what the CPU path imports. The one
# module that has no CPU build, `sgl_kernel`, is stood in for by scripts/sglang/cpu/sgl_kernel.py.
#
# Usage: scripts/sglang/setup_cpu.sh    (TORCH as in the Makefile)
set -euo pipefail
cd "$(dirname "$0")/../.."

VENV=.venv-sglang
PIP="$VENV/bin/python -m pip --disable-pip-version-check install --quiet"
SGLANG=0.5.23
STAMP="$VENV/installed-$(sha256sum "$0" | cut -c1-16)"
[[ -f "$STAMP" ]] && exit 0

echo "setting up $VENV with sglang $SGLANG for CPU"
"${PYTHON:-$(command -v python3.11 || command -v python3)}" -m venv "$VENV"
$PIP "${TORCH:-torch==2.13.0}"
$PIP triton==3.4.0 transformers==5.19.0 tokenizers==0.23.2 "uvicorn>=0.51" sentencepiece==0.2.1 openai==2.8.0 \
  openai-harmony==0.0.4 "anthropic>=0.20.0" apache-tvm-ffi==0.1.11 compressed-tensors==0.18.0 blobfile==3.0.0 \
  numpy scipy psutil packaging pillow pydantic fastapi uvloop aiohttp requests orjson msgspec pyzmq pybase64 \
  python-multipart prometheus-client setproctitle tqdm einops dill cloudpickle jsonschema xxhash zstandard IPython \
  interegular partial_json_parser tiktoken gguf soundfile watchfiles
$PIP sglang-router==0.3.2
$PIP --no-deps xgrammar==0.2.7 torchvision==0.15.2 "sglang==$SGLANG"
# Where Python finds the stand-in, whoever starts the server and however.
site="$("$VENV/bin/python" -c 'import site; print(site.getsitepackages()[0])')"
cp scripts/sglang/cpu/sgl_kernel.py "$site/sgl_kernel.py"
touch "$STAMP"
