"""Background jobs of a line's handler: each has its own times and a thread of its own, so none delays anything else."""

from collections.abc import Callable

from penstock.errors import PublishHalted, TemporaryError, UserError
from penstock.events import Bus, UpkeepFailed
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.clock import Clock
from penstock.messaging.threads import begin_thread
from penstock.worker.liveness import LifeSign
from penstock.worker.settings import WorkerSettings


class BackgroundJob:
    """One background job of one handler. The I/O thread begins it when it is due, one run at a time.

    ``in_a_hurry``: for a worker that is to finish, a run follows each batch as soon as the line is idle, since what
    the worker waits for may hang on it.
    """

    def __init__(
        self,
        *,
        handler: str,
        job: str,
        work: Callable[[], object],
        in_a_hurry: bool,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        random: Random,
        ended: Callable[[], None],
        halt: Callable[[BaseException], object],
        fail: Callable[[BaseException], None],
    ) -> None:
        """``ended`` is called after each run; ``halt`` with what nobody but a person can mend; ``fail`` with what a
        listener raised."""
        self._handler = handler
        self._work = work
        self._in_a_hurry = in_a_hurry
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._ended = ended
        self._halt = halt
        self._fail = fail
        self.name = f"penstock-upkeep-{handler}-{job}"  # its thread's
        self.sign = LifeSign(self.name, clock)
        self._silent = False  # written by the thread that runs the worker; never unset
        # The rest is written by the I/O thread while nothing runs, else by the job's thread.
        self.running = False
        self.error: Exception | None = None  # of the last run
        self._failures = 0
        self._due_at = clock.monotonic()
        self._concluded = 0  # batches, when the last run that succeeded began

    @property
    def due_at(self) -> float | None:
        """When the next run is due (monotonic); None while one is under way."""
        return None if self.running else self._due_at

    def due(self, concluded: int) -> bool:
        """Return True if a run is to begin now; ``concluded`` counts the line's batches."""
        if self.running:
            return False
        hurry = self._in_a_hurry and concluded != self._concluded and not self._failures
        return hurry or self._clock.monotonic() >= self._due_at

    def begin(self, concluded: int) -> None:
        """Begin a run in a thread of its own, or later if none can be started. Only while no run is under way."""
        self.running = True
        self.sign.give(self._settings.upkeep_seconds_max, f"in the upkeep of {self._handler}")
        try:
            begin_thread(self._run, concluded, name=self.name)
        except TemporaryError as error:
            self._failed(error)
            self.sign.rest()
            self.running = False

    def end(self) -> None:
        """The worker ends: a run that is under way is left to itself, and its failure is not told any more."""
        self._silent = True

    def _run(self, concluded: int) -> None:
        try:
            self._care(concluded)
        except BaseException as defect:  # a listener that raises, say: the worker has to hear of it
            if not self._silent:
                self._fail(defect)
        finally:
            self.sign.rest()
            self.running = False
            self._ended()

    def _care(self, concluded: int) -> None:
        try:
            self._work()
        except (UserError, PublishHalted) as error:
            self.error = error
            self._put_off()
            if not self._silent:
                self._halt(error)
        except Exception as error:
            self._failed(error)
        else:
            self.error = None
            self._failures = 0
            self._concluded = concluded
            self._due_at = self._clock.monotonic() + self._settings.upkeep_seconds

    def _failed(self, error: Exception) -> None:
        self.error = error
        self._put_off()
        if not self._silent:
            self._bus.emit(UpkeepFailed(handler=self._handler, error=f"{type(error).__name__}: {error}"))

    def _put_off(self) -> None:
        self._failures += 1
        self._due_at = self._clock.monotonic() + backoff_seconds(
            attempt=self._failures,
            base_seconds=self._settings.backoff_base_seconds,
            cap_seconds=self._settings.backoff_cap_seconds,
            random=self._random,
        )
