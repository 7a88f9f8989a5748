"""An object handler that is ended from outside: by a stop, a lost claim, or its timeout."""

import json
from typing import Any

import pytest
from tests.claims import extended
from tests.unit.pipeline.objects.scene import HANDLER, LEASE_SECONDS, Scene, run

from penstock.events import (
    ObjectEvent,
    ObjectFailed,
    ObjectInterrupted,
    ObjectStarted,
)
from penstock.ledger.records import ObjectState
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.objects.notification import announce
from penstock.pipeline.engine import RunCancelled
from penstock.pipeline.objects.declaration import ObjectContext
from penstock.pipeline.objects.stream import IncomingObject


def test_work_continues_after_a_stop_by_default(scene: Scene) -> None:
    stopping: list[bool] = []

    def function(obj: IncomingObject, ctx: ObjectContext) -> None:
        stopping.append(ctx.stopping)
        execution.drain()
        ctx.checkpoint()
        stopping.append(ctx.stopping)

    scene.announce(scene.put("a"))
    _, execution = scene.begin(scene.handler(function))
    assert list(run(execution).values()) == [Ack()]
    assert stopping == [False, True]


def test_work_that_releases_at_a_stop_ends_at_its_next_checkpoint(scene: Scene) -> None:
    reached: list[str] = []

    def function(obj: IncomingObject, ctx: ObjectContext) -> None:
        execution.drain()
        reached.append("after the stop")
        obj.read()
        reached.append("never")

    ref = scene.put("a")
    scene.announce(ref)
    _, execution = scene.begin(scene.handler(function, on_stop="release"))
    assert list(run(execution).values()) == [Release(uncounted=True)]
    assert reached == ["after the stop"]
    assert (scene.state(ref), scene.row(ref).attempts) == (ObjectState.UNPROCESSED, 0)
    [interrupted] = scene.emitted(ObjectInterrupted)
    assert interrupted.object_uri == ref.uri
    assert interrupted.reason == "released at a checkpoint because the worker stops"
    assert not scene.emitted(ObjectFailed)


def test_after_a_release_the_other_objects_of_the_message_are_not_begun(scene: Scene) -> None:
    calls: list[str] = []

    def function(obj: IncomingObject, ctx: ObjectContext) -> None:
        calls.append(obj.key)
        if len(calls) == 2:
            execution.drain()
        ctx.checkpoint()

    refs = [scene.put(str(number)) for number in range(4)]
    scene.send(_together(*refs))
    handler = scene.handler(function, on_stop="release")
    delivery, execution = scene.begin(handler)
    [end] = scene.settle([(delivery, run(execution))])
    assert end == Release(uncounted=True)
    assert calls == [ref.key for ref in refs[:2]]
    assert len(scene.emitted(ObjectStarted)) == 2, "no other object was claimed"
    assert scene.serve(handler) == [Ack()]
    assert calls == [ref.key for ref in (refs[0], refs[1], refs[1], refs[2], refs[3])], "the first object was recorded"


def test_work_that_releases_at_a_stop_is_not_begun_after_it(scene: Scene) -> None:
    calls: list[str] = []
    ref = scene.put("a")
    scene.announce(ref)
    _, execution = scene.begin(scene.handler(lambda obj: calls.append(obj.key), on_stop="release"))
    execution.drain()
    assert list(run(execution).values()) == [Release(uncounted=True)]
    assert calls == []
    assert scene.row(ref).attempts == 0


def test_released_work_ends_at_its_next_checkpoint_uncounted(scene: Scene) -> None:
    def function(obj: IncomingObject, ctx: ObjectContext) -> None:
        execution.release()
        execution.interrupt()
        ctx.checkpoint()
        raise AssertionError("it continued")

    ref = scene.put("a")
    scene.announce(ref)
    _, execution = scene.begin(scene.handler(function))
    with pytest.raises(RunCancelled):
        run(execution)
    assert (scene.state(ref), scene.row(ref).attempts) == (ObjectState.UNPROCESSED, 0)
    assert [type(event) for event in scene.emitted(ObjectEvent)] == [ObjectStarted, ObjectInterrupted]


