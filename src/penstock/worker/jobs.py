"""Run the background jobs of a handler, each on its own schedule and in its own thread, so that none delays others."""

from collections.abc import Callable

from penstock.errors import PublishHalted, TemporaryError, UserError
from penstock.events import Bus, JobFailed
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock
from penstock.messaging.threads import begin_thread
from penstock.worker.liveness import LifeSign
from penstock.worker.settings import WorkerSettings


class BackgroundJob:
    """One background job of one handler. The I/O thread begins it when it is due, one run at a time.

    With ``follows_batches`` (for a worker that ends when its work is done), a run also follows each batch as soon as
    the consumer is idle, since the end condition may depend on the job.
    """

    def __init__(
        self,
        *,
        handler: str,
        job: str,
        work: Callable[[], object],
        follows_batches: bool,
        settings: WorkerSettings,
        clock: Clock,
        bus: Bus,
        random: Random,
        ended: Callable[[], None],
        halt: Callable[[BaseException], object],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Store the job and its callbacks.

        ``ended`` is called after each run, ``halt`` with an error that only a person can fix, ``fail`` with an
        exception of a listener.
        """
        self._handler = handler
        self._work = work
        self._follows_batches = follows_batches
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._ended = ended
        self._halt = halt
        self._fail = fail
        self.name = f"penstock-upkeep-{handler}-{job}"  # also the name of its thread
        self.sign = LifeSign(self.name, clock)
        self._silent = False  # written by the lifecycle's thread; never unset
        # The rest is written by the job's thread during a run, otherwise by the I/O thread.
        self.running = False
        self.error: Exception | None = None  # of the last run
        self._failures = 0
        self._due_at = clock.monotonic()
        self._concluded = 0  # number of batches concluded when the last successful run began

    @property
    def due_at(self) -> float | None:
        """The time of the next run (monotonic); None while one is in progress."""
        return None if self.running else self._due_at

    def due(self, concluded: int) -> bool:
        """Return True if a run should begin now. ``concluded`` is the number of batches the consumer has concluded."""
        if self.running:
            return False
        follows = self._follows_batches and concluded != self._concluded and not self._failures
        return follows or self._clock.monotonic() >= self._due_at

    def begin(self, concluded: int) -> None:
        """Begin a run in its own thread, or later if no thread can be started. Call only while none is in progress."""
        self.running = True
        self.sign.give(self._settings.upkeep_seconds_max, f"running a background job of {self._handler}")
        try:
            begin_thread(self._run, concluded, name=self.name)
        except TemporaryError as error:
            self._record_failure(error)
            self.sign.rest()
            self.running = False

    def end(self) -> None:
        """Leave a run that is in progress to itself, and report no more failures: the worker ends."""
        self._silent = True

    def _run(self, concluded: int) -> None:
        try:
            self._run_work(concluded)
        except BaseException as defect:  # for example a listener that raises: it must end the worker
            if not self._silent:
                self._fail(defect)
        finally:
            self.sign.rest()
            self.running = False
            self._ended()

    def _run_work(self, concluded: int) -> None:
        try:
            self._work()
        except (UserError, PublishHalted) as error:
            self.error = error
            self._postpone()
            if not self._silent:
                self._halt(error)
        except Exception as error:
            self._record_failure(error)
        else:
            self.error = None
            self._failures = 0
            self._concluded = concluded
            self._due_at = self._clock.monotonic() + self._settings.upkeep_seconds

    def _record_failure(self, error: Exception) -> None:
        self.error = error
        self._postpone()
        if not self._silent:
            self._bus.emit(JobFailed(job=self._handler, error=f"{type(error).__name__}: {error}"))

    def _postpone(self) -> None:
        self._failures += 1
        self._due_at = self._clock.monotonic() + self._settings.backoff_seconds(self._failures, self._random)
