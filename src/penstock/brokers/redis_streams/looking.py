"""Looking at a queue without taking anything: how it stands, and which messages are there."""

from collections.abc import Sequence

from penstock.brokers import rules
from penstock.brokers.redis_streams.keys import Keys, new_store
from penstock.brokers.redis_streams.records import State, message_of
from penstock.brokers.redis_streams.server import Server, script
from penstock.messaging.broker import QueueStats
from penstock.messaging.message import Message

BROWSE_MAX = 1_000  # messages in one answer
DISCARD_MAX = 1_000  # messages in one script


def read_stats(server: Server, keys: Keys, queue: str) -> QueueStats:
    """What others put into the stream counts as visible."""
    answer = server.ask(*script("stats", [keys.stream(queue)]))
    if not answer:
        return rules.NEVER_HEARD_OF
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
    server: Server, keys: Keys, queue: str, *, messages_max: int, after_id: str | None
) -> Sequence[Message]:
    """Messages in any state, by the age of their ids; ``after_id`` may have left the queue meanwhile."""
    found: list[Message] = []
    after: int | None = 0
    if after_id is not None:
        store = server.ask("HGET", keys.settings(queue), "store")
        after = None if store is None else rules.seq_of(store.decode(), after_id)
    while after is not None and len(found) < messages_max:
        count = min(messages_max - len(found), BROWSE_MAX)
        store, rows = server.ask(*script("browse", [keys.stream(queue)], after, count))
        for seq, enqueued, group, head, body in rows:
            state = State(seq=int(seq), enqueued_at=int(enqueued) / 1000)
            found.append(message_of(store.decode(), state, group, head, body))
        after = int(rows[-1][0]) if len(rows) == count else None
    return found


def discard(server: Server, keys: Keys, queue: str, ids: Sequence[str]) -> int:
    """Delete these messages, in whatever state; answers how many were there."""
    store = server.ask("HGET", keys.settings(queue), "store")
    if store is None:
        return 0
    found = (rules.seq_of(store.decode(), id) for id in ids)
    seqs = list(dict.fromkeys(seq for seq in found if seq))
    pages = (seqs[at : at + DISCARD_MAX] for at in range(0, len(seqs), DISCARD_MAX))
    gone = f"gone {new_store()}"  # so that no sender can have written the same
    return sum(int(server.ask(*script("discard", [keys.stream(queue)], gone, *page))) for page in pages)
