"""An object handler: the exceptions that it may raise, and the context that it receives."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from tests.unit.pipeline.objects.scene import HANDLER, LEASE_SECONDS, Scene, run

from penstock.errors import Interrupted, Reject, Retry, TemporaryError
from penstock.events import (
    AttemptAbandoned,
    BatchCommitted,
    MessageInvalid,
    ObjectEvent,
    ObjectFailed,
    ObjectFinished,
    ObjectInterrupted,
    ObjectStarted,
    ObjectTakenOver,
)
from penstock.ledger.records import ObjectState
from penstock.messaging.delivery import AttemptEnd, PreviousAttempt
from penstock.messaging.handler import ExecutionPlace
from penstock.messaging.replay import REPLAY_ID_ATTRIBUTE
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.monitoring.errors.occurrences import occurrence_of
from penstock.objects.notification import announce
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectReader
from penstock.pipeline.engine import RunCancelled
from penstock.pipeline.objects.declaration import ObjectContext
from penstock.pipeline.objects.stream import IncomingObject

DEADLINE_SECONDS = 60.0
Seen = list[PreviousAttempt | None]


def raising(raised: BaseException) -> Callable[[IncomingObject], None]:
    def function(obj: IncomingObject) -> None:
        raise raised

    return function


def test_an_object_is_processed_acked_and_reported(scene: Scene) -> None:
    ref = scene.put("a")
    scene.announce(ref)
    assert scene.serve(scene.handler(lambda obj: obj.read())) == [Ack()]
    row = scene.row(ref)
    assert (row.state, row.attempts, row.rows) == (ObjectState.PROCESSED, 1, 0)
    assert [type(event) for event in scene.events] == [ObjectStarted, ObjectFinished]
    started, finished = scene.emitted(ObjectEvent)
    assert started.attempt_id == finished.attempt_id
    [batch] = scene.ledger.batches(HANDLER)
    assert (batch.objects, batch.record.bytes, batch.record.manifest) == (1, ref.size_bytes, "")


def test_an_unreadable_notification_is_reported_with_its_handler(scene: Scene) -> None:
    message_id = scene.send(b'{"hello": 1}')
    [settlement] = scene.serve(scene.handler(lambda obj: obj.read()))
    assert isinstance(settlement, DeadLetter)
    [invalid] = scene.emitted(MessageInvalid)
    assert (invalid.message_id, invalid.handler, invalid.reason) == (message_id, HANDLER, settlement.reason)
    occurrence = occurrence_of(invalid)
    assert occurrence is not None
    assert (occurrence.error_type, occurrence.final) == ("InvalidMessage", True)


def test_the_function_receives_all_facts_about_the_object(scene: Scene) -> None:
    seen: list[IncomingObject] = []
    ref = scene.put(b"caf\xe9", b"12")
    message_id = scene.send(announce(ref))
    scene.serve(scene.handler(seen.append))
    [obj] = seen
    assert (obj.uri, obj.bucket, obj.key, obj.key_bytes) == (ref.uri, "file", ref.key, ref.key_bytes)
    assert (obj.size_bytes, obj.version_id, obj.etag) == (2, None, ref.etag)
    assert (obj.message_id, obj.enqueued_at) == (message_id, scene.clock.now())
    assert obj.object_id == ref.object_id


def test_an_exception_counts_as_an_attempt_and_the_last_one_is_final(scene: Scene) -> None:
    ref = scene.put("a")
    scene.announce(ref)
    ends = scene.serve_to_the_end(scene.handler(raising(ValueError("no")), attempts_max=3))
    assert [type(end) for end in ends] == [Release, Release, DeadLetter]
    [death] = scene.dead()
    assert (death.reason, death.exception) == ("ValueError: no", "ValueError: no")
    assert death.traceback is not None
    assert "in function" in death.traceback
    failures = scene.emitted(ObjectFailed)
    assert [failure.outcome for failure in failures] == ["retry", "retry", "dead"]
    assert {(failure.error_type, failure.reason) for failure in failures} == {("ValueError", "ValueError: no")}
    assert all(isinstance(failure.exception, ValueError) for failure in failures)


def test_a_traceback_contains_no_values_of_variables(scene: Scene) -> None:
    def secretive(obj: IncomingObject) -> None:
        password = "hunter" + str(len(obj.uri) * 0 + 2)
        raise ValueError(len(password))

    scene.announce(scene.put("a"))
    scene.serve(scene.handler(secretive))
    [failure] = scene.emitted(ObjectFailed)
    assert failure.traceback is not None
    assert "secretive" in failure.traceback
    assert "hunter2" not in failure.traceback


def test_reject_is_final_at_once_with_its_reason(scene: Scene) -> None:
    ref = scene.put("a")
    scene.announce(ref)
    [end] = scene.serve(scene.handler(raising(Reject("not an image"))))
    assert isinstance(end, DeadLetter)
    assert end.reason == "not an image"
    assert scene.state(ref) is ObjectState.DEAD
    assert scene.row(ref).attempts == 1


@pytest.mark.parametrize("delay_seconds", [None, 0.0, 1_234.5])
def test_retry_may_choose_its_delay(scene: Scene, delay_seconds: float | None) -> None:
    scene.announce(scene.put("a"))
    [end] = scene.serve(scene.handler(raising(Retry("not there yet", delay_seconds=delay_seconds))))
    assert end == Release(delay_seconds=0.5 if delay_seconds is None else delay_seconds)
    assert [failure.reason for failure in scene.emitted(ObjectFailed)] == ["not there yet"]


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt(), Interrupted(), asyncio.CancelledError()])
def test_any_exception_of_a_function_counts_as_one_attempt(scene: Scene, raised: BaseException) -> None:
    ref = scene.put("a")
    scene.announce(ref)
    [end] = scene.serve(scene.handler(raising(raised)))
    assert end == Release(delay_seconds=0.5)
    assert scene.row(ref).attempts == 1
    assert not scene.ledger.open_attempts(HANDLER)


def test_a_temporary_error_of_the_function_counts_as_an_attempt_and_one_of_the_store_does_not(scene: Scene) -> None:
    scene.announce(scene.put("a"))
    [end] = scene.serve(scene.handler(raising(TemporaryError("the mail server is down"))))
    assert end == Release(delay_seconds=0.5)

    class Unopenable:
        def open(self, ref: ObjectRef) -> ObjectReader:
            raise TemporaryError("too many open files")

        def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
            raise TemporaryError("too many open files")

    ref = scene.put("b")
    scene.announce(ref)
    scene.store = Unopenable()
    ends = scene.serve(scene.handler(lambda obj: None))
    assert ends == [Release(delay_seconds=0.5, uncounted=True)]
    assert scene.row(ref).attempts == 0
    assert [event.reason for event in scene.emitted(ObjectInterrupted)] == ["too many open files"]


def test_delays_grow_while_the_store_fails_and_restart_after_a_success(scene: Scene) -> None:
    class Flaky:
        failing = True

        def open(self, ref: ObjectRef) -> ObjectReader:
            if self.failing:
                raise TemporaryError("down")
            return store.open(ref)

        def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
            raise NotImplementedError

    store, flaky = scene.store, Flaky()
    scene.store = flaky
    refs = [scene.put(str(number)) for number in range(3)]
    handler = scene.handler(lambda obj: None)
    scene.announce(*refs)
    delays = [end.delay_seconds for end in scene.serve(handler) if isinstance(end, Release)]
    assert delays == [0.5, 1.0, 2.0]
    flaky.failing = False
    scene.serve_to_the_end(handler)
    flaky.failing = True
    scene.announce(scene.put("again"))
    assert scene.serve(handler) == [Release(delay_seconds=0.5, uncounted=True)]


def test_the_context_has_the_previous_attempt_and_cleanup_runs_first(scene: Scene) -> None:
    story: list[str] = []
    seen: Seen = []

    def cleanup(obj: IncomingObject, ctx: ObjectContext) -> None:
        story.append(f"cleanup {ctx.attempt}")

    def function(obj: IncomingObject, ctx: ObjectContext) -> None:
        story.append(f"function {ctx.attempt}")
        seen.append(ctx.previous_attempt)
        if ctx.attempt == 1:
            raise ValueError("no")

    scene.announce(scene.put("a"))
    began_at = scene.clock.now()
    scene.serve_to_the_end(scene.handler(function, cleanup=cleanup))
    assert story == ["function 1", "cleanup 2", "function 2"]
    first, second = seen
    assert first is None
    assert second is not None
    assert (second.end, second.reason, second.worker) == (AttemptEnd.FAILED, "ValueError: no", "w1")
    assert (second.started_at, second.ended_at) == (began_at, began_at)


def test_a_failed_cleanup_prevents_the_call_of_the_function(scene: Scene) -> None:
    calls: list[int] = []

    def function(obj: IncomingObject, ctx: ObjectContext) -> None:
        calls.append(ctx.attempt)
        raise ValueError("first")

    scene.announce(scene.put("a"))
    ends = scene.serve_to_the_end(scene.handler(function, cleanup=raising(KeyError("x")), attempts_max=2))
    assert calls == [1]
    assert isinstance(ends[-1], DeadLetter)
    assert ends[-1].reason == "KeyError: 'x'"


def test_an_expired_attempt_and_a_released_one_are_distinguished(scene: Scene) -> None:
    seen: Seen = []
    ref = scene.put("a")
    scene.announce(ref)

    def function(obj: IncomingObject, ctx: ObjectContext) -> None:
        seen.append(ctx.previous_attempt)
        if len(seen) == 1:
            scene.clock.advance(LEASE_SECONDS + 1)
            handler.free_expired()  # expired claims of another worker
        elif len(seen) == 2:
            execution.release()

    handler = scene.handler(function)
    for _ in range(3):
        _, execution = scene.begin(handler)
        run(execution)
        scene.clock.advance(LEASE_SECONDS + 1)
    ends = [attempt.end for attempt in seen if attempt is not None]
    assert ends == [AttemptEnd.EXPIRED, AttemptEnd.RELEASED]
    [taken_over] = scene.emitted(ObjectTakenOver)
    assert (taken_over.attempt, taken_over.reason) == (2, "its lease ran out")
    assert taken_over.from_attempt_id == scene.emitted(AttemptAbandoned)[0].attempt_id
    assert scene.row(ref).attempts == 2, "a released attempt does not count"
    assert [event.reason for event in scene.emitted(AttemptAbandoned)] == [
        "its lease ran out",
        "released at shutdown",
    ]


def test_a_replay_processes_a_failed_object_again(scene: Scene) -> None:
    ref = scene.put("a")
    scene.announce(ref)
    scene.serve(scene.handler(raising(Reject("no"))))
    scene.send(announce(ref), **{REPLAY_ID_ATTRIBUTE: "r1"})
    assert scene.serve(scene.handler(lambda obj: None)) == [Ack()]
    assert scene.state(ref) is ObjectState.PROCESSED


# Stopping


def test_an_async_function_runs_to_its_end(scene: Scene) -> None:
    calls: list[str] = []

    async def function(obj: IncomingObject, ctx: ObjectContext) -> None:
        await asyncio.sleep(0)
        calls.append(obj.read().decode())

    ref = scene.put("a")
    scene.announce(ref)
    assert scene.serve(scene.handler(function)) == [Ack()]
    assert calls == ["x\n"]


@pytest.mark.parametrize(("on_stop", "finished"), [("finish", True), ("release", False)])
def test_an_async_function_handles_a_stop_as_a_plain_one_does(scene: Scene, on_stop: str, finished: bool) -> None:
    reached: list[bool] = []

    async def function(obj: IncomingObject) -> None:
        execution.drain()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reached.append(True)

    scene.announce(scene.put("a"))
    _, execution = scene.begin(scene.handler(function, on_stop=on_stop))
    assert list(run(execution).values()) == [Ack() if finished else Release(uncounted=True)]
    assert reached == [True] * finished


def test_the_exception_of_an_async_function_is_its_failure(scene: Scene) -> None:
    async def function(obj: IncomingObject) -> None:
        raise Reject("no")

    scene.announce(scene.put("a"))
    [end] = scene.serve(scene.handler(function))
    assert isinstance(end, DeadLetter)
    assert end.reason == "no"


def test_a_function_that_returns_an_unrun_generator_or_coroutine_fails(scene: Scene) -> None:
    def wraps(obj: IncomingObject) -> object:
        return (line for line in obj.lines())

    async def forgets(obj: IncomingObject) -> object:
        return asyncio.sleep(0)

    for key, function in (("a", wraps), ("b", forgets)):
        scene.announce(scene.put(key))
        [end] = scene.serve(scene.handler(function, attempts_max=1))
        assert isinstance(end, DeadLetter)
        assert "which is never run" in end.reason


def test_an_async_function_is_cancelled_where_it_waits(scene: Scene) -> None:
    waits = threading.Event()
    cancelled: list[bool] = []

    async def function(obj: IncomingObject) -> None:
        waits.set()
        try:
            await asyncio.Event().wait()  # forever
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    def stop() -> None:
        waits.wait(DEADLINE_SECONDS)
        execution.release()
        execution.interrupt()

    ref = scene.put("a")
    scene.announce(ref)
    _, execution = scene.begin(scene.handler(function))
    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(RunCancelled):
        run(execution)
    stopper.join(DEADLINE_SECONDS)
    assert cancelled == [True]
    assert scene.state(ref) is ObjectState.UNPROCESSED


# The interface to the worker


def test_a_handler_has_a_name_a_place_a_timeout_and_weights(scene: Scene) -> None:
    handler = scene.handler(lambda obj: None)
    scene.announce(scene.put("a", b"12345"))
    scene.send(b"no notification")
    first, second = scene.receive()
    assert (handler.name, handler.place, handler.timeout_seconds) == (HANDLER, ExecutionPlace.POOL, None)
    assert (handler.weigh(first), handler.weigh(second)) == (5, 0)


def test_the_handler_imports_no_heavy_library() -> None:
    code = (
        "import sys, penstock.pipeline.objects.handler;"
        "print(*{'pyspark', 'pyarrow', 'deltalake', 'numpy', 'pandas'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == ""


def test_batches_of_one_object_are_not_reported(scene: Scene) -> None:
    scene.announce(scene.put("a"))
    scene.serve(scene.handler(lambda obj: None))
    assert not scene.emitted(BatchCommitted)
