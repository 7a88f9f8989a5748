"""An elected job, with the tasks of a reconcile: when a task is due, which worker does it, and how it ends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.app.jobs.elected import (
    CHECK_SECONDS_MAX,
    CHECKS_A_PERIOD,
    DONE,
    ElectedJob,
    JobTask,
    TaskRun,
    is_overlong,
    running,
)
from penstock.app.jobs.reconcile import is_due
from penstock.app.reconcile_target import ReconcileTarget
from penstock.app.sources import SourceLocation
from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import TemporaryError
from penstock.events import Event, JobFailed
from penstock.ledger import Ledger
from penstock.ledger.pipelines import ReconcileResult
from penstock.ledger.records import WorkAttempt, WorkBegun, WorkState
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.storage.aws import Aws
from penstock.worker.shutdown import StopSignal

PATIENCE_SECONDS = 60.0
SOON_SECONDS = 0.2  # the period in tests in which a task becomes due again
NEVER_AGAIN_SECONDS = 1_000.0
HANDLER = "penstock-reconcile"


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < give_up_at, "the condition did not become true"
        pause.wait(0.01)


@dataclass
class Scene:
    """A ledger, a queue, and workers that reconcile one pipeline."""

    ledger: Ledger
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    stop: StopSignal = field(default_factory=StopSignal)
    heard: list[Event] = field(default_factory=list)
    jobs: list[ElectedJob] = field(default_factory=list)
    checks: int = 0  # by all workers; each worker thread increments it

    @property
    def target(self) -> ReconcileTarget:
        source = SourceLocation(address="/landing", aws=Aws())
        return ReconcileTarget(
            pipeline="clicks", source=source, own=(), queue="events", ledger=self.ledger, broker=self.broker
        )

    def begin(
        self,
        work: Callable[[ReconcileTarget, StopSignal], object],
        *,
        worker: str = "w1",
        every_seconds: float = NEVER_AGAIN_SECONDS,
        lease_seconds: float = 60.0,
    ) -> ElectedJob:
        target = self.target

        def run(task_run: TaskRun) -> None:
            work(target, task_run.stop)

        job = ElectedJob(
            "reconcile",
            [JobTask(name=target.pipeline, run=run, is_due=partial(is_due, target, every_seconds=every_seconds))],
            claimed_as=HANDLER,
            every_seconds=None,
            check_seconds=min(every_seconds / CHECKS_A_PERIOD, CHECK_SECONDS_MAX),
            lease_seconds=lease_seconds,
            ledger=lambda: target.ledger,
            worker=worker,
            stop=self.stop,
            clock=SystemClock(),
            random=self._count_check,
            emit=self.heard.append,
        )
        self.jobs.append(job)
        job.start()
        return job

    def _count_check(self) -> float:
        """Count a check: a job asks for a random number once between two checks."""
        self.checks += 1
        return 0.0

    def wait_for_checks(self, checks: int) -> None:
        """Wait until the workers have made ``checks`` more checks."""
        wanted = self.checks + checks
        wait_until(lambda: self.checks >= wanted)

    def record(self, *, sent: int = 0) -> None:
        self.ledger.record_reconciliation(
            ReconcileResult(pipeline="clicks", as_of=1.0, source="s", listed=1, missing=sent, sent=sent, seconds=0.1)
        )

    def claim_is_free(self) -> bool:
        claim = self.ledger.begin_work(HANDLER, "clicks", attempt_id="t", worker="t", lease_seconds=60.0)
        if isinstance(claim, WorkBegun):
            self.ledger.end_work("t", outcome="given_back", reason="a probe")
        return isinstance(claim, WorkBegun)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with closing(Ledger.open(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        made = Scene(ledger)
        yield made
        for job in made.jobs:
            job.end()


class Work:
    """A reconcile that counts its runs and records each in the ledger."""

    def __init__(self, scene: Scene) -> None:
        self.count = 0
        self._scene = scene

    def __call__(self, _target: ReconcileTarget, _stop: StopSignal) -> None:
        self.count += 1
        self._scene.record()


def test_a_pipeline_without_a_reconcile_is_due_once(scene: Scene) -> None:
    work = Work(scene)
    scene.begin(work)
    wait_until(lambda: work.count == 1 and scene.claim_is_free())
    second_work = Work(scene)
    scene.begin(second_work, worker="w2").end()  # it checks at once and finds the record
    assert (work.count, second_work.count) == (1, 0)


def test_a_reconcile_is_due_again_after_the_period(scene: Scene) -> None:
    work = Work(scene)
    scene.begin(work, every_seconds=SOON_SECONDS)
    wait_until(lambda: work.count >= 3)
    assert scene.heard == []


def test_one_worker_reconciles_at_a_time(scene: Scene) -> None:
    concurrent, concurrent_max, resume = [0], [0], threading.Event()

    def work(_target: ReconcileTarget, _stop: StopSignal) -> None:
        concurrent[0] += 1
        concurrent_max[0] = max(concurrent_max[0], concurrent[0])
        resume.wait(PATIENCE_SECONDS)
        concurrent[0] -= 1

    jobs = [scene.begin(work, worker=f"w{number}", every_seconds=SOON_SECONDS) for number in range(3)]
    wait_until(lambda: concurrent[0] == 1)
    assert not scene.claim_is_free()
    scene.wait_for_checks(10)
    assert concurrent_max == [1]
    resume.set()
    for job in jobs:
        job.end()
    assert concurrent_max == [1]


def test_the_claim_of_a_running_task_is_extended_beyond_its_lease(scene: Scene) -> None:
    begun, resume = threading.Event(), threading.Event()

    def work(_target: ReconcileTarget, _stop: StopSignal) -> None:
        begun.set()
        resume.wait(PATIENCE_SECONDS)
        scene.record()

    scene.begin(work, lease_seconds=0.6)
    assert begun.wait(PATIENCE_SECONDS)
    wait_until(lambda: _held_seconds(scene) > 3 * 0.6)
    assert not scene.claim_is_free()
    resume.set()
    wait_until(scene.claim_is_free)


def _held_seconds(scene: Scene) -> float:
    claim = scene.ledger.work(HANDLER, "clicks")
    assert claim is not None
    assert claim.lease_until is not None
    return claim.lease_until - claim.started_at


def test_a_failed_reconcile_is_reported_and_retried(scene: Scene) -> None:
    attempts: list[int] = []

    def work(_target: ReconcileTarget, _stop: StopSignal) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise TemporaryError("S3 is away")
        scene.record()

    scene.begin(work, every_seconds=SOON_SECONDS)
    wait_until(lambda: len(attempts) >= 2)
    assert scene.heard == [JobFailed(job="reconcile clicks", error="S3 is away")]


def test_a_stop_ends_a_running_task_and_frees_its_claim(scene: Scene) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def work(_target: ReconcileTarget, stop: StopSignal) -> None:
        begun.set()
        with stop.watched_by(stopped):
            assert stopped.wait(PATIENCE_SECONDS)

    job = scene.begin(work)
    assert begun.wait(PATIENCE_SECONDS)
    scene.stop.request()
    job.end()
    assert stopped.is_set()
    wait_until(scene.claim_is_free)


def test_an_error_after_a_stop_request_is_not_reported_as_a_failure(scene: Scene) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(_target: ReconcileTarget, stop: StopSignal) -> None:
        stopped = threading.Event()
        begun.set()
        with stop.watched_by(stopped):
            assert stopped.wait(PATIENCE_SECONDS)
        ended.set()
        raise ConnectionRefusedError("Spark's JVM has exited")

    job = scene.begin(work)
    assert begun.wait(PATIENCE_SECONDS)
    scene.stop.request()
    job.end()
    assert ended.is_set()
    assert scene.heard == []
    assert scene.claim_is_free()


def test_a_task_that_ignores_the_stop_does_not_delay_it(scene: Scene) -> None:
    begun, resume, ended = threading.Event(), threading.Event(), threading.Event()

    def work(_target: ReconcileTarget, _stop: StopSignal) -> None:
        begun.set()
        resume.wait(PATIENCE_SECONDS)
        ended.set()

    job = scene.begin(work)
    assert begun.wait(PATIENCE_SECONDS)
    job.end()
    assert not ended.is_set(), "the stop waited for the task"
    resume.set()


class UnextendableLedger:
    """A ledger that is unreachable whenever a claim is to be extended."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def extend_work(self, *_: object, **__: object) -> bool:
        raise TemporaryError("the ledger cannot be reached")


