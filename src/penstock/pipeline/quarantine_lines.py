"""Read the lines that an attempt quarantined, without Spark.

They are in the attempt's own files until compaction merges these into others and a vacuum deletes them. Then the table
still has the lines, but no longer tells which attempt found them: they are used only if their number is the recorded
one.
"""

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import QuarantineRow
from penstock.messaging.wording import counted
from penstock.objects.reference import ObjectRef
from penstock.objects.replays import replayed_attempt
from penstock.pipeline.quarantined import replay_sources
from penstock.sinks.manifest import decode
from penstock.sinks.sink import TableSink

Spans = Sequence[tuple[int, int]]  # place and size of each line


class QuarantineLines:
    """The quarantined lines of one pipeline. Any thread may use it."""

    def __init__(self, ledger: Ledger, quarantine: TableSink, *, pipeline: str) -> None:
        self._ledger = ledger
        self._quarantine = quarantine
        self._pipeline = pipeline

    def of(self, row: QuarantineRow) -> Generator[pa.RecordBatch, None, None]:
        """Yield the lines of one object that an attempt quarantined, with the columns of the quarantine table.

        Close the generator. Raises `UsageError` if the table no longer tells them from those of other versions.
        """
        found = 0
        for batch in self._batches(row.attempt_id, [row.bad.uri]):
            found += batch.num_rows
            yield batch
        if found != row.bad.lines_quarantined:
            raise UsageError(self._unclear(row, found))

    def places(self, replays: Sequence[ObjectRef], *, place: str) -> tuple[Mapping[bytes, Spans], Mapping[bytes, str]]:
        """Return the place and size of each line that replays read, and why others cannot be read, by object id.

        ``place`` is the kind of places that the pipeline's present format has.
        """
        refused: dict[bytes, str] = {}
        by_attempt: defaultdict[str, list[QuarantineRow]] = defaultdict(list)
        known = self._ledger.quarantines.of_replays(self._pipeline, [ref.object_id for ref in replays])
        for ref in replays:
            row = known.get(ref.object_id)
            if row is None:
                refused[ref.object_id] = (
                    f"the ledger knows no bad lines of {ref.uri} in the attempt {replayed_attempt(ref)}"
                )
            elif row.replaced_seq is not None:
                refused[ref.object_id] = (
                    f"the bad lines of {ref.uri} are of a version whose rows left the table with batch "
                    f"{row.replaced_seq:,}: a later version replaced them, or they were retracted"
                )
            elif row.bad.place != place:
                refused[ref.object_id] = (
                    f"the bad lines of {ref.uri} were found by {row.bad.place}, and the pipeline's format now places "
                    f"lines by {place}: declare the format of that attempt to read them again"
                )
            else:
                by_attempt[row.attempt_id].append(row)
        spans: dict[bytes, Spans] = {}
        for attempt_id, rows in by_attempt.items():
            found = self._spans(attempt_id, [row.bad.uri for row in rows])
            for row in rows:
                own = found[row.bad.uri]
                if len(own) == row.bad.lines_quarantined:
                    spans[row.bad.replay_id] = own
                else:
                    refused[row.bad.replay_id] = self._unclear(row, len(own)).rstrip(".")
        return spans, refused

    def sources(self, replays: Sequence[ObjectRef]) -> Mapping[bytes, ObjectRef]:
        """Return the versions from which replays read their lines, by object id of the replay."""
        return replay_sources(self._ledger, self._pipeline, replays)

    def _spans(self, attempt_id: str, uris: Sequence[str]) -> Mapping[str, Spans]:
        found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for batch in self._batches(attempt_id, uris):
            sizes = pc.binary_length(batch.column("raw"))
            columns = (batch.column("object"), batch.column("offset"), sizes)
            for uri, offset, size in zip(*(column.to_pylist() for column in columns), strict=True):
                found[uri].append((offset, size))
        return found

    def _batches(self, attempt_id: str, uris: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the lines of these objects that an attempt quarantined, or of all attempts once its files are gone."""
        wanted = pa.array(sorted(set(uris)), pa.string())
        batch = self._ledger.batch_of(attempt_id)
        files = () if batch is None else decode(batch.record.quarantine_manifest)
        root = self._quarantine.root
        if files and all(root.stat(file.path) is not None for file in files):
            for file in files:
                with root.open_input(file.path) as data:
                    for found in pq.ParquetFile(data).iter_batches():
                        yield from _of_objects(found, wanted)
            return
        table = self._quarantine.load()
        if table is not None:
            for found in table.dataset().to_batches(filter=pc.field("object").isin(wanted)):
                yield from _of_objects(found, wanted)

    def _unclear(self, row: QuarantineRow, found: int) -> str:
        return (
            f"The quarantine table {self._quarantine.uri} has {counted(found, 'line')} of {row.bad.uri}, and the "
            f"attempt {row.attempt_id} quarantined {row.bad.lines_quarantined:,}: it no longer tells them from those "
            "of other attempts, or some were deleted."
        )


def _of_objects(found: pa.RecordBatch, uris: pa.Array) -> Iterator[pa.RecordBatch]:
    own = found.filter(pc.is_in(found.column("object"), uris))
    if own.num_rows:
        yield own
