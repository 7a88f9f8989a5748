"""Concurrency for tests: threads released at one moment, spawned processes, and a change between two statements."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import event

from penstock.ledger import Ledger

CLAIMERS = 8
DEADLINE_SECONDS = 120.0

T = TypeVar("T")

spawning = multiprocessing.get_context("spawn")


def together(work: Callable[[int], T]) -> list[T]:
    """Run the work in as many threads as there are claimers, all released at one moment."""
    barrier = threading.Barrier(CLAIMERS, timeout=DEADLINE_SECONDS)

    def start(number: int) -> T:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(CLAIMERS) as pool:
        return list(pool.map(start, range(CLAIMERS)))


@contextmanager
def once_after(ledger: Ledger, words: str, then: Callable[[], object]) -> Iterator[list[str]]:
    """Run a function, on another connection, as soon as a statement with these words was executed.

    Do not use it in the transaction that inserts: on MySQL it locks the rows that it does not change, and an archiver
    waits for it.
    """
    done: list[str] = []

    def hook(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if all(part in statement for part in words.split(" ... ")) and not done:
            done.append(statement)
            then()

    engine = ledger.database.engine
    event.listen(engine, "after_cursor_execute", hook)
    try:
        yield done
    finally:
        event.remove(engine, "after_cursor_execute", hook)
