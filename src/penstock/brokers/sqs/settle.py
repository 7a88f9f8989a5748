"""Settlements: delete, make visible again, and dead-letter.

A dead letter is sent before the message is deleted: a crash in between duplicates it and loses nothing. Before the
send, the message is hidden a little longer; if its lease is lost, that fails, and no dead letter is sent.

A release hides the message for the requested delay, but no longer than SQS can hold it since its receive.

The death record is shortened if the dead-lettered message would be too large: body and attributes take precedence.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from penstock.brokers import shared
from penstock.brokers.sqs import client
from penstock.brokers.sqs.calls import BatchCalls, FailedEntry, ParallelCalls
from penstock.brokers.sqs.envelope import Entry, SqsDelivery, deduplication_id, sealed, size_bytes, unnoted
from penstock.brokers.sqs.leases import SettledDeliveries, SqsLeases
from penstock.brokers.sqs.limits import check_release
from penstock.brokers.sqs.queues import SqsQueues
from penstock.brokers.sqs.send import SqsSender
from penstock.errors import ConfigurationError, PenstockError, UserError
from penstock.messaging.broker import SettleFailure
from penstock.messaging.clock import Clock
from penstock.messaging.death import DEATH_ATTRIBUTE, EARLIER_DEATHS_ATTRIBUTE, Death, buried, encode_death
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Attributes
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

_TRIMMED_BYTES_MAX = 40 * 1024
_REASON_CHARS_MAX = 200
DEAD_LETTER_SECONDS = 30.0  # how long a message stays hidden while its dead letter is sent
DELETE = "delete_message_batch"
Failures = list[SettleFailure]


def dead_letter(
    delivery: Delivery, settlement: DeadLetter, *, worker: str, now: float, fifo: bool, bytes_max: int
) -> Entry:
    """Return the entry for the dead-letter queue: body, group and attributes unchanged, plus the death.

    From a DLQ to the final DLQ, the entry keeps its death and adds the reason for the move. A message that another
    program filled up to the size limit is sent without a death. SQS does not record the first failure; the death has
    the time of the first receive instead.
    """
    first = delivery.first_received_at if isinstance(delivery, SqsDelivery) and delivery.attempt > 1 else None
    death = shared.death_by_settlement(settlement, delivery, worker=worker, first_failed_at=first, now=now)
    message = delivery.message
    for attributes in _attribute_variants(message.attributes, settlement, death):
        entry = sealed(message.body, attributes, message.group, fifo=fifo)
        if size_bytes(entry) <= bytes_max:
            break
    else:
        entry = unnoted(message.body, message.attributes, message.group, fifo=fifo) or entry
    if fifo:
        entry["MessageDeduplicationId"] = deduplication_id(f"{message.id}.{delivery.attempt}")
    return entry


class SqsSettler:
    """Settle deliveries. Thread-safe."""

    def __init__(
        self,
        *,
        queues: SqsQueues,
        batches: BatchCalls,
        leases: SqsLeases,
        sending: SqsSender,
        settled: SettledDeliveries,
        pool: ParallelCalls,
        holder: str,
        clock: Clock,
    ) -> None:
        self._queues = queues
        self._batches = batches
        self._leases = leases
        self._sending = sending
        self._settled = settled
        self._sent_dead_letters = SettledDeliveries()  # dead letter sent; if deleting fails, only that is retried
        self._pool = pool
        self._holder = holder
        self._clock = clock

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        """Settle in parallel, by queue and kind of settlement.

        Raises a call's error if all calls failed, or if only a person can fix it.
        """
        for _, settlement in settlements:
            if isinstance(settlement, Release):
                check_release(settlement.delay_seconds)
        failures: Failures = []
        acks: dict[str, list[Delivery]] = {}
        releases: dict[str, list[tuple[Delivery, float]]] = {}
        dead: dict[str, list[tuple[Delivery, DeadLetter]]] = {}
        seen: set[str] = set()
        for delivery, settlement in settlements:
            if delivery.receipt in seen or delivery in self._settled:
                failures.append(SettleFailure(delivery=delivery, reason=shared.LOST, lost=True))
                continue
            seen.add(delivery.receipt)
            match settlement:
                case Ack():
                    acks.setdefault(delivery.queue, []).append(delivery)
                case Release():
                    releases.setdefault(delivery.queue, []).append((delivery, settlement.delay_seconds))
                case DeadLetter():
                    dead.setdefault(delivery.queue, []).append((delivery, settlement))
        calls: list[Callable[[], Failures]] = [
            *(partial(self._delete, queue, each) for queue, each in acks.items()),
            *(partial(self._release, queue, each) for queue, each in releases.items()),
            *(partial(self._dead_letter, queue, each) for queue, each in dead.items()),
        ]
        concerned = [
            *acks.values(),
            *([delivery for delivery, _ in each] for each in releases.values()),
            *([delivery for delivery, _ in each] for each in dead.values()),
        ]
        return failures + self._together(calls, concerned)

    def _together(self, calls: Sequence[Callable[[], Failures]], concerned: Sequence[Sequence[Delivery]]) -> Failures:
        results = self._pool.run(calls)
        errors = [result for result in results if isinstance(result, Exception)]
        fatal = [error for error in errors if isinstance(error, UserError)]
        if fatal or (errors and len(errors) == len(results)):
            raise [*fatal, *errors][0]
        failures: Failures = []
        for deliveries, result in zip(concerned, results, strict=True):
            if isinstance(result, Exception):
                failures += [SettleFailure(delivery=each, reason=str(result), lost=False) for each in deliveries]
            else:
                failures += result
        return failures

    def _delete(self, queue: str, deliveries: Sequence[Delivery]) -> Failures:
        entries = [{"ReceiptHandle": delivery.receipt} for delivery in deliveries]
        failed = self._batches.run(self._queues.find(queue), DELETE, entries)
        return self._outcome(deliveries, failed.items())

    def _release(self, queue: str, released: Sequence[tuple[Delivery, float]]) -> Failures:
        return self._outcome([delivery for delivery, _ in released], self._leases.change(queue, released))

    def _dead_letter(self, queue: str, dead: Sequence[tuple[Delivery, DeadLetter]]) -> Failures:
        try:
            found = self._queues.find(queue)
            target = self._queues.dead_letter_queue(found)
            if target.url == found.url:
                return self._release(
                    queue, [(delivery, shared.release_in_final_dlq(each).delay_seconds) for delivery, each in dead]
                )
            bytes_max = self._queues.bytes_max(target)
        except ConfigurationError as error:
            # A person has to create the queue or permit its use. The worker has other work, and the message stays.
            return [SettleFailure(delivery=delivery, reason=str(error), lost=False) for delivery, _ in dead]
        failures = self._find_lost(queue, [delivery for delivery, _ in dead])
        lost = {failure.delivery.receipt for failure in failures}
        unsent = [pair for pair in dead if pair[0].receipt not in lost and pair[0] not in self._sent_dead_letters]
        entries = [
            dead_letter(
                delivery, each, worker=self._holder, now=self._clock.now(), fifo=target.is_fifo, bytes_max=bytes_max
            )
            for delivery, each in unsent
        ]
        for (delivery, _), result in zip(unsent, self._sending.try_all(target, entries), strict=True):
            if isinstance(result, PenstockError):
                failures.append(SettleFailure(delivery=delivery, reason=f"no dead letter: {result}", lost=False))
            else:
                self._sent_dead_letters.add(delivery)
        buried = [
            delivery for delivery, _ in dead if delivery in self._sent_dead_letters and delivery.receipt not in lost
        ]
        return failures + (self._delete(queue, buried) if buried else [])

    def _find_lost(self, queue: str, deliveries: Sequence[Delivery]) -> Failures:
        """Return the deliveries with a lost lease, found by hiding all a little longer.

        Deliveries at the twelve-hour limit cannot be hidden, and so are not checked.
        """
        hideable = [delivery for delivery in deliveries if self._leases.left_seconds(delivery) >= DEAD_LETTER_SECONDS]
        hidden = self._leases.change(queue, [(delivery, DEAD_LETTER_SECONDS) for delivery in hideable])
        return [
            _failure(hideable[position], each)
            for position, each in hidden
            if client.is_expired_handle(each.code, each.message)
        ]

    def _outcome(self, deliveries: Sequence[Delivery], failed: Iterable[tuple[int, FailedEntry]]) -> Failures:
        by_position = dict(failed)
        for position, delivery in enumerate(deliveries):
            if position not in by_position:
                self._settled.add(delivery)
        return [_failure(deliveries[position], each) for position, each in by_position.items()]


def _attribute_variants(before: Attributes, settlement: DeadLetter, death: Death) -> Iterator[Attributes]:
    """Yield the attributes with the whole death, then with shorter ones. Earlier deaths are dropped before this one."""
    whole = buried(before, settlement, death)
    brief = replace(settlement, reason=settlement.reason[:_REASON_CHARS_MAX])
    yield whole
    if settlement.set_aside:
        yield buried(before, brief, death)
        yield _without_history(buried(before, brief, death))
    else:
        yield {**whole, DEATH_ATTRIBUTE: encode_death(death, bytes_max=_TRIMMED_BYTES_MAX)}
        short = replace(death, traceback=None, exception=None, tries=())
        yield {**whole, DEATH_ATTRIBUTE: encode_death(short)}
        shortest = {**whole, DEATH_ATTRIBUTE: encode_death(replace(short, reason=brief.reason))}
        yield shortest
        yield _without_history(shortest)
    yield before


def _without_history(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if name != EARLIER_DEATHS_ATTRIBUTE}


def _failure(delivery: Delivery, failed: FailedEntry) -> SettleFailure:
    lost = client.is_expired_handle(failed.code, failed.message)
    return SettleFailure(delivery=delivery, reason=f"{shared.LOST} ({failed})" if lost else str(failed), lost=lost)
