"""Explorations without Python's garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Millions of small tuples and no cycles: the collector would only cost time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
