"""Leaving in order: SIGTERM and Ctrl-C ask for it, and nothing hangs the process afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.worker.shutdown import StopSignal


@contextmanager
def stoppable() -> Iterator[StopSignal]:
    """A stop signal that SIGTERM and SIGINT set, as long as the block lasts."""
    stop = StopSignal()
    stop.install()
    try:
        yield stop
    finally:
        stop.remove()
