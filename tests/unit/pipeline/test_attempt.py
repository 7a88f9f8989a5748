"""One batch through the protocol, on a real ledger in memory and a scripted engine."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest
from tests.claims import extended

from penstock.errors import FaultPersists, PartAway, TableError, TemporaryError, TransformError
from penstock.events import (
    BatchClaimed,
    BatchCommitted,
    BatchWritten,
    Bus,
    Event,
    FaultsRepeated,
    LinesQuarantined,
    Listener,
    MessageInvalid,
    ObjectEvent,
    ObjectFailed,
    ObjectFinished,
    ObjectInterrupted,
    ObjectSkipped,
    ObjectStarted,
    RunFailed,
)
from penstock.ledger import Ledger
from penstock.ledger.records import (
    AttemptFailure,
    BatchOutcome,
    BatchRecord,
    Candidate,
    Committed,
    ObjectClaims,
    ObjectResult,
    ObjectState,
    OnChange,
    OriginalMessage,
)
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import HeldClaim, ServiceWatch, Unwatched
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.objects.notification import announce, parse
from penstock.objects.reference import ObjectRef
from penstock.objects.replays import replay_of
from penstock.pipeline.attempt import AttemptSettings, PipelineRuntime
from penstock.pipeline.batch import BatchExecution
from penstock.pipeline.engine import ReadFailure, RunBroken, RunCancelled, RunRequest, RunResult
from penstock.pipeline.failures import FailureStreak
from penstock.testing.fake_clock import FakeClock

PIPELINE = "file:///table"
DEADLINE_SECONDS = 60.0
Settlements = Callable[[RunRequest], RunResult]


def ref(name: str) -> ObjectRef:
    return ObjectRef(bucket="bucket", key=name, size_bytes=10, etag="1")


def result(request: RunRequest, failed: dict[bytes, ReadFailure] | None = None) -> RunResult:
    """Return the result of a run in which every object has two rows, except the failed ones."""
    failed = failed or {}
    good = [ref for ref in request.objects if ref.object_id not in failed]
    return RunResult(
        processed=[ObjectResult(object_id=ref.object_id, rows=2, lines_quarantined=0) for ref in good],
        failed=failed,
        record=BatchRecord(
            rows=2 * len(good), lines_quarantined=0, bytes=10 * len(good), manifest="[]", quarantine_manifest=""
        ),
        schema_id=0,
        new_schema=None,
    )


class Engine:
    """An engine that returns scripted results and records its requests."""

    def __init__(self, answer: Settlements = result) -> None:
        self.answer = answer
        self.requests: list[RunRequest] = []
        self.cancelled: list[str] = []

    def run(self, request: RunRequest) -> RunResult:
        self.requests.append(request)
        return self.answer(request)

    def cancel(self, attempt_id: str) -> None:
        self.cancelled.append(attempt_id)

    @property
    def group_sizes(self) -> list[int]:
        return [len(request.objects) for request in self.requests]


class Pipeline:
    """Consecutive batches of one pipeline."""

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        *,
        objects_max: int = 100,
        listen: Listener = lambda event: None,
        watch: ServiceWatch | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 60.0,
        faults_max: int | None = 3,
        on_change: OnChange = OnChange.ADD,
        check_removal: Callable[[], None] | None = None,
    ) -> None:
        self.ledger = ledger
        self.events: list[Event] = []
        self._settings = AttemptSettings(
            pipeline=PIPELINE,
            worker="w",
            lease_seconds=lease_seconds,
            objects_max=objects_max,
            attempts_max=3,
            backoff_base_seconds=1.0,
            backoff_cap_seconds=300.0,
            on_change=on_change,
        )
        self._around = PipelineRuntime(
            ledger=ledger,
            engine=engine,
            parse=partial(parse, buckets_allowed=None),
            publish=lambda: None,
            streak=FailureStreak(faults_max=faults_max),
            bus=Bus(self.events.append, listen),
            clock=SystemClock() if clock is None else clock,
            random=lambda: 0.5,
            ledger_watch=watch or Unwatched(),
            check_removal=check_removal,
        )
        self._receipts = itertools.count()

    def execution(self, *names: str) -> BatchExecution:
        return BatchExecution([self._delivery(name) for name in names], self._settings, self._around)

    def run(self, *names: str) -> list[Settlement]:
        """Deliver one message for each name; return their settlements in the same order."""
        settlements = self.execution(*names).run()
        return [settlements[receipt] for receipt in sorted(settlements, key=lambda receipt: int(receipt))]

    def run_bodies(self, *bodies: bytes) -> list[Settlement]:
        """Deliver messages with these bodies; the ids are m-0, m-1 and so on."""
        deliveries = [
            Delivery(
                message=Message(id=f"m-{number}", body=body, enqueued_at=1.0),
                queue="q",
                receipt=str(number),
                attempt=1,
                received_at=1.0,
            )
            for number, body in enumerate(bodies)
        ]
        settlements = BatchExecution(deliveries, self._settings, self._around).run()
        return [settlements[delivery.receipt] for delivery in deliveries]

    def state(self, name: str) -> ObjectState:
        return self.ledger.states(PIPELINE, [ref(name).object_id])[ref(name).object_id]

    def attempts(self, name: str) -> int:
        return next(row.attempts for row in self.ledger.objects(PIPELINE) if row.object_id == ref(name).object_id)

    def _delivery(self, name: str) -> Delivery:
        message = Message(id=f"m-{name}", body=announce(ref(name)), enqueued_at=1.0)
        return Delivery(message=message, queue="q", receipt=str(next(self._receipts)), attempt=1, received_at=1.0)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline(PIPELINE)
    yield ledger
    ledger.close()


def count_of(events: Sequence[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)


def unreadable(*names: str, failure: AttemptFailure = AttemptFailure.RETRY) -> Settlements:
    ids = {ref(name).object_id for name in names}

    def answer(request: RunRequest) -> RunResult:
        failed = {one.object_id for one in request.objects} & ids
        return result(request, {object_id: ReadFailure(failure=failure, reason="no") for object_id in failed})

    return answer


def culprit(name: str) -> Settlements:
    """Return an answer that fails every run with this object, without naming the object."""

    def answer(request: RunRequest) -> RunResult:
        if ref(name) in request.objects:
            raise RunBroken("ValueError: no", fingerprint="ValueError")
        return result(request)

    return answer


def test_committed_objects_are_acked_and_reported(ledger: Ledger) -> None:
    pipeline = Pipeline(ledger, Engine())
    assert pipeline.run("a", "b") == [Ack(), Ack()]
    assert pipeline.state("a") is ObjectState.PROCESSED
    assert [batch.objects for batch in ledger.batches(PIPELINE)] == [2]
    types = (BatchClaimed, BatchWritten, BatchCommitted)
    assert [type(event) for event in pipeline.events if isinstance(event, types)] == list(types)


def test_an_invalid_message_is_reported_once(ledger: Ledger) -> None:
    pipeline = Pipeline(ledger, Engine())
    document = json.loads(announce(ref("a")))
    document["Records"].append({})
    bodies = [b'{"hello": 1}', json.dumps(document).encode(), b'{"Records": [{}]}']
    assert [type(one) for one in pipeline.run_bodies(*bodies)] == [DeadLetter] * 3
    assert pipeline.state("a") is ObjectState.PROCESSED
    found = [event for event in pipeline.events if isinstance(event, MessageInvalid)]
    assert sorted((event.handler, event.message_id) for event in found) == [(PIPELINE, f"m-{n}") for n in range(3)]
    reasons = {event.message_id: event.reason for event in found}
    assert "Records is missing" in reasons["m-0"]
    assert reasons["m-1"] == "record 2: eventVersion is missing"


def test_a_duplicate_is_acked_without_a_second_run(ledger: Ledger) -> None:
    engine = Engine()
    pipeline = Pipeline(ledger, engine)
    pipeline.run("a")
    assert pipeline.run("a", "a") == [Ack(), Ack()]
    assert engine.group_sizes == [1]


def test_an_unreadable_object_is_retried_and_then_dead_lettered(ledger: Ledger) -> None:
    pipeline = Pipeline(ledger, Engine(unreadable("bad")))
    assert pipeline.run("a", "bad") == [Ack(), Release(delay_seconds=0.5)]
    assert pipeline.run("bad") == [Release(delay_seconds=1.0)]
    assert pipeline.run("bad") == [DeadLetter(reason="no")]
    assert pipeline.state("bad") is ObjectState.DEAD
    assert pipeline.attempts("a") == 1
    assert pipeline.run("bad") == [DeadLetter(reason="no")], "a redelivery of the original message fails again"


def test_uncounted_refusals_end_a_job_with_an_end_condition(ledger: Ledger) -> None:
    """Two objects that cannot be read excuse each other in every run."""
    denied = ReadFailure(failure=AttemptFailure.RETRY, reason="s3://bucket/a cannot be read: 403", uncounted=True)
    names = {ref(name).object_id: denied for name in ("a", "b")}
    engine = Engine(lambda request: result(request, {one: names[one] for one in names}))
    pipeline = Pipeline(ledger, engine)
    assert pipeline.run("a", "b", "good")[2] == Ack(), "one object was read"
    assert pipeline.run("a", "b") == [Release(delay_seconds=1.0, uncounted=True)] * 2
    assert pipeline.run("a", "b") == [Release(delay_seconds=2.0, uncounted=True)] * 2
    with pytest.raises(FaultPersists, match=r"s3://bucket/a cannot be read: 403 \(3 times in a row\)"):
        pipeline.run("a", "b")
    assert pipeline.state("a") is ObjectState.UNPROCESSED


def test_an_object_that_fails_on_other_hosts_only_is_retried_with_backoff(
    ledger: Ledger,
) -> None:
    host = ReadFailure(failure=AttemptFailure.RETRY, reason="check the mounts and permissions on w7", uncounted=True)
    pipeline = Pipeline(ledger, Engine(lambda request: result(request, {ref("bad").object_id: host})))
    found = [pipeline.run("bad", f"good-{number}") for number in range(10)]
    assert all(good == Ack() for _, good in found)
    assert [bad.delay_seconds for bad, _ in found if isinstance(bad, Release)] == [
        *(0.5 * 2**number for number in range(9)),
        150.0,
    ]
    assert pipeline.attempts("bad") == 0


def test_an_object_in_a_missing_mount_is_retried_with_backoff(ledger: Ledger) -> None:
    def answer(request: RunRequest) -> RunResult:
        if ref("bad") in request.objects:
            raise PartAway("nothing is mounted there any more")
        return result(request)

    pipeline = Pipeline(ledger, Engine(answer))
    for number in range(4):
        assert pipeline.run("bad") == [Release(delay_seconds=0.5 * 2**number, uncounted=True)]
        assert pipeline.run(f"good-{number}") == [Ack()]


class Watch(Unwatched):
    """A watch that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @contextmanager
    def watch_request(self) -> Iterator[None]:
        try:
            yield
        except TemporaryError as error:
            self.calls.append(str(error))
            raise

    def record_success(self) -> None:
        self.calls.append("succeeded")

    def release_delay_seconds(self) -> float:
        return 20.0


