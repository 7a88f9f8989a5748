"""Background jobs for which the workers elect one of them.

A job has tasks, usually one per pipeline. A row among the ledger's works is the claim of the worker that does a task,
which is extended while the task runs, and freed at its end. The freed row records how and when the task ended, so over
all workers a task runs once per period, by the ledger's clock. If its worker dies, another one takes over when the
claim expires.

Each job has a thread of its own, and each task runs in another one, so that no job delays another and none delays
heartbeats, receiving or a stop.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ulid import ULID

from penstock.app.service import ServiceContext
from penstock.errors import PenstockError, TemporaryError
from penstock.events import JobFailed, Listener, ThreadLeftBehind
from penstock.ledger import Ledger
from penstock.ledger.records import HolderOutcome, WorkAttempt, WorkBegun, WorkState
from penstock.messaging.backoff import Random
from penstock.messaging.clock import Clock
from penstock.messaging.threads import WorkThread
from penstock.worker.shutdown import StopSignal

CHECK_SECONDS_MAX = 60.0  # between two checks for due tasks
CHECKS_A_PERIOD = 4
FIRST_CHECK_SECONDS_MAX = 5.0  # after the start, so that workers that start together do not check together
RETRY_SECONDS = 300.0  # after a failure; longer for a job with a long period, shorter for one that checks often
RETRIES_A_PERIOD = 6
END_SECONDS = 2.0  # for a task to end after it was asked to stop
JOIN_SECONDS = END_SECONDS + 1.0  # for a job to end, with its task
LEASE_SECONDS_MAX = 60.0  # a long lease of messages must not keep a dead worker's job from the others
RUN_SECONDS_MAX = 900.0  # without progress, of a unit of work that takes seconds: it probably hangs in its storage
DONE = "the task is done"  # the recorded reason of a task's end; its period counts from then


def is_overlong(still_seconds: float) -> bool:
    """Return True for a run without progress. Two runs at once do no harm; see `JobTask.is_stuck`."""
    return still_seconds > RUN_SECONDS_MAX


class TaskRun:
    """One run of a task. Its thread calls `is_over` between two units of work; the job's thread reads the rest."""

    def __init__(self, stop: StopSignal, *, worker_stop: StopSignal, clock: Clock) -> None:
        """Begin a run. ``stop`` is its own signal; a pause of the worker also ends it."""
        self.stop = stop  # for work that takes a signal
        self.moved_at = clock.monotonic()  # of the start or the latest progress
        self.ended_early = False
        self._worker_stop = worker_stop
        self._clock = clock

    def is_over(self) -> bool:
        """Note progress. Return True if the run should end now: the rest is for another worker, at once."""
        self.moved_at = self._clock.monotonic()
        self.ended_early = self.stop.requested or self._worker_stop.paused
        return self.ended_early


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTask:
    """One task of a job.

    ``run`` ends soon after `TaskRun.is_over` or its signal. It returns the seconds after which the task continues, if
    it left some of it for later, and None if the task is done.
    """

    name: str  # the pipeline or object handler; for the whole app, the app
    run: Callable[[TaskRun], float | None]
    is_due: Callable[[], bool] = lambda: True  # checked besides the period, before the claim and again under it
    # Given the seconds since the start or the latest progress. A stuck run loses its claim to another worker.
    is_stuck: Callable[[float], bool] = lambda _: False
    key: str | None = None  # of its row in the ledger; None: the name, if no other app uses it in this ledger
    every_seconds: Callable[[], float] | None = None  # its current period, if it may change; None: the job's

    @property
    def claimed_key(self) -> str:
        """The key of the task's row in the ledger."""
        return self.name if self.key is None else self.key


