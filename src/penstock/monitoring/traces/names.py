"""What spans and their attributes are called: OpenTelemetry's semantic conventions for messaging, and a few of ours."""

from opentelemetry.semconv._incubating.attributes import messaging_attributes as messaging
from opentelemetry.semconv.attributes import error_attributes, exception_attributes
from opentelemetry.util.types import AttributeValue

from penstock.monitoring.text import plain

SYSTEM = messaging.MESSAGING_SYSTEM
DESTINATION = messaging.MESSAGING_DESTINATION_NAME
OPERATION = messaging.MESSAGING_OPERATION_NAME
OPERATION_TYPE = messaging.MESSAGING_OPERATION_TYPE
MESSAGE_ID = messaging.MESSAGING_MESSAGE_ID
MESSAGE_COUNT = messaging.MESSAGING_BATCH_MESSAGE_COUNT
ERROR_TYPE = error_attributes.ERROR_TYPE
EXCEPTION_TYPE = exception_attributes.EXCEPTION_TYPE
EXCEPTION_MESSAGE = exception_attributes.EXCEPTION_MESSAGE
EXCEPTION_STACKTRACE = exception_attributes.EXCEPTION_STACKTRACE

HANDLER = "penstock.handler"
ATTEMPT = "penstock.attempt"
OUTCOME = "penstock.outcome"  # of a process span: ack, release, dead_letter, mixed, given_back, lost
PIPELINE = "penstock.pipeline"
SINK = "penstock.sink"
SEQ = "penstock.seq"
OBJECT = "penstock.object"
UNTRACED = "penstock.untraced_messages"  # of a send: that had no room for a trace's context
LINKS_LEFT_OUT = "penstock.links_left_out"  # beyond those that a span may have

LINKS_MAX = 128  # of one span: what the SDK keeps by default

SEND, RECEIVE, PROCESS = "send", "receive", "process"
SCOPE = "penstock"  # of spans and metrics, and what names of our own begin with


def ours(name: str) -> str:
    """The name of an attribute of our own."""
    return f"{SCOPE}.{name}"


def said(text: str) -> str:
    """Text as exporters take it: bounded, and without lone surrogates, for one of which they drop a whole batch."""
    return str(plain(text))


def operation(name: str, *, system: str, queue: str) -> dict[str, AttributeValue]:
    """What every span of messaging has. The types of the operations are called as the operations are."""
    return {SYSTEM: system, DESTINATION: queue, OPERATION: name, OPERATION_TYPE: name}
