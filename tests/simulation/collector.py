"""Run explorations without Python's garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable the collector. The many small tuples have no cycles, so it would only cost time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
