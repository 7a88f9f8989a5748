"""What spans of several kinds say: which deliveries they are of, who sent these, and by what they failed."""

from collections.abc import Mapping, Sequence

from opentelemetry.trace import Link, Span, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Attributes
from penstock.monitoring.traces.context import links_to
from penstock.monitoring.traces.names import ERROR_TYPE, LINKS_LEFT_OUT, MESSAGE_COUNT, MESSAGE_ID, said


def links_and_count(messages: Sequence[Attributes]) -> tuple[Sequence[Link], Mapping[str, AttributeValue]]:
    """Links to those that sent messages of these attributes; and how many messages there are, if several."""
    links, left_out = links_to(messages)
    counts = {MESSAGE_COUNT: len(messages) if len(messages) > 1 else 0, LINKS_LEFT_OUT: left_out}
    return links, {name: count for name, count in counts.items() if count}


def links_and_names(deliveries: Sequence[Delivery]) -> tuple[Sequence[Link], Mapping[str, AttributeValue]]:
    """As `links_and_count`; of a single delivery it is said which."""
    links, told = links_and_count([delivery.message.attributes for delivery in deliveries])
    if len(deliveries) == 1:
        told = {**told, MESSAGE_ID: said(deliveries[0].message.id)}
    return links, told


def note_error(span: Span, error_type: str, message: str) -> None:
    """Say that it failed, and by what."""
    span.set_attribute(ERROR_TYPE, error_type)
    span.set_status(Status(StatusCode.ERROR, said(f"{error_type}: {message}")))
