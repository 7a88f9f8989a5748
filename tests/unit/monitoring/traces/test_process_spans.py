"""Spans of an app's handlers if the application configures OpenTelemetry and only `tracing_enabled` is set."""

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode
from tests.traced import Traces, linked, process_provider, traceparent

from penstock import App, IncomingObject, Item, Message, Queue, Reject, Retry
from penstock.app.tracing import open_tracing, trace_ids_of
from penstock.config import Settings
from penstock.monitoring.logs.listener import configure_logs
from penstock.monitoring.logs.plans import LogSettings
from penstock.testing import TestWorker

SETTINGS = Settings(broker="memory://", tracing_enabled=True)
SECRET = "hunter2"


class Scene:
    """An app with tracing, run by a worker in memory."""

    def __init__(self) -> None:
        self.traces = Traces(process_provider())
        self.log = io.StringIO()
        tracing = open_tracing(SETTINGS, worker="w")
        assert tracing is not None
        log = configure_logs(LogSettings(format="json", level="debug"), self.log, trace_ids=trace_ids_of(SETTINGS))
        self.app = App(settings=SETTINGS, listeners=(tracing.listener, log))

    def run(self, queue: str, *bodies: Any, together: bool = False) -> None:
        with TestWorker(self.app) as worker:
            if together:
                worker.send_many(queue, bodies)
            else:
                for body in bodies:
                    worker.send(queue, body)
            worker.run_until_empty(raises=False)

    def lines(self, event: str) -> Sequence[dict[str, Any]]:
        return [line for line in map(json.loads, self.log.getvalue().splitlines()) if line["event"] == event]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def own_span(name: str) -> None:
    with trace.get_tracer("users").start_as_current_span(name):
        pass


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def test_a_function_is_a_span_in_a_new_trace_that_links_to_the_sender(scene: Scene) -> None:
    @scene.app.handler(Queue("work"), name="named")
    def work(body: Any) -> None:
        own_span("mine")

    scene.run("work", b"1")
    sent, span, mine = (scene.traces.only(name) for name in ("send work", "process work", "mine"))
    assert span.parent is None
    assert ids(span)[0] != ids(sent)[0]
    assert linked(span) == [traceparent(sent)]
    assert mine.parent == span.get_span_context()
    assert attributes(span) == {
        "messaging.system": "memory",
        "messaging.destination.name": "work",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": attributes(sent)["messaging.message.id"],
        "penstock.handler": "named",
        "penstock.attempt": 1,
        "penstock.outcome": "ack",
    }
    assert span.status.status_code is StatusCode.UNSET


def test_log_lines_have_the_ids_of_their_trace_and_span(scene: Scene) -> None:
    @scene.app.handler(Queue("work"))
    def work(body: Any) -> None:
        pass

    scene.run("work", b"1")
    span = scene.traces.only("process work")
    for event in ("message.started", "message.finished"):
        (line,) = scene.lines(event)
        assert (line["trace_id"], line["span_id"]) == ids(span)
    (acked,) = scene.lines("message.acked")
    assert "trace_id" not in acked, "settling is not part of the work"


def test_concurrent_async_functions_have_separate_spans(scene: Scene) -> None:
    both_started = asyncio.Barrier(2)

    @scene.app.handler(Queue("work"))
    async def work(message: Message) -> None:
        await both_started.wait()
        own_span(f"mine {message.body!r}")
        await asyncio.to_thread(own_span, f"elsewhere {message.body!r}")

    scene.run("work", b"1", b"2")
    parents = [
        {span.parent.span_id for span in scene.traces.spans if span.parent and span.name.endswith(f"{body!r}")}
        for body in (b"1", b"2")
    ]
    assert [len(each) for each in parents] == [1, 1], "the user's spans of a message are in the span of that message"
    assert parents[0] | parents[1] == {int(ids(span)[1], 16) for span in scene.traces.named("process work")}


