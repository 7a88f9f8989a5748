"""Retried calls inside an object handler."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.pipeline.objects.scene import HANDLER, Scene, run

from penstock.events import ObjectCallRetrying, ObjectFailed
from penstock.ledger.records import ObjectState
from penstock.messaging.settlement import Ack, Release
from penstock.pipeline.objects.declaration import ObjectContext
from penstock.pipeline.objects.stream import IncomingObject

LONG_SECONDS = 600.0


def plain(_: IncomingObject, ctx: ObjectContext) -> None:
    for attempt in ctx.retrying(ConnectionError, attempts=3, base_seconds=0.001):
        with attempt:
            if attempt.retry_state.attempt_number < 3:
                raise ConnectionError("blip")


async def asynchronous(_: IncomingObject, ctx: ObjectContext) -> None:
    async for attempt in ctx.retrying_async(ConnectionError, attempts=3, base_seconds=0.001):
        with attempt:
            if attempt.retry_state.attempt_number < 3:
                raise ConnectionError("blip")


@pytest.mark.parametrize("function", [plain, asynchronous])
def test_an_inner_call_is_retried_in_place_with_every_retry_reported_and_none_counted(
    scene: Scene, function: Callable[..., Any]
) -> None:
    ref = scene.put("a")
    scene.announce(ref)
    assert scene.serve(scene.handler(function)) == [Ack()]
    retries = scene.emitted(ObjectCallRetrying)
    assert [(one.pipeline, one.object_uri, one.tries) for one in retries] == [
        (HANDLER, ref.uri, 1),
        (HANDLER, ref.uri, 2),
    ]
    assert {(one.error_type, one.error) for one in retries} == {("ConnectionError", "blip")}
    assert scene.row(ref).attempts == 1


def test_the_exception_of_the_last_try_is_the_failure_of_the_attempt(scene: Scene) -> None:
    def function(_: IncomingObject, ctx: ObjectContext) -> None:
        for attempt in ctx.retrying(ConnectionError, attempts=2, base_seconds=0.001):
            with attempt:
                raise ConnectionError("still down")

    scene.announce(scene.put("a"))
    [settlement] = scene.serve(scene.handler(function))
    assert isinstance(settlement, Release)
    [failed] = scene.emitted(ObjectFailed)
    assert (failed.error_type, failed.reason) == ("ConnectionError", "ConnectionError: still down")
    assert len(scene.emitted(ObjectCallRetrying)) == 1


def test_a_stop_ends_the_retry_wait_of_work_that_releases(scene: Scene) -> None:
    def function(_: IncomingObject, ctx: ObjectContext) -> None:
        for attempt in ctx.retrying(ConnectionError, base_seconds=LONG_SECONDS, cap_seconds=LONG_SECONDS):
            with attempt:
                execution.drain()
                raise ConnectionError("down")

    ref = scene.put("a")
    scene.announce(ref)
    _, execution = scene.begin(scene.handler(function, on_stop="release"))
    assert list(run(execution).values()) == [Release(uncounted=True)]
    assert (scene.state(ref), scene.row(ref).attempts) == (ObjectState.UNPROCESSED, 0)
