"""The broker on SQS, with its guarantees and limits beyond `penstock.messaging.broker.Broker`:

- Delivery is at least once and in best-effort order, without a fence, as SQS documents. Every receive counts as an
  attempt, even if the message is released before processing starts. FIFO queues keep the order of a group, and
  deduplicate.
- SQS counts in whole seconds: leases, delays and waits are rounded up.
- A lease lasts as long as SQS grants it, and a delivery at most twelve hours: see `leases`.
- Queues are not created implicitly: a missing one is a `ConfigurationError`, except in read-only calls such as `stats`.
- An idle worker makes one request per queue every ``poll_seconds``, and takes that long to stop.
- SQS itself moves messages received too often to the dead-letter queue without recording why, and deletes messages at
  the end of their retention.

`Delivery.received_at` is this machine's clock, `Message.enqueued_at` that of SQS.
"""

import random as random_numbers
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock.brokers import shared
from penstock.brokers.capabilities import SQS, SQS_POLLERS
from penstock.brokers.sqs.calls import BatchCalls, ParallelCalls, ParallelCallsPerQueue, outcome
from penstock.brokers.sqs.client import SqsApi, is_missing
from penstock.brokers.sqs.envelope import SqsDelivery
from penstock.brokers.sqs.leases import SettledDeliveries, SqsLeases
from penstock.brokers.sqs.limits import BATCH_MAX, POLL_SECONDS_MAX, check_lease
from penstock.brokers.sqs.listener import SqsArrivalListener
from penstock.brokers.sqs.move import MoveInProgress, MoveStarter
from penstock.brokers.sqs.queues import SqsQueues, purge, read_stats
from penstock.brokers.sqs.receive import PolledMessages, PollRequest, ReceiveCalls, SqsReceiver
from penstock.brokers.sqs.send import SqsSender
from penstock.brokers.sqs.settle import SqsSettler
from penstock.errors import ConfigurationError, PenstockError
from penstock.events import Listener, ignore
from penstock.messaging.backoff import Random
from penstock.messaging.broker import (
    BrokerCapabilities,
    Listening,
    QueueSettings,
    QueueStats,
    ReceiveRequest,
    SettleFailure,
    TurnResult,
    is_fifo,
)
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.queued import QueuedMessage, QueuedPage, QueuedState
from penstock.messaging.settlement import Release, Settlement
from penstock.storage.aws import Aws

POLL_SECONDS = 5.0
UNCLAIMED_SECONDS = 1.0
SETTLERS = 8  # threads that settle
EXTENDERS = 4  # threads that extend, per queue
TURNS_MAX = 4  # threads that can call `turn` concurrently without waiting for each other