@pytest.mark.parametrize("method", ["unattributed_failures", "claim", "commit"])
def test_an_unreachable_ledger_is_reported_to_the_watch_and_not_counted_as_an_attempt(
    ledger: Ledger, method: str
) -> None:
    watch = Watch()
    pipeline = Pipeline(ledger, Engine(), watch=watch)
    with mock.patch.object(ledger, method, side_effect=TemporaryError("it is down")):
        [settled] = pipeline.run("a")
    assert isinstance(settled, Release)
    assert (settled.delay_seconds, settled.uncounted) == (20.0, True)
    assert watch.calls == [*(["succeeded"] if method == "commit" else []), "it is down"]
    assert pipeline.run("a") == [Ack()]
    assert pipeline.attempts("a") == 1


def test_a_ledger_that_accepts_no_claim_is_not_reported_as_working(ledger: Ledger) -> None:
    watch = Watch()
    pipeline = Pipeline(ledger, Engine(), watch=watch)
    with mock.patch.object(ledger, "claim", side_effect=TemporaryError("its disk is full")):
        for _ in range(2):
            pipeline.run("a")
    assert "succeeded" not in watch.calls
    pipeline.run("a")
    assert pipeline.run("a") == [Ack()]
    assert watch.calls.count("succeeded") == 1, "a processed object needs no write"


