"""The list of queues and their settings on the server, and reads that lease nothing.

- `RedisQueues`: register queues, write configured settings, read those of others
- `read_stats`, `read_messages`, `discard`: inspect a queue and delete from it
"""

from collections.abc import Sequence
from contextlib import suppress

from penstock.brokers import shared
from penstock.brokers.redis.keys import QueueKeys, new_store
from penstock.brokers.redis.records import MessageState, message_of, milliseconds
from penstock.brokers.redis.server import Command, Server, script
from penstock.errors import ConfigurationError, TemporaryError
from penstock.messaging.broker import (
    FINAL_DLQ_SUFFIX,
    QueueSettings,
    QueueStats,
    conventional_dead_letter_queue,
    names_dead_letters,
)
from penstock.messaging.message import Message

_DEFAULT_RETENTION_SECONDS = QueueSettings(name="default").retention_seconds


class RedisQueues:
    """The server's list of queues and their settings. Thread-safe."""

    def __init__(self, server: Server, keys: QueueKeys, configured: Sequence[QueueSettings]) -> None:
        self._server = server
        self._keys = keys
        self._configured = {settings.name: settings for settings in configured}
        # By queue, the settings last read from the server; written by any thread
        self._settings: dict[str, QueueSettings] = {}
        self._registered: dict[str, str] = {}  # by queue, the store name when last registered; written by any thread

    def configure(self) -> None:
        """Write the configured settings to the server.

        Raises the server's errors, and `ConfigurationError` in a cluster if a dead-letter queue lies in another slot.
        """
        for settings in self._configured.values():
            self._configure(settings)

    def names(self) -> Sequence[str]:
        """Return the registered queues, sorted."""
        return sorted(name.decode() for name in self._server.call("SMEMBERS", self._keys.queues))

    def register_before_send(self, queue: str) -> None:
        """Register the queue before this broker's first send, so that its messages are found even if the send's outcome
        is unknown.
        """
        if queue not in self._registered:
            self._server.call("SADD", self._keys.queues, queue)
            self._registered[queue] = ""

    def register(self, queue: str, store: str) -> None:
        """Register the queue and its configured settings, the first time and after the server lost its data.

        A new store name reveals the loss.
        """
        if self._registered.get(queue) == "" and queue not in self._configured:
            self._registered[queue] = store
        elif self._registered.get(queue) != store:
            with suppress(TemporaryError):  # out of memory or away: the caller's operation succeeded all the same
                if queue in self._configured:
                    self._configure(self._configured[queue])
                else:
                    self._server.call("SADD", self._keys.queues, queue)
                self._registered[queue] = store

    def remember(self, settings: QueueSettings) -> None:
        """Remember settings that the server returned."""
        self._settings[settings.name] = settings

    def dead_letter_queue(self, queue: str) -> str:
        """Return the queue's dead-letter queue by the settings last read."""
        return shared.dead_letter_queue(self._settings.get(queue) or self._read_settings(queue))

    def retention_seconds(self, queue: str) -> float:
        """Return the retention now set on the server."""
        return self._read_settings(queue).retention_seconds

    def _read_settings(self, queue: str) -> QueueSettings:
        fields = ("retention", "receives_max", "dead_letter_queue")
        retention, receives_max, name = self._server.call("HMGET", self._keys.settings(queue), *fields)
        settings = settings_of(queue, retention=retention, receives_max=receives_max, dead_letter_queue=name)
        self.remember(settings)
        return settings

    def _configure(self, settings: QueueSettings) -> None:
        name, conventional = settings.name, conventional_dead_letter_queue(settings.name)
        if self._server.is_cluster and settings.dead_letter_queue not in (None, conventional):
            raise ConfigurationError(
                f"queue {name!r} has the dead-letter queue {settings.dead_letter_queue!r}, which lies in another slot "
                f"of the cluster; let it be {conventional}"
            )
        key = self._keys.settings(name)
        fields = {
            "retention": milliseconds(settings.retention_seconds),
            "receives_max": settings.receives_max,
            "dead_letter_queue": settings.dead_letter_queue or self._final_dlq(name),
        }
        set_fields = [part for field, value in fields.items() if value is not None for part in (field, value)]
        unset_fields = [field for field, value in fields.items() if value is None]
        commands: list[Command] = [("HSET", key, *set_fields), ("SADD", self._keys.queues, name)]
        commands += [("HDEL", key, *unset_fields)] if unset_fields else []
        if settings.dead_letter_queue is not None:
            commands += self._dead_letter_queue_commands(settings.dead_letter_queue)
        replies = self._server.run(*commands, ("HGET", key, "store"))
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        self._registered[name] = (replies[-1] or b"").decode()

    def _final_dlq(self, queue: str) -> str | None:
        """Return the final DLQ to configure for a queue that is another one's dead-letter queue; None if its name
        implies it.
        """
        named = any(settings.dead_letter_queue == queue for settings in self._configured.values())
        return f"{queue}{FINAL_DLQ_SUFFIX}" if named and not names_dead_letters(queue) else None

    def _dead_letter_queue_commands(self, queue: str) -> Sequence[Command]:
        """Return the commands that mark the queue as a dead-letter queue, without replacing settings it has."""
        key, final_dlq = self._keys.settings(queue), self._final_dlq(queue)
        commands: list[Command] = [("HSET", key, "holds_dead", "1")]
        return [*commands, ("HSETNX", key, "dead_letter_queue", final_dlq)] if final_dlq else commands


