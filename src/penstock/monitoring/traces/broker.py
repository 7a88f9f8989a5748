"""A broker whose sends and receives are spans, and whose messages take the context of their sending along.

A send is one span, however many messages it is of. A message that has a context already (it is replayed, relayed, or
its sender traces by other means) keeps it, and the span links to that. A context never keeps a message from being sent:
where there is no room for it the message goes without.
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
from penstock.messaging.broker import Broker, Capabilities, ReceiveRequest, TurnResult
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
    carrier_of,
    links_and_count,
    links_and_names,
    note_error,
    operation,
    said,
)

A = TypeVar("A")

ATTRIBUTES_BYTES_MAX = 256 * 1024  # of a message; more is refused
SMALL_BYTES = 1_024  # a queue of SQS takes that, whatever it was told
_NOTES_BYTES = 256  # for what a broker notes of a message, names and types included


class TracedBroker:
    """A `penstock.messaging.broker.Broker` around another one; it has whatever the other one has beside that."""

    def __init__(self, inner: Broker, tracer: Tracer) -> None:
        self.inner = inner
        self._tracer = tracer
        self._system = inner.capabilities.system
        self._measure = inner if isinstance(inner, Measures) else None  # asked once: the answer takes a while
        # As attributes of its own: whether it can do more than a broker has to is asked by their names.
        for name in dir(inner):
            if not name.startswith("_") and not hasattr(type(self), name) and callable(getattr(inner, name)):
                setattr(self, name, getattr(inner, name))
        if hasattr(inner, "try_send"):
            self.try_send = self._try_send

    if TYPE_CHECKING:  # what is passed on

        def __getattr__(self, name: str) -> Any: ...

    @property
    def capabilities(self) -> Capabilities:
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
        with suppress(Exception):  # what is here has to be worked on, whatever becomes of its span
            self._received(deliveries, began_at)
        return deliveries

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        asks: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        began_at = time.time_ns()
        turn = self.inner.turn(settlements, asks, lease_seconds=lease_seconds, wait_seconds=wait_seconds)
        with suppress(Exception):  # as in `receive`
            self._received(turn.deliveries, began_at)
        return turn

    def _try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        inner: Any = self.inner
        return self._sent(queue, messages, inner.try_send)

    def _sent(
        self, queue: str, messages: Sequence[Outgoing], send: Callable[[str, Sequence[Outgoing]], Sequence[A]]
    ) -> Sequence[A]:
        if not messages:
            return send(queue, messages)
        links, told = links_and_count([message.attributes for message in messages])
        attributes = {**operation(SEND, system=self._system, queue=queue), **told}
        span = self._tracer.start_span(f"{SEND} {queue}", kind=SpanKind.PRODUCER, attributes=attributes, links=links)
        try:
            carried, untraced = self._carrying(queue, messages, carrier_of(trace.set_span_in_context(span)))
            if untraced:
                span.set_attribute(UNTRACED, untraced)
            answers = send(queue, carried)
        except Exception as error:
            note_error(span, type(error).__name__, str(error))
            raise
        else:
            _answered(span, answers)
            return answers
        finally:
            span.end()

    def _carrying(self, queue: str, messages: Sequence[Outgoing], carrier: Carrier) -> tuple[Sequence[Outgoing], int]:
        """The messages with the context, and how many have to go without."""
        if not carrier:  # tracing is switched off from outside
            return messages, 0
        added: dict[int, Attributes] = {}  # by the mapping that many messages share, so that these share one, too
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
        with suppress(PenstockError):  # what is wrong with the queue is the send's to say
            return self._measure.takes(queue, message)
        return False

    def _received(self, deliveries: Sequence[Delivery], began_at: int) -> None:
        """A span for what came; looks that bring nothing leave none."""
        if not deliveries:
            return
        queue = deliveries[0].queue
        links, told = links_and_names(deliveries)
        attributes = {**operation(RECEIVE, system=self._system, queue=queue), **told}
        self._tracer.start_span(
            f"{RECEIVE} {queue}", kind=SpanKind.CLIENT, attributes=attributes, links=links, start_time=began_at
        ).end()


def _size(attributes: Mapping[str, str | bytes]) -> int:
    return sum(len(name) + len(value) for name, value in attributes.items())


def _as_base64(size_bytes: int) -> int:
    return (size_bytes + _NOTES_BYTES) * 4 // 3


def _answered(span: Span, answers: Sequence[object]) -> None:
    """Ids, or why messages were not taken."""
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    if refused:
        note_error(span, type(refused[0]).__name__, str(refused[0]))
    elif len(answers) == 1:
        span.set_attribute(MESSAGE_ID, said(str(answers[0])))
