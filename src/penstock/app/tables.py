"""Work on the two tables of a pipeline, rows and quarantine, as far as it needs no Spark."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from penstock.app.paths import QUARANTINE_SUFFIX, TablePaths
from penstock.errors import TableError, TemporaryError
from penstock.events import Bus, JobFailed
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow, replaced_objects
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.checkpoints import CheckpointWriter
from penstock.pipeline.maintenance.gc import CollectedGarbage, collect
from penstock.pipeline.maintenance.leftovers import collect_leftovers
from penstock.pipeline.maintenance.table_history import BatchFiles, RowLossCheck, Shortfall, shortfall
from penstock.pipeline.merging.tombstones import fold_deletes
from penstock.pipeline.overwritten import CommitWatch
from penstock.pipeline.publish import Published, check_tip, publish, rows_schema
from penstock.pipeline.publish_chunk import START
from penstock.pipeline.quarantine_lines import QuarantineLines
from penstock.pipeline.quarantine_progress import QuarantineProgress
from penstock.pipeline.spark.source.quarantine import QUARANTINE_SCHEMA
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.manifest import decode, is_empty
from penstock.sinks.registry import open_sink
from penstock.sinks.sink import TableSink

_CLOCK = SystemClock()  # stateless
_ROWS, _QUARANTINE = 0, 1  # in the counts of `Ledger.written_to`


class Tables:
    """Both tables of one pipeline, for one process.

    Any thread and any process may publish to them: a commit is conditional, so two never conflict.
    """

    def __init__(
        self,
        paths: TablePaths,
        ledger: Ledger,
        *,
        partition_by: Sequence[str] | None = (),
        catalog: CatalogName | None = None,
        bus: Bus,
        probe: Probe = no_probe,
    ) -> None:
        """``partition_by`` None is for reading only: the table may be partitioned in any way.

        ``catalog``: the declared one, see `penstock.sinks.registry.open_sink`.
        """
        self._paths = paths
        self._ledger = ledger
        self._partition_by = partition_by
        self._bus = bus
        self._probe = probe
        sink_at = partial(open_sink, scheme=paths.scheme, pipeline=paths.pipeline)
        self.rows = sink_at(paths.table, partition_by=partition_by, catalog=catalog)
        beside = None if catalog is None else catalog.suffixed(QUARANTINE_SUFFIX)
        self.quarantine = sink_at(paths.quarantine, catalog=beside)
        self._rows_checkpoints, self._quarantine_checkpoints = (
            CheckpointWriter(pipeline=paths.pipeline, sink=sink.uri, bus=bus) for sink in (self.rows, self.quarantine)
        )
        self._retained_rows, self._retained_quarantine = RowLossCheck(self.rows), RowLossCheck(self.quarantine)
        # Where this process's last publish ended. Written by any thread that publishes; an older value does no harm.
        self._rows_published: Published | None = None
        self._quarantine_published: Published | None = None
        self._quarantine_progress = QuarantineProgress(ledger, pipeline=paths.pipeline, probe=probe)

    def publish(self) -> None:
        """Make committed batches visible in both tables. The quarantine table is created with its first line.

        Raises `TableError`, `PublishHalted`, or `TemporaryError` if a retry may succeed.
        """
        self._publish_rows()
        self._publish_quarantine()

    @property
    def publish_jobs(self) -> Mapping[str, Callable[[], None]]:
        """`publish` as two independent background jobs, by name."""
        return {"rows": self._publish_rows, "quarantine": self._publish_quarantine}

    @property
    def visible_to(self) -> int:
        """The last batch that both tables show, as far as this process has seen."""
        published = (self._rows_published, self._quarantine_published)
        return min(0 if last is None else last.visible_to for last in published)

    @property
    def published_versions(self) -> tuple[int | None, int | None]:
        """The versions of rows and quarantine that this process's last publish saw; None: no table yet."""
        rows, quarantine = self._rows_published, self._quarantine_published
        return (
            None if rows is None else rows.table_version,
            None if quarantine is None else quarantine.table_version,
        )

    def version(self) -> int | None:
        """Return the rows table's version; None if there is no table yet."""
        table = self.rows.load()
        return table.version if table is not None else None

    def has_quarantine(self) -> bool:
        """Return True if the quarantine table exists."""
        return self.quarantine.load() is not None

    @property
    def quarantine_lines(self) -> QuarantineLines:
        """The lines that attempts quarantined."""
        return QuarantineLines(self._ledger, self.quarantine, pipeline=self._paths.pipeline)

    def unpublished(self) -> int:
        """Return the number of committed batches that change one of the tables and are not yet visible in it."""
        table = self.rows.load()
        rows_seq = 0 if table is None else table.position.seq
        quarantine = self.quarantine.load()
        quarantine_seq = self._quarantine_progress.recorded(START if quarantine is None else quarantine.position).seq
        has_rows = table is not None
        count = 0
        for batch in self._ledger.batches_after(self._paths.pipeline, min(rows_seq, quarantine_seq)):
            changes_rows = batch.seq > rows_seq and _changes_rows(batch, has_table=has_rows)
            has_rows = has_rows or changes_rows
            count += changes_rows or (batch.seq > quarantine_seq and not is_empty(batch.record.quarantine_manifest))
        return count

    def unpublished_replacements(self) -> tuple[int, int]:
        """Return `Ledger.replaced_totals` of the batches that the rows table does not show yet."""
        if not any(self._ledger.replaced_totals(self._paths.pipeline)):
            return 0, 0
        return self._ledger.replaced_totals(self._paths.pipeline, after_seq=_seq(self.rows))

    def unpublished_growth(self) -> tuple[int, int]:
        """Return `Ledger.grown_totals` of the batches that the rows table does not show yet."""
        if not any(self._ledger.grown_totals(self._paths.pipeline)):
            return 0, 0
        return self._ledger.grown_totals(self._paths.pipeline, after_seq=_seq(self.rows))

    def shown_to(self, after_seq: int, up_to_seq: int) -> int:
        """Return the last batch after ``after_seq`` and up to ``up_to_seq`` that both tables show completely.

        Reads the tables now. Raises `PublishHalted` if the ledger does not belong to the tables.
        """
        table = self.rows.load()
        rows_seq, quarantine_seq = (
            check_tip(self._ledger, loaded, pipeline=self._paths.pipeline, where=sink.uri).seq
            for sink, loaded in ((self.rows, table), (self.quarantine, self.quarantine.load()))
        )
        shown = after_seq
        for batch in self._ledger.batches_after(self._paths.pipeline, after_seq):
            rows_shown = batch.seq <= rows_seq or not _changes_rows(batch, has_table=table is not None)
            quarantine_shown = batch.seq <= quarantine_seq or is_empty(batch.record.quarantine_manifest)
            if batch.seq > up_to_seq or not (rows_shown and quarantine_shown):
                break
            shown = batch.seq
        return shown

    def retained_to(self, after_seq: int, up_to_seq: int) -> int:
        """Return the same as `shown_to`, for batches whose objects are about to be moved or deleted at their source.

        Also raises `PublishHalted` if rows of these batches may have left a table since. For one thread at a time.
        """
        shown = self.shown_to(after_seq, up_to_seq)
        later = self._ledger.batches_after(self._paths.pipeline, after_seq)
        batches = list(takewhile(lambda batch: batch.seq <= shown, later))
        for retained, manifest_of, index in (
            (self._retained_rows, _added_manifest, _ROWS),
            (self._retained_quarantine, _quarantine_manifest, _QUARANTINE),
        ):
            files = [
                BatchFiles(seq=batch.seq, paths={file.path for file in decode(manifest_of(batch))}) for batch in batches
            ]
            retained.check(files, written=partial(self._written, index=index))
        return shown

    def shortfalls(self) -> Sequence[Shortfall]:
        """Return the shortfalls: rows that batches wrote and that the two tables lack."""
        found = [
            self._shortfall(self.rows, _rows_manifest, _ROWS),
            self._shortfall(self.quarantine, _quarantine_manifest, _QUARANTINE),
        ]
        return [short for short in found if short is not None]

    def sweep(self) -> None:
        """Delete the files of abandoned attempts; cheap if there are none.

        A failure is emitted as an event and does not raise; the next sweep retries.
        """
        try:
            self._collect(dry_run=False, stragglers=False)
        except TemporaryError as error:
            self._bus.emit(JobFailed(job="gc", error=str(error)))

    def collect_garbage(self, *, dry_run: bool, stopped: Callable[[], bool] = lambda: False) -> CollectedGarbage:
        """Delete all files that belong to no batch, including those of every attempt's folder.

        ``stopped`` is called before each unit of work, such as a folder; True ends the collection there.

        Raises `PublishHalted` if the ledger does not belong to the table: its garbage may then be visible data.
        """
        collected = self._collect(dry_run=dry_run, stragglers=True, stopped=stopped)
        try:
            if not dry_run and not stopped():
                fold_deletes(
                    self._ledger,
                    self._paths.table,
                    pipeline=self._paths.pipeline,
                    now=_CLOCK.now(),
                    probe=self._probe,
                )
            for sink in (self.rows, self.quarantine):
                left = collect_leftovers(
                    sink, self._ledger, clock=_CLOCK, probe=self._probe, dry_run=dry_run, stopped=stopped
                )
                collected = replace(
                    collected,
                    compactions=collected.compactions + left.folders,
                    files=collected.files + left.files,
                    bytes=collected.bytes + left.bytes,
                )
        except TableError as error:
            raise TemporaryError(f"leftovers of compactions cannot be listed or deleted: {error}") from error
        return collected

    def _publish_rows(self) -> None:
        self._rows_published = publish(
            self._ledger,
            self.rows,
            pipeline=self._paths.pipeline,
            manifest_of=_rows_manifest,
            schema_of=partial(rows_schema, partition_by=self._partition_by),
            replaces=lambda batch: replaced_objects(batch.record.replaces),
            merges=True,
            bus=self._bus,
            probe=self._probe,
            step=Step.ROWS_PUBLISHED,
            after=self._rows_published,
            watch=self._watch(self.rows, _added_manifest),
            checkpoints=self._rows_checkpoints,
        )

    def _publish_quarantine(self) -> None:
        rows = self._rows_published
        reading = self._quarantine_progress.begin(rows_position=START if rows is None else rows.position)
        self._quarantine_published = published = publish(
            self._ledger,
            self.quarantine,
            pipeline=self._paths.pipeline,
            manifest_of=reading.manifest_of,
            schema_of=lambda _: QUARANTINE_SCHEMA,
            bus=self._bus,
            probe=self._probe,
            step=Step.QUARANTINE_PUBLISHED,
            after=reading.after,
            watch=self._watch(self.quarantine, _quarantine_manifest),
            empty_to=reading.empty_to,
            checkpoints=self._quarantine_checkpoints,
        )
        reading.end(published)

    def _watch(self, sink: TableSink, manifest_of: Callable[[BatchRow], str]) -> CommitWatch | None:
        log = sink.commit_log
        if log is None:
            return None
        return CommitWatch(self._ledger, sink, log, pipeline=self._paths.pipeline, manifest_of=manifest_of)

    def _shortfall(self, sink: TableSink, manifest_of: Callable[[BatchRow], str], index: int) -> Shortfall | None:
        written = partial(self._written, index=index)
        return shortfall(self._ledger, sink, pipeline=self._paths.pipeline, written=written, manifest_of=manifest_of)

    def _written(self, seq: int, *, index: int) -> int | None:
        """Return the rows that the batches up to this one wrote to a table; None if some were replaced since."""
        if index == _ROWS and self._ledger.has_replaced(self._paths.pipeline, seq):
            return None
        if index == _ROWS and self._ledger.is_merged(self._paths.pipeline, seq):
            return None
        return self._ledger.written_to(self._paths.pipeline, seq)[index]

    def _collect(
        self, *, dry_run: bool, stragglers: bool, stopped: Callable[[], bool] = lambda: False
    ) -> CollectedGarbage:
        for sink in (self.rows, self.quarantine):
            check_tip(self._ledger, sink.load(), pipeline=self._paths.pipeline, where=sink.uri)
        return collect(
            self._ledger,
            pipeline=self._paths.pipeline,
            roots=(self._paths.table, self._paths.quarantine),
            work=self._paths.work,
            bus=self._bus,
            probe=self._probe,
            dry_run=dry_run,
            stragglers=stragglers,
            stopped=stopped,
        )


def _seq(sink: TableSink) -> int:
    table = sink.load()
    return table.position.seq if table is not None else 0


def _changes_rows(batch: BatchRow, *, has_table: bool) -> bool:
    """Return True if the batch changes the rows table. Without a table it has no rows to replace."""
    is_shown = not (is_empty(batch.record.manifest) and is_empty(batch.record.tombstones))
    return is_shown or (has_table and bool(batch.record.replaces))


def _rows_manifest(batch: BatchRow) -> str:
    return batch.record.manifest


def _added_manifest(batch: BatchRow) -> str:
    """Return the files that the batch adds to the table as they are: none if its rows are merged."""
    return "" if batch.record.merge is not None else batch.record.manifest


def _quarantine_manifest(batch: BatchRow) -> str:
    return batch.record.quarantine_manifest