class SqsBroker:
    """A `penstock.messaging.broker.Broker` on SQS, or on a server with the same API. Thread-safe.

    Without ``queues`` it does not connect before the first call.

    Args:
        aws: The account, region and endpoint.
        holder: The name of this worker in dead letters.
        queues: Queues to create if missing, with their dead-letter queues; they get these settings from now on. Nothing
            else creates queues.
        pollers: The number of parallel receive calls, of ten messages each.
        poll_seconds: How long a poll waits for an arrival: whole seconds from 1 to 20. Polls are never cancelled, so
            stopping a worker takes that long.
        emit: Receives the events of polls that found nothing.
    """

    def __init__(
        self,
        aws: Aws,
        *,
        holder: str,
        queues: Sequence[QueueSettings] = (),
        pollers: int = SQS_POLLERS,
        poll_seconds: float = POLL_SECONDS,
        clock: Clock | None = None,
        random: Random = random_numbers.random,
        emit: Listener = ignore,
    ) -> None:
        for settings in queues:
            shared.check_settings(settings)
        if pollers < 1:
            raise ConfigurationError(f"pollers is {pollers}: it has to be at least 1")
        if not 1 <= poll_seconds <= POLL_SECONDS_MAX:
            raise ConfigurationError(
                f"poll_seconds is {poll_seconds:g}: SQS takes whole seconds from 1 to {POLL_SECONDS_MAX:g}"
            )
        self._clock = clock or SystemClock()
        self._random = random
        self._poll_seconds = poll_seconds
        self._capabilities = replace(SQS, receive_max=BATCH_MAX * pollers)
        self._receivers = ParallelCalls("receive", threads=pollers * TURNS_MAX)
        self._settlers = ParallelCalls("settle", threads=SETTLERS)
        self._extenders = ParallelCallsPerQueue("extend", threads=EXTENDERS)
        self._turners = ParallelCalls("turn", threads=TURNS_MAX)
        self._settlement_pool = ParallelCalls("ways", threads=SETTLERS)
        self._api = SqsApi(aws, pollers=pollers, poll_seconds=poll_seconds)
        self._queues = SqsQueues(self._api, clock=self._clock)
        self._movers = MoveStarter(self._api, self._queues, clock=self._clock)
        self._polled = PolledMessages(self._clock, unclaimed_seconds=UNCLAIMED_SECONDS)
        self._settled = SettledDeliveries()
        batches = BatchCalls(self._api, lambda _: self._settlers, clock=self._clock, random=random)
        extending = BatchCalls(self._api, self._extenders.of, clock=self._clock, random=random)
        self._leases = SqsLeases(self._queues, batches, self._settled, extending=extending, clock=self._clock)
        self._sending = SqsSender(self._api, self._queues, batches)
        self._taking = SqsReceiver(
            polled=self._polled,
            receiving=ReceiveCalls(
                self._api, self._queues, self._receivers, pollers=pollers, clock=self._clock, emit=emit
            ),
            leases=self._leases,
            poll_seconds=poll_seconds,
            clock=self._clock,
        )
        self._settling = SqsSettler(
            queues=self._queues,
            batches=batches,
            leases=self._leases,
            sending=self._sending,
            settled=self._settled,
            pool=self._settlement_pool,
            holder=holder,
            clock=self._clock,
        )
        self._closed = False  # written by the thread that calls close
        self._queues.ensure(queues)

    @property
    def capabilities(self) -> BrokerCapabilities:
        return self._capabilities

    # --- sending

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Send in calls of ten, one after the other: after an error, the messages of earlier calls are in the queue.

        After an `UnknownOutcome` the messages of the failed call may or may not have been sent; on a FIFO queue a
        deduplication id makes it safe to send them again.
        """
        self._api.check_open()
        with self._forgetting([queue]):
            return self._sending.send(queue, messages)

    def try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        """Send as `send` does, but return for each message its id or the error that kept it, or may have, from the
        queue.

        Raises errors of the queue, which concern all messages.
        """
        self._api.check_open()
        with self._forgetting([queue]):
            return self._sending.try_send(queue, messages)

    def takes(self, queue: str, message: Outgoing) -> bool:
        """Return True if the queue accepts a message of that size, as far as known without sending it."""
        self._api.check_open()
        with self._forgetting([queue]):
            return self._sending.takes(queue, message)

    # --- receiving and settling

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        check_lease(lease_seconds)
        shared.check_wait(wait_seconds)
        self._api.check_open()
        count = min(messages_max, self._capabilities.receive_max)
        if count < 1:
            return ()
        self._polled.expect(queue, PollRequest(messages_max=count, lease_seconds=lease_seconds))
        with self._forgetting([queue]):
            return self._taking.take(queue, count, lease_seconds, wait_seconds)

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        """Settle deliveries. One that this broker has already settled, or that is listed twice, counts as lost.

        SQS itself accepts an ack of a deleted message, and so cannot report it.
        """
        self._api.check_open()
        with self._forgetting({delivery.queue for delivery, _ in settlements}):
            return self._settling.settle(settlements) if settlements else ()

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        requests: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        """Settle and receive concurrently, unless messages settled in this turn may be received in it."""

        def settle() -> Sequence[SettleFailure] | Exception:
            return outcome(lambda: self.settle(settlements)) if settlements else ()

        if not (settlements and requests) or self._closed or _may_be_redelivered(settlements, requests):
            return _turn(settle(), self._receive_first(requests, lease_seconds, wait_seconds))
        settling = self._turners.begin(settle)
        result = self._receive_first(requests, lease_seconds, wait_seconds)
        settled = settling.result()
        return _turn(settled, replace(result, deliveries=self._taking.extend_stale(result.deliveries, lease_seconds)))

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        """Extend leases up to twelve hours from the receive; at that limit they are neither extended nor lost: see
        `leases`.
        """
        check_lease(lease_seconds)
        self._api.check_open()
        with self._forgetting({delivery.queue for delivery in deliveries}):
            return self._leases.extend(deliveries, lease_seconds)

    def listen(self, queues: Sequence[str], on_arrival: Callable[[], None]) -> Listening:
        """Return a listener that polls while the worker has free slots. Closing waits for polls under way."""
        return SqsArrivalListener(
            queues,
            on_arrival,
            polled=self._polled,
            poll=self._taking.poll,
            release=self._release_unclaimed,
            poll_seconds=self._poll_seconds,
            clock=self._clock,
            random=self._random,
        )

    # --- inspection

    def stats(self, queue: str) -> QueueStats:
        """Return approximate counts without ages; zeros for a missing queue."""
        with self._forgetting([queue]):
            return read_stats(self._api, self._queues, queue)

    def is_empty(self, queue: str) -> bool:
        return not self.stats(queue).messages

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:  # noqa: ARG002
        raise _not_browsable(queue)

    def peek(self, queue: str, state: QueuedState, *, messages_max: int, after: str | None = None) -> QueuedPage:  # noqa: ARG002
        raise _not_browsable(queue)

    def find(self, queue: str, id: str, *, near: str | None = None) -> QueuedMessage | None:  # noqa: ARG002
        raise _not_browsable(queue)

    def receives_max(self, queue: str) -> int | None:
        """Return the maxReceiveCount of the redrive policy as it is now; None if it has none or may not be read."""
        with self._forgetting([queue]):
            self._queues.forget(queue)
            self._queues.find(queue)
            return self._queues.receives_max(queue)

    def queue_names(self) -> Sequence[str]:
        """Return all queues of the account in this region, also those that Penstock does not use."""
        return self._queues.names()

    def set_url(self, queue: str, url: str) -> None:
        """Use this URL for the queue, given by its name or ARN, without asking SQS for it."""
        self._queues.know(queue, url)

    def dead_letter_queue(self, queue: str) -> str:
        """Return the queue named by the redrive policy, else by convention; a dead-letter queue has one, too."""
        with self._forgetting([queue]):
            return self._queues.dead_letter_name(queue)

    def retention_seconds(self, queue: str) -> float | None:
        """Return the retention. For a message that SQS itself dead-lettered it counts from the original send."""
        with self._forgetting([queue]):
            return self._queues.retention_seconds(queue)

    def discard(self, queue: str, ids: Sequence[str]) -> int:  # noqa: ARG002 - the signature is the Protocol's
        raise ConfigurationError(
            f"Messages of the queue {queue!r} cannot be deleted by their ids: SQS deletes what was received, and "
            "nothing else; receive and ack them, or purge the queue."
        )

    def purge(self, queue: str) -> int:
        """Purge the queue, at most once a minute. It takes up to a minute, and messages sent meanwhile may be deleted,
        too.
        """
        with self._forgetting([queue]):
            count = purge(self._api, self._queues, queue)
            self._polled.drop(queue)
            return count

    def move_all(self, source: str, destination: str | None = None, *, per_second: int | None = None) -> MoveInProgress:
        """Start SQS's own redrive of all messages of a dead-letter queue, unchanged; iterate the result for progress.

        Args:
            source: The dead-letter queue.
            destination: The target queue; None: the one queue whose redrive policy names the source.
            per_second: 1 to 500 messages; None: as fast as SQS allows.

        Raises:
            ConfigurationError: SQS never accepts this move.
            TemporaryError: SQS is already moving messages of that queue.
        """
        with self._forgetting([source] if destination is None else [source, destination]):
            return self._movers.start(source, destination, per_second=per_second)

    # --- control

    def pause(self, queue: str) -> None:
        raise ConfigurationError(f"The queue {queue!r} cannot be paused on SQS; let its workers drain instead.")

    def resume(self, queue: str) -> None:
        raise ConfigurationError(f"The queue {queue!r} cannot be resumed: on SQS none is ever paused.")

    def now(self) -> float:
        """Return this host's time, since SQS has no clock to query."""
        return self._clock.now()

    def paused(self, queue: str) -> bool:  # noqa: ARG002 - the signature is the Protocol's
        return False

    def close(self) -> None:
        """Close the connections. A waiting receiver returns when its poll does; later calls raise TemporaryError."""
        self._closed = True
        self._taking.close()
        self._api.close()
        for pool in (self._receivers, self._settlers, self._extenders, self._turners, self._settlement_pool):
            pool.close()

    # --- internals

    def _receive_first(
        self, requests: Sequence[ReceiveRequest], lease_seconds: float, wait_seconds: float
    ) -> TurnResult:
        """Poll the queues in order until one has messages."""
        for request in requests:
            try:
                deliveries = self.receive(
                    request.queue,
                    messages_max=request.messages_max,
                    lease_seconds=lease_seconds,
                    wait_seconds=wait_seconds if len(requests) == 1 else 0.0,
                )
            except Exception as error:
                return TurnResult(receive_error=(request.queue, error))
            if deliveries:
                return TurnResult(deliveries=deliveries)
        return TurnResult()

    def _release_unclaimed(self, deliveries: Sequence[SqsDelivery]) -> None:
        self.settle([(delivery, Release(uncounted=True)) for delivery in deliveries])

    @contextmanager
    def _forgetting(self, queues: Collection[str]) -> Iterator[None]:
        """Forget the URL of a queue that turns out to be deleted, since it may be created again."""
        try:
            yield
        except PenstockError as error:
            if error.__cause__ is not None and is_missing(error.__cause__):
                for queue in queues:
                    self._queues.forget(queue)
            raise


def _may_be_redelivered(settlements: Sequence[tuple[Delivery, Settlement]], requests: Sequence[ReceiveRequest]) -> bool:
    """Return True if messages being settled may be received at once: released without delay, or unlocked in a FIFO
    queue.
    """
    result = {request.queue for request in requests}
    return any(is_fifo(queue) for queue in result) or any(
        isinstance(settlement, Release) and not settlement.delay_seconds and delivery.queue in result
        for delivery, settlement in settlements
    )


def _turn(settled: Sequence[SettleFailure] | Exception, result: TurnResult) -> TurnResult:
    if isinstance(settled, Exception):
        return replace(result, settle_error=settled)
    return replace(result, failures=settled)


def _not_browsable(queue: str) -> ConfigurationError:
    return ConfigurationError(
        f"Messages of the queue {queue!r} cannot be browsed: on SQS that needs a receive, which counts as an "
        "attempt; `penstock dead list` does so with dead letters, and releases them."
    )
