"""Independent simulations on several cores: one process each, results in the order in which they were asked for."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")

Done = Callable[[], None]
"""Told whenever one of them has ended."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_all(
    function: Callable[[A], R], arguments: Sequence[A], *, jobs: int | None = None, on_done: Done = lambda: None
) -> list[R]:
    """`function` of each argument, at most `jobs` (one a core) at once; function and arguments must pickle.

    Each simulation is a function of its argument alone, so the results do not depend on `jobs`. What one of them raises
    is raised here, and the others are given up.
    """
    results = []
    for result in _each(function, arguments, min(jobs or num_cores(), len(arguments))):
        results.append(result)
        on_done()
    return results


def _each(function: Callable[[A], R], arguments: Sequence[A], jobs: int) -> Iterator[R]:
    if jobs <= 1:
        yield from map(function, arguments)
        return
    # spawn: a copy of this process would bring its locks and threads along.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(function, argument) for argument in arguments]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
