"""`python -m agentrl.inference.embedded`: options, start, ready file, signals."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from agentrl import __version__
from agentrl.errors import UserError

log = logging.getLogger("agentrl.embedded")

_KEEP_ALIVE_S = 75.0


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line; SGLang's names where it has them."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.inference.embedded", description=__doc__)
    parser.add_argument("--model-path", type=Path, required=True, help="folder in Hugging Face layout")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--ready-file", type=Path, help='written once it serves: {"url": ..., "pid": ...}')
    parser.add_argument("--weight-version", default="default")
    parser.add_argument("--max-running-requests", type=_positive, default=64, help="decoded together; more wait")
    parser.add_argument("--max-queued-requests", type=_positive, default=4096, help="waiting; more get HTTP 503")
    parser.add_argument("--max-total-tokens", type=_positive, default=65536, help="KV capacity")
    parser.add_argument("--context-length", type=_positive, default=512, help="longest prompt plus completion")
    parser.add_argument("--chunked-prefill-size", type=_positive, default=256, help="prompt tokens in one step")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--seed", type=int, default=0, help="of requests that bring none")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


async def serve(options: argparse.Namespace) -> None:
    """Load the model, serve until SIGTERM or SIGINT. Raises UserError."""
    from agentrl.inference.embedded.server import Front

    stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    core, front_options = _build(options)

    def died(error: BaseException) -> None:
        if not stopped.done():
            stopped.set_exception(error)

    front = Front(core, front_options, died)
    runner = web.AppRunner(
        front.app(),
        access_log=None,
        handler_cancellation=True,  # a client that goes away aborts its request
        keepalive_timeout=_KEEP_ALIVE_S,
        shutdown_timeout=0.0,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port).start()
    except OSError as error:
        raise UserError(f"cannot listen on {options.host}:{options.port}: {error.strerror}") from error
    host, port = runner.addresses[0][:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    _handle_signals(stopped)
    if options.ready_file is not None:
        write_atomically(options.ready_file, json.dumps({"url": url, "pid": os.getpid()}))
    log.info("serving %s at %s", options.model_path, url)
    await stopped
    log.info("stopped")


def _build(options: argparse.Namespace) -> tuple[Any, Any]:
    """Core and front options. Imports torch."""
    from agentrl.inference.embedded.core import EngineCore
    from agentrl.inference.embedded.kv import DTYPES
    from agentrl.inference.embedded.model import open_model, stop_token_ids
    from agentrl.inference.embedded.requests import ServedModel
    from agentrl.inference.embedded.scheduler import Limits
    from agentrl.inference.embedded.server import FrontOptions

    folder = options.model_path.absolute()
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}")
    dtype = DTYPES[options.dtype]
    context_length = min(options.context_length, options.max_total_tokens)
    model = open_model(folder, dtype=dtype, context_length=context_length)
    limits = Limits(
        max_running=options.max_running_requests,
        max_total_tokens=options.max_total_tokens,
        prefill_tokens=options.chunked_prefill_size,
    )
    try:
        core = EngineCore(
            model, folder, limits=limits, context_length=context_length, version=options.weight_version, dtype=dtype
        )
    except MemoryError as error:
        raise UserError(
            f"no memory for a KV cache of {limits.max_running} requests of {context_length} tokens",
            hint="lower inference.max_running_requests or inference.context_length",
        ) from error
    served = ServedModel(vocab_size=model.vocab_size, stop_ids=stop_token_ids(folder), context_length=context_length)
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    info = {
        "server": {"version": _version(), **arguments},
        "model": {"vocab_size": served.vocab_size, "context_length": context_length},
    }
    front = FrontOptions(
        served=served,
        info=info,
        max_in_flight=options.max_running_requests + options.max_queued_requests,
        seed=options.seed,
    )
    return core, front


def _version() -> str:
    """Of everything that computes."""
    import torch
    import transformers

    return f"{__version__}, torch {torch.__version__}, transformers {transformers.__version__}"


def _handle_signals(stopped: asyncio.Future[None]) -> None:
    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def write_atomically(path: Path, text: str) -> None:
    """Readers see all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(serve(parse_options()))
        code = 0
    except UserError as error:
        print(error, file=sys.stderr)
        code = 2
    except Exception:
        log.exception("the engine failed")
        code = 1
    # Not sys.exit: the torch thread may be deep in a step, which nothing can interrupt and nobody needs any more.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