def test_an_unreachable_ledger_ends_a_job_with_an_end_condition(ledger: Ledger) -> None:
    pipeline = Pipeline(ledger, Engine())
    with mock.patch.object(ledger, "unattributed_failures", side_effect=TemporaryError("the ledger is down")):
        assert pipeline.run("a") == [Release(delay_seconds=0.5, uncounted=True, reason="the ledger is down")]
        assert pipeline.run("a") == [Release(delay_seconds=1.0, uncounted=True, reason="the ledger is down")]
        with pytest.raises(FaultPersists, match=r"down \(3 times in a row\)"):
            pipeline.run("a")
    assert pipeline.run("a") == [Ack()]


def test_a_repeated_fault_is_reported_at_growing_intervals(ledger: Ledger) -> None:
    def disk_full(request: RunRequest) -> RunResult:
        raise TemporaryError("disk full")

    pipeline = Pipeline(ledger, Engine(disk_full), faults_max=None)
    for _ in range(9):
        pipeline.run("a")
    faults = [event for event in pipeline.events if isinstance(event, FaultsRepeated)]
    assert [(event.count, event.error) for event in faults] == [(n, "disk full") for n in (2, 4, 8)]


def test_an_object_is_deleted_only_after_two_checks_some_time_apart() -> None:
    now = [1_000.0]
    with closing(Ledger.open("sqlite://", now=lambda: now[0])) as ledger:
        ledger.ensure_pipeline(PIPELINE)
        engine = Engine(unreadable("a"))
        pipeline = Pipeline(ledger, engine)
        pipeline.run("a")  # a failure of another kind is not a check
        engine.answer = unreadable("a", failure=AttemptFailure.DELETED)
        assert pipeline.run("a") == [Release(delay_seconds=5.5, uncounted=True)]
        now[0] += 3.0
        assert pipeline.run("a") == [Release(delay_seconds=2.5, uncounted=True)], "still within one outage"
        now[0] += 2.0
        assert pipeline.run("a") == [Ack()]
        assert pipeline.state("a") is ObjectState.DELETED


def test_a_check_that_finds_the_object_restarts_the_count() -> None:
    now = [1_000.0]
    with closing(Ledger.open("sqlite://", now=lambda: now[0])) as ledger:
        ledger.ensure_pipeline(PIPELINE)
        engine = Engine(unreadable("a", failure=AttemptFailure.DELETED))
        pipeline = Pipeline(ledger, engine)
        pipeline.run("a")
        now[0] += 60.0
        engine.answer = unreadable("a")
        pipeline.run("a")
        engine.answer = unreadable("a", failure=AttemptFailure.DELETED)
        assert pipeline.run("a") == [Release(delay_seconds=5.5, uncounted=True)]


