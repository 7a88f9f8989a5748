"""Handlers and brokers wrapped for tracing: executions ended from outside, bounds, messages without room."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode
from tests.claims import claim_named, extended
from tests.traced import Traces, context_in, linked

from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import ConfigurationError, TemporaryError
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace, HeldClaim, Settlements
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.messaging.tracing import NO_TRACING

DEADLINE_SECONDS = 60.0
PARENT = "00-{:032x}-{:016x}-01"


def delivery(number: int = 1, traceparent: str | None = None) -> Delivery:
    attributes = {} if traceparent is None else {"traceparent": traceparent}
    return Delivery(
        message=Message(id=str(number), body=b"", enqueued_at=0.0, attributes=attributes),
        queue="q",
        receipt=str(number),
        attempt=1,
        received_at=0.0,
    )


class Handler:
    """A handler that is its own execution, runs a given function and records calls."""

    name = "h"
    place = ExecutionPlace.POOL
    timeout_seconds = None

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self.called: list[str] = []

    def weigh(self, delivery: Delivery) -> int:
        return 7

    def begin(self, deliveries: Sequence[Delivery]) -> "Handler":
        return self

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {"upkeep": lambda: self.called.append("upkeep")}

    def run(self) -> Settlements:
        answer: Settlements = self._run()
        return answer

    def claim(self) -> HeldClaim | None:
        return claim_named(lost=True)

    def loses(self, claim: HeldClaim) -> bool:
        return claim.id == "claim"

    def drain(self) -> None:
        self.called.append("drain")

    def left_seconds(self, timeout_seconds: float) -> float:
        return timeout_seconds

    def time_out(self) -> Settlements:
        self.called.append(f"time_out in {trace.get_current_span().get_span_context().span_id:016x}")
        return {"1": Release(delay_seconds=1.0)}

    def release(self) -> None:
        self.called.append("release")

    def interrupt(self) -> None:
        self.called.append("interrupt")


@pytest.fixture
def traces() -> Traces:
    return Traces()


def outcome(traces: Traces) -> Any:
    return (traces.only("process q").attributes or {}).get("penstock.outcome")


def running_execution(traces: Traces) -> tuple[Any, Handler, threading.Event, threading.Thread]:
    """Return an execution in the middle of its run, its handler, the event that ends the run, and its thread."""
    begun, go_on = threading.Event(), threading.Event()

    def run() -> Settlements:
        begun.set()
        assert go_on.wait(DEADLINE_SECONDS)
        return {"1": Ack()}

    handler = Handler(run)
    execution = traces.tracing.handler(handler, queue="q", system="memory").begin([delivery()])
    thread = threading.Thread(target=execution.run, daemon=True)
    thread.start()
    assert begun.wait(DEADLINE_SECONDS)
    return execution, handler, go_on, thread


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (("time_out", "interrupt"), "release"),
        (("release", "interrupt"), "interrupted"),
        (("interrupt",), "lost"),
    ],
)
def test_an_execution_ended_from_outside_ends_its_span_once(traces: Traces, ends: Sequence[str], expected: str) -> None:
    execution, handler, go_on, thread = running_execution(traces)
    for end in ends:
        getattr(execution, end)()
    assert outcome(traces) == expected
    go_on.set()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert outcome(traces) == expected, "the later result of the run is ignored"
    assert [name.split()[0] for name in handler.called] == list(ends)


def test_a_timeout_is_handled_within_the_span(traces: Traces) -> None:
    execution, handler, go_on, thread = running_execution(traces)
    execution.time_out()
    go_on.set()
    thread.join(DEADLINE_SECONDS)
    context = traces.only("process q").get_span_context()
    assert context is not None
    assert handler.called == [f"time_out in {context.span_id:016x}"]


def test_an_execution_that_never_ran_has_no_span(traces: Traces) -> None:
    execution = traces.tracing.handler(Handler(dict), queue="q", system="memory").begin([delivery()])
    execution.release()
    execution.interrupt()
    assert not traces.spans


def test_an_exception_of_a_run_is_recorded_on_its_span_and_raised(traces: Traces) -> None:
    def run() -> Settlements:
        raise TemporaryError("the ledger is unavailable")

    execution = traces.tracing.handler(Handler(run), queue="q", system="memory").begin([delivery()])
    with pytest.raises(TemporaryError):
        execution.run()
    span = traces.only("process q")
    assert (span.status.status_code, span.status.description) == (
        StatusCode.ERROR,
        "TemporaryError: the ledger is unavailable",
    )
    assert (span.attributes or {})["error.type"] == "TemporaryError"
    assert not trace.get_current_span().get_span_context().is_valid, "the thread has left the span"


def test_a_wrapped_handler_passes_everything_else_through(traces: Traces) -> None:
    inner = Handler(dict)
    handler = traces.tracing.handler(inner, queue="q", system="memory")
    assert (handler.name, handler.place, handler.timeout_seconds) == ("h", ExecutionPlace.POOL, None)
    assert handler.weigh(delivery()) == 7
    handler.jobs()["upkeep"]()
    execution = handler.begin([delivery()])
    assert not extended(execution)
    execution.drain()
    assert inner.called == ["upkeep", "drain"]


def test_links_are_bounded_and_omitted_ones_counted(traces: Traces) -> None:
    deliveries = [delivery(number, PARENT.format(number, number)) for number in range(1, 201)]
    answer = {str(number): DeadLetter(reason="no") for number in range(1, 201)}
    traces.tracing.handler(Handler(lambda: answer), queue="q", system="memory").begin(deliveries).run()
    span = traces.only("process q")
    assert linked(span) == [PARENT.format(number, number) for number in range(1, 129)]
    found = dict(span.attributes or {})
    assert found["penstock.links_left_out"] == 72
    assert (found["penstock.outcome"], found["penstock.settled.dead_letter"]) == ("dead_letter", 200)


class MeasuringBroker(MemoryBroker):
    """A broker that counts attributes as part of a message."""

    checks = 0

    def takes(self, queue: str, message: Outgoing) -> bool:
        self.checks += 1
        if queue == "missing":
            raise ConfigurationError("there is no such queue")
        return len(message.body) + sum(len(name) + len(value) for name, value in message.attributes.items()) <= 1_024


@pytest.mark.parametrize(
    ("size_bytes", "checks", "has_context"), [(100, 0, True), (900, 1, True), (960, 1, False), (1_024, 1, False)]
)
def test_the_trace_context_is_sent_only_if_the_message_has_room(
    traces: Traces, size_bytes: int, checks: int, has_context: bool
) -> None:
    inner = MeasuringBroker()
    broker = traces.tracing.broker(inner)
    broker.send("q", [Outgoing(body=b"x" * size_bytes)])
    (message,) = inner.browse("q", messages_max=1)
    assert (context_in(message.attributes) is not None, inner.checks) == (has_context, checks)
    assert (traces.only("send q").attributes or {}).get("penstock.untraced_messages") == (None if has_context else 1)


def test_an_error_of_the_room_check_is_left_to_the_send(traces: Traces) -> None:
    inner = MeasuringBroker()
    traces.tracing.broker(inner).send("missing", [Outgoing(body=b"x" * 1_000)])
    (message,) = inner.browse("missing", messages_max=1)
    assert context_in(message.attributes) is None


def test_attributes_without_room_are_unchanged(traces: Traces) -> None:
    inner = MemoryBroker()
    full = {"a": "x" * (256 * 1024 - 1)}
    traces.tracing.broker(inner).send("q", [Outgoing(body=b"", attributes=full)])
    (message,) = inner.browse("q", messages_max=1)
    assert dict(message.attributes) == full


def test_a_failed_send_is_an_error_on_its_span_and_raises(traces: Traces) -> None:
    broker = traces.tracing.broker(MemoryBroker())
    with pytest.raises(ConfigurationError):
        broker.send("", [Outgoing(body=b"")])
    (span,) = traces.spans
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "ConfigurationError"


def test_lone_surrogates_are_escaped_since_exporters_would_drop_the_whole_batch(traces: Traces) -> None:
    def run() -> Settlements:
        raise ValueError("\udc80" + "x" * 10_000)

    odd = replace(delivery(), message=Message(id="\udc80", body=b"", enqueued_at=0.0))
    with pytest.raises(ValueError, match="x"):
        traces.tracing.handler(Handler(run), queue="q", system="memory").begin([odd]).run()
    span = traces.only("process q")
    assert (span.attributes or {})["messaging.message.id"] == r"\udc80"
    description = span.status.description or ""
    assert description.startswith(r"ValueError: \udc80xxx")
    assert len(description) < 9_000
    assert encode_spans([span]).resource_spans


def test_an_empty_send_has_no_span(traces: Traces) -> None:
    assert traces.tracing.broker(MemoryBroker()).send("q", []) == []
    assert not traces.spans


class RecordingBroker(MemoryBroker):
    """A broker that keeps the messages of the last send unchanged."""

    sent: Sequence[Outgoing] = ()

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        self.sent = messages
        return super().send(queue, messages)


def test_messages_that_share_attributes_share_the_traced_ones(traces: Traces) -> None:
    inner = RecordingBroker()
    shared = {"schema": "1"}
    traces.tracing.broker(inner).send("q", [Outgoing(body=b"", attributes=shared) for _ in range(3)])
    assert len({id(message.attributes) for message in inner.sent}) == 1
    assert dict(inner.sent[0].attributes).keys() == {"schema", "traceparent"}
    assert shared == {"schema": "1"}


def test_an_unsampled_trace_is_propagated_as_unsampled() -> None:
    traces = Traces(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    inner = MemoryBroker()
    traces.tracing.broker(inner).send("q", [Outgoing(body=b"")])
    (message,) = inner.browse("q", messages_max=1)
    flags = int(str(context_in(message.attributes)).rpartition("-")[2], 16)
    assert not flags & 1, "the receiver must see that the sender's trace is not recorded"
    assert not traces.spans


def test_stages_are_nested_spans_that_record_exceptions(traces: Traces) -> None:
    with (
        traces.tracing.stage("outer", pipeline="p"),
        pytest.raises(ValueError, match="no"),
        traces.tracing.stage("inner", objects=3),
    ):
        raise ValueError("no")
    outer, inner = traces.only("outer"), traces.only("inner")
    assert inner.parent == outer.get_span_context()
    assert dict(outer.attributes or {}) == {"penstock.pipeline": "p"}
    assert dict(inner.attributes or {}) == {"penstock.objects": 3, "error.type": "ValueError"}
    assert inner.status.description == "ValueError: no"


def test_no_tracing_wraps_nothing() -> None:
    broker, handler = MemoryBroker(), Handler(dict)
    assert NO_TRACING.broker(broker) is broker
    assert NO_TRACING.handler(handler, queue="q", system="memory") is handler
    assert (dict(NO_TRACING.carrier()), NO_TRACING.continuing) == ({}, None)
    with NO_TRACING.stage("any", pipeline="p"):
        pass
