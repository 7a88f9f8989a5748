"""One file of the archive: Parquet, a row an object, sorted so that one object is found with one small read."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.ledger.archive_records import RetiredObject
from penstock.ledger.records import Carrier, ObjectAttempt, ObjectRow, ObjectState
from penstock.storage.files import Files

GROUP_ROWS = 4_096  # of which one is read to find an object
_ID = pa.binary(16)
_ATTEMPT = pa.struct(
    [
        ("attempt_id", pa.string()),
        ("worker", pa.string()),
        ("started_at", pa.float64()),
        ("ended_at", pa.float64()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
    ]
)
_CARRIER = pa.struct([("message_id", pa.string()), ("enqueued_at", pa.float64()), ("replay_id", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("uri_digest", _ID, nullable=False),
        pa.field("object_id", _ID, nullable=False),
        pa.field("uri", pa.string(), nullable=False),
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        ("size_bytes", pa.int64()),
        ("version_id", pa.string()),
        ("etag", pa.string()),
        ("sequencer", pa.string()),
        ("state", pa.string()),
        ("attempts", pa.int64()),
        ("unattributed_failures", pa.int64()),
        ("batch_seq", pa.int64()),
        ("rows", pa.int64()),
        ("lines_quarantined", pa.int64()),
        ("reason", pa.string()),
        ("first_seen_at", pa.float64()),
        ("ended_at", pa.float64()),
        ("carrier", _CARRIER),
        ("timeline", pa.list_(_ATTEMPT)),
    ]
)
_OF_FILE = ("uri_digest", "sequencer", "unattributed_failures", "timeline")  # columns that are no field of a row


def write_file(files: Files, path: str, pages: Iterable[Sequence[RetiredObject]]) -> int:
    """Write the objects into a new file, whole and durable; answers how many. Takes memory for all of them, packed."""
    packed = [pa.Table.from_pylist([_packed(one) for one in page], schema=SCHEMA) for page in pages]
    table = pa.concat_tables(packed).sort_by([("uri_digest", "ascending"), ("object_id", "ascending")])
    with files.open_output(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        writer.write_table(table, row_group_size=GROUP_ROWS)
    files.make_durable([path])
    return int(table.num_rows)


def find_in_file(files: Files, path: str, uri_digest: bytes) -> Sequence[RetiredObject]:
    """The objects with this digest. Raises `FileNotFoundError`."""
    with files.open_input(path) as file, pq.ParquetFile(file) as parquet:
        groups = [group for group in range(parquet.num_row_groups) if _may_hold(parquet, group, uri_digest)]
        table = parquet.read_row_groups(groups)
    return _unpacked(table.filter(pc.equal(table["uri_digest"], pa.scalar(uri_digest, _ID))))


def read_file(files: Files, path: str, *, uri_contains: str | None = None) -> Iterator[RetiredObject]:
    """All objects, or those whose uri contains a text, whatever its letter case. Raises `FileNotFoundError`."""
    with files.open_input(path) as file, pq.ParquetFile(file) as parquet:
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group)
            if uri_contains is not None:
                table = table.filter(pc.match_substring(table["uri"], uri_contains, ignore_case=True))
            yield from _unpacked(table)


def _may_hold(parquet: pq.ParquetFile, group: int, uri_digest: bytes) -> bool:
    found = parquet.metadata.row_group(group).column(0).statistics
    return found is None or not found.has_min_max or bool(found.min <= uri_digest <= found.max)


def _packed(one: RetiredObject) -> dict[str, Any]:
    row = asdict(one.row)
    return row | {name: getattr(one, name) for name in _OF_FILE[:-1]} | {"timeline": [asdict(a) for a in one.timeline]}


def _unpacked(table: pa.Table) -> Sequence[RetiredObject]:
    return [_object(row) for row in table.to_pylist()]


def _object(found: dict[str, Any]) -> RetiredObject:
    row = {name: value for name, value in found.items() if name not in _OF_FILE}
    row["state"] = ObjectState(row["state"])
    row["carrier"] = None if row["carrier"] is None else Carrier(**row["carrier"])
    return RetiredObject(
        row=ObjectRow(**row),
        uri_digest=found["uri_digest"],
        sequencer=found["sequencer"],
        unattributed_failures=found["unattributed_failures"],
        timeline=[ObjectAttempt(**attempt) for attempt in found["timeline"]],
    )