def test_work_whose_claim_was_lost_is_reported_once_and_cannot_commit(scene: Scene) -> None:
    def function(obj: IncomingObject) -> None:
        scene.clock.advance(LEASE_SECONDS + 1)
        scene.ledger.abandon_expired(HANDLER)
        assert not extended(execution)

    ref = scene.put("a")
    scene.announce(ref)
    _, execution = scene.begin(scene.handler(function))
    run(execution)
    [failure] = scene.emitted(ObjectFailed)
    assert "claim was lost" in failure.reason
    assert scene.state(ref) is ObjectState.UNPROCESSED


# Timeouts


def test_a_timeout_counts_as_an_attempt_and_records_a_traceback(scene: Scene) -> None:
    answers: list[Any] = []

    def stuck_here(obj: IncomingObject, ctx: ObjectContext) -> None:
        answers.append(execution.time_out())
        execution.interrupt()
        ctx.checkpoint()

    ref = scene.put("a")
    scene.announce(ref)
    handler = scene.handler(stuck_here, timeout_seconds=5.0, attempts_max=2)
    assert handler.timeout_seconds == 5.0
    for _ in range(2):
        delivery, execution = scene.begin(handler)
        with pytest.raises(RunCancelled):
            run(execution)
        scene.settle([(delivery, answers[-1])])
        scene.clock.advance(400.0)
    [first] = answers[0].values()
    [second] = answers[1].values()
    assert first == Release(delay_seconds=0.5)
    assert isinstance(second, DeadLetter)
    assert second.reason == "timed out after 5 s"
    assert second.traceback is not None
    assert "stuck_here" in second.traceback
    assert scene.state(ref) is ObjectState.DEAD
    assert [failure.outcome for failure in scene.emitted(ObjectFailed)] == ["retry", "dead"]


def test_a_timeout_counts_only_for_an_object_that_had_the_whole_time(scene: Scene) -> None:
    answers: list[Any] = []
    slow = scene.put("1-slow")
    refs = [scene.put("0"), slow, scene.put("2")]

    def function(obj: IncomingObject) -> None:
        if obj.key == slow.key:
            answers.append(execution.time_out())
            raise ValueError("too late to matter")

    scene.send(_together(*refs))
    handler = scene.handler(function, timeout_seconds=5.0, attempts_max=1)
    delivery, execution = scene.begin(handler)
    with pytest.raises(RunCancelled):
        run(execution)
    assert scene.settle([(delivery, answers[0])]) == [Release(delay_seconds=0.5, uncounted=True)]
    assert (scene.state(refs[0]), scene.row(slow).attempts) == (ObjectState.PROCESSED, 0)

    scene.clock.advance(1.0)
    delivery, execution = scene.begin(handler)
    with pytest.raises(RunCancelled):
        run(execution)
    [end] = scene.settle([(delivery, answers[1])])
    assert isinstance(end, Release), "the third object was not reached yet"
    assert scene.state(slow) is ObjectState.DEAD
    [last] = scene.serve(handler)
    assert last == DeadLetter(reason="timed out after 5 s")
    assert scene.state(refs[2]) is ObjectState.PROCESSED


def test_a_timeout_after_the_commit_changes_nothing(scene: Scene) -> None:
    ref = scene.put("a")
    scene.announce(ref)
    _, execution = scene.begin(scene.handler(lambda obj: None, timeout_seconds=5.0))
    assert run(execution) == execution.time_out()
    assert scene.state(ref) is ObjectState.PROCESSED


def test_a_timeout_before_the_work_began_is_not_counted(scene: Scene) -> None:
    calls: list[str] = []
    scene.announce(scene.put("a"))
    _, execution = scene.begin(scene.handler(lambda obj: calls.append(obj.key), timeout_seconds=5.0))
    assert list(execution.time_out().values()) == [Release(uncounted=True)]
    with pytest.raises(RunCancelled):
        run(execution)
    assert calls == []


# Helpers


def _together(*refs: Any) -> bytes:
    return json.dumps({"Records": [json.loads(announce(ref))["Records"][0] for ref in refs]}).encode()
