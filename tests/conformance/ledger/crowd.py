"""Many at once: threads let go at one moment, and processes of their own."""

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

CLAIMERS = 8
DEADLINE_SECONDS = 120.0

T = TypeVar("T")

spawning = multiprocessing.get_context("spawn")


def together(work: Callable[[int], T]) -> list[T]:
    """Run the work in as many threads as there are claimers, all let go at one moment."""
    barrier = threading.Barrier(CLAIMERS, timeout=DEADLINE_SECONDS)

    def start(number: int) -> T:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(CLAIMERS) as pool:
        return list(pool.map(start, range(CLAIMERS)))