class ElectedJob:
    """Do due tasks, from `start` until `end` or until the worker is asked to stop. A paused worker begins no task.

    Args:
        name: The job's name, in its thread and in events about failures.
        claimed_as: The handler of the rows in the ledger. Fixed: workers of other versions claim the same rows.
        every_seconds: The period. None: a task is due again at once, unless its ``is_due`` says otherwise.
        lease_seconds: Until another worker may take over after this one has died.
        first_rest_seconds: Rest before the first check: a starting worker has more urgent work.
    """

    def __init__(
        self,
        name: str,
        tasks: Sequence[JobTask],
        *,
        claimed_as: str,
        every_seconds: float | None,
        lease_seconds: float,
        ledger: Callable[[], Ledger],
        worker: str,
        stop: StopSignal,
        clock: Clock,
        random: Random,
        emit: Listener,
        check_seconds: float | None = None,
        first_rest_seconds: float = 0.0,
    ) -> None:
        self._name = name
        self._tasks = tasks
        self._claimed_as = claimed_as
        self._every_seconds = every_seconds
        self._lease_seconds = lease_seconds
        self._ledger = ledger
        self._worker = worker
        self._stop = stop
        self._clock = clock
        self._random = random
        self._emit = emit
        # At least once per lease, so that a dead worker is replaced soon after its claim has expired.
        self._check_seconds = check_seconds or min(
            (every_seconds or lease_seconds) / CHECKS_A_PERIOD, lease_seconds, CHECK_SECONDS_MAX
        )
        self._retry_seconds = (
            every_seconds / RETRIES_A_PERIOD
            if every_seconds is not None
            else min(RETRY_SECONDS, CHECKS_A_PERIOD * self._check_seconds)
        )
        self._first_rest_seconds = first_rest_seconds
        self._ended = StopSignal()  # our own: the worker may end without having been asked to
        # By task, and used by the job's thread only.
        self._not_before: dict[str, float] = {}  # monotonic; the earliest next run, after one of this or another worker
        self._continued_at: dict[str, float] = {}  # monotonic; when tasks continue that this worker has done in part
        self._reported: dict[str, str] = {}  # the last failure
        self._leftover: dict[str, threading.Thread] = {}  # asked to stop, but still running
        self._thread = WorkThread(self._run, name=f"penstock-{name}")

    @property
    def name(self) -> str:
        """The job's name, as in the setting `worker.jobs`."""
        return self._name

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ask_to_end(self) -> None:
        """Stop the thread and the current task, without waiting for them."""
        self._ended.request()

    def wait_ended(self, seconds: float) -> None:
        """Wait at most this long for the thread, after `ask_to_end`."""
        self._thread.join(seconds)

    def end(self) -> None:
        """Stop the thread and the current task. Wait a short time for both."""
        self.ask_to_end()
        self.wait_ended(JOIN_SECONDS)

    @property
    def threads_left(self) -> Sequence[str]:
        """The names of the threads that still run after `wait_ended`: the job's own, and those of stopped tasks."""
        return [thread.name for thread in (self._thread, *self._leftover.values()) if thread.is_alive()]

    def check(self) -> None:
        """Do every task that is due and that no other worker does."""
        for task in self._tasks:
            if not self._begins_no_more:
                self._run_if_due(task)

    @property
    def _is_over(self) -> bool:
        return self._ended.requested or self._stop.requested

    @property
    def _begins_no_more(self) -> bool:
        return self._is_over or self._stop.paused

    def _run(self) -> None:
        self._pause(self._first_rest_seconds + min(self._check_seconds, FIRST_CHECK_SECONDS_MAX) * self._random())
        while not self._begins_no_more:
            self.check()
            self._pause(self._rest_seconds())

    def _rest_seconds(self) -> float:
        """Return the seconds until the next check: the usual rest, or less if a task continues earlier."""
        usual_seconds = self._check_seconds * (0.5 + self._random())
        now = self._clock.monotonic()
        return max(min([usual_seconds, *(at - now for at in self._continued_at.values())]), 0.0)

    def _pause(self, seconds: float) -> None:
        end_at = self._clock.monotonic() + seconds
        woken = threading.Event()
        with self._woken(woken):
            while not self._begins_no_more and (left := end_at - self._clock.monotonic()) > 0:
                self._clock.wait(woken, left)
                woken.clear()

    def _run_if_due(self, task: JobTask) -> None:
        if self._continued_at.get(task.name, 0.0) <= self._clock.monotonic():
            self._continued_at.pop(task.name, None)
        try:
            rested = self._clock.monotonic() >= self._not_before.get(task.name, 0.0)
            if rested and not self._still_runs(task) and task.is_due():
                self._claim_and_run(task)
        except BaseException as error:  # any, also a SystemExit of a library: this thread is ours, and others continue
            if not self._is_over:  # otherwise its database or Spark's JVM may have ended before us: no failure
                self._record_failure(task, error)

    def _record_failure(self, task: JobTask, error: BaseException) -> None:
        """Emit an event, once while the failure stays the same, and let the task rest."""
        self._not_before[task.name] = self._clock.monotonic() + self._retry_seconds
        text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        if self._reported.get(task.name) != text:
            self._reported[task.name] = text
            self._emit(JobFailed(job=f"{self._name} {task.name}", error=text))

    def _still_runs(self, task: JobTask) -> bool:
        """Return True if a stopped run of the task has not ended yet: a second one must not run beside it."""
        thread = self._leftover.get(task.name)
        if thread is not None and not thread.is_alive():
            del self._leftover[task.name]
        return task.name in self._leftover

    def _claim_and_run(self, task: JobTask) -> None:
        """Claim the task, run it, and free the claim with a record of how the task ended."""
        ledger, attempt_id = self._ledger(), str(ULID())
        row = ledger.work(self._claimed_as, task.claimed_key)
        if row is not None and row.state is WorkState.FREE and self._let_rest(task, row.previous, ledger):
            return
        claim = ledger.begin_work(
            self._claimed_as,
            task.claimed_key,
            attempt_id=attempt_id,
            worker=self._worker,
            lease_seconds=self._lease_seconds,
        )
        if not isinstance(claim, WorkBegun):
            self._reported.pop(task.name, None)
            return  # another worker does it
        ended = claim.previous
        if ended is not None:  # another worker may just have finished
            keeps_record = True
            try:
                keeps_record = self._let_rest(task, ended, ledger)
            finally:  # also if the period or the ledger's time cannot be read
                if keeps_record:
                    outcome: HolderOutcome = "failed" if ended.outcome == "failed" else "given_back"
                    self._free(task, ledger, attempt_id, outcome, ended.reason)
            if keeps_record:
                return
        try:
            more_seconds = self._run_claimed(task, ledger, attempt_id) if task.is_due() else 0.0
        except BaseException:
            # After a stop its database or Spark's JVM may have ended before us: cancelled, not failed.
            self._free(task, ledger, attempt_id, "given_back" if self._is_over else "failed", "the task raised")
            raise
        self._reported.pop(task.name, None)
        if more_seconds is not None:
            self._not_before[task.name] = self._clock.monotonic() + more_seconds
        if more_seconds:
            self._continued_at[task.name] = self._not_before[task.name]
        self._free(task, ledger, attempt_id, "given_back", DONE if more_seconds is None else "the task goes on later")

    def _free(self, task: JobTask, ledger: Ledger, attempt_id: str, outcome: HolderOutcome, reason: str) -> None:
        """End the claim, unless the task still runs: then the lease ends it, so that no other worker starts now."""
        if not self._still_runs(task):
            ledger.end_work(attempt_id, outcome=outcome, reason=reason)

    def _let_rest(self, task: JobTask, last: WorkAttempt | None, ledger: Ledger) -> bool:
        """Let the task rest, and return True, if its last run succeeded in this period or failed recently."""
        if self._every_seconds is None or last is None:
            return False
        if last.reason == DONE:
            rest_seconds = self._every_seconds if task.every_seconds is None else task.every_seconds()
        elif last.outcome == "failed":
            rest_seconds = self._retry_seconds
        else:
            return False
        left_seconds = rest_seconds - (ledger.now() - last.ended_at)
        if left_seconds <= 0:
            return False
        self._not_before[task.name] = self._clock.monotonic() + left_seconds
        if last.reason == DONE:
            self._reported.pop(task.name, None)
        return True

    def _run_claimed(self, task: JobTask, ledger: Ledger, attempt_id: str) -> float | None:
        """Run the task in its own thread while this one extends the claim; raise the error of either.

        The task is asked to stop and waited for before its claim ends. One that does not stop keeps this worker from
        starting it again; another worker may start it once the claim has expired.
        """
        stop, ended = StopSignal(), threading.Event()
        task_run = TaskRun(stop, worker_stop=self._stop, clock=self._clock)
        results, failures = list[float | None](), list[BaseException]()

        def run() -> None:
            try:
                results.append(task.run(task_run))
            except BaseException as error:
                failures.append(error)
            finally:
                ended.set()

        thread = WorkThread(run, name=f"penstock-{self._name}-task")
        thread.start()
        try:
            with self._woken(ended):
                self._extend_while_running(task, task_run, thread, ended, ledger, attempt_id)
        finally:
            if thread.is_alive():
                stop.request()
                thread.join(END_SECONDS)
                if thread.is_alive():
                    self._leftover[task.name] = thread
        for failure in failures:
            raise failure
        # A task that was stopped may have ended early, so it is due again.
        return results[0] if results and not (stop.requested or task_run.ended_early) else 0.0

    def _extend_while_running(
        self,
        task: JobTask,
        task_run: TaskRun,
        thread: threading.Thread,
        ended: threading.Event,
        ledger: Ledger,
        attempt_id: str,
    ) -> None:
        """Return when the task has ended, is stuck or has lost its claim, or when the worker stops.

        An extension that fails is tried again while a third of the lease is left; then its error is raised.
        """
        extended_at = self._clock.monotonic()
        while thread.is_alive() and not self._is_over:
            self._clock.wait(ended, self._lease_seconds / 3)
            ended.clear()
            thread.join(0.05)
            if not thread.is_alive():
                return
            if task.is_stuck(self._clock.monotonic() - task_run.moved_at):
                raise TemporaryError("the task does not end; another worker takes over")
            try:
                if not ledger.extend_work(attempt_id, lease_seconds=self._lease_seconds):
                    return  # another worker has the claim
                extended_at = self._clock.monotonic()
            except TemporaryError:
                if self._clock.monotonic() - extended_at >= self._lease_seconds * 2 / 3:
                    raise

    @contextmanager
    def _woken(self, event: threading.Event) -> Iterator[None]:
        with self._stop.watched_by(event), self._ended.watched_by(event):
            yield