def test_a_superseded_object_is_done_at_once(ledger: Ledger) -> None:
    pipeline = Pipeline(ledger, Engine(unreadable("a", failure=AttemptFailure.SUPERSEDED)))
    assert pipeline.run("a") == [Ack()]
    assert pipeline.state("a") is ObjectState.SUPERSEDED


def test_one_culprit_is_found_without_failing_the_other_objects(ledger: Ledger) -> None:
    engine = Engine(culprit("9"))
    pipeline = Pipeline(ledger, engine)
    names = [str(number) for number in range(36)]
    waiting = set(names)
    for _ in range(3):
        order = sorted(waiting)
        ends = pipeline.run(*order)
        waiting = {name for name, end in zip(order, ends, strict=True) if isinstance(end, Release)}
    assert waiting == set()
    assert pipeline.state("9") is ObjectState.DEAD
    assert ledger.counts(PIPELINE)[ObjectState.PROCESSED] == 35
    assert engine.group_sizes[0] == 36
    assert max(engine.group_sizes[1:5]) == 10, "100 ** (1 - 1/2) objects at most shared the second run"
    assert (ref("9"),) in [request.objects for request in engine.requests], "its last run had no other object"
    assert count_of(pipeline.events, RunFailed) == 3, "only the attempts of the culprit failed"


def test_a_failure_of_everything_stops_the_pipeline_and_fails_no_object(ledger: Ledger) -> None:
    def always(request: RunRequest) -> RunResult:
        raise RunBroken("NameError: x", fingerprint="NameError")

    pipeline = Pipeline(ledger, Engine(always), objects_max=100)
    names = [str(number) for number in range(60)]
    pipeline.run(*names)
    with pytest.raises(TransformError, match="NameError: x"):
        pipeline.run(*names)
    counts = ledger.counts(PIPELINE)
    assert (counts[ObjectState.DEAD], counts[ObjectState.PROCESSING]) == (0, 0)
    assert counts[ObjectState.UNPROCESSED] == 60


def test_an_infrastructure_fault_is_not_counted_as_an_attempt(ledger: Ledger) -> None:
    def disk_full(request: RunRequest) -> RunResult:
        raise TemporaryError("disk full")

    engine = Engine(disk_full)
    pipeline = Pipeline(ledger, engine)
    assert pipeline.run("a") == [Release(delay_seconds=0.5, uncounted=True)]
    assert pipeline.attempts("a") == 0
    engine.answer = result
    assert pipeline.run("a") == [Ack()]


def test_a_user_error_frees_the_claim_and_stops_the_worker(ledger: Ledger) -> None:
    def mistake(request: RunRequest) -> RunResult:
        raise TableError("another schema")

    pipeline = Pipeline(ledger, Engine(mistake))
    with pytest.raises(TableError):
        pipeline.run("a")
    assert pipeline.state("a") is ObjectState.UNPROCESSED
    assert pipeline.attempts("a") == 0
    assert not ledger.open_attempts(PIPELINE)


def test_an_internal_error_counts_as_an_attempt(ledger: Ledger) -> None:
    def defect(request: RunRequest) -> RunResult:
        raise KeyError("oops")

    engine = Engine()
    pipeline = Pipeline(ledger, engine)
    pipeline.run("good")
    engine.answer = defect
    ends = [pipeline.run("a")[0] for _ in range(3)]
    assert [type(end) for end in ends] == [Release, Release, DeadLetter]
    assert not ledger.open_attempts(PIPELINE)


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_before_the_first_success_errors_of_the_transform_fail_no_object(ledger: Ledger, count: int) -> None:
    def always(request: RunRequest) -> RunResult:
        raise RunBroken("NameError: x", fingerprint="NameError")

    pipeline = Pipeline(ledger, Engine(always), objects_max=5_000)
    names = [str(number) for number in range(count)]

    def until_it_stops() -> None:
        for _ in range(4):
            pipeline.run(*names)

    with pytest.raises(TransformError, match="NameError: x"):
        until_it_stops()
    assert ledger.counts(PIPELINE)[ObjectState.UNPROCESSED] == count
    assert not ledger.open_attempts(PIPELINE)


def test_a_lone_poison_object_fails_finally_in_a_pipeline_that_worked_before(ledger: Ledger) -> None:
    Pipeline(ledger, Engine()).run("good")
    restarted = Pipeline(ledger, Engine(culprit("bad")))
    ends = [restarted.run("bad")[0] for _ in range(4)]
    assert [type(end) for end in ends] == [Release, Release, Release, DeadLetter], "one last attempt, then final"


def test_a_batch_without_rows_does_not_prove_that_the_transform_works(ledger: Ledger) -> None:
    def no_rows_then_broken(request: RunRequest) -> RunResult:
        if ref("empty") not in request.objects:
            raise RunBroken("NameError: x", fingerprint="NameError")
        whole = result(request)
        return replace(whole, record=BatchRecord(), processed=[replace(one, rows=0) for one in whole.processed])

    pipeline = Pipeline(ledger, Engine(no_rows_then_broken))
    assert pipeline.run("empty") == [Ack()]

    def until_it_stops() -> None:
        for _ in range(4):
            pipeline.run("good")

    with pytest.raises(TransformError):
        until_it_stops()
    assert pipeline.state("good") is ObjectState.UNPROCESSED


