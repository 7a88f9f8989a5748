"""The app's own listeners receive all events, and their errors stop nothing."""

from typing import NoReturn

import pytest

from penstock import App, Message
from penstock.events import Event, ListenerFailed, MessageFinished
from penstock.testing import TestWorker


@pytest.mark.parametrize("error", [ValueError("no such metric"), SystemExit(3)])
def test_a_listener_that_raises_is_reported_once_and_stops_nothing(error: BaseException) -> None:
    heard: list[Event] = []

    def raises(event: Event) -> NoReturn:
        raise error

    app, done = App(listeners=[raises, heard.append]), list[bytes]()

    @app.handler("q")
    def work(message: Message) -> None:
        done.append(message.body)

    @app.handler("async")
    async def work_async(message: Message) -> None:
        done.append(message.body)

    with TestWorker(app) as worker:
        worker.send_many("q", [b"1", b"2"])
        worker.send("async", b"3")
        worker.run_until_empty()
        (failure,) = [event for event in worker.events if isinstance(event, ListenerFailed)]
    assert sorted(done) == [b"1", b"2", b"3"]
    assert failure.listener.endswith("raises")
    assert type(error).__name__ in failure.error
    assert sum(isinstance(event, MessageFinished) for event in heard) == 3
