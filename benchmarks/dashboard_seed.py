"""Fill a ledger with as many objects as the dashboard must stay fast with.

    python -m benchmarks.dashboard_seed sqlite:////tmp/ledger.db [--objects 1000000]

The rows are those of three pipelines over thirty days, in every state: mostly processed, some failed with a traceback,
some waiting, being processed, deleted, superseded, retracted and reopened. They go straight into the ledger's tables:
the protocol would take hours. The same call writes the same rows, but for the time of day.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Table, insert
from ulid import ULID

from penstock.ledger import Ledger
from penstock.ledger.records import AttemptState, ObjectState, ReopeningState
from penstock.ledger.rows import uri_digest
from penstock.ledger.rules import failure_note
from penstock.ledger.schema import (
    attempts,
    batches,
    object_attempts,
    objects,
    pipelines,
    reconciliations,
    reopenings,
    table_schemas,
)
from penstock.ledger.sets import insert_rows
from penstock.objects.reference import ObjectRef
from penstock.sinks.manifest import DataFile, encode

PIPELINES = {"clicks": 0.8, "orders": 0.15, "invoices": 0.05}
"""The names of the pipelines, and their shares of the objects."""

BATCH_OBJECTS = 1_000
HISTORY_SECONDS = 30 * 86_400.0
LEASE_SECONDS = 600.0
ROWS_AT_ONCE = 10_000
WORKERS = ("ingest-7d9f-1", "ingest-7d9f-2", "ingest-7d9f-3")
UNREAD_SHARES = {
    ObjectState.DEAD: 0.004,
    ObjectState.UNPROCESSED: 0.001,
    ObjectState.PROCESSING: 0.0005,
    ObjectState.DELETED: 0.0005,
    ObjectState.SUPERSEDED: 0.0005,
    ObjectState.RETRACTED: 0.0002,
}
"""The states of the objects that are not processed, and their shares."""

REOPENED_SHARE = 0.0002
REASONS = (
    "the first line is not JSON: Expecting value (line 1 column 1)",
    "the codec of the file is unknown: its name ends with .gz, and its content is no gzip",
    "99.1% of its lines are bad, and max_quarantine_ratio allows 50%: is it of another format?",
)
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/app/shop/transforms.py", line 41, in clean\n'
    '    return frame.withColumn("amount", to_cents("amount"))\n'
    '  File "/app/shop/money.py", line 12, in to_cents\n'
    '    raise ValueError(f"no amount: {value!r}")\n'
    "ValueError: no amount: '1.234,50'"
)
_HOUR_SECONDS = 3_600.0
_ULID_BYTES = 10  # of randomness


@dataclass(kw_only=True)
class _Rows:
    """The rows of one batch, by table."""

    of_table: dict[Table, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, table: Table, **row: Any) -> None:
        self.of_table.setdefault(table, []).append(row)


def seed_ledger(ledger_url: str, objects: int = 1_000_000, *, now: float | None = None) -> None:
    """Fill an empty ledger with that many objects, in batches of a thousand.

    Takes about a minute for a million on SQLite. ``now`` is the time of the newest batch, in epoch seconds.
    """
    until = time.time() if now is None else now
    ledger = Ledger.open(ledger_url)
    try:
        for name, share in PIPELINES.items():
            _seed_pipeline(ledger, name, max(1, round(objects * share)), until=until)
    finally:
        ledger.close()


def _seed_pipeline(ledger: Ledger, name: str, count: int, *, until: float) -> None:
    chosen = random.Random(name)
    sizes = [min(BATCH_OBJECTS, count - start) for start in range(0, count, BATCH_OBJECTS)]
    with ledger.database.engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA cache_size = -400000")
        _insert(connection, _rows_of_pipeline(name, count, len(sizes), until=until))
    for chunk in _chunks(_rows_of_batches(name, sizes, chosen, until=until), ROWS_AT_ONCE // BATCH_OBJECTS):
        with ledger.database.engine.begin() as connection:
            for rows in chunk:
                _insert(connection, rows)


def _chunks(items: Iterator[_Rows], size: int) -> Iterator[Sequence[_Rows]]:
    while chunk := list(islice(items, size)):
        yield chunk


def _insert(connection: Connection, rows: _Rows) -> None:
    for table, values in rows.of_table.items():
        insert_rows(connection, insert(table), values)


def _rows_of_pipeline(name: str, count: int, batches_: int, *, until: float) -> _Rows:
    rows = _Rows()
    columns = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    rows.add(pipelines, id=name, next_seq=batches_ + 1, schema_id=1, source_schema="id BIGINT")
    rows.add(table_schemas, pipeline=name, schema_id=1, table_schema=json.dumps(columns))
    rows.add(
        reconciliations,
        pipeline=name,
        as_of=until - _HOUR_SECONDS,
        finished_at=until - _HOUR_SECONDS / 2,
        source=f"s3://landing/{name}/",
        listed=count,
        missing=3 if name == "clicks" else 0,
        sent=3 if name == "clicks" else 0,
        seconds=41.5,
    )
    return rows


def _rows_of_batches(name: str, sizes: Sequence[int], chosen: random.Random, *, until: float) -> Iterator[_Rows]:
    states, weights = [*UNREAD_SHARES, ObjectState.PROCESSED], [*UNREAD_SHARES.values()]
    weights.append(1 - sum(weights))
    for index, size in enumerate(sizes):
        began_at = until - HISTORY_SECONDS * (len(sizes) - index) / len(sizes)
        rows, taken = _Rows(), chosen.choices(states, weights, k=size)
        if index == len(sizes) - 1:
            taken = [*states, *taken][:size]  # every state has an object, however few there are
        attempt_id = _attempt_id(began_at, chosen)
        processed = taken.count(ObjectState.PROCESSED)
        for number, state in enumerate(taken, start=index * BATCH_OBJECTS):
            _add_object(rows, name, number, state, attempt_id, index + 1, began_at, chosen)
        _add_batch(rows, name, attempt_id, index + 1, processed, began_at, chosen)
        yield rows


def _attempt_id(at: float, chosen: random.Random) -> str:
    return str(ULID.from_bytes(int(at * 1_000).to_bytes(6, "big") + chosen.randbytes(_ULID_BYTES)))


def _add_batch(
    rows: _Rows, name: str, attempt_id: str, seq: int, processed: int, began_at: float, chosen: random.Random
) -> None:
    written, worker = processed * 50, chosen.choice(WORKERS)
    file = DataFile(
        path=f"data/{attempt_id}/r0/part-0.parquet", size_bytes=written * 40, rows=written, modified_at=began_at
    )
    stages = {"plan": 0.4, "run": 11.5 + chosen.random() * 20, "commit": 0.3}
    ended_at = began_at + sum(stages.values())
    rows.add(
        attempts,
        id=attempt_id,
        pipeline=name,
        state=AttemptState.COMMITTED.value,
        worker=worker,
        started_at=began_at,
        ended_at=ended_at,
        lease_until=began_at + LEASE_SECONDS,
        heartbeat_seq=1,
        outcome=None,
        reason=None,
    )
    rows.add(
        batches,
        pipeline=name,
        seq=seq,
        attempt_id=attempt_id,
        schema_id=1,
        manifest=encode([file]),
        quarantine_manifest="",
        objects=processed,
        rows=written,
        lines_quarantined=processed // 10,
        bytes=processed * 10_000,
        committed_at=ended_at,
        stage_seconds=json.dumps(stages),
        spark_ui_url="http://spark-driver.internal:4040/jobs/",
        transform="shop.transforms:clean",
    )


def _add_object(
    rows: _Rows,
    name: str,
    number: int,
    state: ObjectState,
    attempt_id: str,
    seq: int,
    began_at: float,
    chosen: random.Random,
) -> None:
    day = time.strftime("%Y/%m/%d", time.gmtime(began_at))
    folder = "請求書" if name == "invoices" else name
    ref = ObjectRef(
        bucket="landing",
        key=f"{folder}/{day}/part-{number:07d}.jsonl.gz",
        size_bytes=10_000 + number % 5_000,
        etag=f"{number:032x}",
        sequencer=f"{number:016X}",
    )
    is_read, is_open = state is ObjectState.PROCESSED, state is ObjectState.PROCESSING
    is_waiting = state is ObjectState.UNPROCESSED
    is_reopened = is_read and chosen.random() < REOPENED_SHARE
    if is_open:
        attempt_id = _add_other_attempt(rows, name, AttemptState.OPEN, began_at, chosen)
    elif is_waiting or state is ObjectState.DEAD:
        attempt_id = _add_other_attempt(rows, name, AttemptState.ABANDONED, began_at, chosen)
    reason = chosen.choice(REASONS) if state is ObjectState.DEAD else None
    ended_at = None if is_open or is_waiting or is_reopened else began_at + 15
    rows.add(
        objects,
        pipeline=name,
        object_id=ref.object_id,
        bucket=ref.bucket,
        key=ref.key_bytes,
        uri=ref.uri,
        uri_digest=uri_digest(ref.uri),
        size_bytes=ref.size_bytes,
        etag=ref.etag,
        sequencer=ref.sequencer,
        state=ObjectState.UNPROCESSED.value if is_reopened else state.value,
        attempt_id=None if is_waiting or is_reopened else attempt_id,
        charged=1,
        refunds=0,
        unattributed_failures=0,
        batch_seq=seq if is_read else None,
        rows=50 if is_read else None,
        lines_quarantined=number % 10 // 9 if is_read else None,
        reason=reason,
        carrier_message_id=f"message-{number}",
        carrier_enqueued_at=began_at - 20,
        first_seen_at=began_at,
        ended_at=ended_at,
        dead_at=ended_at if state is ObjectState.DEAD else None,
    )
    outcome = _OUTCOMES.get(state)
    note = failure_note(reason, TRACEBACK) if reason is not None else None
    rows.add(
        object_attempts,
        pipeline=name,
        object_id=ref.object_id,
        attempt_id=attempt_id,
        outcome=outcome,
        reason=note or ("the worker ended" if outcome is not None else None),
    )
    if is_reopened:
        _add_reopening(rows, name, ref, attempt_id, seq, began_at)


_OUTCOMES = {
    ObjectState.DEAD: "dead",
    ObjectState.UNPROCESSED: "retry",
    ObjectState.DELETED: "gone",
    ObjectState.SUPERSEDED: "superseded",
}


def _add_other_attempt(rows: _Rows, name: str, state: AttemptState, began_at: float, chosen: random.Random) -> str:
    attempt_id, is_open = _attempt_id(began_at, chosen), state is AttemptState.OPEN
    rows.add(
        attempts,
        id=attempt_id,
        pipeline=name,
        state=state.value,
        worker=chosen.choice(WORKERS),
        started_at=began_at,
        ended_at=None if is_open else began_at + 15,
        lease_until=began_at + (HISTORY_SECONDS if is_open else 0) + LEASE_SECONDS,
        heartbeat_seq=1,
        outcome=None if is_open else "failed",
        reason=None if is_open else "every object of the run failed",
    )
    return attempt_id


def _add_reopening(rows: _Rows, name: str, ref: ObjectRef, attempt_id: str, seq: int, began_at: float) -> None:
    rows.add(
        reopenings,
        pipeline=name,
        object_id=ref.object_id,
        uri=ref.uri,
        uri_digest=uri_digest(ref.uri),
        state=ReopeningState.OPEN.value,
        attempt_id=attempt_id,
        batch_seq=seq,
        rows=50,
        ended_at=began_at + 15,
        reopened_at=began_at + _HOUR_SECONDS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ledger_url")
    parser.add_argument("--objects", type=int, default=1_000_000)
    asked = parser.parse_args()
    began = time.monotonic()
    seed_ledger(asked.ledger_url, asked.objects)
    print(f"{asked.objects:,} objects in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