def test_a_task_whose_claim_cannot_be_extended_ends_before_another_run_begins(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    concurrent, concurrent_max, begun, ended = [0], [0], [0], [0]

    def work(_target: ReconcileTarget, stop: StopSignal) -> None:
        begun[0] += 1
        concurrent[0] += 1
        concurrent_max[0] = max(concurrent_max[0], concurrent[0])
        stopped = threading.Event()
        with stop.watched_by(stopped):
            assert stopped.wait(PATIENCE_SECONDS), "it was not asked to stop"
        concurrent[0] -= 1
        ended[0] += 1

    ledger = UnextendableLedger(scene.ledger)
    monkeypatch.setattr(Scene, "target", property(lambda _: _target_with(ledger)))
    scene.begin(work, every_seconds=SOON_SECONDS, lease_seconds=0.1)
    wait_until(lambda: ended[0] >= 3)
    assert concurrent_max == [1]
    assert scene.heard[0] == JobFailed(job="reconcile clicks", error="the ledger cannot be reached")


def test_a_task_that_ignores_the_stop_keeps_its_claim_and_no_second_run_begins(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.app.jobs.elected.END_SECONDS", 0.01)
    begun, resume = [0], threading.Event()

    def work(_target: ReconcileTarget, _stop: StopSignal) -> None:
        begun[0] += 1
        resume.wait(PATIENCE_SECONDS)

    ledger = UnextendableLedger(scene.ledger)
    monkeypatch.setattr(Scene, "target", property(lambda _: _target_with(ledger)))
    scene.begin(work, every_seconds=SOON_SECONDS, lease_seconds=0.1)
    wait_until(lambda: bool(scene.heard))
    scene.wait_for_checks(10)
    assert begun == [1]
    resume.set()
    wait_until(lambda: begun[0] >= 2)


def _target_with(ledger: Any) -> ReconcileTarget:
    source = SourceLocation(address="/landing", aws=Aws())
    return ReconcileTarget(
        pipeline="clicks", source=source, own=(), queue="events", ledger=ledger, broker=MemoryBroker()
    )


def test_a_reconcile_waits_while_notifications_of_the_last_one_are_in_the_queue(scene: Scene) -> None:
    scene.broker.send("events", [Outgoing(body=b"{}")])
    scene.record(sent=1)
    work = Work(scene)
    scene.begin(work, every_seconds=2.0)
    wait_until(lambda: (scene.ledger.seconds_since_reconciliation("clicks") or 0.0) > 2.0)
    scene.wait_for_checks(2)  # the period has passed, and the longest wait for the queue has not
    assert work.count == 0
    scene.broker.purge("events")
    wait_until(lambda: work.count >= 1)


class Periodic:
    """Workers that share a ledger and run one task once per period."""

    def __init__(self, tmp_path: Path, *, every_seconds: float) -> None:
        self.ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
        self.heard: list[Event] = []
        self.runs: list[str] = []
        self.more_seconds: float | None = None
        self.error: BaseException | None = None
        self._every_seconds = every_seconds

    def job(self, worker: str) -> ElectedJob:
        def run(_task_run: TaskRun) -> float | None:
            if self.error is not None:
                raise self.error
            self.runs.append(worker)
            return self.more_seconds

        return ElectedJob(
            "gc",
            [JobTask(name="clicks", run=run)],
            claimed_as="penstock gc",
            every_seconds=self._every_seconds,
            lease_seconds=60.0,
            ledger=lambda: self.ledger,
            worker=worker,
            stop=StopSignal(),
            clock=SystemClock(),
            random=lambda: 0.0,
            emit=self.heard.append,
        )


@pytest.fixture
def periodic(tmp_path: Path) -> Iterator[Periodic]:
    made = Periodic(tmp_path, every_seconds=NEVER_AGAIN_SECONDS)
    yield made
    made.ledger.close()


def test_a_task_runs_once_per_period_over_all_workers(periodic: Periodic) -> None:
    first, second = periodic.job("w1"), periodic.job("w2")
    for job in (first, second, first):
        job.check()
    assert periodic.runs == ["w1"]


def test_a_task_is_due_again_when_the_period_has_passed(tmp_path: Path) -> None:
    periodic = Periodic(tmp_path, every_seconds=SOON_SECONDS)
    with closing(periodic.ledger):
        first, second = periodic.job("w1"), periodic.job("w2")
        first.check()

        def ran_again() -> bool:
            second.check()
            return periodic.runs == ["w1", "w2"]

        wait_until(ran_again)


def test_a_task_with_remaining_work_is_due_again_for_any_worker(periodic: Periodic) -> None:
    periodic.more_seconds = 0.0
    first, second = periodic.job("w1"), periodic.job("w2")
    first.check()
    second.check()
    periodic.more_seconds = None
    first.check()
    second.check()
    assert periodic.runs == ["w1", "w2", "w1"]


def test_a_failed_task_rests_and_can_then_run_on_any_worker(tmp_path: Path) -> None:
    periodic = Periodic(tmp_path, every_seconds=6 * SOON_SECONDS)  # a failed task rests for a sixth of its period
    with closing(periodic.ledger):
        first, second = periodic.job("w1"), periodic.job("w2")
        periodic.error = TemporaryError("the store is away")
        first.check()
        first.check()
        assert periodic.heard == [JobFailed(job="gc clicks", error="the store is away")]
        periodic.error = None

        def succeeded() -> bool:
            second.check()
            return periodic.runs == ["w2"]

        wait_until(succeeded)


def test_a_task_that_fails_on_every_worker_is_reported_once_by_each(tmp_path: Path) -> None:
    periodic = Periodic(tmp_path, every_seconds=6 * SOON_SECONDS)
    with closing(periodic.ledger):
        first, second = periodic.job("w1"), periodic.job("w2")
        periodic.error = TemporaryError("the store is away")

        def attempts() -> int:
            row = periodic.ledger.work("penstock gc", "clicks")
            return 0 if row is None else row.attempts

        def has_failed(job: ElectedJob, times: int) -> bool:
            job.check()
            return attempts() >= times

        wait_until(lambda: has_failed(first, 1))
        wait_until(lambda: has_failed(second, 2))
        first.check()  # it sees the other's failure, and rests
        wait_until(lambda: has_failed(first, 3))
        assert periodic.heard == 2 * [JobFailed(job="gc clicks", error="the store is away")]


def test_a_failure_after_another_workers_success_is_reported_again(tmp_path: Path) -> None:
    periodic = Periodic(tmp_path, every_seconds=6 * SOON_SECONDS)
    with closing(periodic.ledger):
        first, second = periodic.job("w1"), periodic.job("w2")

        def failed_times(times: int) -> bool:
            first.check()
            return len(periodic.heard) == times

        periodic.error = TemporaryError("the store is away")
        wait_until(lambda: failed_times(1))
        periodic.error = None

        def seen_by_both() -> bool:
            second.check()
            first.check()
            return bool(periodic.runs) and not first._reported

        wait_until(seen_by_both)
        periodic.error = TemporaryError("the store is away")
        wait_until(lambda: failed_times(2))


def test_a_finished_task_leaves_a_claim_that_workers_of_earlier_versions_can_take(periodic: Periodic) -> None:
    periodic.job("w1").check()
    claim = periodic.ledger.begin_work("penstock gc", "clicks", attempt_id="old", worker="w0", lease_seconds=60.0)
    assert isinstance(claim, WorkBegun)


def test_a_task_that_hangs_loses_its_claim_and_another_worker_takes_over(periodic: Periodic) -> None:
    resume = threading.Event()
    stuck = JobTask(name="clicks", run=lambda _: resume.wait(PATIENCE_SECONDS) and None, is_stuck=lambda _: True)
    hanging = ElectedJob(
        "gc",
        [stuck],
        claimed_as="penstock gc",
        every_seconds=NEVER_AGAIN_SECONDS,
        lease_seconds=0.3,
        ledger=lambda: periodic.ledger,
        worker="w1",
        stop=StopSignal(),
        clock=SystemClock(),
        random=lambda: 0.0,
        emit=periodic.heard.append,
    )
    hanging.check()
    assert [type(event) for event in periodic.heard] == [JobFailed]
    survivor = periodic.job("w2")

    def taken_over() -> bool:
        survivor.check()
        return periodic.runs == ["w2"]

    wait_until(taken_over)
    resume.set()


@pytest.mark.parametrize("progresses", [True, False])
def test_a_run_is_stuck_only_without_progress(
    periodic: Periodic, monkeypatch: pytest.MonkeyPatch, progresses: bool
) -> None:
    """A long run with progress keeps its claim and is recorded as done, so no worker repeats it."""
    monkeypatch.setattr("penstock.app.jobs.elected.RUN_SECONDS_MAX", 0.5)
    ended = threading.Event()

    def run(task_run: TaskRun) -> None:
        end_at = time.monotonic() + 1.5
        while time.monotonic() < end_at and not task_run.stop.requested:
            if progresses:
                assert not task_run.is_over()
            ended.wait(0.01)

    job = ElectedJob(
        "gc",
        [JobTask(name="clicks", run=run, is_stuck=is_overlong)],
        claimed_as="penstock gc",
        every_seconds=NEVER_AGAIN_SECONDS,
        lease_seconds=0.6,
        ledger=lambda: periodic.ledger,
        worker="w1",
        stop=StopSignal(),
        clock=SystemClock(),
        random=lambda: 0.0,
        emit=periodic.heard.append,
    )
    job.check()
    row = periodic.ledger.work("penstock gc", "clicks")
    assert row is not None
    assert row.previous is not None
    assert (row.previous.reason == DONE) is progresses
    assert [type(event) for event in periodic.heard] == ([] if progresses else [JobFailed])


def test_a_run_that_a_pause_ended_early_is_not_done(scene: Scene) -> None:
    """Otherwise its period would start at the pause, and no worker would do the rest before the period ended."""

    def run(task_run: TaskRun) -> None:
        assert not task_run.is_over()
        scene.stop.pause()
        assert task_run.is_over()

    def ended() -> WorkAttempt | None:
        row = scene.ledger.work("penstock upkeep", "clicks")
        return None if row is None else row.previous

    job_of(scene, run).start()
    wait_until(lambda: ended() is not None)
    last = ended()
    assert last is not None
    assert (last.outcome, last.reason == DONE) == ("given_back", False)


def test_a_system_exit_in_a_task_is_reported_and_ends_no_job(periodic: Periodic) -> None:
    periodic.error = SystemExit(2)
    periodic.job("w1").check()
    assert periodic.heard == [JobFailed(job="gc clicks", error="SystemExit: 2")]


def test_a_worker_that_dies_during_a_task_loses_its_claim(periodic: Periodic) -> None:
    claim = {"attempt_id": "died", "worker": "w1", "retention_seconds": NEVER_AGAIN_SECONDS}
    periodic.ledger.begin_work("penstock gc", "clicks", lease_seconds=0.05, **claim)  # type: ignore[arg-type]
    survivor = periodic.job("w2")

    def taken_over() -> bool:
        survivor.check()
        return periodic.runs == ["w2"]

    wait_until(taken_over)


def test_a_worker_that_claims_just_after_another_has_finished_keeps_its_record(
    periodic: Periodic, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = periodic.job("w2")
    work = periodic.ledger.work

    def read_before_the_other_finishes(handler: str, key: str) -> object:
        row = work(handler, key)
        monkeypatch.setattr(periodic.ledger, "work", work)
        periodic.job("w1").check()
        return row

    monkeypatch.setattr(periodic.ledger, "work", read_before_the_other_finishes)
    second.check()
    periodic.job("w3").check()
    assert periodic.runs == ["w1"]


def test_a_claim_is_freed_with_the_earlier_record_if_the_period_cannot_be_read_under_it(
    periodic: Periodic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no worker could run the task until the lease has expired."""
    second = periodic.job("w2")
    work, now = periodic.ledger.work, periodic.ledger.now

    def fail_once() -> float:
        monkeypatch.setattr(periodic.ledger, "now", now)
        raise TemporaryError("the ledger is away")

    def read_before_the_other_finishes(handler: str, key: str) -> object:
        row = work(handler, key)
        monkeypatch.setattr(periodic.ledger, "work", work)
        periodic.job("w1").check()
        monkeypatch.setattr(periodic.ledger, "now", fail_once)
        return row

    monkeypatch.setattr(periodic.ledger, "work", read_before_the_other_finishes)
    second.check()
    assert periodic.heard == [JobFailed(job="gc clicks", error="the ledger is away")]
    row = periodic.ledger.work("penstock gc", "clicks")
    assert row is not None
    assert row.state is WorkState.FREE
    assert row.previous is not None
    assert row.previous.reason == DONE
    periodic.job("w3").check()
    assert periodic.runs == ["w1"]


def job_of(scene: Scene, run: Callable[[TaskRun], float | None], *, name: str = "upkeep") -> ElectedJob:
    """Return a job of one task that is checked only at its start. The job is not started."""
    job = ElectedJob(
        name,
        [JobTask(name="clicks", run=run)],
        claimed_as=f"penstock {name}",
        every_seconds=NEVER_AGAIN_SECONDS,
        check_seconds=NEVER_AGAIN_SECONDS,
        lease_seconds=60.0,
        ledger=lambda: scene.ledger,
        worker="w1",
        stop=scene.stop,
        clock=SystemClock(),
        random=lambda: 0.0,
        emit=scene.heard.append,
    )
    scene.jobs.append(job)
    return job


def test_a_task_with_remaining_work_continues_before_the_next_check(scene: Scene) -> None:
    rests = [0.05, 0.05, None]
    left = list(rests)
    done = threading.Event()

    def run(_task_run: TaskRun) -> float | None:
        more_seconds = left.pop(0)
        if not left:
            done.set()
        return more_seconds

    job_of(scene, run).start()
    assert done.wait(PATIENCE_SECONDS)
    assert scene.heard == []


def test_all_jobs_are_asked_to_stop_before_any_is_waited_for(scene: Scene) -> None:
    begun, all_stopped = threading.Barrier(3), threading.Barrier(2)

    def run(task_run: TaskRun) -> None:
        begun.wait(PATIENCE_SECONDS)
        stopped = threading.Event()
        with task_run.stop.watched_by(stopped):
            assert stopped.wait(PATIENCE_SECONDS)
        all_stopped.wait(PATIENCE_SECONDS)  # passes only if the other job is asked to stop too

    jobs = [job_of(scene, run, name=name) for name in ("one", "two")]
    with running(jobs, clock=SystemClock(), emit=scene.heard.append):
        begun.wait(PATIENCE_SECONDS)
    assert not all_stopped.broken
    assert scene.heard == []
    assert not [thread for thread in threading.enumerate() if thread.name in ("penstock-one", "penstock-two")]


def test_a_busy_task_is_checked_again_once_per_lease(scene: Scene) -> None:
    begun = scene.ledger.begin_work("penstock upkeep", "clicks", attempt_id="a", worker="dead", lease_seconds=0.5)
    assert isinstance(begun, WorkBegun)
    taken = threading.Event()
    job = ElectedJob(
        "upkeep",
        [JobTask(name="clicks", run=lambda _stop: taken.set())],
        claimed_as="penstock upkeep",
        every_seconds=NEVER_AGAIN_SECONDS,
        lease_seconds=0.5,
        ledger=lambda: scene.ledger,
        worker="w1",
        stop=scene.stop,
        clock=SystemClock(),
        random=lambda: 0.0,
        emit=scene.heard.append,
    )
    scene.jobs.append(job)
    job.start()
    assert taken.wait(PATIENCE_SECONDS)
