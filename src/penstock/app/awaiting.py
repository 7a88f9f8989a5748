"""A ledger that is away while a worker starts is waited for, as a broker is: a restart would find it no sooner."""

import threading
from collections.abc import Callable

from penstock.errors import TemporaryError
from penstock.handlers.outage import Outage
from penstock.messaging.clock import Clock
from penstock.messaging.waits import Random
from penstock.worker.shutdown import StopSignal

_GLANCE_SECONDS = 0.2  # a signal's handler may run in this very thread, so no event that it sets is waited for


def await_ledger(
    open_ledger: Callable[[], object], *, outage: Outage, stop: StopSignal, clock: Clock, random: Random
) -> None:
    """Open it, again and again while it is away. Raises what a person has to mend; `TemporaryError` after a stop."""
    never = threading.Event()
    while True:
        try:
            with outage.asked():
                open_ledger()
            return
        except TemporaryError:
            again_at = clock.monotonic() + outage.pause_seconds(random)
            while not stop.requested and (left_seconds := again_at - clock.monotonic()) > 0:
                clock.wait(never, min(left_seconds, _GLANCE_SECONDS))
            if stop.requested:
                raise
