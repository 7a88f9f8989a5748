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
    SECOND_TIER_SUFFIX,
    QueueSettings,
    QueueStats,
    conventional_dead_letter_queue,
    names_dead_letters,
)
from penstock.messaging.message import Message

_DEFAULT_RETENTION_SECONDS = QueueSettings(name="default").retention_seconds


class RedisQueues:
    """The server's list of queues and their settings. Thread-safe."""

    def __init__(self, server: Server, keys: QueueKeys, given: Sequence[QueueSettings]) -> None:
        self._server = server
        self._keys = keys
        self._given = {settings.name: settings for settings in given}
        # By queue, the settings last read from the server; written by any thread
        self._heard: dict[str, QueueSettings] = {}
        self._listed: dict[str, str] = {}  # by queue, the store name when last registered; written by any thread

    def configure(self) -> None:
        """Write the configured settings to the server.

        Raises the server's errors, and `ConfigurationError` in a cluster if a dead-letter queue lies in another slot.
        """
        for settings in self._given.values():
            self._configure(settings)

    def names(self) -> Sequence[str]:
        """Return the registered queues, sorted."""
        return sorted(name.decode() for name in self._server.ask("SMEMBERS", self._keys.queues))

    def enlist_before(self, queue: str) -> None:
        """Register the queue before this broker's first send, so that its messages are found even if the send's outcome
        is unknown.
        """
        if queue not in self._listed:
            self._server.ask("SADD", self._keys.queues, queue)
            self._listed[queue] = ""

    def enlist(self, queue: str, store: str) -> None:
        """Register the queue and its configured settings, the first time and after the server lost its data.

        A new store name reveals the loss.
        """
        if self._listed.get(queue) == "" and queue not in self._given:
            self._listed[queue] = store
        elif self._listed.get(queue) != store:
            with suppress(TemporaryError):  # out of memory or away: the caller's operation succeeded all the same
                if queue in self._given:
                    self._configure(self._given[queue])
                else:
                    self._server.ask("SADD", self._keys.queues, queue)
                self._listed[queue] = store

    def hear(self, settings: QueueSettings) -> None:
        """Remember settings that the server returned."""
        self._heard[settings.name] = settings

    def dead_letter_queue(self, queue: str) -> str:
        """Return the queue's dead-letter queue by the settings last read."""
        return shared.dead_letter_queue(self._heard.get(queue) or self._asked(queue))

    def retention_seconds(self, queue: str) -> float:
        """Return the retention now set on the server."""
        return self._asked(queue).retention_seconds

    def _asked(self, queue: str) -> QueueSettings:
        fields = ("retention", "receives_max", "dead_letter_queue")
        retention, receives_max, name = self._server.ask("HMGET", self._keys.settings(queue), *fields)
        settings = settings_of(queue, retention=retention, receives_max=receives_max, dead_letter_queue=name)
        self.hear(settings)
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
            "dead_letter_queue": settings.dead_letter_queue or self._second_tier(name),
        }
        told = [part for field, value in fields.items() if value is not None for part in (field, value)]
        untold = [field for field, value in fields.items() if value is None]
        commands: list[Command] = [("HSET", key, *told), ("SADD", self._keys.queues, name)]
        commands += [("HDEL", key, *untold)] if untold else []
        if settings.dead_letter_queue is not None:
            commands += self._made_dead_letter_queue(settings.dead_letter_queue)
        answers = self._server.run(*commands, ("HGET", key, "store"))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        self._listed[name] = (answers[-1] or b"").decode()

    def _second_tier(self, queue: str) -> str | None:
        """Return the final DLQ to configure for a queue that is another one's dead-letter queue; None if its name
        implies it.
        """
        named = any(settings.dead_letter_queue == queue for settings in self._given.values())
        return f"{queue}{SECOND_TIER_SUFFIX}" if named and not names_dead_letters(queue) else None

    def _made_dead_letter_queue(self, queue: str) -> Sequence[Command]:
        """Return the commands that mark the queue as a dead-letter queue, without replacing settings it has."""
        key, second_tier = self._keys.settings(queue), self._second_tier(queue)
        commands: list[Command] = [("HSET", key, "holds_dead", "1")]
        return [*commands, ("HSETNX", key, "dead_letter_queue", second_tier)] if second_tier else commands


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
    answer = server.ask(*script("stats", [keys.stream(queue)]))
    if not answer:
        return shared.NEVER_HEARD_OF
    now, visible, in_flight, delayed = (int(value) for value in answer[:4])
    visible_from, age_from, enqueued_from = (int(value) if value else None for value in answer[4:])
    return QueueStats(
        visible=visible,
        in_flight=in_flight,
        delayed=delayed,
        oldest_visible_message_age_seconds=None if visible_from is None else max(0, now - visible_from) / 1000,
        oldest_message_age_seconds=0.0 if age_from is None else max(0, now - age_from) / 1000,
        oldest_enqueued_age_seconds=None if enqueued_from is None else max(0, now - enqueued_from) / 1000,
    )


def read_messages(
    server: Server, keys: QueueKeys, queue: str, *, messages_max: int, after_id: str | None
) -> Sequence[Message]:
    """Return messages in any state, ordered by id. ``after_id`` may name a message that has left the queue."""
    found: list[Message] = []
    after: int | None = 0
    if after_id is not None:
        store = server.ask("HGET", keys.settings(queue), "store")
        after = None if store is None else shared.seq_of(store.decode(), after_id)
    while after is not None and len(found) < messages_max:
        count = min(messages_max - len(found), BROWSE_MAX)
        store, rows = server.ask(*script("browse", [keys.stream(queue)], after, count))
        for seq, enqueued, group, head, body in rows:
            state = MessageState(seq=int(seq), enqueued_at=int(enqueued) / 1000)
            found.append(message_of(store.decode(), state, group, head, body))
        after = int(rows[-1][0]) if len(rows) == count else None
    return found


def discard(server: Server, keys: QueueKeys, queue: str, ids: Sequence[str]) -> int:
    """Delete these messages in any state; return how many existed."""
    store = server.ask("HGET", keys.settings(queue), "store")
    if store is None:
        return 0
    found = (shared.seq_of(store.decode(), id) for id in ids)
    seqs = list(dict.fromkeys(seq for seq in found if seq))
    pages = (seqs[at : at + DISCARD_MAX] for at in range(0, len(seqs), DISCARD_MAX))
    gone = f"gone {new_store()}"  # a placeholder that no sender can have written
    return sum(int(server.ask(*script("discard", [keys.stream(queue)], gone, *page))) for page in pages)
