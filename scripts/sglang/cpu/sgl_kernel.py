"""Stands in for SGLang's CUDA kernels on a machine without a GPU.

SGLang imports a handful of names from `sgl_kernel` on every path; on the CPU path with the torch_native back end none
is called. One that is called after all says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__version__ = "0.0.0"


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args: object, **kwargs: object) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build")

    return absent
