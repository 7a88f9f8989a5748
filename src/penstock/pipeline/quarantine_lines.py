"""Read the lines that an attempt quarantined, without Spark.

They are in the attempt's own files until compaction merges these into others and a vacuum deletes them. Then the table
still has the lines, but no longer tells which attempt found them: they are used only if their number is the recorded
one.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import PenstockError, UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import QuarantineRow
from penstock.messaging.wording import counted
from penstock.objects.reference import ObjectRef
from penstock.objects.replays import replayed_attempt
from penstock.sinks.manifest import decode
from penstock.sinks.sink import TableSink


class ReplayRefused(PenstockError):
    """The lines of a replay are unknown. Another try would find the same."""


class QuarantineLines:
    """The quarantined lines of one pipeline. Any thread may use it."""

    def __init__(self, ledger: Ledger, quarantine: TableSink, *, pipeline: str) -> None:
        self._ledger = ledger
        self._quarantine = quarantine
        self._pipeline = pipeline

    def of(self, row: QuarantineRow) -> Iterator[pa.RecordBatch]:
        """Yield the lines of one object that an attempt quarantined, with the columns of the quarantine table.

        Raises `UsageError` if the table no longer tells them from those of other versions.
        """
        found = 0
        for batch in self._batches(row):
            found += batch.num_rows
            yield batch
        if found != row.bad.lines_quarantined:
            raise UsageError(
                f"The quarantine table {self._quarantine.uri} has {counted(found, 'line')} of {row.bad.uri}, and the "
                f"attempt {row.attempt_id} quarantined {row.bad.lines_quarantined:,}: it no longer tells them from "
                "those of other attempts, or some were deleted."
            )

    def places(self, replay: ObjectRef, *, place: str) -> list[tuple[int, int]]:
        """Return the place and size of each line that a replay reads.

        ``place`` is the kind of places that the pipeline's present format has. Raises `ReplayRefused`.
        """
        row = self._ledger.quarantines.of_replay(self._pipeline, replay.object_id)
        if row is None:
            raise ReplayRefused(
                f"the ledger knows no bad lines of {replay.uri} that the attempt {replayed_attempt(replay)} found"
            )
        if row.bad.place != place:
            raise ReplayRefused(
                f"the bad lines of {replay.uri} were found by {row.bad.place}, and the pipeline's format now places "
                f"lines by {place}: read it with the format of then"
            )
        try:
            return [
                (offset, len(raw))
                for batch in self.of(row)
                for offset, raw in zip(batch.column("offset").to_pylist(), batch.column("raw").to_pylist(), strict=True)
            ]
        except UsageError as unknown:
            raise ReplayRefused(str(unknown)) from unknown

    def _batches(self, row: QuarantineRow) -> Iterator[pa.RecordBatch]:
        batch = self._ledger.batch_of(row.attempt_id)
        files = () if batch is None else decode(batch.record.quarantine_manifest)
        root = self._quarantine.root
        if files and all(root.stat(file.path) is not None for file in files):
            for file in files:
                with root.open_input(file.path) as data:
                    for found in pq.ParquetFile(data).iter_batches():
                        yield from _of_object(found, row.bad.uri)
            return
        table = self._quarantine.load()
        if table is not None:
            for found in table.dataset().to_batches(filter=pc.field("object") == row.bad.uri):
                yield from _of_object(found, row.bad.uri)


def _of_object(found: pa.RecordBatch, uri: str) -> Iterator[pa.RecordBatch]:
    own = found.filter(pc.equal(found.column("object"), uri))
    if own.num_rows:
        yield own