def test_a_full_disk_of_the_driver_is_not_counted_as_an_attempt(ledger: Ledger) -> None:
    def full(request: RunRequest) -> RunResult:
        raise OSError(28, "No space left on device")

    pipeline = Pipeline(ledger, Engine(full))
    pipeline.run("a")
    pipeline.run("a")
    assert pipeline.attempts("a") == 0
    with pytest.raises(FaultPersists, match="No space left"):
        pipeline.run("a")


def test_released_work_is_free_at_once_and_its_run_cannot_commit(ledger: Ledger) -> None:
    executions: list[BatchExecution] = []

    def released_meanwhile(request: RunRequest) -> RunResult:
        executions[0].release()
        assert not extended(executions[0]), "the claim no longer belongs to it"
        executions[0].interrupt()
        return result(request)

    engine = Engine(released_meanwhile)
    pipeline = Pipeline(ledger, engine)
    executions.append(pipeline.execution("a"))
    assert list(executions[0].run().values()) == [Release(delay_seconds=0.5, uncounted=True)]
    assert pipeline.state("a") is ObjectState.UNPROCESSED
    assert pipeline.attempts("a") == 0
    assert engine.cancelled == [engine.requests[0].attempt_id]


def test_nothing_is_claimed_after_a_release(ledger: Ledger) -> None:
    engine = Engine()
    execution = Pipeline(ledger, engine).execution("a")
    execution.release()
    with mock.patch.object(ledger, "claim") as claim, pytest.raises(RunCancelled):
        execution.run()
    assert not claim.called
    assert engine.requests == []


def test_a_release_waits_for_a_hanging_claim_until_the_work_is_interrupted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    claiming, answers = threading.Event(), threading.Event()
    claim = ledger.claim

    def slowly(*args: Any, **named: Any) -> ObjectClaims:
        claiming.set()
        assert answers.wait(2 * DEADLINE_SECONDS)
        return claim(*args, **named)

    monkeypatch.setattr(ledger, "claim", slowly)
    pipeline = Pipeline(ledger, Engine(), lease_seconds=2 * DEADLINE_SECONDS)
    execution = pipeline.execution("a")
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(execution.run)
        assert claiming.wait(DEADLINE_SECONDS)
        waiting = pool.submit(execution.release)
        execution.interrupt()
        waiting.result(DEADLINE_SECONDS)
        assert not running.done()
        answers.set()
        with pytest.raises(RunCancelled):
            running.result(DEADLINE_SECONDS)
    assert pipeline.state("a") is ObjectState.UNPROCESSED


def test_a_claim_is_extended_during_the_run_and_not_lost_after_the_commit(ledger: Ledger) -> None:
    executions: list[BatchExecution] = []
    held: list[bool] = []

    def slow(request: RunRequest) -> RunResult:
        held.append(extended(executions[0]))
        return result(request)

    pipeline = Pipeline(ledger, Engine(slow))
    executions.append(pipeline.execution("a"))
    assert list(executions[0].run().values()) == [Ack()]
    assert [*held, extended(executions[0])] == [True, True]


def test_a_heartbeat_that_overlaps_the_commit_does_not_lose_the_claim(ledger: Ledger) -> None:
    executions: list[BatchExecution] = []
    claims: list[HeldClaim | None] = []
    lost: list[bool] = []
    commit = ledger.commit

    def running(request: RunRequest) -> RunResult:
        claims.append(executions[0].claim())
        return result(request)

    def committing(outcome: BatchOutcome) -> Committed | None:
        assert claims[0] is not None
        committed = commit(outcome)
        lost.append(executions[0].loses(claims[0]))  # for the ledger, the attempt is no longer open
        return committed

    executions.append(Pipeline(ledger, Engine(running)).execution("a"))
    with mock.patch.object(ledger, "commit", committing):
        assert list(executions[0].run().values()) == [Ack()]
    assert lost == [False]


def test_an_object_claimed_by_another_worker_waits_for_its_lease_uncounted(ledger: Ledger) -> None:
    executions: list[list[Settlement]] = []
    inner = Pipeline(ledger, Engine())

    def meanwhile(request: RunRequest) -> RunResult:
        executions.append(inner.run("a"))
        return result(request)

    assert Pipeline(ledger, Engine(meanwhile)).run("a") == [Ack()]
    [end] = executions[0]
    assert isinstance(end, Release)
    assert end.uncounted
    assert 55 < end.delay_seconds < 65


# Events of each object


def object_events(pipeline: Pipeline) -> list[tuple[str, str]]:
    return [
        (type(event).__name__, event.object_uri.removeprefix("s3://bucket/"))
        for event in pipeline.events
        if isinstance(event, ObjectEvent | ObjectSkipped | LinesQuarantined)
    ]


