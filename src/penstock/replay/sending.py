"""Sending letters back, so that of each one it is known what became of it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing


@runtime_checkable
class TriesEach(Protocol):
    """A broker whose sends may be taken in part, and that can say in which."""

    def try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        """The id of each message, or why it is not in the queue: a `ConfigurationError` where the message itself can
        never be taken. Raises what is wrong with the queue."""
        ...


def send_each(broker: Broker, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
    """As `TriesEach.try_send`, by every broker. One that is away took none of them, or nobody knows which. Raises what
    is wrong with the queue, for a person to mend."""
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
