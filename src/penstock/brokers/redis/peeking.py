"""Messages of one state as they are on the server, page by page, and one message by its id: `lua/queued.lua`.

There is no index of ids. A page's position and a message's `near` therefore say where the last message was, from which
the script finds its place again in a few steps.
"""

import re
from typing import Any

from penstock.brokers import shared
from penstock.brokers.redis.keys import QueueKeys
from penstock.brokers.redis.records import message_of, state_of
from penstock.brokers.redis.server import Server, script
from penstock.errors import ConfigurationError
from penstock.messaging.queued import PEEK_BODIES_BYTES_MAX, QueuedMessage, QueuedPage, QueuedState

PEEK_MAX = 1_000  # messages per reply
_FOREIGN_LEASE_MS = 60_000  # of another client's consumer, as in sweep.lua
_ENTRY = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")
_WAITING, _IN_FLIGHT, _DELAYED = b"w", b"f", b"d"
_KEYS: dict[QueuedState, tuple[type, ...]] = {  # the values of a page's position
    QueuedState.WAITING: (int, str, int, int),  # place in the ring, tag, place in the group, number
    QueuedState.IN_FLIGHT: (str,),  # entry
    QueuedState.DELAYED: (int, int),  # time, number
}


def peek(
    server: Server, keys: QueueKeys, queue: str, state: QueuedState, *, messages_max: int, after: str | None
) -> QueuedPage:
    """Return the messages in this state after a position, at most `PEEK_MAX`."""
    position = shared.parse_page_key(after, *_KEYS[state]) or ()
    if state is QueuedState.IN_FLIGHT and position and not _ENTRY.fullmatch(position[0]):
        raise shared.invalid_page_key()
    if messages_max < 1:
        return QueuedPage()
    arguments = (state.value, min(messages_max, PEEK_MAX), PEEK_BODIES_BYTES_MAX, *map(_argument, position))
    now, store, rows, following = server.call(*script("queued", [keys.stream(queue)], *arguments))
    values = [kind(_text(value)) for kind, value in zip(_KEYS[state], following, strict=False)]
    return QueuedPage(
        messages=[_queued_of(row, store.decode(), int(now)) for row in rows],
        next=shared.page_key(*values) if values else None,
    )


def find(server: Server, keys: QueueKeys, queue: str, id: str, *, near: str | None) -> QueuedMessage | None:
    """Return one message; None if it is neither near its last place nor among those that the script searches."""
    store = server.call("HGET", keys.settings(queue), "store")
    seq = None if store is None else shared.seq_of(store.decode(), id)
    if seq is None or seq >= 2**53:
        return None
    arguments = map(_argument, _near(near))
    now, store, rows, _ = server.call(*script("queued", [keys.stream(queue)], "one", seq, *arguments))
    return _queued_of(rows[0], store.decode(), int(now)) if rows else None


def _near(near: str | None) -> tuple[str, ...]:
    """Return tag, place in the group, entry and time from a `QueuedMessage.near`; empty ones are unknown."""
    try:
        values = shared.parse_page_key(near or None, str, str, str, str) or ()
    except ConfigurationError:  # a link from elsewhere: search without it
        return ()
    numbers = [value for value in (values[1:2] + values[3:4]) if value]
    is_valid = all(number.isascii() and number.isdigit() and len(number) <= 15 for number in numbers)
    return values if is_valid and (not values or not values[2] or _ENTRY.fullmatch(values[2]) is not None) else ()


def _queued_of(row: Any, store: str, now: int) -> QueuedMessage:
    kind, text, tag, head, body, *where = row
    state = state_of(text)
    is_leased = kind == _IN_FLIGHT
    leased_at = int(where[0].split(b"-")[0]) / 1000 if is_leased else None
    worker, lease_ms = _consumer(where[1]) if is_leased else (None, 0)
    due = (now - int(where[2]) + lease_ms) / 1000 if is_leased else int(where[0]) / 1000
    return QueuedMessage(
        message=message_of(store, state, tag, head, body),
        state={_WAITING: QueuedState.WAITING, _IN_FLIGHT: QueuedState.IN_FLIGHT}.get(kind, QueuedState.DELAYED),
        near=shared.page_key(
            _text(tag),
            _text(where[0]) if kind == _WAITING else "0",
            _text(where[0]) if is_leased else "",
            _text(where[0]) if kind == _DELAYED else "",
        ),
        deliveries=state.delivery_count + is_leased,
        attempts=state.attempts + is_leased,
        visible_at=None if kind == _WAITING else due,
        leased_at=leased_at,
        worker=worker,
        tries=tuple(state.tries),
    )


def _consumer(name: bytes) -> tuple[str, int]:
    """Return worker and lease in milliseconds of a consumer, which is named WORKER|BOOT|LEASE."""
    worker, _, lease = name.decode("utf-8", "replace").rpartition("|")
    head, separator, _ = worker.rpartition("|")
    if separator and lease.isascii() and lease.isdigit() and len(lease) <= 12:
        return head, int(lease)
    return name.decode("utf-8", "replace"), _FOREIGN_LEASE_MS


def _argument(value: object) -> object:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
