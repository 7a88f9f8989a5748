"""Check the invariants of a ledger with raw SQL over a separate connection, without code of the product.

They hold for every database and between any two transactions: after a kill, a lost answer or a restart.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.services.sql_asking import ask, ask_by, connected

SHOWN = 5  # how many rows a failure names

EMPTY_IF_RIGHT = {
    "an attempt has more than one batch": "SELECT attempt_id FROM batches GROUP BY attempt_id HAVING count(*) > 1",
    "a batch is not of a committed attempt": """
        SELECT b.pipeline, b.seq, b.attempt_id, a.state FROM batches b LEFT JOIN attempts a ON a.id = b.attempt_id
        WHERE a.state IS NULL OR a.state <> 'committed' OR a.pipeline <> b.pipeline""",
    "a committed attempt has no batch": """
        SELECT a.id FROM attempts a LEFT JOIN batches b ON b.attempt_id = a.id
        WHERE a.state = 'committed' AND b.seq IS NULL""",
    "the next sequence is not the one after the last": """
        SELECT p.id, p.next_seq, max(b.seq), count(b.seq) FROM pipelines p LEFT JOIN batches b ON b.pipeline = p.id
        GROUP BY p.id, p.next_seq
        HAVING p.next_seq <> count(b.seq) + 1 OR (count(b.seq) > 0 AND max(b.seq) <> count(b.seq))""",
    "a batch does not count its objects": """
        SELECT b.seq, b.objects, count(o.object_id) FROM batches b
        LEFT JOIN objects o ON o.pipeline = b.pipeline AND o.batch_seq = b.seq AND o.state = 'processed'
            AND o.attempt_id = b.attempt_id
        GROUP BY b.pipeline, b.seq, b.objects, b.rows HAVING count(o.object_id) <> b.objects
            OR coalesce(sum(o.rows), 0) <> b.rows""",
    "an object is processed without a batch": """
        SELECT o.uri FROM objects o LEFT JOIN batches b ON b.pipeline = o.pipeline AND b.seq = o.batch_seq
        WHERE (o.state = 'processed') <> (b.seq IS NOT NULL)""",
    "an object is held by an attempt that is not open": """
        SELECT o.uri, o.attempt_id, a.state FROM objects o LEFT JOIN attempts a ON a.id = o.attempt_id
        WHERE o.state = 'processing' AND (a.state IS NULL OR a.state <> 'open')""",
    "an open attempt holds nothing": """
        SELECT a.id FROM attempts a LEFT JOIN objects o ON o.attempt_id = a.id AND o.state = 'processing'
        WHERE a.state = 'open' AND o.object_id IS NULL""",
    "a free object names an attempt": """
        SELECT uri, attempt_id FROM objects WHERE state = 'unprocessed' AND attempt_id IS NOT NULL""",
    "an object that lives has an end": """
        SELECT uri, state FROM objects WHERE state IN ('unprocessed', 'processing') AND ended_at IS NOT NULL""",
    "an object was found missing, but not since when": """
        SELECT uri, state FROM objects WHERE sought_at IS NULL AND (missed_at IS NOT NULL OR state = 'gone')""",
    "an object that was processed is missing": """
        SELECT uri FROM objects WHERE state = 'processed' AND (missed_at IS NOT NULL OR sought_at IS NOT NULL)""",
    "an object does not count each attempt once": """
        SELECT o.uri, o.charged, count(t.attempt_id) FROM objects o
        LEFT JOIN object_attempts t ON t.pipeline = o.pipeline AND t.object_id = o.object_id
        GROUP BY o.pipeline, o.object_id, o.uri, o.charged HAVING o.charged <> count(t.attempt_id)""",
    "an object has more uncounted attempts than attempts": "SELECT uri FROM objects WHERE refunds > charged",
    "a schema is missing, or there twice": """
        SELECT p.id, p.schema_id, count(s.schema_id) FROM pipelines p LEFT JOIN table_schemas s ON s.pipeline = p.id
        GROUP BY p.id, p.schema_id HAVING p.schema_id <> count(s.schema_id)""",
    "a work is done without an outcome, or has one without being done": """
        SELECT w.key, w.state FROM works w WHERE (w.state = 'done') <> (w.outcome IS NOT NULL)
            OR (w.state = 'open') <> (w.ended_at IS NULL)""",
}
EMPTY_IF_IDLE = {
    "attempts are open": "SELECT id, worker FROM attempts WHERE state = 'open'",
    "objects are held": "SELECT uri, attempt_id FROM objects WHERE state = 'processing'",
    "works are open": "SELECT w.key, w.attempt_id FROM works w WHERE w.state = 'open'",
}


def check_books(url: str) -> None:
    """Check the invariants that hold at every moment."""
    _check(url, EMPTY_IF_RIGHT)


def check_idle(url: str) -> None:
    """Check the invariants of an idle system: nothing is claimed."""
    _check(url, {**EMPTY_IF_RIGHT, **EMPTY_IF_IDLE})


def attempt(url: str, attempt_id: str) -> tuple[str, str | None] | None:
    """Return the state and outcome of an attempt."""
    found: tuple[str, str | None] | None = _only(
        ask(url, "SELECT state, outcome FROM attempts WHERE id = %s", attempt_id)
    )
    return found


def held_by(url: str, attempt_id: str) -> set[bytes]:
    """Return the objects that an attempt holds."""
    rows = ask(url, "SELECT object_id FROM objects WHERE attempt_id = %s AND state = 'processing'", attempt_id)
    return {bytes(row[0]) for row in rows}


def batches_of(url: str, attempt_id: str) -> list[int]:
    return [int(seq) for (seq,) in ask(url, "SELECT seq FROM batches WHERE attempt_id = %s", attempt_id)]


def counted(url: str) -> dict[bytes, int]:
    """Return the counted attempts of each object."""
    return {bytes(id): int(count) for id, count in ask(url, "SELECT object_id, charged - refunds FROM objects")}


def states(url: str) -> Counter[str]:
    """Return the number of objects in each state."""
    return Counter({str(state): int(n) for state, n in ask(url, "SELECT state, count(*) FROM objects GROUP BY state")})


def work(url: str, key: str) -> tuple[str, str, int, str | None] | None:
    """Return the state, attempt, number of attempts and outcome of a work."""
    sql = "SELECT w.state, w.attempt_id, w.attempts, w.outcome FROM works w WHERE w.key = %s"
    found: tuple[str, str, int, str | None] | None = _only(ask(url, sql, key))
    return found


def _check(url: str, empty: dict[str, str]) -> None:
    with connected(url) as connection:
        ask_by(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # one snapshot for all checks
        for complaint, sql in empty.items():
            rows = ask_by(connection, sql)
            assert not rows, f"{complaint}: {len(rows)} times, as in {list(rows)[:SHOWN]}"


def _only(rows: Sequence[tuple[Any, ...]]) -> Any:
    assert len(rows) <= 1, f"found more than once: {list(rows)[:SHOWN]}"
    return rows[0] if rows else None
