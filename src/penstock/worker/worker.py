"""The worker, as its users see it."""

import threading
from collections.abc import Sequence
from random import random as system_random

from penstock.events import Bus
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, no_probe
from penstock.worker.broker_loop import Until
from penstock.worker.lifecycle import WorkerLifecycle, WorkerOutcome
from penstock.worker.line import Line, check_lines
from penstock.worker.liveness import Liveness
from penstock.worker.pools import EventLoop
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.wiring import WorkerTools

_JOIN_SECONDS = 1.0  # a signal that another thread of the process took is seen by the main thread within it


class Worker:
    """Feeds the messages of queues to their handlers. Raises `ConfigurationError` for two lines of one queue.

    ``event_loop`` is one that others use too, before and after; without it the worker has one of its own.
    ``pulse`` is for those who ask how the worker is. ``address`` is the broker's, as people may see it,
    ``metrics_address`` where somebody answers for the worker: both are told at start.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        lines: Sequence[Line],
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        probe: Probe = no_probe,
        random: Random = system_random,
        pulse: Liveness | None = None,
        event_loop: EventLoop | None = None,
        address: str | None = None,
        metrics_address: str | None = None,
    ) -> None:
        check_lines(tuple(lines))
        self._tools = WorkerTools(
            broker=broker,
            lines=tuple(lines),
            settings=settings,
            clock=clock,
            bus=bus,
            probe=probe,
            random=random,
            pulse=pulse or Liveness(clock),
            event_loop=event_loop,
            address=address,
            metrics_address=metrics_address,
        )

    def run(self, stop: StopSignal, until: Until | None = None) -> WorkerOutcome:
        """Serve until asked to stop, or until ``until`` (asked when idle and after each batch) answers True.

        Its outcome is "drained" when everything in flight came to its end, "given_back" when some of it went back to
        the queue, "forced" when something could not be given back, or when a thread of the worker's own or a run with a
        thread of its own is stuck. When it is forced, or names threads that are left (a handler that ignored its
        interruption), the caller has to leave by `os._exit`. Raises what stopped the worker, a `UserError` or
        `PublishHalted` of a handler, after everything in flight was given back; and the last failure of the upkeep that
        follows ``until``.
        """
        shift = WorkerLifecycle(self._tools, stop, until)
        # The caller's thread only waits: if it is the main thread, signal handlers run in the middle of it, and they
        # must not meet it inside an event that they set (see `StopSignal`).
        thread = threading.Thread(target=shift.live, name="penstock-worker", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_JOIN_SECONDS)
        except BaseException as interruption:  # Ctrl-C where nobody installed the StopSignal
            shift.fail(interruption)
            budget = self._tools.settings.budget
            thread.join(budget.release_seconds + budget.flush_seconds)
            raise
        return shift.conclusion()
