"""Calls that receive. Each brings ten messages at most, of a FIFO queue one; who asks for more gets several at once.

How many calls a queue is worth shows in what they bring: they double while they come full, and fall back to those that
did. None is ever broken off: what SQS has handed over then would be leased to nobody.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

from penstock.brokers.sqs.api import Api
from penstock.brokers.sqs.at_once import AtOnce
from penstock.brokers.sqs.limits import whole_seconds
from penstock.brokers.sqs.names import messages_a_call
from penstock.brokers.sqs.queues import Queues
from penstock.brokers.sqs.received import Received, received, source_of
from penstock.events import Listener, QueueSeenEmpty, tell_nobody
from penstock.messaging.clock import Clock


class Receiving:
    """Any thread may call it."""

    def __init__(
        self,
        api: Api,
        queues: Queues,
        at_once: AtOnce,
        *,
        pollers: int,
        clock: Clock,
        tell: Listener = tell_nobody,
    ) -> None:
        """``tell`` hears of polls that waited in vain."""
        self._api = api
        self._queues = queues
        self._at_once = at_once
        self._pollers = pollers
        self._clock = clock
        self._tell = tell
        self._widths: dict[str, int] = {}  # calls at once, by queue; any thread's, the last counts

    def take(self, queue: str, messages_max: int, lease_seconds: float) -> Sequence[Received]:
        """As many as there are, without waiting; SQS may overlook some of few."""
        taken: list[Received] = []
        width = self._widths.get(queue, 1)
        while len(taken) < messages_max:
            sizes = _sizes(messages_max - len(taken), width, each_max=messages_a_call(queue))
            came = self._at_once.run([partial(self.poll, queue, size, lease_seconds) for size in sizes])
            errors = [each for each in came if isinstance(each, Exception)]
            brought = [each for each in came if not isinstance(each, Exception)]
            taken += [delivery for each in brought for delivery in each]
            if errors and not taken:
                raise errors[0]
            full = sum(
                not isinstance(each, Exception) and len(each) == size for each, size in zip(came, sizes, strict=True)
            )
            if full < len(sizes):
                width = max(full, 1)
                break
            width = min(2 * width, self._pollers)
        self._widths[queue] = width
        return taken

    def poll(
        self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Received]:
        """One call, which waits up to that long for the first message.

        What is heard a lease after SQS said it, by a process that was halted or a network that held the answer, is not
        ours any more: SQS has no fence, so nobody else would tell.
        """
        found = self._queues.find(queue)
        asked_at = self._clock.monotonic()
        answer = self._api.on(
            found,
            "receive_message",
            MaxNumberOfMessages=min(messages_max, messages_a_call(queue)),
            VisibilityTimeout=whole_seconds(lease_seconds),
            WaitTimeSeconds=whole_seconds(wait_seconds),
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        if self._clock.monotonic() - asked_at >= whole_seconds(wait_seconds) + lease_seconds:
            return ()
        messages = answer.get("Messages", ())
        if wait_seconds and not messages and not found.is_fifo:  # there a group in work hides what waits behind it
            self._tell(QueueSeenEmpty(queue=queue))
        return [self._received(queue, raw) for raw in messages]

    def _received(self, queue: str, raw: Mapping[str, Any]) -> Received:
        source = source_of(raw)
        before = 0 if source is None else self._queues.receives_max(source)
        return received(queue, raw, self._clock, receives_before=before)


def _sizes(messages_max: int, width: int, *, each_max: int) -> Sequence[int]:
    calls = min(width, ceil(messages_max / each_max))
    return [min(each_max, messages_max - n * each_max) for n in range(calls)]
