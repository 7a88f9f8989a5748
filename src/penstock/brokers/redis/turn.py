"""Turns: settle, sweep and receive in one round trip, and dead-letter messages that the broker gives up on.

- `take`, `taken`: the command that receives, and its reply
- `RedisTurns`: the steps of a turn
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.brokers import shared
from penstock.brokers.capabilities import EMBEDDED
from penstock.brokers.redis.keys import QueueKeys, new_store
from penstock.brokers.redis.queues import RedisQueues, settings_of
from penstock.brokers.redis.records import MessageState, delivery_of, entry_of, first_delivery_of, state_of
from penstock.brokers.redis.recovery import ExhaustedDelivery, LeaseSweeper, UnconfirmedDeliveries
from penstock.brokers.redis.server import Command, Server, script
from penstock.brokers.redis.settle import QueueSettlements, death_by_broker, deaths_by_settlement, grouped
from penstock.brokers.shared import encode_attributes
from penstock.errors import UserError
from penstock.messaging.broker import QueueSettings, ReceiveRequest, SettleFailure, TurnResult
from penstock.messaging.death import AttemptRecord, Death, buried, with_death
from penstock.messaging.delivery import AttemptEnd, Delivery
from penstock.messaging.message import UNREADABLE_ATTRIBUTE
from penstock.messaging.settlement import DeadLetter, Release, Settlement

FIELDS = 5  # of each message in a reply of take.lua
EMPTY_POLLS_MAX = 10  # polls that return only messages to give up on; the next turn continues


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenMessages:
    """The reply to one receive from some queues. Times are epoch seconds by the server's clock."""

    now: float
    settings: QueueSettings | None = None  # of the queue these messages are from
    deliveries: Sequence[Delivery] = ()
    rejected: Sequence[tuple[Delivery, MessageState, str]] = ()  # leased here only to be dead-lettered, with the reason
    drained: bool = False  # the queue has no more ready messages
    next_due_at: float | None = None  # if there are no messages, or no more: when the next delay ends


NOTHING = TakenMessages(now=0.0)


def take(keys: QueueKeys, store: str, consumer: str, requests: Sequence[ReceiveRequest]) -> Command:
    """Return the command that polls the queues in order until one has messages."""
    counts = [min(request.messages_max, EMBEDDED.receive_max) for request in requests]
    return script("take", [keys.stream(request.queue) for request in requests], consumer, store, *counts)


def taken(requests: Sequence[ReceiveRequest], reply: Sequence[Any]) -> TakenMessages:
    """Return the contents of a reply of `take.lua`."""
    which, now = int(reply[0]), int(reply[1]) / 1000
    if which == 0:
        return TakenMessages(now=now, next_due_at=_due_at(reply[2:]))
    queue, store, entries, is_dlq = requests[which - 1].queue, reply[2].decode(), reply[6], bool(reply[7])
    settings = settings_of(queue, retention=reply[3], receives_max=reply[4], dead_letter_queue=reply[5])
    deliveries: list[Delivery] = []
    rejected: list[tuple[Delivery, MessageState, str]] = []
    expired_before = now - settings.retention_seconds
    for id, text, body, group, head in zip(*(entries[at::FIELDS] for at in range(FIELDS)), strict=True):
        state = None
        delivery = first_delivery_of(queue, store, id, at=now, text=text, body=body, group=group, head=head)
        if delivery is None:
            state = state_of(text)
            delivery = delivery_of(queue, store, id, at=now, state=state, group=group, head=head, body=body)
        if delivery.message.enqueued_at <= expired_before and not is_dlq:  # the script drops expired dead letters
            reason = shared.reason_expired(settings.retention_seconds)
            rejected.append((delivery, state or state_of(text), reason))
        elif head and not is_dlq and UNREADABLE_ATTRIBUTE in delivery.message.attributes:
            rejected.append((delivery, state or state_of(text), shared.reason_unreadable()))
        elif state and settings.receives_max is not None and state.attempts >= settings.receives_max:
            rejected.append((delivery, state, shared.reason_exhausted(state.attempts)))
        else:
            deliveries.append(delivery)
    return TakenMessages(
        now=now,
        settings=settings,
        deliveries=deliveries,
        rejected=rejected,
        drained=bool(reply[8]),
        next_due_at=_due_at(reply[9:]),
    )


