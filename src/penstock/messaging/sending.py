"""Sending several messages so that the outcome of each one is known: who sends again sends only what was not taken."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing

PARTIAL_CHUNK = 10  # messages between two marks of what was taken, by a broker that may take a part: one call of SQS


@runtime_checkable
class TriesEach(Protocol):
    """A broker that may take a part of the messages of one send, and reports which."""

    def try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        """Return the id of each message, or why it is not in the queue: a `ConfigurationError` if the message itself
        can never be taken. Raises an error of the queue only if the queue took none of them."""
        ...


def send_each(broker: Broker, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
    """As `TriesEach.try_send`, with any broker. If the broker is away, it took none of them, or it is unknown which.

    Raises an error of the queue, for a person to mend.
    """
    if isinstance(broker, TriesEach):
        try:
            return broker.try_send(queue, messages)
        except TemporaryError as error:
            return [error] * len(messages)
    try:
        return broker.send(queue, messages)
    except TemporaryError as error:
        return [error] * len(messages)
    except ConfigurationError as error:
        if error.__cause__ is not None:  # the server's or the file's word, and not ours on a message
            raise
        if len(messages) == 1:
            return [error]
    # Such a send is taken whole or not at all, so that nothing is sent twice by this.
    return [answer for message in messages for answer in send_each(broker, queue, [message])]


def chunk_of(broker: Broker, most: int) -> int:
    """Return how many messages to send before what was taken is marked."""
    return min(most, PARTIAL_CHUNK) if isinstance(broker, TriesEach) else most
