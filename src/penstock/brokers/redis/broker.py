"""The broker on Redis Streams, with its guarantees beyond `penstock.messaging.broker.Broker`:

- A queue is a rotation of groups, each with a list of its ready messages, and a stream with the messages being
  delivered. One script moves messages from the lists into the stream and reads them there, so groups share fairly and
  only one pending list needs recovery.
- Each delivery is a stream entry of its own. A message that is released or whose lease ended leaves the stream and gets
  a new entry for its next delivery. So an entry's id serves as receipt handle and as fence: once it is no longer
  pending, XACK returns 0 and XCLAIM claims nothing, and a late heartbeat cannot take the message back.
- A lease that has ended takes effect at the next sweep (`sweep_seconds`, by default half a lease). Until then its
  holder may still settle.
- No message disappears silently, as on the embedded broker; streams are never trimmed.
- Durability is that of the server's persistence and replication: see docs/run/redis.md.

Time is the server's clock: milliseconds in Redis, seconds in Python.
"""

import random as random_numbers
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from penstock.brokers import shared
from penstock.brokers.capabilities import EMBEDDED, REDIS
from penstock.brokers.redis.keys import QueueKeys, new_store
from penstock.brokers.redis.listener import NoArrivalListener, RedisArrivalListener
from penstock.brokers.redis.peeking import find, peek
from penstock.brokers.redis.queues import RedisQueues, discard, is_empty, read_messages, read_stats
from penstock.brokers.redis.records import entry_of, milliseconds, sent
from penstock.brokers.redis.recovery import LeaseSweeper, UnconfirmedDeliveries
from penstock.brokers.redis.server import Server, script
from penstock.brokers.redis.turn import RedisTurns
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Listener, MessagesDeleted, ignore
from penstock.messaging.backoff import Random
from penstock.messaging.broker import (
    BrokerCapabilities,
    Listening,
    QueueSettings,
    QueueStats,
    ReceiveRequest,
    SettleFailure,
    TurnResult,
)
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.queued import QueuedMessage, QueuedPage, QueuedState
from penstock.messaging.settlement import Settlement

SEND_MAX = 1_000  # messages per script, which keeps the server busy for a few milliseconds
EXTEND_MAX = 1_000  # deliveries per script
LEASE_SECONDS = 60.0  # lease assumed by read-only clients; it sets the sweep interval
_WAIT_SECONDS_MAX = 1.0  # per blocking call; calls are never cancelled, so closing waits that long
_WAIT_SECONDS_MIN = 0.02


