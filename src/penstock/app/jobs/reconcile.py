"""A worker's regular reconcile, in threads of its own, so that heartbeats, fetching and stopping never wait for it.

The ledger records when a pipeline is due, and a claim in the ledger ensures that one worker at a time reconciles it. If
that worker dies, another one takes over. A failed reconcile is reported as an event and retried; a failure after the
worker was asked to stop counts as cancelled.

`has_settled` checks that the messages sent by a reconcile have left their queue, so that their objects were handled.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ulid import ULID

from penstock.app.reconcile_target import ReconcileTarget
from penstock.errors import PenstockError
from penstock.events import Listener, UpkeepFailed
from penstock.ledger.records import WorkBegun, WorkEnding
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.worker.shutdown import StopSignal


def has_settled(broker: Broker, queue: str, *, seconds: float) -> bool:
    """Return True if no message is left in the queue that was there ``seconds`` ago. In doubt, False."""
    stats = broker.stats(queue)
    if not stats.messages:
        return True
    return stats.oldest_message_age_seconds is not None and stats.oldest_message_age_seconds < seconds


HANDLER = "penstock-reconcile"  # the handler whose keys in the ledger are the claims
LOOK_SECONDS_MAX = 60.0  # between two checks for due reconciles
LOOKS_A_PERIOD = 4
RETRY_SECONDS = 300.0  # after a failure; shorter if it is due more often
PATIENCE_PERIODS = 4  # how long to wait for messages of the previous reconcile to leave the queue
END_SECONDS = 2.0  # time to cancel Spark's jobs

Work = Callable[[ReconcileTarget, StopSignal], object]  # reconciles one target until it is done or stopped


class ReconcileDuty:
    """Reconcile due targets, from `start` until `end` or until the worker is asked to stop."""

    def __init__(
        self,
        targets: Sequence[ReconcileTarget],
        work: Work,
        *,
        worker: str,
        every_seconds: float,
        lease_seconds: float,
        stop: StopSignal,
        clock: Clock,
        random: Random,
        tell: Listener,
    ) -> None:
        self._targets = targets
        self._work = work
        self._worker = worker
        self._every_seconds = every_seconds
        self._lease_seconds = lease_seconds
        self._stop = stop
        self._clock = clock
        self._random = random
        self._tell = tell
        self._ended = StopSignal()  # our own: the worker may end without having been asked to
        self._not_before: dict[str, float] = {}  # monotonic, by pipeline, after a failure; written by our thread
        self._leftover: dict[str, threading.Thread] = {}  # by pipeline: stopped but still running; our thread's
        self._thread = threading.Thread(target=self._run, name="penstock-reconcile", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Stop the thread and cancel a running reconcile."""
        self._ended.request()
        self._thread.join(END_SECONDS + 1.0)

    @property
    def _is_over(self) -> bool:
        return self._ended.requested or self._stop.requested

    def _run(self) -> None:
        look_seconds = min(self._every_seconds / LOOKS_A_PERIOD, LOOK_SECONDS_MAX)
        self._pause(look_seconds * self._random())
        while not self._is_over:
            for target in self._targets:
                if not self._is_over:
                    self._attend(target)
            self._pause(look_seconds * (0.5 + self._random()))

    def _pause(self, seconds: float) -> None:
        end_at = self._clock.monotonic() + seconds
        asked = threading.Event()
        with self._woken(asked):
            while not self._is_over and (left := end_at - self._clock.monotonic()) > 0:
                self._clock.wait(asked, left)
                asked.clear()

    def _attend(self, target: ReconcileTarget) -> None:
        try:
            rested = self._clock.monotonic() >= self._not_before.get(target.pipeline, 0.0)
            if rested and not self._still_works(target) and self._is_due(target):
                self._claimed(target)
        except Exception as error:  # any error: other targets continue, and this one is retried
            if self._is_over:  # Spark's JVM or the ledger may end before us: no failure
                return
            self._not_before[target.pipeline] = self._clock.monotonic() + min(RETRY_SECONDS, self._every_seconds)
            words = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
            self._tell(UpkeepFailed(handler=f"reconcile {target.pipeline}", error=words))

    def _still_works(self, target: ReconcileTarget) -> bool:
        """Return True if a stopped reconcile has not ended yet: a second one must not run beside it."""
        thread = self._leftover.get(target.pipeline)
        if thread is not None and not thread.is_alive():
            del self._leftover[target.pipeline]
        return target.pipeline in self._leftover

    def _is_due(self, target: ReconcileTarget) -> bool:
        """Return True if a reconcile is due by the ledger's clock.

        Not while messages of the previous one still wait in the queue: all of them would be sent again.
        """
        seconds = target.ledger.seconds_since_reconciliation(target.pipeline)
        if seconds is None:
            return True
        if seconds < self._every_seconds:
            return False
        last = target.ledger.reconciliation(target.pipeline)
        if last is None or not last.sent or seconds >= PATIENCE_PERIODS * self._every_seconds:
            return True
        return has_settled(target.broker, target.queue, seconds=seconds)

    def _claimed(self, target: ReconcileTarget) -> None:
        ledger, attempt_id = target.ledger, str(ULID())
        standing = ledger.begin_work(
            HANDLER, target.pipeline, attempt_id=attempt_id, worker=self._worker, lease_seconds=self._lease_seconds
        )
        if not isinstance(standing, WorkBegun):
            return
        ending: WorkEnding = "failed"
        reason = "the reconcile failed"
        try:
            if self._is_due(target):  # another worker may have just finished one
                self._worked(target, attempt_id)
            ending, reason = "given_back", "the reconcile ended"
        finally:
            if not self._still_works(target):  # otherwise the lease ends the claim, so that no other worker starts now
                ledger.end_work(attempt_id, outcome=ending, reason=reason)

    def _worked(self, target: ReconcileTarget, attempt_id: str) -> None:
        """Run the work in its own thread while this one extends the claim; raise the error of either.

        The work never outlives its claim: it is stopped and waited for, however this method exits.
        """
        stop, news, failures = StopSignal(), threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                self._work(target, stop)
            except BaseException as error:
                failures.append(error)
            finally:
                news.set()

        thread = threading.Thread(target=work, name="penstock-reconcile-work", daemon=True)
        thread.start()
        try:
            with self._woken(news):
                while thread.is_alive() and not self._is_over:
                    self._clock.wait(news, self._lease_seconds / 3)
                    news.clear()
                    extend = target.ledger.extend_work
                    if thread.is_alive() and not extend(attempt_id, lease_seconds=self._lease_seconds):
                        break  # another worker has the claim
                    thread.join(0.05)
        finally:
            if thread.is_alive():
                stop.request()
                thread.join(END_SECONDS)
                if thread.is_alive():
                    self._leftover[target.pipeline] = thread
        for failure in failures:
            raise failure

    @contextmanager
    def _woken(self, event: threading.Event) -> Iterator[None]:
        with self._stop.watched_by(event), self._ended.watched_by(event):
            yield
