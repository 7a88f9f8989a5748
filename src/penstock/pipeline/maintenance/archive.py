"""The archive: move old rows of processed objects from the ledger to Parquet files, and find them there.

A file holds one row per object, sorted so that one object is found with one small read. It is written under a new name
and is durable before the ledger makes it count. A process that dies may leave a file that the ledger does not name,
which the next run deletes. `penstock.ledger.archive` explains why this is safe at any moment.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ulid import ULID

from penstock.errors import TemporaryError, UsageError
from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING, ArchiveFile, RetiredObject, Retiring
from penstock.ledger.records import ObjectAttempt, ObjectRow, ObjectState, OriginalMessage
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.maintenance.interruption import PassEnded, interruptible
from penstock.storage.files import Files

GROUP_ROWS = 4_096  # per row group; a lookup reads one
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
_ORIGINAL_MESSAGE = pa.struct([("message_id", pa.string()), ("enqueued_at", pa.float64()), ("replay_id", pa.string())])
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
        ("carrier", _ORIGINAL_MESSAGE),
        ("timeline", pa.list_(_ATTEMPT)),
    ]
)
_OF_FILE = ("uri_digest", "sequencer", "unattributed_failures", "timeline")  # columns that `ObjectRow` lacks

OBJECTS_MAX = 50_000  # per file, unless a single batch has more; the ledger deletes that many rows in a second or two
RETENTION_SECONDS_MIN = 15 * 86_400.0
SWEEP_AGE_SECONDS = 86_400.0  # of a file that the ledger does not name: spare the work of a slow writer
SUFFIX = ".parquet"
_NAME = re.compile(r"\.?(?P<id>[0-9A-HJKMNP-TV-Z]{26})\.parquet(?P<half>\.\d+)?")


def write_file(files: Files, path: str, pages: Iterable[Sequence[RetiredObject]]) -> int:
    """Write the objects to a new file, durably, and return their number. Holds all of them in memory, as Arrow data."""
    packed = [pa.Table.from_pylist([_packed(retired) for retired in page], schema=SCHEMA) for page in pages]
    table = pa.concat_tables(packed).sort_by([("uri_digest", "ascending"), ("object_id", "ascending")])
    with files.open_output(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        writer.write_table(table, row_group_size=GROUP_ROWS)
    files.make_durable([path])
    return int(table.num_rows)


def find_in_file(files: Files, path: str, uri_digest: bytes) -> Sequence[RetiredObject]:
    """Return the objects with this digest. Raise `FileNotFoundError` if the file is missing."""
    # Without threads of Arrow for local files, as in `penstock.sinks.delta.state`: commands end right after the read.
    with files.open_input(path) as file, pq.ParquetFile(file, pre_buffer=not files.is_local) as parquet:
        groups = [group for group in range(parquet.num_row_groups) if _may_contain(parquet, group, uri_digest)]
        table = parquet.read_row_groups(groups, use_threads=False)
    return _unpacked(table.filter(pc.equal(table["uri_digest"], pa.scalar(uri_digest, _ID))))


def read_file(files: Files, path: str, *, uri_contains: str | None = None) -> Iterator[RetiredObject]:
    """Yield all objects, or those whose URI contains a string, ignoring case. Raise `FileNotFoundError` if missing."""
    with files.open_input(path) as file, pq.ParquetFile(file, pre_buffer=not files.is_local) as parquet:
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group, use_threads=False)
            if uri_contains is not None:
                table = table.filter(pc.match_substring(table["uri"], uri_contains, ignore_case=True))
            yield from _unpacked(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """The counts of one run, or of a dry run."""

    objects: int = 0
    batches: int = 0
    files: int = 0
    bytes: int = 0
    swept: int = 0  # unnamed files of earlier runs
    more: bool = False  # True if the run ended before everything due was archived


def check_retention(older_than_seconds: float) -> None:
    """Raise `UsageError` if the age is below the minimum.

    SQS keeps a message for 14 days. Until then a message may arrive that names an older version of a key, and only rows
    in the ledger show that a later version superseded it: the archive stores only identities.
    """
    if older_than_seconds < RETENTION_SECONDS_MIN:
        raise UsageError(
            f"Objects can be archived {RETENTION_SECONDS_MIN / 86_400:.0f} days after their batch at the earliest, and "
            f"{older_than_seconds / 86_400:g} days were asked for: a message of an older version may come until then."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Archivist:
    """The archiver of one pipeline. Several may run concurrently: for each file one wins; the others delete theirs."""

    ledger: Ledger
    pipeline: str
    location: Files
    probe: Probe
    clock: Clock
    new_id: Callable[[], str] = lambda: str(ULID())

    def run(
        self,
        *,
        older_than_seconds: float,
        up_to_seq: int,
        files_max: int | None = None,
        objects_max: int = OBJECTS_MAX,
        stopped: Callable[[], bool] = lambda: False,
    ) -> ArchiveResult:
        """Archive batches that are older than this, up to ``up_to_seq``, in at most ``files_max`` files.

        ``stopped`` is called before each page of objects and each file of the archive; True ends the run there.

        Raises `TemporaryError` if a retry may succeed, `TableError` if the archive's location cannot be used.
        """
        swept = objects = batches = files = written = 0
        more = True
        with suppress(PassEnded):
            for _ in self._sweep(stopped):
                swept += 1
            while more := (retiring := self._next(older_than_seconds, up_to_seq, objects_max)) is not None:
                if files_max is not None and files >= files_max:
                    break
                file = self._archive(retiring, stopped)
                if file is None:  # another process is archiving
                    break
                objects += file.objects
                batches += len(retiring.batches)
                files += 1
                written += file.bytes
        return ArchiveResult(objects=objects, batches=batches, files=files, bytes=written, swept=swept, more=more)

    def would(self, *, older_than_seconds: float, up_to_seq: int, objects_max: int = OBJECTS_MAX) -> ArchiveResult:
        """Return the result that `run` would have now, according to the batches. Change nothing."""
        objects = batches = files = 0
        after = self.ledger.progress(self.pipeline, ARCHIVING)
        while (retiring := self._next(older_than_seconds, up_to_seq, objects_max, after=after)) is not None:
            after = retiring.batches[-1].seq
            objects += sum(batch.objects for batch in retiring.batches)
            batches += len(retiring.batches)
            files += 1
        return ArchiveResult(objects=objects, batches=batches, files=files)

    def _next(
        self, older_than_seconds: float, up_to_seq: int, objects_max: int, *, after: int | None = None
    ) -> Retiring | None:
        if after is None:
            after = self.ledger.progress(self.pipeline, ARCHIVING)
        last_due = self.ledger.last_batch_older_than(
            self.pipeline, after_seq=after, older_than_seconds=older_than_seconds
        )
        return self.ledger.archives.retiring(
            self.pipeline, after_seq=after, up_to_seq=min(last_due, up_to_seq), objects_max=objects_max
        )

    def _archive(self, retiring: Retiring, stopped: Callable[[], bool]) -> ArchiveFile | None:
        """Write one file and remove its objects from the ledger. Return None if another process archived them first.

        Raises `PassEnded` before the file is begun, or not at all.
        """
        archive_id = self.new_id()
        path = f"{archive_id}{SUFFIX}"
        pages = interruptible(self.ledger.archives.retired_objects(retiring), stopped)
        count = write_file(self.location, path, pages)
        self.probe(Step.ARCHIVE_WRITTEN)
        info = self.location.stat(path)
        if info is None:
            raise TemporaryError(f"{self.location}/{path} was deleted as soon as it was written: try again")
        file = ArchiveFile(uri=f"{self.location.uri}/{path}", objects=count, bytes=info.size_bytes)
        if self.ledger.archives.retire(retiring, archive_id=archive_id, file=file):
            return file
        self.location.delete([path])  # the ledger refused it, so it never counted
        return None

    def _sweep(self, stopped: Callable[[], bool]) -> Iterator[str]:
        """Delete old files that no archive names, and yield the name of each."""
        old = [name for name in interruptible(self.location.names(), stopped) if self._is_old(name)]
        named = {archive.id for archive in self.ledger.archives.all(self.pipeline)} if old else set()
        for name in interruptible(old, stopped):
            found = _NAME.fullmatch(name)
            assert found is not None, "it was looked at"
            if found["id"] in named and not found["half"]:
                continue
            if found["half"] or self.ledger.archives.disown(self.pipeline, found["id"]):
                self.location.delete([name])
                yield name

    def _is_old(self, name: str) -> bool:
        if not _NAME.fullmatch(name):
            return False
        info = self.location.stat(name)
        return info is not None and self.clock.now() - info.modified_at > SWEEP_AGE_SECONDS


def _may_contain(parquet: pq.ParquetFile, group: int, uri_digest: bytes) -> bool:
    found = parquet.metadata.row_group(group).column(0).statistics
    return found is None or not found.has_min_max or bool(found.min <= uri_digest <= found.max)


def _packed(retired: RetiredObject) -> dict[str, Any]:
    row = asdict(retired.row)
    row["carrier"] = row.pop("original_message")  # the file's name of it
    del row["unknown"]  # not archived: earlier versions refuse a file with a column that they do not know
    return (
        row
        | {name: getattr(retired, name) for name in _OF_FILE[:-1]}
        | {"timeline": [asdict(a) for a in retired.timeline]}
    )


def _unpacked(table: pa.Table) -> Sequence[RetiredObject]:
    return [_object(row) for row in table.to_pylist()]


def _object(found: dict[str, Any]) -> RetiredObject:
    row = {name: value for name, value in found.items() if name not in _OF_FILE}
    row["state"] = ObjectState(row["state"])
    original_message = row.pop("carrier")
    row["original_message"] = None if original_message is None else OriginalMessage(**original_message)
    return RetiredObject(
        row=ObjectRow(**row),
        uri_digest=found["uri_digest"],
        sequencer=found["sequencer"],
        unattributed_failures=found["unattributed_failures"],
        timeline=[ObjectAttempt(**attempt) for attempt in found["timeline"]],
    )