def test_a_failure_is_recorded_on_its_span_without_values_of_variables(scene: Scene) -> None:
    @scene.app.handler(Queue("work"), max_attempts=2, retry_base="1 ms")
    def work(body: Any) -> None:
        password = SECRET  # noqa: F841 - must not appear on the span
        raise ValueError("no such thing")

    scene.run("work", b"1")
    first, second = scene.traces.named("process work")
    assert [attributes(span)["penstock.attempt"] for span in (first, second)] == [1, 2]
    assert [attributes(span)["penstock.outcome"] for span in (first, second)] == ["release", "dead_letter"]
    for span in (first, second):
        assert attributes(span)["error.type"] == "ValueError"
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError: no such thing")
        (event,) = span.events
        event_attributes = dict(event.attributes or {})
        assert (event.name, event_attributes["exception.type"], event_attributes["exception.message"]) == (
            "exception",
            "ValueError",
            "no such thing",
        )
        assert "raise ValueError" in str(event_attributes["exception.stacktrace"])
        assert SECRET not in str(event_attributes).replace("password = SECRET", "")
    assert linked(first) == linked(second) == [traceparent(scene.traces.only("send work"))]


def test_an_undecodable_body_is_an_error_on_its_span(scene: Scene) -> None:
    @scene.app.handler(Queue("work", dict))
    def work(body: dict[str, Any]) -> None:
        raise AssertionError("called")

    with TestWorker(scene.app) as worker:
        from penstock.messaging.message import Outgoing

        worker.broker.send("work", [Outgoing(body=b"no JSON")])
        worker.run_until_empty(raises=False)
    span = scene.traces.only("process work")
    assert attributes(span)["error.type"] == "InvalidMessage"
    assert attributes(span)["penstock.outcome"] == "dead_letter"


def test_a_send_in_a_function_is_a_child_of_its_span(scene: Scene) -> None:
    @scene.app.handler(Queue("work"))
    def work(body: Any) -> None:
        scene.app.send("next", b"2")

    scene.run("work", b"1")
    assert scene.traces.only("send next").parent == scene.traces.only("process work").get_span_context()


def test_a_batch_is_one_span_with_links_to_all_senders(scene: Scene) -> None:
    @scene.app.handler(Queue("work"), batch=3, max_wait="1 s", retry_base="1 ms")
    def work(items: list[Item[Any]]) -> list[BaseException | None]:
        return [None, Reject("not this one"), Retry("later")] if len(items) == 3 else [None] * len(items)

    scene.run("work", b"1", b"2", b"3")
    span = scene.traces.named("process work")[0]
    assert sorted(linked(span)) == sorted(map(traceparent, scene.traces.named("send work")))
    found = attributes(span)
    assert found["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in found
    assert found["penstock.outcome"] == "mixed"
    assert (found["penstock.settled.ack"], found["error.type"]) == (1, "Reject")
    assert [dict(event.attributes or {})["exception.type"] for event in span.events] == ["Reject", "Retry"]


def test_a_batch_links_once_to_messages_of_one_send(scene: Scene) -> None:
    @scene.app.handler(Queue("work"), batch=3, max_wait="1 s")
    def work(items: list[Item[Any]]) -> None:
        pass

    scene.run("work", b"1", b"2", b"3", together=True)
    assert linked(scene.traces.only("process work")) == [traceparent(scene.traces.only("send work"))]


def test_with_tracing_off_nothing_is_wrapped_and_no_attribute_added() -> None:
    traces = Traces(process_provider())
    app = App(broker="memory://")

    @app.handler(Queue("work"))
    def work(body: Any) -> None:
        own_span("mine")

    with TestWorker(app) as worker:
        app.send("work", b"1")
        assert app.broker is worker.broker
        (message,) = worker.waiting("work")
        assert "traceparent" not in message.attributes
        worker.run_until_empty()
    assert [span.name for span in traces.spans] == ["mine"]


def test_the_span_of_an_object_handler_names_the_failed_object(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")

    @scene.app.object_handler(source=str(tmp_path), queue="files", max_attempts=1)
    def read(obj: IncomingObject) -> None:
        own_span("mine")
        raise ValueError("not this one")

    with TestWorker(scene.app) as worker:
        assert scene.app.announce("files", str(tmp_path)) == 1
        worker.run_until_empty(raises=False)
    span, mine = scene.traces.only("process files"), scene.traces.only("mine")
    assert linked(span) == [traceparent(scene.traces.only("send files"))]
    assert mine.parent == span.get_span_context()
    assert (attributes(span)["error.type"], attributes(span)["penstock.outcome"]) == ("ValueError", "dead_letter")
    (event,) = span.events
    assert dict(event.attributes or {})["penstock.object"] == (tmp_path / "a.txt").as_uri()
