"""Messages of one state as they are in the file, read page by page along an index."""

import sqlite3
from collections.abc import Mapping
from typing import Any

from penstock.brokers import shared
from penstock.brokers.sqlite.queues import Row, message_of, tries_of
from penstock.messaging.queued import QueuedMessage, QueuedPage, QueuedState

_CODES = {QueuedState.WAITING: 0, QueuedState.DELAYED: 1, QueuedState.IN_FLIGHT: 2}
_STATES = {code: state for state, code in _CODES.items()}


def peek(
    connection: sqlite3.Connection,
    sql: Mapping[str, str],
    store: str,
    queue_id: int,
    state: QueuedState,
    messages_max: int,
    after: tuple[Any, ...] | None,
) -> QueuedPage:
    """Return the messages in this state after a position."""
    is_waiting = state is QueuedState.WAITING
    key, id = after or ("" if is_waiting else -1e308, 0)  # before every group and every time
    parameters = {"queue_id": queue_id, "state": _CODES[state], "key": key, "id": id, "messages_max": messages_max}
    rows = connection.execute(sql["peek_waiting" if is_waiting else "peek_unready"], parameters)
    taken = shared.page_of(rows, lambda row: len(row[1]))  # reads no further row than it returns
    more = len(taken) > 0 and (len(taken) == messages_max or rows.fetchone() is not None)
    return QueuedPage(
        messages=[queued_of(store, row) for row in taken],
        next=shared.page_key(taken[-1][4] if is_waiting else taken[-1][8], taken[-1][0]) if more else None,
    )


def queued_of(store: str, row: Row) -> QueuedMessage:
    """Return the message in a row of the statements that peek."""
    code, receives, refunds, visible_at, leased_at, holder, tries = row[5:12]
    state = _STATES[code]
    is_leased = state is QueuedState.IN_FLIGHT
    return QueuedMessage(
        message=message_of(store, row),
        state=state,
        near="",
        deliveries=receives,
        attempts=receives - refunds,
        visible_at=None if state is QueuedState.WAITING else visible_at,
        leased_at=leased_at if is_leased else None,
        worker=holder if is_leased else None,
        tries=tuple(tries_of(tries)),
    )
