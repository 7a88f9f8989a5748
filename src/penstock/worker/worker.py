"""`Worker`: the class through which the app runs a worker."""

import threading
from collections.abc import Sequence
from functools import partial
from random import random as system_random

from penstock.events import Bus
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, no_probe
from penstock.worker.broker_loop import Until
from penstock.worker.consumer import Consumer, check_consumers
from penstock.worker.lifecycle import AppFacts, WorkerLifecycle, WorkerOutcome
from penstock.worker.liveness import Liveness
from penstock.worker.pools import EventLoop
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal

_NO_FACTS = AppFacts()
_JOIN_SECONDS = 1.0  # the main thread handles a signal that another thread received within this time


class Worker:
    """A worker: receives the messages of its queues, calls their handlers, and settles.

    Args:
        broker: The open broker, which the worker does not close.
        consumers: The consumers, one for each queue.
        settings: The limits and intervals.
        clock: The clocks.
        bus: The bus on which the worker emits its events.
        probe: Called at each step of the protocol, for tests.
        random: The source of jitter.
        liveness: Liveness of the worker, for health checks; made here if None.
        event_loop: A loop shared with other code, which this worker does not close. If None, the worker makes its own.
        address: The broker's address without secrets, for the start event.
        metrics_address: Address of the worker's HTTP endpoint, for the start event.
        facts: The app that runs the worker, for the start event.
        jobs: Names of background jobs that run beside the worker, for the start event.

    Raises:
        ConfigurationError: There is neither a consumer nor a job, or two consumers share a queue.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        consumers: Sequence[Consumer],
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        probe: Probe = no_probe,
        random: Random = system_random,
        liveness: Liveness | None = None,
        event_loop: EventLoop | None = None,
        address: str | None = None,
        metrics_address: str | None = None,
        facts: AppFacts = _NO_FACTS,
        jobs: Sequence[str] = (),
    ) -> None:
        check_consumers(tuple(consumers), jobs=jobs)
        self._settings = settings
        self._new_lifecycle = partial(
            WorkerLifecycle,
            broker=broker,
            consumers=tuple(consumers),
            settings=settings,
            clock=clock,
            bus=bus,
            probe=probe,
            random=random,
            liveness=liveness or Liveness(clock),
            event_loop=event_loop,
            address=address,
            metrics_address=metrics_address,
            facts=facts,
            jobs=tuple(jobs),
        )

    def run(self, stop: StopSignal, until: Until | None = None) -> WorkerOutcome:
        """Serve until a stop is requested or ``until`` returns True; it is called when idle and after each batch.

        Returns:
            The outcome. "drained": everything in flight finished. "interrupted": some messages were released to their
            queues. "forced": a message could not be released, or a thread of the worker or a run in its own thread
            hangs. If the outcome is "forced" or names threads left behind (a handler that ignored its interruption),
            the caller must leave the process with `os._exit`.

        Raises:
            UserError, PublishHalted: A handler failed in a way that no retry can fix. Everything in flight was released
                first.
            Exception: Any other failure that stopped the worker, or the last failure of the background jobs that run
                once ``until`` has returned True.
        """
        lifecycle = self._new_lifecycle(stop=stop, until=until)
        # This thread only waits. If it is the main thread, signal handlers interrupt it at any point, and it must not
        # hold the lock of an event that they set (see `StopSignal`).
        thread = threading.Thread(target=lifecycle.run, name="penstock-worker", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_JOIN_SECONDS)
        except BaseException as interruption:  # Ctrl-C when no StopSignal is installed
            lifecycle.fail(interruption)
            budget = self._settings.budget
            thread.join(budget.release_seconds + budget.flush_seconds)
            raise
        return lifecycle.conclusion()
