"""The broker on Redis Streams: what it promises beyond `penstock.messaging.broker.Broker`.

- A queue is a ring of groups, each with a list of its ready messages, and a stream that holds what is handed over. One
  script moves messages from the ring into the stream and reads them. So groups share fairly, and there is one pending
  list to look after.
- Every hand-over is a stream entry of its own. What comes back (released, or its lease is over) leaves the stream and
  gets a new entry when it is handed over again. An entry's id is therefore the receipt, and a fence: XACK of an id
  that is not pending any more answers 0, XCLAIM claims nothing, and nothing can be stolen back by a late heartbeat.
- A lease is over when somebody looks (`sweep_seconds`, by default half a lease). Until then its holder may settle.
- Nothing leaves silently, as on the embedded broker; nothing is ever trimmed.
- What the server was told survives as far as its persistence and replication go: see docs/run/redis.md.

Time is the server's clock: milliseconds there, seconds here.
"""

import random as random_numbers
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from penstock.brokers import shared
from penstock.brokers.redis.keys import QueueKeys, new_store
from penstock.brokers.redis.listener import NoArrivalListener, RedisArrivalListener
from penstock.brokers.redis.queues import RedisQueues, discard, read_messages, read_stats
from penstock.brokers.redis.records import entry_of, milliseconds, sent
from penstock.brokers.redis.recovery import LeaseSweeper, UnconfirmedDeliveries
from penstock.brokers.redis.server import Server, script
from penstock.brokers.redis.turn import RedisTurns
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Listener, MessagesVanished, tell_nobody
from penstock.messaging.backoff import Random
from penstock.messaging.broker import (
    Capabilities,
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
from penstock.messaging.settlement import Settlement

SEND_MAX = 1_000  # messages in one script: a few milliseconds of the server
EXTEND_MAX = 1_000  # deliveries in one script
LEASE_SECONDS = 60.0  # what who only looks takes for a lease: it says how often to sweep
_WAIT_SECONDS_MAX = 1.0  # of one blocking call: none is ever broken off, so closing waits that long
_WAIT_SECONDS_MIN = 0.02
_CAPABILITIES = replace(shared.CAPABILITIES, system="redis")


class RedisStreamsBroker:
    """`penstock.messaging.broker.Broker` on a Redis server of version 6.2 or later, or a cluster. Thread-safe.

    ``url`` is redis://, rediss://, unix:// as redis-py takes it, or redis+cluster://. ``holder`` names this worker.
    ``queues`` are given these settings from now on. ``prefix`` begins every key. Leases that are over are looked for
    every ``sweep_seconds``, by default every half lease. ``tell`` hears of incidents.

    Without ``queues`` nothing is connected to before the first call.
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
        tell: Listener = tell_nobody,
    ) -> None:
        for settings in queues:
            shared.check_settings(settings)
        self._holder = holder
        self._boot = secrets.token_hex(4)  # a restarted worker of the same name is another consumer
        self._clock = clock or SystemClock()
        self._random = random
        self._tell = tell
        self._window_ms = int(deduplication_window_seconds * 1000)
        self._server = Server(url)
        self._keys = QueueKeys(prefix)
        self._queues = RedisQueues(self._server, self._keys, queues)
        self._sweeping = LeaseSweeper(
            self._server, self._keys, every_seconds=sweep_seconds, clock=self._clock, random=random, tell=tell
        )
        self._doubts = UnconfirmedDeliveries(self._server, self._keys, worker=holder)
        self._turns = RedisTurns(
            server=self._server,
            keys=self._keys,
            queues=self._queues,
            sweeping=self._sweeping,
            doubts=self._doubts,
            holder=holder,
            consumer=self._consumer,
        )
        self._closed = False  # written by the thread that closes
        self._queues.configure()

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    # --- sending

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        """All or none; in a cluster, of each thousand. A duplicate within the window is answered with the id of the
        message it repeats.

        After an `UnknownOutcome` the messages may have been taken or not: only a deduplication id makes it safe to send
        them again. After any other error none was taken (of the thousand that met it).
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
        self._queues.enlist_before(queue)
        answers = self._server.atomically(*commands)
        name = answers[0][0].decode()
        self._queues.enlist(queue, name)
        return [shared.message_id(name, int(seq)) for _, seqs in answers for seq in seqs]

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
        """Each queue's in one script. What is settled already, or a second time in one call, counts as lost."""
        turn = self.turn(settlements, (), lease_seconds=0.0)
        if turn.settle_error is not None:
            raise turn.settle_error
        return turn.failures

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        asks: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        """One round trip, but for dead letters and clusters."""
        asks = [ask for ask in asks if ask.messages_max > 0]
        turn = self._turns.turn(settlements, asks, lease_seconds)
        if wait_seconds and len(asks) == 1 and not (turn.deliveries or turn.receive_error):
            try:
                shared.check_wait(wait_seconds)
                return replace(turn, deliveries=self._wait(asks[0], lease_seconds, wait_seconds))
            except Exception as error:
                return replace(turn, receive_error=(asks[0].queue, error))
        return turn

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        """One script for each queue, all in one round trip. It takes only what is still pending."""
        shared.check_seconds("lease_seconds", lease_seconds, shared.CAPABILITIES.lease_seconds_max)
        pages = list(_pages(deliveries))
        if not pages:
            return list(deliveries)
        consumer = self._consumer(lease_seconds)
        answers = self._server.run(
            *[script("extend", [self._keys.stream(queue)], consumer, *held) for queue, held in pages]
        )
        lost = {delivery.receipt: delivery for delivery in deliveries}
        for (queue, held), answer in zip(pages, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            claimed, vanished = answer
            for id in claimed:
                lost.pop(held[id.decode()].receipt, None)
            if vanished:
                self._tell(MessagesVanished(queue=queue, entries=tuple(id.decode() for id in vanished)))
        self._doubts.let_go(lost.values())
        return list(lost.values())

    # --- looking

    def stats(self, queue: str) -> QueueStats:
        """Leases that are over are put back first. What others put into the stream counts as visible."""
        self._turns.sweep_due([queue], LEASE_SECONDS, tidy=False)
        return read_stats(self._server, self._keys, queue)

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        """Messages in any state, by the age of their ids. An id that has left the queue is a fine place to go on."""
        self._turns.sweep_due([queue], LEASE_SECONDS, tidy=False)
        return read_messages(self._server, self._keys, queue, messages_max=messages_max, after_id=after_id)

    def sender_key(self, queue: str) -> str:
        """The key of the stream into which other clients put messages with XADD."""
        return self._keys.stream(queue)

    def unread_stream(self, queue: str) -> tuple[str, int] | None:
        """The key of the stream at the queue's unescaped name, and its entries; None if it has none.

        No worker reads that stream: a sender used the name as it is where it has to be escaped.
        """
        key = self._keys.unescaped_stream(queue)
        if key is None:
            return None
        try:
            entries = int(self._server.ask("XLEN", key))
        except ConfigurationError:  # it is no stream, or there is no right to read it
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
        """A thousand in one script, which looks through the queue until it has found them."""
        return discard(self._server, self._keys, queue, ids)

    def purge(self, queue: str) -> int:
        return int(self._server.ask(*script("purge", [self._keys.stream(queue)])))

    def dropped(self, queue: str) -> int:
        """How many dead letters this queue has deleted at the end of their retention."""
        return int(self._server.ask("HGET", self._keys.settings(queue), "dropped") or 0)

    # --- steering

    def pause(self, queue: str) -> None:
        shared.check_queue(queue)
        self._server.ask("SADD", self._keys.queues, queue)
        self._server.ask("HSET", self._keys.settings(queue), "paused", "1")

    def resume(self, queue: str) -> None:
        if self._server.ask("HDEL", self._keys.settings(queue), "paused"):
            wake = self._keys.wake(queue)
            self._server.run(("DEL", wake), ("RPUSH", wake, "1"))  # one token, whatever was there

    def now(self) -> float:
        """The server's. Raises `TemporaryError` if it does not answer."""
        seconds, microseconds = self._server.ask("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def paused(self, queue: str) -> bool:
        return bool(self._server.ask("HEXISTS", self._keys.settings(queue), "paused"))

    def release_holder(self, holder: str) -> int:
        """End all leases of a worker that is proven dead: visible at once, the attempt stays counted."""
        released = 0
        for queue in self.queue_names():
            count, exhausted = self._sweeping.release(queue, holder)
            self._turns.bury_exhausted(exhausted)
            released += count + len(exhausted)
        return released

    def listen(self, queues: Sequence[str], tell: Callable[[], None]) -> Listening:
        if self._server.is_cluster:  # one command cannot wait for keys of several slots
            return NoArrivalListener()
        wakes = {queue: self._keys.wake(queue) for queue in queues}
        return RedisArrivalListener(self._server, wakes, tell, clock=self._clock, random=self._random)

    def close(self) -> None:
        """A receiver that waits returns empty; calls after this raise TemporaryError."""
        self._closed = True
        self._server.close()

    # --- inside

    def _consumer(self, lease_seconds: float) -> str:
        return f"{self._holder}|{self._boot}|{milliseconds(lease_seconds)}"

    def _wait(self, ask: ReceiveRequest, lease_seconds: float, wait_seconds: float) -> Sequence[Delivery]:
        """Wait for a token, a delay's or a lease's end, and look again. The server's clock counts."""
        deadline: float | None = None
        try:
            while True:
                self._turns.sweep_due([ask.queue], lease_seconds)
                got = self._turns.look([ask], lease_seconds)
                deadline = got.now + wait_seconds if deadline is None else deadline
                left = deadline - got.now
                if got.deliveries or left <= 0:
                    return got.deliveries
                pauses = [left, _WAIT_SECONDS_MAX, self._sweeping.seconds(lease_seconds)]
                pauses += [] if got.next_due_at is None else [got.next_due_at - got.now]
                self._server.ask("BLPOP", self._keys.wake(ask.queue), max(min(pauses), _WAIT_SECONDS_MIN))
        except TemporaryError:
            if self._closed:
                return ()
            raise


def _pages(deliveries: Sequence[Delivery]) -> Iterable[tuple[str, dict[str, Delivery]]]:
    """By queue, and no more at once than a script takes: the deliveries by their entries' ids."""
    by_queue: dict[str, dict[str, Delivery]] = {}
    for delivery in deliveries:
        entry = entry_of(delivery.receipt)
        if entry is not None:
            by_queue.setdefault(delivery.queue, {})[entry] = delivery
    for queue, entries in by_queue.items():
        ids = list(entries)
        for at in range(0, len(ids), EXTEND_MAX):
            yield queue, {id: entries[id] for id in ids[at : at + EXTEND_MAX]}