def test_every_object_is_reported_as_started_and_as_finished_or_failed(ledger: Ledger) -> None:
    def some_bad_lines(request: RunRequest) -> RunResult:
        whole = unreadable("bad")(request)
        processed = [replace(one, lines_quarantined=3) for one in whole.processed]
        reasons = {one.object_id: {"malformed": 1, "wrong type": 2} for one in processed}
        return replace(whole, processed=processed, reasons=reasons)

    pipeline = Pipeline(ledger, Engine(some_bad_lines))
    pipeline.run("a", "bad")
    assert object_events(pipeline) == [
        ("ObjectStarted", "a"),
        ("ObjectStarted", "bad"),
        ("ObjectFinished", "a"),
        ("LinesQuarantined", "a"),
        ("ObjectFailed", "bad"),
    ]
    [quarantined] = [event for event in pipeline.events if isinstance(event, LinesQuarantined)]
    assert (quarantined.count, quarantined.reasons) == (3, {"malformed": 1, "wrong type": 2})
    [batch] = ledger.batches(PIPELINE)
    assert {event.attempt_id for event in pipeline.events if isinstance(event, ObjectEvent)} == {batch.attempt_id}
    pipeline.events.clear()
    pipeline.run("bad", "a")
    assert object_events(pipeline) == [("ObjectSkipped", "a"), ("ObjectStarted", "bad"), ("ObjectFailed", "bad")]
    [second] = [event.attempt for event in pipeline.events if isinstance(event, ObjectStarted)]
    assert second == 2


