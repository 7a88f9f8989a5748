"""A broker wrapper that records sends and receives as spans and attaches the sender's trace context to messages.

One send is one span, however many messages it has. A message that already has a context (it is replayed or relayed, or
its sender traces by other means) keeps it, and the span links to it. A context never prevents a send: a message without
room for it is sent without.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Tracer

from penstock.errors import PenstockError
from penstock.messaging.broker import Broker, BrokerCapabilities, ReceiveRequest, TurnResult
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Attributes, Outgoing
from penstock.messaging.settlement import Settlement
from penstock.messaging.tracing import Carrier, Measures
from penstock.monitoring.traces.context import (
    MESSAGE_ID,
    PARENT,
    RECEIVE,
    SEND,
    UNTRACED,
    links_and_count,
    links_and_names,
    note_error,
    operation,
    original_message_of,
    said,
)

A = TypeVar("A")

ATTRIBUTES_BYTES_MAX = 256 * 1024  # of a message; more is refused
SMALL_BYTES = 1_024  # an SQS queue accepts this much, whatever its configured limit
_NOTES_BYTES = 256  # for the attributes that a broker adds to a message, including names and types


class TracedBroker:
    """A `penstock.messaging.broker.Broker` around another one, with all its additional methods."""

    def __init__(self, inner: Broker, tracer: Tracer) -> None:
        self.inner = inner
        self._tracer = tracer
        self._system = inner.capabilities.system
        self._measure = inner if isinstance(inner, Measures) else None  # checked once, because the check is slow
        # Set as attributes of the instance, because callers check for optional methods by name.
        for name in dir(inner):
            if not name.startswith("_") and not hasattr(type(self), name) and callable(getattr(inner, name)):
                setattr(self, name, getattr(inner, name))
        if hasattr(inner, "try_send"):
            self.try_send = self._try_send

    if TYPE_CHECKING:  # for the attributes passed on

        def __getattr__(self, name: str) -> Any: ...

    @property
    def capabilities(self) -> BrokerCapabilities:
        return self.inner.capabilities

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        return self._sent(queue, messages, self.inner.send)

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        began_at = time.time_ns()
        deliveries = self.inner.receive(
            queue, messages_max=messages_max, lease_seconds=lease_seconds, wait_seconds=wait_seconds
        )
        with suppress(Exception):  # the messages must be processed, even if the span fails
            self._record_receive(deliveries, began_at)
        return deliveries

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        requests: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        began_at = time.time_ns()
        turn = self.inner.turn(settlements, requests, lease_seconds=lease_seconds, wait_seconds=wait_seconds)
        with suppress(Exception):  # as in receive
            self._record_receive(turn.deliveries, began_at)
        return turn

    def _try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        inner: Any = self.inner
        return self._sent(queue, messages, inner.try_send)

    def _sent(
        self, queue: str, messages: Sequence[Outgoing], send: Callable[[str, Sequence[Outgoing]], Sequence[A]]
    ) -> Sequence[A]:
        if not messages:
            return send(queue, messages)
        links, attributes_of_links = links_and_count([message.attributes for message in messages])
        attributes = {**operation(SEND, system=self._system, queue=queue), **attributes_of_links}
        span = self._tracer.start_span(f"{SEND} {queue}", kind=SpanKind.PRODUCER, attributes=attributes, links=links)
        try:
            carried, untraced = self._carrying(queue, messages, original_message_of(trace.set_span_in_context(span)))
            if untraced:
                span.set_attribute(UNTRACED, untraced)
            results = send(queue, carried)
        except Exception as error:
            note_error(span, type(error).__name__, str(error))
            raise
        else:
            _record_results(span, results)
            return results
        finally:
            span.end()

    def _carrying(self, queue: str, messages: Sequence[Outgoing], carrier: Carrier) -> tuple[Sequence[Outgoing], int]:
        """Return the messages with the trace context, and the number of those that have no room for it."""
        if not carrier:  # sampling is off
            return messages, 0
        # by the attribute mapping, which many messages may share, so that they share the new one, too
        added: dict[int, Attributes] = {}
        carried: list[Outgoing] = []
        untraced = 0
        for message in messages:
            if PARENT in message.attributes:
                carried.append(message)
                continue
            known = added.get(id(message.attributes))
            if known is None:
                known = added[id(message.attributes)] = MappingProxyType({**message.attributes, **carrier})
            with_context = replace(message, attributes=known)
            fits = self._fits(queue, with_context)
            carried.append(with_context if fits else message)
            untraced += not fits
        return carried, untraced

    def _fits(self, queue: str, message: Outgoing) -> bool:
        attributes_bytes = _size(message.attributes)
        if attributes_bytes > ATTRIBUTES_BYTES_MAX:
            return False
        if self._measure is None or _as_base64(len(message.body) + attributes_bytes) < SMALL_BYTES:
            return True
        with suppress(PenstockError):  # the send itself reports an error of the queue
            return self._measure.takes(queue, message)
        return False

    def _record_receive(self, deliveries: Sequence[Delivery], began_at: int) -> None:
        """Record a span for the received messages; polls without messages leave none."""
        if not deliveries:
            return
        queue = deliveries[0].queue
        links, attributes_of_links = links_and_names(deliveries)
        attributes = {**operation(RECEIVE, system=self._system, queue=queue), **attributes_of_links}
        self._tracer.start_span(
            f"{RECEIVE} {queue}", kind=SpanKind.CLIENT, attributes=attributes, links=links, start_time=began_at
        ).end()


def _size(attributes: Mapping[str, str | bytes]) -> int:
    return sum(len(name) + len(value) for name, value in attributes.items())


def _as_base64(size_bytes: int) -> int:
    return (size_bytes + _NOTES_BYTES) * 4 // 3


def _record_results(span: Span, results: Sequence[object]) -> None:
    """Record the message id, or the first error of a message that was refused."""
    refused = [result for result in results if isinstance(result, BaseException)]
    if refused:
        note_error(span, type(refused[0]).__name__, str(refused[0]))
    elif len(results) == 1:
        span.set_attribute(MESSAGE_ID, said(str(results[0])))
