"""The broker's thread: settle what is decided, receive into the free slots, begin what is due, rest.

It alone talks to the queue in normal life (heartbeats have a thread of their own; what a stop gives back goes past it).
While the worker drains it receives no more, releases what nobody began, and ends when everything is settled.
"""

import threading
from collections.abc import Callable

from penstock.errors import PublishHalted, TemporaryError, UserError
from penstock.events import Bus, ReceiveFailed, UpkeepFailed
from penstock.messaging.clock import Clock
from penstock.messaging.handler import BatchHandler
from penstock.messaging.waits import Random, backoff_seconds, idle_seconds
from penstock.worker.executors import Executors
from penstock.worker.intake import Intake
from penstock.worker.settings import WorkerSettings
from penstock.worker.settler import Settler
from penstock.worker.shutdown import UNSTARTED

REST_SECONDS_MAX = 60.0  # a bound for waits that a freed slot ends
FINAL_UPKEEPS_MAX = 5

Until = Callable[[], bool]


class Loop:
    """One run of the broker's thread."""

    def __init__(
        self,
        *,
        queue: str,
        handler: BatchHandler,
        intake: Intake,
        executors: Executors,
        settler: Settler,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        random: Random,
        wake: threading.Event,
        until: Until | None,
        until_met: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._intake = intake
        self._executors = executors
        self._settler = settler
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._wake = wake
        self._until = until
        self._until_met = until_met
        self._fail = fail
        self._leaving = False  # written by the I/O thread and by the one that runs the worker; never unset
        self._quitting = False  # written by the thread that runs the worker; never unset
        self._met = False  # this and the rest: written by the I/O thread only
        self._idle_seconds = settings.idle_floor_seconds
        self._receive_failures = 0
        self._upkeep_failures = 0
        self._upkeep_at = clock.monotonic()
        self._concluded_at_upkeep = 0
        self._concluded_at_until = 0

    def run(self) -> None:
        """Serve until told to leave, then until everything is settled."""
        self._guarded(self._care)
        while not self._over():
            self._guarded(self._turn)
        if self._met and not self._quitting:
            self._guarded(self._last_care)

    def leave(self) -> None:
        """Receive no more; end when everything is settled."""
        self._leaving = True
        self._wake.set()

    def quit(self) -> None:
        """End at once, whatever is unsettled."""
        self._leaving = self._quitting = True
        self._wake.set()

    def _guarded(self, step: Callable[[], object]) -> None:
        """Whatever a step raises is fatal to the worker, but not to this thread: there are settlements to apply."""
        try:
            step()
        except BaseException as error:
            self._leaving = True
            self._fail(error)

    def _turn(self) -> None:
        self._wake.clear()
        self._settler.apply_due()
        seconds = self._put_back() if self._leaving else self._serve()
        self._rest(seconds)

    def _over(self) -> bool:
        if self._quitting:
            return True
        return (
            self._leaving
            and self._intake.empty
            and not self._executors.running()
            and self._settler.next_due_at() is None
        )

    def _put_back(self) -> float:
        """Draining: what is held unstarted goes back. Answers how long to rest."""
        unstarted = self._intake.take_all()
        self._settler.submit((delivery, UNSTARTED) for delivery in unstarted)
        return 0.0 if unstarted or self._over() else REST_SECONDS_MAX

    def _serve(self) -> float:
        """Begin, receive, begin, and look around when there is nothing else to do. Answers how long to rest."""
        if self._concluded_at_until != self._executors.concluded and self._finished():
            return 0.0
        self._begin_due()
        seconds = self._receive()
        if self._begin_due() or seconds == 0.0:
            return 0.0
        if self._idle:
            self._care()
            if self._finished():
                return 0.0
        return seconds

    def _begin_due(self) -> bool:
        """Begin what may begin now; answers whether anything did."""
        begun = False
        now = self._clock.monotonic()
        while self._executors.free and now >= self._executors.not_before and not self._leaving:
            batch = self._intake.next_batch(now)
            if batch is None:
                break
            self._executors.begin(batch.deliveries)
            begun = True
        return begun

    def _receive(self) -> float:
        """Receive if there is a free slot; answers how long to rest after what came of it."""
        if self._leaving or self._intake.free_slots < 1:
            return REST_SECONDS_MAX
        wait_seconds = self._settings.poll_wait_seconds if self._idle else 0.0
        began_at = self._clock.monotonic()
        try:
            arrived = self._intake.receive(now=self._clock.monotonic, wait_seconds=wait_seconds)
        except UserError:
            raise
        except Exception as error:
            return self._receive_failed(error)
        self._receive_failures = 0
        if arrived:
            self._idle_seconds = self._settings.idle_floor_seconds
            return 0.0
        return max(self._next_idle_seconds() - (self._clock.monotonic() - began_at), 0.001)

    def _receive_failed(self, error: Exception) -> float:
        self._receive_failures += 1
        self._bus.emit(ReceiveFailed(queue=self._queue, error=f"{type(error).__name__}: {error}"))
        wait_seconds = backoff_seconds(
            attempt=self._receive_failures,
            base_seconds=self._settings.retry_base_seconds,
            cap_seconds=self._settings.retry_cap_seconds,
            random=self._random,
        )
        return max(wait_seconds, self._settings.idle_floor_seconds)

    def _next_idle_seconds(self) -> float:
        self._idle_seconds = idle_seconds(
            self._idle_seconds,
            floor_seconds=self._settings.idle_floor_seconds,
            ceiling_seconds=self._settings.idle_ceiling_seconds,
            random=self._random,
        )
        return self._idle_seconds

    @property
    def _idle(self) -> bool:
        """Nothing at work, nothing held, nothing to settle."""
        return not self._executors.running() and self._intake.empty and self._settler.next_due_at() is None

    def _rest(self, seconds: float) -> None:
        """Wait for a freed slot or a request to stop, and no longer than until something is due."""
        now = self._clock.monotonic()
        due_at = self._settler.next_due_at()
        if due_at is not None:
            seconds = min(seconds, due_at - now)
        if not self._intake.empty and self._executors.not_before > now:
            seconds = min(seconds, self._executors.not_before - now)
        if seconds > 0:
            self._clock.wait(self._wake, seconds)

    def _finished(self) -> bool:
        """Whether ``until`` is met; then the worker drains."""
        self._concluded_at_until = self._executors.concluded
        if self._until is None or self._leaving:
            return self._met
        self._met = self._ask(self._until)
        if self._met:
            self._leaving = True
            self._until_met()
        return self._met

    def _ask(self, until: Until) -> bool:
        try:
            return until()
        except TemporaryError as error:  # the ledger is away: asked again when idle
            self._bus.emit(UpkeepFailed(handler=self._handler.name, error=f"{type(error).__name__}: {error}"))
            return False

    def _care(self) -> None:
        """Upkeep, when it is time.

        A worker that is to finish does it as soon as it is idle after a batch, since what it waits for may hang on it.
        """
        concluded = self._executors.concluded
        hurry = self._until is not None and concluded != self._concluded_at_upkeep and not self._upkeep_failures
        if not hurry and self._clock.monotonic() < self._upkeep_at:
            return
        if self._upkeep() is None:
            self._concluded_at_upkeep = concluded
            self._upkeep_at = self._clock.monotonic() + self._settings.upkeep_seconds

    def _last_care(self) -> None:
        """Upkeep before a worker that is done leaves. Raises the last failure: its work is not finished then."""
        for left in reversed(range(FINAL_UPKEEPS_MAX)):
            error = self._upkeep()
            if error is None or self._quitting:
                return
            if not left:
                raise error
            self._wake.clear()
            self._clock.wait(self._wake, self._upkeep_at - self._clock.monotonic())

    def _upkeep(self) -> Exception | None:
        """One upkeep; a failure is told, puts the next one off, and is answered. Raises what is fatal."""
        try:
            self._handler.upkeep()
        except (UserError, PublishHalted):
            raise
        except Exception as error:
            self._upkeep_failures += 1
            self._upkeep_at = self._clock.monotonic() + backoff_seconds(
                attempt=self._upkeep_failures,
                base_seconds=self._settings.backoff_base_seconds,
                cap_seconds=self._settings.backoff_cap_seconds,
                random=self._random,
            )
            self._bus.emit(UpkeepFailed(handler=self._handler.name, error=f"{type(error).__name__}: {error}"))
            return error
        self._upkeep_failures = 0
        return None