def test_each_stage_of_a_batch_reports_its_seconds_and_the_commit_its_bytes(ledger: Ledger) -> None:
    clock = FakeClock()

    def lasting(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            clock.advance(seconds)
            return call(*given, **named)

        return wrapped

    pipeline = Pipeline(ledger, Engine(lasting(20.0, unreadable("bad"))), clock=clock)
    with (
        mock.patch.object(ledger, "claim", lasting(1.0, ledger.claim)),
        mock.patch.object(ledger, "commit", lasting(300.0, ledger.commit)),
    ):
        pipeline.run("a", "bad", "c")
    claimed, written, committed = (
        event for event in pipeline.events if isinstance(event, BatchClaimed | BatchWritten | BatchCommitted)
    )
    assert (claimed.seconds, written.seconds, committed.seconds) == (1.0, 20.0, 300.0)
    assert isinstance(claimed, BatchClaimed)
    assert isinstance(committed, BatchCommitted)
    [batch] = ledger.batches(PIPELINE)
    assert (claimed.bytes, committed.bytes, batch.record.bytes) == (30, 20, 20)


def test_objects_are_reported_after_the_ledger_recorded_them(ledger: Ledger) -> None:
    states: list[ObjectState] = []

    def listen(event: Event) -> None:
        if isinstance(event, ObjectFinished | ObjectFailed | ObjectInterrupted):
            states.append(pipeline.state(event.object_uri.removeprefix("s3://bucket/")))

    pipeline = Pipeline(ledger, Engine(unreadable("old", failure=AttemptFailure.SUPERSEDED)), listen=listen)
    pipeline.run("a", "old")
    assert states == [ObjectState.PROCESSED, ObjectState.SUPERSEDED]


def test_the_end_of_objects_in_a_broken_or_interrupted_batch_is_reported(ledger: Ledger) -> None:
    def disk_full(request: RunRequest) -> RunResult:
        raise TemporaryError("disk full")

    engine = Engine(culprit("a"))
    pipeline = Pipeline(ledger, engine)
    pipeline.run("a")
    engine.answer = disk_full
    pipeline.run("a")
    assert [kind for kind, _ in object_events(pipeline)] == [
        "ObjectStarted",
        "ObjectFailed",
        "ObjectStarted",
        "ObjectInterrupted",
    ]


def test_a_pipeline_that_stops_releases_its_objects(ledger: Ledger) -> None:
    def always(request: RunRequest) -> RunResult:
        raise RunBroken("NameError: x", fingerprint="NameError")

    pipeline = Pipeline(ledger, Engine(always))
    pipeline.run("a")
    pipeline.run("b")
    with pytest.raises(TransformError):
        pipeline.run("c")
    assert object_events(pipeline)[-2:] == [("ObjectStarted", "c"), ("ObjectInterrupted", "c")]


def test_released_objects_are_reported_once(ledger: Ledger) -> None:
    executions: list[BatchExecution] = []

    def released_meanwhile(request: RunRequest) -> RunResult:
        executions[0].release()
        executions[0].release()
        return result(request)

    pipeline = Pipeline(ledger, Engine(released_meanwhile))
    executions.append(pipeline.execution("a", "b"))
    executions[0].run()
    assert [kind for kind, _ in object_events(pipeline)] == ["ObjectStarted"] * 2 + ["ObjectInterrupted"] * 2


def test_an_object_claimed_by_another_worker_is_reported_as_skipped(ledger: Ledger) -> None:
    inner = Pipeline(ledger, Engine())

    def meanwhile(request: RunRequest) -> RunResult:
        inner.run("a")
        return result(request)

    Pipeline(ledger, Engine(meanwhile)).run("a")
    [skipped] = [event for event in inner.events if isinstance(event, ObjectSkipped)]
    assert skipped.reason == "in_progress"


# Timeouts


def test_a_batch_that_ran_out_of_time_makes_its_objects_suspects(ledger: Ledger) -> None:
    executions: list[BatchExecution] = []
    answers: list[dict[str, Settlement]] = []

    def slow(request: RunRequest) -> RunResult:
        answers.append(dict(executions[-1].time_out()))
        executions[-1].interrupt()
        return result(request)

    engine = Engine(slow)
    pipeline = Pipeline(ledger, engine)
    executions.append(pipeline.execution("a", "b"))
    executions[0].run()
    assert list(answers[0].values()) == [Release(delay_seconds=0.5)] * 2
    assert engine.cancelled == [engine.requests[0].attempt_id]
    assert (pipeline.state("a"), pipeline.attempts("a")) == (ObjectState.UNPROCESSED, 1)
    assert set(ledger.unattributed_failures(PIPELINE, [ref(name).object_id for name in "ab"]).values()) == {1}
    assert [kind for kind, _ in object_events(pipeline)] == ["ObjectStarted"] * 2 + ["ObjectFailed"] * 2
    assert not ledger.open_attempts(PIPELINE)


def test_a_timeout_with_an_unreachable_ledger_leaves_the_lease_to_expire(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    executions: list[BatchExecution] = []
    answers: list[dict[str, Settlement]] = []

    def away(outcome: object) -> int:
        raise TemporaryError("the ledger is down")

    def slow(request: RunRequest) -> RunResult:
        monkeypatch.setattr(ledger, "commit", away)
        answers.append(dict(executions[-1].time_out()))
        monkeypatch.undo()
        raise RunCancelled("interrupted")

    pipeline = Pipeline(ledger, Engine(slow))
    executions.append(pipeline.execution("a"))
    with pytest.raises(RunCancelled):
        executions[0].run()
    assert list(answers[0].values()) == [Release(delay_seconds=0.5)]
    assert pipeline.state("a") is ObjectState.PROCESSING
    assert [kind for kind, _ in object_events(pipeline)] == ["ObjectStarted"], (
        "nothing is recorded, so no end is reported"
    )


def test_with_one_object_a_run_each_object_has_its_own_commit(ledger: Ledger) -> None:
    engine = Engine(unreadable("b"))
    pipeline = Pipeline(ledger, engine, objects_max=1)
    assert pipeline.run("a", "b", "c") == [Ack(), Release(delay_seconds=0.5), Ack()]
    assert engine.group_sizes == [1, 1, 1]
    assert [batch.objects for batch in ledger.batches(PIPELINE)] == [1, 1]


def on_a_new_table(ledger: Ledger, *, fits: bool) -> Settlements:
    """Return an engine's function. Its runs are checked before the table has a schema, which they fit or not."""

    def agree_again() -> tuple[int, str | None]:
        if not fits:
            raise TableError("another type")
        return ledger.ensure_pipeline(PIPELINE).schema_id, None

    return lambda request: replace(result(request), new_schema="the first", agree_again=agree_again)


def test_two_batches_that_overlap_on_a_new_table_are_both_committed_in_one_run_each(ledger: Ledger) -> None:
    inner = Engine(on_a_new_table(ledger, fits=True))

    def overlapped(request: RunRequest) -> RunResult:
        assert Pipeline(ledger, inner).run("b") == [Ack()]
        return on_a_new_table(ledger, fits=True)(request)

    outer = Engine(overlapped)
    assert Pipeline(ledger, outer).run("a") == [Ack()]
    assert (len(inner.requests), len(outer.requests)) == (1, 1)
    assert [batch.table_schema for batch in ledger.batches(PIPELINE)] == ["the first", "the first"]


def test_a_batch_whose_columns_do_not_fit_the_schema_of_an_overlapping_one_stops_the_pipeline(ledger: Ledger) -> None:
    def overlapped(request: RunRequest) -> RunResult:
        Pipeline(ledger, Engine(on_a_new_table(ledger, fits=True))).run("b")
        return on_a_new_table(ledger, fits=False)(request)

    with pytest.raises(TableError, match="another type"):
        Pipeline(ledger, Engine(overlapped)).run("a")
    assert len(ledger.batches(PIPELINE)) == 1
    assert Pipeline(ledger, Engine()).execution("a").claim() is None
    assert ledger.counts(PIPELINE)[ObjectState.UNPROCESSED] == 1, "its object is free again"


def test_a_run_that_cannot_be_checked_again_is_repeated_when_the_schema_changed(ledger: Ledger) -> None:
    def overlapped(request: RunRequest) -> RunResult:
        Pipeline(ledger, Engine(on_a_new_table(ledger, fits=True))).run("b")
        return replace(result(request), new_schema="the first")

    assert Pipeline(ledger, Engine(overlapped)).run("a") == [Release(uncounted=True)]


def changed_ref(version: int) -> ObjectRef:
    return replace(ref("a"), etag=str(version))


def deliver(pipeline: Pipeline, *versions: int) -> list[Settlement]:
    return pipeline.run_bodies(*(announce(changed_ref(version)) for version in versions))


def test_a_version_of_which_another_was_committed_meanwhile_is_released_and_read_again_at_once(ledger: Ledger) -> None:
    other = Pipeline(ledger, Engine(), on_change=OnChange.REPLACE)

    def overlapped(request: RunRequest) -> RunResult:
        if not ledger.batches(PIPELINE):
            assert deliver(other, 2) == [Ack()]
        return result(request)

    engine = Engine(overlapped)
    pipeline = Pipeline(ledger, engine, on_change=OnChange.REPLACE)
    assert deliver(pipeline, 1) == [Release(uncounted=True)]
    assert ledger.counts(PIPELINE)[ObjectState.UNPROCESSED] == 1
    assert deliver(pipeline, 1) == [Ack()]
    assert [batch.record.replaces for batch in ledger.batches(PIPELINE)] == ["", '["s3://bucket/a"]']
    assert all(request.current_only for request in engine.requests)
    assert [claimed.attempts for request in engine.requests for claimed in request.claimed.values()] == [1, 1]


def test_versions_are_added_without_a_check_of_the_store(ledger: Ledger) -> None:
    engine = Engine()
    assert deliver(Pipeline(ledger, engine), 1, 2) == [Ack(), Ack()]
    assert [request.current_only for request in engine.requests] == [False]


def test_a_pipeline_that_refuses_changes_dead_letters_them_without_a_run(ledger: Ledger) -> None:
    engine = Engine()
    pipeline = Pipeline(ledger, engine, on_change=OnChange.REFUSE)
    assert deliver(pipeline, 1) == [Ack()]
    (refused,) = deliver(pipeline, 2)
    assert isinstance(refused, DeadLetter)
    assert "penstock objects retract" in refused.reason
    assert refused.poison, "another attempt cannot help"
    assert len(engine.requests) == 1
    assert count_of(pipeline.events, ObjectFailed) == 1
    assert ledger.counts(PIPELINE)[ObjectState.DEAD] == 1


def test_the_other_objects_of_a_batch_with_a_refused_one_are_processed(ledger: Ledger) -> None:
    engine = Engine()
    pipeline = Pipeline(ledger, engine, on_change=OnChange.REFUSE)
    deliver(pipeline, 1)
    settled = pipeline.run_bodies(announce(changed_ref(2)), announce(ref("b")))
    assert [type(one) for one in settled] == [DeadLetter, Ack]
    assert engine.group_sizes == [1, 1]
    assert pipeline.state("b") is ObjectState.PROCESSED


def test_a_replay_waits_while_another_version_of_its_object_is_in_the_batch(ledger: Ledger) -> None:
    """The version may replace the rows to which the replay adds, and the ledger then refuses both, again and again."""
    engine = Engine()
    pipeline = Pipeline(ledger, engine, on_change=OnChange.REPLACE)
    replay, other = replay_of(changed_ref(1), "earlier"), ref("b")
    settled = pipeline.run_bodies(*(announce(one) for one in (replay, changed_ref(2), other)))
    assert [type(one) for one in settled] == [Release, Ack, Ack]
    assert isinstance(settled[0], Release)
    assert settled[0].uncounted
    assert settled[0].delay_seconds > 0.0
    (request,) = engine.requests
    assert {one.object_id for one in request.objects} == {changed_ref(2).object_id, other.object_id}
    assert ledger.counts(PIPELINE)[ObjectState.UNPROCESSED] == 1


def test_an_object_that_shares_its_address_with_another_one_is_dead_lettered_without_a_run(ledger: Ledger) -> None:
    """An earlier version of Penstock gave a name outside UTF-8, and one that spells its escapes, the same address."""
    engine = Engine()
    pipeline = Pipeline(ledger, engine, on_change=OnChange.REPLACE)
    odd, usual = ref("a\udcff"), ref("b")
    spelled = Candidate(
        object_id=ref(r"a\xff").object_id,
        bucket=odd.bucket,
        key=rb"a\xff",
        size_bytes=1,
        uri=odd.uri,
        original_message=OriginalMessage(message_id="m", enqueued_at=1.0),
    )
    claim = ledger.claim(PIPELINE, [spelled], attempt_id="earlier", worker="w", lease_seconds=60.0)
    done = [ObjectResult(object_id=spelled.object_id, rows=1, lines_quarantined=0)]
    ledger.commit(BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=done))
    settled = pipeline.run_bodies(announce(odd), announce(usual))
    assert isinstance(settled[0], DeadLetter)
    assert "give both objects other names" in settled[0].reason
    assert settled[1] == Ack()
    assert engine.group_sizes == [1]


def test_objects_with_addresses_of_their_own_cost_no_lookup(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "of_several_objects", None)
    assert Pipeline(ledger, Engine(), on_change=OnChange.REPLACE).run("a", r"b\c") == [Ack(), Ack()]
