"""Python's cyclic garbage collector, while a process holds the objects of many messages or of large batches."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

DEFAULTS = frozenset({(700, 10, 10), (2_000, 10, 10), (2_000, 10, 0)})  # of the Python versions that we support
BATCH_THRESHOLDS = (50_000, 20, 10)  # for a process that plans batches of objects
# For other workers: a handler's cyclic garbage waits for less than a thousand messages.
MESSAGE_THRESHOLDS = (10_000, 20, 10)


@contextmanager
def rare_collections(thresholds: tuple[int, int, int] = BATCH_THRESHOLDS) -> Iterator[None]:
    """Let Python look for cyclic garbage less often inside the block; put its thresholds back at the end.

    A batch holds some ten Python objects for each of its objects, none of them garbage before the batch ends. With the
    defaults, the collector visits all of them again and again, which takes a quarter to a third of the driver's time
    (measured); of a worker's time per message, about a seventh. The collector stays on: other code of the process may
    need it. Thresholds that the user set stay.
    """
    before = gc.get_threshold()
    if not gc.isenabled() or before not in DEFAULTS:
        yield
        return
    gc.set_threshold(*thresholds)
    try:
        yield
    finally:
        if gc.get_threshold() == thresholds:
            gc.set_threshold(*before)