@contextmanager
def running(jobs: Sequence[ElectedJob], *, clock: Clock, emit: Listener) -> Iterator[None]:
    """Run the jobs inside the block. All are asked to end before any is waited for, so that they end together.

    Threads that do not end in time are reported as events and left behind; see `ElectedJob.threads_left`.
    """
    started: list[ElectedJob] = []
    try:
        for job in jobs:
            job.start()
            started.append(job)
        yield
    finally:
        for job in started:
            job.ask_to_end()
        end_at = clock.monotonic() + JOIN_SECONDS
        for job in started:
            job.wait_ended(max(end_at - clock.monotonic(), 0.0))
        for job in started:
            for name in job.threads_left:
                emit(ThreadLeftBehind(thread=name))


def elected_job(
    name: str,
    tasks: Sequence[JobTask],
    context: ServiceContext,
    *,
    claimed_as: str,
    every_seconds: float | None,
    check_seconds: float | None = None,
    first_rest_seconds: float = 0.0,
) -> ElectedJob:
    """Return a job of a worker, with the worker's lease time."""
    return ElectedJob(
        name,
        tasks,
        claimed_as=claimed_as,
        every_seconds=every_seconds,
        lease_seconds=min(context.settings.worker_lease, LEASE_SECONDS_MAX),
        ledger=context.ledger,
        worker=context.worker,
        stop=context.stop,
        clock=context.clock,
        random=context.random,
        emit=context.bus.emit,
        check_seconds=check_seconds,
        first_rest_seconds=first_rest_seconds,
    )