def settings_of(
    queue: str, *, retention: bytes | None, receives_max: bytes | None, dead_letter_queue: bytes | None
) -> QueueSettings:
    """Return the settings in a queue's hash, where the retention is in milliseconds."""
    return QueueSettings(
        name=queue,
        dead_letter_queue=None if dead_letter_queue is None else dead_letter_queue.decode(),
        receives_max=None if receives_max is None else int(receives_max),
        retention_seconds=_DEFAULT_RETENTION_SECONDS if retention is None else int(retention) / 1000,
    )


BROWSE_MAX = 1_000  # messages per reply
DISCARD_MAX = 1_000  # messages per script


def read_stats(server: Server, keys: QueueKeys, queue: str) -> QueueStats:
    """Return the counts and ages. Entries that other clients put into the stream count as visible."""
    reply = server.call(*script("stats", [keys.stream(queue)]))
    if not reply:
        return shared.EMPTY_STATS
    now, visible, in_flight, delayed = (int(value) for value in reply[:4])
    visible_from, age_from, enqueued_from = (int(value) if value else None for value in reply[4:])
    return QueueStats(
        visible=visible,
        in_flight=in_flight,
        delayed=delayed,
        oldest_visible_message_age_seconds=None if visible_from is None else max(0, now - visible_from) / 1000,
        oldest_message_age_seconds=0.0 if age_from is None else max(0, now - age_from) / 1000,
        oldest_enqueued_age_seconds=None if enqueued_from is None else max(0, now - enqueued_from) / 1000,
    )


def is_empty(server: Server, keys: QueueKeys, queue: str) -> bool:
    """Return True if the queue holds no message in any state."""
    return bool(server.call(*script("empty", [keys.stream(queue)])))


def read_messages(
    server: Server, keys: QueueKeys, queue: str, *, messages_max: int, after_id: str | None
) -> Sequence[Message]:
    """Return messages in any state, ordered by id. ``after_id`` may name a message that has left the queue."""
    found: list[Message] = []
    after: int | None = 0
    if after_id is not None:
        store = server.call("HGET", keys.settings(queue), "store")
        after = None if store is None else shared.seq_of(store.decode(), after_id)
    while after is not None and len(found) < messages_max:
        count = min(messages_max - len(found), BROWSE_MAX)
        store, rows = server.call(*script("browse", [keys.stream(queue)], after, count))
        for seq, enqueued, group, head, body in rows:
            state = MessageState(seq=int(seq), enqueued_at=int(enqueued) / 1000)
            found.append(message_of(store.decode(), state, group, head, body))
        after = int(rows[-1][0]) if len(rows) == count else None
    return found


def discard(server: Server, keys: QueueKeys, queue: str, ids: Sequence[str]) -> int:
    """Delete these messages in any state; return how many existed."""
    store = server.call("HGET", keys.settings(queue), "store")
    if store is None:
        return 0
    found = (shared.seq_of(store.decode(), id) for id in ids)
    seqs = list(dict.fromkeys(seq for seq in found if seq))
    pages = (seqs[at : at + DISCARD_MAX] for at in range(0, len(seqs), DISCARD_MAX))
    deleted = f"gone {new_store()}"  # a placeholder that no sender can have written
    return sum(int(server.call(*script("discard", [keys.stream(queue)], deleted, *page))) for page in pages)
