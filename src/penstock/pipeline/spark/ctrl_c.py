"""Keep Ctrl-C with Penstock while PySpark starts a session."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_kept() -> Iterator[None]:
    """Restore the SIGINT handler after the block.

    PySpark installs its own, which cancels all jobs inside the handler and raises KeyboardInterrupt at any point.
    Restoring the previous handler keeps an orderly stop possible.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
