"""One batch through the protocol, on a real ledger in memory and an engine that does as it is told."""

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
from penstock.ledger.records import AttemptFailure, BatchOutcome, BatchRecord, ObjectClaims, ObjectResult, ObjectState
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import HeldClaim, ServiceWatch, Unwatched
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.objects.notification import announce, parse
from penstock.objects.reference import ObjectRef
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
    """Every object gave two rows but those that failed."""
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
    """Answers as told, and keeps what it was asked."""

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
    """Batches of one pipeline, one after another."""

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
        )
        self._receipts = itertools.count()

    def execution(self, *names: str) -> BatchExecution:
        return BatchExecution([self._delivery(name) for name in names], self._settings, self._around)

    def run(self, *names: str) -> list[Settlement]:
        """Deliver one message for each name; answers their settlements in the same order."""
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


def told(events: Sequence[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)


def unreadable(*names: str, failure: AttemptFailure = AttemptFailure.RETRY) -> Settlements:
    ids = {ref(name).object_id for name in names}

    def answer(request: RunRequest) -> RunResult:
        failed = {one.object_id for one in request.objects} & ids
        return result(request, {object_id: ReadFailure(failure=failure, reason="no") for object_id in failed})

    return answer


def culprit(name: str) -> Settlements:
    """A run with this object breaks, and nothing says which object it was."""

    def answer(request: RunRequest) -> RunResult:
        if ref(name) in request.objects:
            raise RunBroken("ValueError: no", fingerprint="ValueError")
        return result(request)

    return answer


def test_what_is_committed_is_acked_and_told(ledger: Ledger) -> None:
    pipeline = Pipeline(ledger, Engine())
    assert pipeline.run("a", "b") == [Ack(), Ack()]
    assert pipeline.state("a") is ObjectState.PROCESSED
    assert [batch.objects for batch in ledger.batches(PIPELINE)] == [2]
    way = (BatchClaimed, BatchWritten, BatchCommitted)
    assert [type(event) for event in pipeline.events if isinstance(event, way)] == list(way)


def test_a_message_that_can_never_be_worked_on_is_told_of_once(ledger: Ledger) -> None:
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


def test_an_unreadable_object_is_retried_alone_and_dies_with_its_message(ledger: Ledger) -> None:
    pipeline = Pipeline(ledger, Engine(unreadable("bad")))
    assert pipeline.run("a", "bad") == [Ack(), Release(delay_seconds=0.5)]
    assert pipeline.run("bad") == [Release(delay_seconds=1.0)]
    assert pipeline.run("bad") == [DeadLetter(reason="no")]
    assert pipeline.state("bad") is ObjectState.DEAD
    assert pipeline.attempts("a") == 1
    assert pipeline.run("bad") == [DeadLetter(reason="no")], "a redelivery of the original message fails again"


def test_refusals_that_nobody_is_charged_for_end_a_job_that_is_to_end(ledger: Ledger) -> None:
    """Two objects that may never be read forgive each other in every run."""
    denied = ReadFailure(failure=AttemptFailure.RETRY, reason="s3://bucket/a cannot be read: 403", uncounted=True)
    names = {ref(name).object_id: denied for name in ("a", "b")}
    engine = Engine(lambda request: result(request, {one: names[one] for one in names}))
    pipeline = Pipeline(ledger, engine)
    assert pipeline.run("a", "b", "good")[2] == Ack(), "something was read"
    assert pipeline.run("a", "b") == [Release(delay_seconds=1.0, uncounted=True)] * 2
    assert pipeline.run("a", "b") == [Release(delay_seconds=2.0, uncounted=True)] * 2
    with pytest.raises(FaultPersists, match=r"s3://bucket/a cannot be read: 403 \(3 times in a row\)"):
        pipeline.run("a", "b")
    assert pipeline.state("a") is ObjectState.UNPROCESSED


def test_an_object_that_only_other_hosts_fail_on_is_tried_more_and_more_seldom_while_others_succeed(
    ledger: Ledger,
) -> None:
    host = ReadFailure(failure=AttemptFailure.RETRY, reason="look at mounts and rights on w7", uncounted=True)
    pipeline = Pipeline(ledger, Engine(lambda request: result(request, {ref("bad").object_id: host})))
    found = [pipeline.run("bad", f"good-{number}") for number in range(10)]
    assert all(good == Ack() for _, good in found)
    assert [bad.delay_seconds for bad, _ in found if isinstance(bad, Release)] == [
        *(0.5 * 2**number for number in range(9)),
        150.0,
    ]
    assert pipeline.attempts("bad") == 0


def test_an_object_in_a_mount_that_is_away_is_tried_more_and_more_seldom_while_others_succeed(ledger: Ledger) -> None:
    def answer(request: RunRequest) -> RunResult:
        if ref("bad") in request.objects:
            raise PartAway("nothing is mounted there any more")
        return result(request)

    pipeline = Pipeline(ledger, Engine(answer))
    for number in range(4):
        assert pipeline.run("bad") == [Release(delay_seconds=0.5 * 2**number, uncounted=True)]
        assert pipeline.run(f"good-{number}") == [Ack()]


class Watch(Unwatched):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    @contextmanager
    def watch_request(self) -> Iterator[None]:
        try:
            yield
        except TemporaryError as away:
            self.told.append(str(away))
            raise

    def record_success(self) -> None:
        self.told.append("succeeded")

    def release_delay_seconds(self) -> float:
        return 20.0


@pytest.mark.parametrize("asked", ["unattributed_failures", "claim", "commit"])
def test_a_ledger_that_is_away_is_seen_by_who_watches_and_costs_no_attempt(ledger: Ledger, asked: str) -> None:
    watch = Watch()
    pipeline = Pipeline(ledger, Engine(), watch=watch)
    with mock.patch.object(ledger, asked, side_effect=TemporaryError("it is away")):
        [settled] = pipeline.run("a")
    assert isinstance(settled, Release)
    assert (settled.delay_seconds, settled.uncounted) == (20.0, True)
    assert watch.told == [*(["succeeded"] if asked == "commit" else []), "it is away"]
    assert pipeline.run("a") == [Ack()]
    assert pipeline.attempts("a") == 1


def test_a_ledger_that_answers_and_takes_no_claim_is_not_taken_for_one_that_works(ledger: Ledger) -> None:
    watch = Watch()
    pipeline = Pipeline(ledger, Engine(), watch=watch)
    with mock.patch.object(ledger, "claim", side_effect=TemporaryError("its disk is full")):
        for _ in range(2):
            pipeline.run("a")
    assert "succeeded" not in watch.told
    pipeline.run("a")
    assert pipeline.run("a") == [Ack()]
    assert watch.told.count("succeeded") == 1, "an object that is done already needs no write"


def test_a_ledger_that_is_away_ends_a_job_that_is_to_end(ledger: Ledger) -> None:
    pipeline = Pipeline(ledger, Engine())
    with mock.patch.object(ledger, "unattributed_failures", side_effect=TemporaryError("the ledger is away")):
        assert pipeline.run("a") == [Release(delay_seconds=0.5, uncounted=True, reason="the ledger is away")]
        assert pipeline.run("a") == [Release(delay_seconds=1.0, uncounted=True, reason="the ledger is away")]
        with pytest.raises(FaultPersists, match=r"away \(3 times in a row\)"):
            pipeline.run("a")
    assert pipeline.run("a") == [Ack()]


def test_a_fault_that_repeats_is_told_again_and_again_but_ever_more_seldom(ledger: Ledger) -> None:
    def disk_full(request: RunRequest) -> RunResult:
        raise TemporaryError("disk full")

    pipeline = Pipeline(ledger, Engine(disk_full), faults_max=None)
    for _ in range(9):
        pipeline.run("a")
    faults = [event for event in pipeline.events if isinstance(event, FaultsRepeated)]
    assert [(event.count, event.error) for event in faults] == [(n, "disk full") for n in (2, 4, 8)]


def test_an_object_is_gone_only_after_two_looks_apart() -> None:
    now = [1_000.0]
    with closing(Ledger.open("sqlite://", now=lambda: now[0])) as ledger:
        ledger.ensure_pipeline(PIPELINE)
        engine = Engine(unreadable("a"))
        pipeline = Pipeline(ledger, engine)
        pipeline.run("a")  # a failure of another kind is no look
        engine.answer = unreadable("a", failure=AttemptFailure.DELETED)
        assert pipeline.run("a") == [Release(delay_seconds=5.5, uncounted=True)]
        now[0] += 3.0
        assert pipeline.run("a") == [Release(delay_seconds=2.5, uncounted=True)], "still within one outage"
        now[0] += 2.0
        assert pipeline.run("a") == [Ack()]
        assert pipeline.state("a") is ObjectState.DELETED


def test_a_look_that_found_the_object_begins_the_count_anew() -> None:
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


def test_one_culprit_is_found_without_killing_its_siblings(ledger: Ledger) -> None:
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
    assert (ref("9"),) in [request.objects for request in engine.requests], "its last run was its own"
    assert told(pipeline.events, RunFailed) == 3, "the culprit had its attempts, and nobody else a failed run more"


def test_a_failure_of_everything_stops_the_pipeline_and_kills_nothing(ledger: Ledger) -> None:
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


def test_a_fault_of_the_machinery_costs_nobody_an_attempt(ledger: Ledger) -> None:
    def disk_full(request: RunRequest) -> RunResult:
        raise TemporaryError("disk full")

    engine = Engine(disk_full)
    pipeline = Pipeline(ledger, engine)
    assert pipeline.run("a") == [Release(delay_seconds=0.5, uncounted=True)]
    assert pipeline.attempts("a") == 0
    engine.answer = result
    assert pipeline.run("a") == [Ack()]


def test_a_person_s_mistake_frees_the_claim_and_stops_the_worker(ledger: Ledger) -> None:
    def mistake(request: RunRequest) -> RunResult:
        raise TableError("another schema")

    pipeline = Pipeline(ledger, Engine(mistake))
    with pytest.raises(TableError):
        pipeline.run("a")
    assert pipeline.state("a") is ObjectState.UNPROCESSED
    assert pipeline.attempts("a") == 0
    assert not ledger.open_attempts(PIPELINE)


def test_a_defect_of_ours_is_charged_so_that_it_ends(ledger: Ledger) -> None:
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
def test_while_nothing_ever_succeeded_nobody_dies_of_what_may_be_the_transform(ledger: Ledger, count: int) -> None:
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


def test_a_poison_that_comes_alone_to_a_pipeline_that_worked_before_dies(ledger: Ledger) -> None:
    Pipeline(ledger, Engine()).run("good")
    restarted = Pipeline(ledger, Engine(culprit("bad")))
    ends = [restarted.run("bad")[0] for _ in range(4)]
    assert [type(end) for end in ends] == [Release, Release, Release, DeadLetter], "reprieved once, then dead"


def test_a_batch_without_a_row_shows_nothing_of_the_transform(ledger: Ledger) -> None:
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


def test_a_full_disk_of_the_driver_costs_nobody_an_attempt(ledger: Ledger) -> None:
    def full(request: RunRequest) -> RunResult:
        raise OSError(28, "No space left on device")

    pipeline = Pipeline(ledger, Engine(full))
    pipeline.run("a")
    pipeline.run("a")
    assert pipeline.attempts("a") == 0
    with pytest.raises(FaultPersists, match="No space left"):
        pipeline.run("a")


def test_given_back_work_is_free_at_once_and_its_run_cannot_commit(ledger: Ledger) -> None:
    executions: list[BatchExecution] = []

    def given_back_meanwhile(request: RunRequest) -> RunResult:
        executions[0].release()
        assert not extended(executions[0]), "the claim is not ours any more"
        executions[0].interrupt()
        return result(request)

    engine = Engine(given_back_meanwhile)
    pipeline = Pipeline(ledger, engine)
    executions.append(pipeline.execution("a"))
    assert list(executions[0].run().values()) == [Release(delay_seconds=0.5, uncounted=True)]
    assert pipeline.state("a") is ObjectState.UNPROCESSED
    assert pipeline.attempts("a") == 0
    assert engine.cancelled == [engine.requests[0].attempt_id]


def test_nothing_is_claimed_after_giving_back(ledger: Ledger) -> None:
    engine = Engine()
    execution = Pipeline(ledger, engine).execution("a")
    execution.release()
    with mock.patch.object(ledger, "claim") as claim, pytest.raises(RunCancelled):
        execution.run()
    assert not claim.called
    assert engine.requests == []


def test_a_stop_waits_for_a_claim_that_does_not_come_until_it_interrupts_the_work(
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


def test_a_claim_is_extended_while_it_runs_and_nothing_is_lost_after_the_commit(ledger: Ledger) -> None:
    executions: list[BatchExecution] = []
    held: list[bool] = []

    def slow(request: RunRequest) -> RunResult:
        held.append(extended(executions[0]))
        return result(request)

    pipeline = Pipeline(ledger, Engine(slow))
    executions.append(pipeline.execution("a"))
    assert list(executions[0].run().values()) == [Ack()]
    assert [*held, extended(executions[0])] == [True, True]


def test_a_heartbeat_that_its_commit_overtakes_loses_nothing(ledger: Ledger) -> None:
    executions: list[BatchExecution] = []
    claims: list[HeldClaim | None] = []
    lost: list[bool] = []
    commit = ledger.commit

    def running(request: RunRequest) -> RunResult:
        claims.append(executions[0].claim())
        return result(request)

    def committing(outcome: BatchOutcome) -> int | None:
        assert claims[0] is not None
        seq = commit(outcome)
        lost.append(executions[0].loses(claims[0]))  # the ledger does not know the attempt as open any more
        return seq

    executions.append(Pipeline(ledger, Engine(running)).execution("a"))
    with mock.patch.object(ledger, "commit", committing):
        assert list(executions[0].run().values()) == [Ack()]
    assert lost == [False]


def test_an_object_that_another_worker_has_waits_for_its_lease_and_costs_nothing(ledger: Ledger) -> None:
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


# What is told of each object


def objects_told(pipeline: Pipeline) -> list[tuple[str, str]]:
    return [
        (type(event).__name__, event.object_uri.removeprefix("s3://bucket/"))
        for event in pipeline.events
        if isinstance(event, ObjectEvent | ObjectSkipped | LinesQuarantined)
    ]


def test_every_object_is_told_started_and_finished_or_failed(ledger: Ledger) -> None:
    def some_bad_lines(request: RunRequest) -> RunResult:
        whole = unreadable("bad")(request)
        processed = [replace(one, lines_quarantined=3) for one in whole.processed]
        reasons = {one.object_id: {"malformed": 1, "wrong type": 2} for one in processed}
        return replace(whole, processed=processed, reasons=reasons)

    pipeline = Pipeline(ledger, Engine(some_bad_lines))
    pipeline.run("a", "bad")
    assert objects_told(pipeline) == [
        ("ObjectStarted", "a"),
        ("ObjectStarted", "bad"),
        ("ObjectFinished", "a"),
        ("LinesQuarantined", "a"),
        ("ObjectFailed", "bad"),
    ]
    [told] = [event for event in pipeline.events if isinstance(event, LinesQuarantined)]
    assert (told.count, told.reasons) == (3, {"malformed": 1, "wrong type": 2})
    [batch] = ledger.batches(PIPELINE)
    assert {event.attempt_id for event in pipeline.events if isinstance(event, ObjectEvent)} == {batch.attempt_id}
    pipeline.events.clear()
    pipeline.run("bad", "a")
    assert objects_told(pipeline) == [("ObjectSkipped", "a"), ("ObjectStarted", "bad"), ("ObjectFailed", "bad")]
    [second] = [event.attempt for event in pipeline.events if isinstance(event, ObjectStarted)]
    assert second == 2


def test_each_stage_of_a_batch_tells_how_long_it_took_and_the_commit_how_many_bytes(ledger: Ledger) -> None:
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


def test_objects_are_told_after_the_ledger_has_recorded_them(ledger: Ledger) -> None:
    states: list[ObjectState] = []

    def listen(event: Event) -> None:
        if isinstance(event, ObjectFinished | ObjectFailed | ObjectInterrupted):
            states.append(pipeline.state(event.object_uri.removeprefix("s3://bucket/")))

    pipeline = Pipeline(ledger, Engine(unreadable("gone", failure=AttemptFailure.SUPERSEDED)), listen=listen)
    pipeline.run("a", "gone")
    assert states == [ObjectState.PROCESSED, ObjectState.SUPERSEDED]


def test_objects_of_a_broken_batch_and_of_a_faulty_machine_have_an_end_too(ledger: Ledger) -> None:
    def disk_full(request: RunRequest) -> RunResult:
        raise TemporaryError("disk full")

    engine = Engine(culprit("a"))
    pipeline = Pipeline(ledger, engine)
    pipeline.run("a")
    engine.answer = disk_full
    pipeline.run("a")
    assert [kind for kind, _ in objects_told(pipeline)] == [
        "ObjectStarted",
        "ObjectFailed",
        "ObjectStarted",
        "ObjectInterrupted",
    ]


def test_a_pipeline_that_stops_gives_its_objects_back(ledger: Ledger) -> None:
    def always(request: RunRequest) -> RunResult:
        raise RunBroken("NameError: x", fingerprint="NameError")

    pipeline = Pipeline(ledger, Engine(always))
    pipeline.run("a")
    pipeline.run("b")
    with pytest.raises(TransformError):
        pipeline.run("c")
    assert objects_told(pipeline)[-2:] == [("ObjectStarted", "c"), ("ObjectInterrupted", "c")]


def test_given_back_objects_are_told_once(ledger: Ledger) -> None:
    executions: list[BatchExecution] = []

    def given_back_meanwhile(request: RunRequest) -> RunResult:
        executions[0].release()
        executions[0].release()
        return result(request)

    pipeline = Pipeline(ledger, Engine(given_back_meanwhile))
    executions.append(pipeline.execution("a", "b"))
    executions[0].run()
    assert [kind for kind, _ in objects_told(pipeline)] == ["ObjectStarted"] * 2 + ["ObjectInterrupted"] * 2


def test_what_another_worker_has_is_told_skipped(ledger: Ledger) -> None:
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
    assert [kind for kind, _ in objects_told(pipeline)] == ["ObjectStarted"] * 2 + ["ObjectFailed"] * 2
    assert not ledger.open_attempts(PIPELINE)


def test_a_timeout_while_the_ledger_is_away_leaves_the_lease_to_end_by_itself(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    executions: list[BatchExecution] = []
    answers: list[dict[str, Settlement]] = []

    def away(outcome: object) -> int:
        raise TemporaryError("the ledger is away")

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
    assert [kind for kind, _ in objects_told(pipeline)] == ["ObjectStarted"], "nothing is recorded, so nothing is told"


def test_where_runs_hold_one_object_each_is_committed_by_itself(ledger: Ledger) -> None:
    engine = Engine(unreadable("b"))
    pipeline = Pipeline(ledger, engine, objects_max=1)
    assert pipeline.run("a", "b", "c") == [Ack(), Release(delay_seconds=0.5), Ack()]
    assert engine.group_sizes == [1, 1, 1]
    assert [batch.objects for batch in ledger.batches(PIPELINE)] == [1, 1]