def _due_at(rest: Sequence[Any]) -> float | None:
    """Return the time at the end of a reply; None if there is none."""
    return float(rest[0]) / 1000 if rest and rest[0] is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SettleCall:
    """The settlements of a turn, grouped by queue; or the error that prevents sending them."""

    groups: Sequence[QueueSettlements] = ()
    lost: Sequence[SettleFailure] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTurns:
    """All operations that lease messages or settle them. Thread-safe."""

    server: Server
    keys: QueueKeys
    queues: RedisQueues
    sweeping: LeaseSweeper
    unconfirmed: UnconfirmedDeliveries
    holder: str
    consumer: Callable[[float], str]  # returns the consumer's name for a lease duration in seconds

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        requests: Sequence[ReceiveRequest],
        lease_seconds: float,
    ) -> TurnResult:
        """Settle, then receive from the first queue that has messages. One round trip except with dead letters, sweeps
        and clusters.
        """
        receive_error: tuple[str, Exception] | None = None
        settling = self._prepared(settlements)
        first, *others = self._rounds(requests)
        requested = first
        try:
            if requests:
                shared.check_seconds("lease_seconds", lease_seconds, EMBEDDED.lease_seconds_max)
            self._prepare(first, lease_seconds)
        except Exception as error:
            receive_error, first, others = (first[0].queue, error) if first else None, (), []
        commands = [group.command(self.keys, self.holder) for group in settling.groups]
        replies: list[Any] = []
        taken_now = NOTHING
        try:
            with self._receiving(first, lease_seconds):
                replies = self._call([*commands, *self._take(first, lease_seconds)])
                taken_now = self._deliverable(first, replies[len(commands) :], lease_seconds)
            for requested in others:
                if not taken_now.deliveries:
                    self._prepare(requested, lease_seconds)
                    taken_now = self.receive(requested, lease_seconds)
        except Exception as error:
            receive_error = (requested[0].queue, error)
        failures, settle_error = self._read_settle_replies(settling, replies[: len(commands)])
        return TurnResult(
            failures=failures,
            deliveries=taken_now.deliveries,
            settle_error=settle_error,
            receive_error=receive_error,
            drained=taken_now.drained,
            next_in_seconds=None if taken_now.next_due_at is None else max(taken_now.next_due_at - taken_now.now, 0.0),
        )

    def receive(self, requests: Sequence[ReceiveRequest], lease_seconds: float) -> TakenMessages:
        """Receive from the first queue that has messages. Raises the server's errors."""
        with self._receiving(requests, lease_seconds):
            return self._deliverable(requests, self._call(self._take(requests, lease_seconds)), lease_seconds)

    def sweep_due(self, queues: Sequence[str], lease_seconds: float, *, remove_idle_consumers: bool = True) -> None:
        """Requeue deliveries past their lease, in the queues whose sweep is due.

        Read-only clients pass ``remove_idle_consumers=False`` and leave the consumers of dead workers alone.
        """
        for queue in self.sweeping.take_due(queues, lease_seconds):
            self.dead_letter_exhausted(self.sweeping.sweep(queue))
            if remove_idle_consumers:
                self.sweeping.remove_idle_consumers(queue)

    def dead_letter_exhausted(self, exhausted: Sequence[ExhaustedDelivery]) -> None:
        """Dead-letter the deliveries that used up their attempts, fenced like any settlement."""
        deaths = {
            dead.delivery.receipt: death_by_broker(
                dead.delivery,
                shared.reason_exhausted(dead.state.attempts + 1),
                attempts=dead.state.attempts + 1,
                first_failed_at=dead.state.first_failed_at or dead.ended_at,
                last_failed_at=dead.ended_at,
                worker=dead.worker,
                tries=[*dead.state.tries, _last_attempt(dead)],
            )
            for dead in exhausted
        }
        self._dead_letter([dead.delivery for dead in exhausted], deaths)

    def _prepare(self, requests: Sequence[ReceiveRequest], lease_seconds: float) -> None:
        """Resolve unconfirmed deliveries and sweep before polling.

        In a cluster this covers these queues only, since nodes fail independently.
        """
        queues = [request.queue for request in requests]
        self.unconfirmed.resolve(queues if self.server.is_cluster else None)
        self.sweep_due(queues, lease_seconds)

    # --- settling

    def _prepared(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> _SettleCall:
        try:
            for _, each in settlements:
                if isinstance(each, Release):
                    shared.check_release(each)
            dead_letter_queues = self._dead_letter_queues(settlements)
            if dead_letter_queues:
                settlements = [(held, _without_final_dlq(each, held, dead_letter_queues)) for held, each in settlements]
            dead = [(delivery, each) for delivery, each in settlements if isinstance(each, DeadLetter)]
            deaths = deaths_by_settlement(self.server, self.keys, dead, worker=self.holder)
            heads = {
                delivery.receipt: encode_attributes(buried(delivery.message.attributes, each, deaths[delivery.receipt]))
                for delivery, each in dead
            }
        except Exception as error:
            return _SettleCall(error=error)
        groups, lost = grouped(settlements, heads=heads, dead_letter_queues=dead_letter_queues)
        return _SettleCall(groups=groups, lost=lost)

    def _dead_letter_queues(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Mapping[str, str]:
        queues = {delivery.queue for delivery, each in settlements if isinstance(each, DeadLetter)}
        return {queue: self.queues.dead_letter_queue(queue) for queue in queues}

    def _read_settle_replies(
        self, settling: _SettleCall, replies: Sequence[Any]
    ) -> tuple[Sequence[SettleFailure], Exception | None]:
        if settling.error is not None:
            return (), settling.error
        failures = list(settling.lost)
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        fatal = [error for error in errors if isinstance(error, UserError)]
        if fatal or (errors and len(errors) == len(replies)):
            return (), [*fatal, *errors][0]
        for group, reply in zip(settling.groups, replies, strict=True):
            if isinstance(reply, Exception):
                failures += group.refused(str(reply))
                continue
            failures += group.failures(reply)
            self.unconfirmed.forget(group.by_entry.values())
            if reply[2]:
                self.queues.register(group.dead_letter_queue, reply[2].decode())
        return failures, None

    def _dead_letter(self, deliveries: Sequence[Delivery], deaths: dict[str, Death]) -> None:
        if not deliveries:
            return
        queue = deliveries[0].queue
        group = QueueSettlements(queue=queue, dead_letter_queue=self.queues.dead_letter_queue(queue))
        for delivery in deliveries:
            death = with_death(delivery.message.attributes, deaths[delivery.receipt])
            group.add_dead_letter(delivery, entry_of(delivery.receipt) or "0-0", encode_attributes(death) or "")
        reply = self.server.call(*group.command(self.keys, self.holder))
        if reply[2]:
            self.queues.register(group.dead_letter_queue, reply[2].decode())

    # --- taking

    @contextmanager
    def _receiving(self, requests: Sequence[ReceiveRequest], lease_seconds: float) -> Iterator[None]:
        if not requests:
            yield
            return
        with self.unconfirmed.receiving([request.queue for request in requests], self.consumer(lease_seconds)):
            yield

    def _rounds(self, requests: Sequence[ReceiveRequest]) -> Sequence[Sequence[ReceiveRequest]]:
        """Return the queues that one script may poll together: all, or one each in a cluster, where they lie in
        different slots.
        """
        return [[request] for request in requests] or [()] if self.server.is_cluster else [requests]

    def _take(self, requests: Sequence[ReceiveRequest], lease_seconds: float) -> Sequence[Command]:
        return [take(self.keys, new_store(), self.consumer(lease_seconds), requests)] if requests else []

    def _call(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies, with errors as values, including one that failed all commands."""
        if not commands:
            return []
        try:
            return self.server.run(*commands)
        except Exception as error:
            return [error] * len(commands)

    def _deliverable(
        self, requests: Sequence[ReceiveRequest], replies: Sequence[Any], lease_seconds: float
    ) -> TakenMessages:
        """Return the messages that are not given up; poll again while all of them are."""
        taken_now = NOTHING
        for _ in range(EMPTY_POLLS_MAX):
            if not replies:
                break
            if isinstance(replies[0], Exception):
                raise replies[0]
            taken_now = taken(requests, replies[0])
            self._reject(taken_now)
            self.unconfirmed.record(taken_now.deliveries)
            if taken_now.deliveries or not taken_now.rejected:
                break
            replies = self._call(self._take(requests, lease_seconds))
        return taken_now

    def _reject(self, taken_now: TakenMessages) -> None:
        if taken_now.settings is not None:
            self.queues.remember(taken_now.settings)
            for delivery in taken_now.deliveries[:1]:
                self.queues.register(taken_now.settings.name, delivery.receipt.partition("-")[0])
        deaths = {
            delivery.receipt: death_by_broker(
                delivery,
                reason,
                attempts=state.attempts,
                first_failed_at=state.first_failed_at,
                last_failed_at=state.last_failed_at or taken_now.now,
                worker=state.previous.worker if state.previous is not None else "",
                tries=state.tries,
            )
            for delivery, state, reason in taken_now.rejected
        }
        self._dead_letter([delivery for delivery, _, _ in taken_now.rejected], deaths)


def _without_final_dlq(settlement: Settlement, delivery: Delivery, dead_letter_queues: Mapping[str, str]) -> Settlement:
    """Replace a dead-lettering by a release if the queue is the final DLQ."""
    if isinstance(settlement, DeadLetter) and dead_letter_queues[delivery.queue] == delivery.queue:
        return shared.release_in_final_dlq(settlement)
    return settlement


def _last_attempt(dead: ExhaustedDelivery) -> AttemptRecord:
    """Return the record of the last delivery, whose lease ended without a settlement."""
    return AttemptRecord(
        started_at=dead.started_at,
        ended_at=dead.ended_at,
        worker=dead.worker,
        end=AttemptEnd.EXPIRED.value,
    )