class RedisStreamsBroker:
    """A `penstock.messaging.broker.Broker` on a Redis server of version 6.2 or later, or a cluster. Thread-safe.

    Without ``queues`` it does not connect before the first call.

    Args:
        url: redis://, rediss:// or unix:// as in redis-py, or redis+cluster://.
        holder: The name of this worker.
        queues: Queues that get these settings from now on.
        prefix: The beginning of every key.
        sweep_seconds: The interval of the search for ended leases; by default half a lease.
        deduplication_window_seconds: How long a deduplication id is remembered.
        emit: Receives incident events (`MessagesDeleted`).
    """

    def __init__(
        self,
        url: str,
        *,
        holder: str,
        queues: Sequence[QueueSettings] = (),
        prefix: str = "penstock",
        sweep_seconds: float | None = None,
        deduplication_window_seconds: float = shared.DEDUPLICATION_WINDOW_SECONDS,
        clock: Clock | None = None,
        random: Random = random_numbers.random,
        emit: Listener = ignore,
    ) -> None:
        for settings in queues:
            shared.check_settings(settings)
        self._holder = holder
        self._boot = secrets.token_hex(4)  # a restarted worker with the same name is another consumer
        self._clock = clock or SystemClock()
        self._random = random
        self._emit = emit
        self._window_ms = int(deduplication_window_seconds * 1000)
        self._server = Server(url)
        self._keys = QueueKeys(prefix)
        self._queues = RedisQueues(self._server, self._keys, queues)
        self._sweeping = LeaseSweeper(
            self._server, self._keys, every_seconds=sweep_seconds, clock=self._clock, random=random, emit=emit
        )
        self._unconfirmed = UnconfirmedDeliveries(self._server, self._keys, worker=holder)
        self._turns = RedisTurns(
            server=self._server,
            keys=self._keys,
            queues=self._queues,
            sweeping=self._sweeping,
            unconfirmed=self._unconfirmed,
            holder=holder,
            consumer=self._consumer,
        )
        self._closed = False  # written by the thread that calls close
        self._queues.configure()

    @property
    def capabilities(self) -> BrokerCapabilities:
        return REDIS

    # --- sending

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Send all messages or none; in a cluster, all or none of each thousand.

        For a duplicate within the deduplication window, return the id of the earlier message.

        After an `UnknownOutcome` the messages may or may not have been sent: only a deduplication id makes it safe to
        send them again. After any other error none was sent (of the thousand that failed).
        """
        shared.check_outgoing(queue, messages)
        if not messages:
            return ()
        arguments = sent(messages)
        stream, store = self._keys.stream(queue), new_store()
        commands = [
            script("send", [stream], store, self._window_ms, *arguments[at : at + 3 * SEND_MAX])
            for at in range(0, len(arguments), 3 * SEND_MAX)
        ]
        self._queues.register_before_send(queue)
        replies = self._server.atomically(*commands)
        name = replies[0][0].decode()
        self._queues.register(queue, name)
        return [shared.message_id(name, int(seq)) for _, seqs in replies for seq in seqs]

    # --- receiving and settling

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        turn = self.turn(
            (),
            [ReceiveRequest(queue=queue, messages_max=messages_max)],
            lease_seconds=lease_seconds,
            wait_seconds=wait_seconds,
        )
        if turn.receive_error is not None and not (wait_seconds and self._closed):
            raise turn.receive_error[1]
        return turn.deliveries

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        """Settle the deliveries of each queue in one script. One that is already settled, or is listed twice, counts as
        lost.
        """
        turn = self.turn(settlements, (), lease_seconds=0.0)
        if turn.settle_error is not None:
            raise turn.settle_error
        return turn.failures

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        requests: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        """Settle and receive in one round trip, except with dead letters, while waiting, and in clusters."""
        requests = [request for request in requests if request.messages_max > 0]
        turn = self._turns.turn(settlements, requests, lease_seconds)
        if wait_seconds and len(requests) == 1 and not (turn.deliveries or turn.receive_error):
            try:
                shared.check_wait(wait_seconds)
                return replace(turn, deliveries=self._wait(requests[0], lease_seconds, wait_seconds))
            except Exception as error:
                return replace(turn, receive_error=(requests[0].queue, error))
        return turn

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        """Extend leases with one script per queue, all in one round trip. Deliveries no longer pending are returned as
        lost.
        """
        shared.check_seconds("lease_seconds", lease_seconds, EMBEDDED.lease_seconds_max)
        pages = list(_pages(deliveries))
        if not pages:
            return list(deliveries)
        consumer = self._consumer(lease_seconds)
        replies = self._server.run(
            *[script("extend", [self._keys.stream(queue)], consumer, *held) for queue, held in pages]
        )
        lost = {delivery.receipt: delivery for delivery in deliveries}
        for (queue, held), reply in zip(pages, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            claimed, vanished = reply
            for id in claimed:
                lost.pop(held[id.decode()].receipt, None)
            if vanished:
                self._emit(MessagesDeleted(queue=queue, entries=tuple(id.decode() for id in vanished)))
        self._unconfirmed.forget(lost.values())
        return list(lost.values())

    # --- inspection

    def stats(self, queue: str) -> QueueStats:
        """Return the counts and ages after requeueing deliveries past their lease. Entries of other clients count as
        visible.
        """
        self._turns.sweep_due([queue], LEASE_SECONDS, remove_idle_consumers=False)
        return read_stats(self._server, self._keys, queue)

    def is_empty(self, queue: str) -> bool:
        self._turns.sweep_due([queue], LEASE_SECONDS, remove_idle_consumers=False)
        return is_empty(self._server, self._keys, queue)

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        """Return messages in any state, ordered by id. ``after_id`` may name a message that has left the queue."""
        self._turns.sweep_due([queue], LEASE_SECONDS, remove_idle_consumers=False)
        return read_messages(self._server, self._keys, queue, messages_max=messages_max, after_id=after_id)

    def peek(self, queue: str, state: QueuedState, *, messages_max: int, after: str | None = None) -> QueuedPage:
        """Return a page: waiting messages in the rotation's order, those in flight by the start of their delivery."""
        self._turns.sweep_due([queue], LEASE_SECONDS, remove_idle_consumers=False)
        return peek(self._server, self._keys, queue, state, messages_max=messages_max, after=after)

    def find(self, queue: str, id: str, *, near: str | None = None) -> QueuedMessage | None:
        """Return one message. Without ``near`` it is searched in the first groups, deliveries and delayed messages."""
        self._turns.sweep_due([queue], LEASE_SECONDS, remove_idle_consumers=False)
        return find(self._server, self._keys, queue, id, near=near)

    def sender_key(self, queue: str) -> str:
        """Return the key of the stream into which other clients put messages with XADD."""
        return self._keys.stream(queue)

    def unread_stream(self, queue: str) -> tuple[str, int] | None:
        """Return the key and length of the stream at the queue's unescaped name; None if there is none or it is empty.

        No worker reads that stream: its sender did not escape a name that needs it.
        """
        key = self._keys.unescaped_stream(queue)
        if key is None:
            return None
        try:
            entries = int(self._server.call("XLEN", key))
        except ConfigurationError:  # not a stream, or no right to read it
            return None
        return (key, entries) if entries else None

    def queue_names(self) -> Sequence[str]:
        return self._queues.names()

    def dead_letter_queue(self, queue: str) -> str:
        shared.check_queue(queue)
        return self._queues.dead_letter_queue(queue)

    def retention_seconds(self, queue: str) -> float | None:
        return self._queues.retention_seconds(queue)

    def discard(self, queue: str, ids: Sequence[str]) -> int:
        """Delete messages, a thousand per script. The script searches the queue until it has found them."""
        return discard(self._server, self._keys, queue, ids)

    def purge(self, queue: str) -> int:
        return int(self._server.call(*script("purge", [self._keys.stream(queue)])))

    def dropped(self, queue: str) -> int:
        """Return how many expired dead letters this queue has deleted."""
        return int(self._server.call("HGET", self._keys.settings(queue), "dropped") or 0)

    # --- control

    def pause(self, queue: str) -> None:
        shared.check_queue(queue)
        self._server.call("SADD", self._keys.queues, queue)
        self._server.call("HSET", self._keys.settings(queue), "paused", "1")

    def resume(self, queue: str) -> None:
        if self._server.call("HDEL", self._keys.settings(queue), "paused"):
            wake_key = self._keys.wake_key(queue)
            self._server.run(("DEL", wake_key), ("RPUSH", wake_key, "1"))  # exactly one token, even if one was there

    def now(self) -> float:
        """Return the server's time. Raise `TemporaryError` if it does not respond."""
        seconds, microseconds = self._server.call("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def paused(self, queue: str) -> bool:
        return bool(self._server.call("HEXISTS", self._keys.settings(queue), "paused"))

    def release_holder(self, holder: str) -> int:
        """End all leases of a worker that is proven dead. Its messages are visible at once; the attempts count."""
        released = 0
        for queue in self.queue_names():
            count, exhausted = self._sweeping.release(queue, holder)
            self._turns.dead_letter_exhausted(exhausted)
            released += count + len(exhausted)
        return released

    def listen(self, queues: Sequence[str], on_arrival: Callable[[], None]) -> Listening:
        if self._server.is_cluster:  # one command cannot wait for keys in several slots
            return NoArrivalListener()
        wake_keys = {queue: self._keys.wake_key(queue) for queue in queues}
        return RedisArrivalListener(self._server, wake_keys, on_arrival, clock=self._clock, random=self._random)

    def close(self) -> None:
        """Close the connections. A waiting receiver returns no messages; later calls raise TemporaryError."""
        self._closed = True
        self._server.close()

    # --- internals

    def _consumer(self, lease_seconds: float) -> str:
        return f"{self._holder}|{self._boot}|{milliseconds(lease_seconds)}"

    def _wait(self, request: ReceiveRequest, lease_seconds: float, wait_seconds: float) -> Sequence[Delivery]:
        """Poll again after each wake-up token, delay or sweep interval until messages arrive or the time is over.

        The deadline is measured on the server's clock.
        """
        deadline: float | None = None
        try:
            while True:
                self._turns.sweep_due([request.queue], lease_seconds)
                taken_now = self._turns.receive([request], lease_seconds)
                deadline = taken_now.now + wait_seconds if deadline is None else deadline
                left = deadline - taken_now.now
                if taken_now.deliveries or left <= 0:
                    return taken_now.deliveries
                pauses = [left, _WAIT_SECONDS_MAX, self._sweeping.seconds(lease_seconds)]
                pauses += [] if taken_now.next_due_at is None else [taken_now.next_due_at - taken_now.now]
                self._server.call("BLPOP", self._keys.wake_key(request.queue), max(min(pauses), _WAIT_SECONDS_MIN))
        except TemporaryError:
            if self._closed:
                return ()
            raise


def _pages(deliveries: Sequence[Delivery]) -> Iterable[tuple[str, dict[str, Delivery]]]:
    """Yield the deliveries of each queue by their entries' ids, at most `EXTEND_MAX` at once."""
    by_queue: dict[str, dict[str, Delivery]] = {}
    for delivery in deliveries:
        entry = entry_of(delivery.receipt)
        if entry is not None:
            by_queue.setdefault(delivery.queue, {})[entry] = delivery
    for queue, entries in by_queue.items():
        ids = list(entries)
        for at in range(0, len(ids), EXTEND_MAX):
            yield queue, {id: entries[id] for id in ids[at : at + EXTEND_MAX]}
