"""Maintain tables and their ledger by command, beside the workers: publish, repair, compact, vacuum, archive.

Safe at any time, from any host that reaches both; none of it needs Spark.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from penstock.app.backends import ledger_exists
from penstock.app.jobs.archive import archive, cleanups_of, stores
from penstock.app.jobs.compact import compact_tables, sinks_of
from penstock.app.kill import killing_probe
from penstock.app.loading import load_app
from penstock.app.object_service import ObjectService
from penstock.app.paths import TablePaths
from penstock.app.scope import Scope, scope_ledger
from penstock.app.tables import Tables
from penstock.config import load_settings
from penstock.errors import UsageError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import Probe
from penstock.pipeline.maintenance.archive import ArchiveResult, check_retention
from penstock.pipeline.maintenance.compact import CompactionResult, Progress
from penstock.pipeline.maintenance.repair import Repairer
from penstock.sinks.manifest import decode
from penstock.sinks.sink import TableSink


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainedPipeline:
    """One pipeline whose tables are maintained."""

    paths: TablePaths
    ledger: Ledger
    bus: Bus
    probe: Probe

    @property
    def pipeline(self) -> str:
        return self.paths.pipeline

    @property
    def sinks(self) -> tuple[TableSink, TableSink]:
        """The sinks of rows and quarantine, with any partitioning."""
        return sinks_of(self.paths)

    def repairer(self, *, adopt: bool) -> Repairer:
        """Return a repairer, which inspects the tables and finds the necessary repairs."""
        rows, quarantine = self.sinks
        return Repairer(self.ledger, pipeline=self.pipeline, rows=rows, quarantine=quarantine, adopt=adopt)

    def publish(self) -> int:
        """Make committed batches visible in both tables; return their number.

        Raises as `Tables.publish` does.
        """
        tables = Tables(self.paths, self.ledger, partition_by=self._partition_by(), bus=self.bus, probe=self.probe)
        waiting = tables.unpublished()
        tables.publish()
        return waiting

    def compact(
        self, *, target_bytes: int, order_by: Sequence[str], dry_run: bool, progress: Progress
    ) -> Sequence[CompactionResult]:
        """Merge small files in each table that exists. Raises as `compact` does."""
        return compact_tables(
            self.paths,
            bus=self.bus,
            probe=self.probe,
            clock=SystemClock(),
            target_bytes=target_bytes,
            order_by=order_by,
            dry_run=dry_run,
            progress=progress,
        )

    def vacuum(self, *, retention_hours: int | None, dry_run: bool) -> Mapping[str, int]:
        """Delete files that left the tables longer ago than the retention; return counts by table address.

        Raises `TableError` for a retention below the table's own.
        """
        tables = ((sink.uri, sink.history.load()) for sink in self.sinks if sink.history is not None)
        return {
            uri: len(table.vacuum(retention_hours=retention_hours, dry_run=dry_run)) for uri, table in tables if table
        }

    def _partition_by(self) -> tuple[str, ...]:
        """Return the table's partition columns; for a table that does not exist yet, those of its first files."""
        table = self.sinks[0].load()
        if table is not None:
            return tuple(table.partition_by)
        files = (
            file for batch in self.ledger.batches_after(self.pipeline, 0) for file in decode(batch.record.manifest)
        )
        first = next(files, None)
        return () if first is None else tuple(first.partition_values)


@contextmanager
def maintained_pipelines(scope: Scope, *, bus: Bus) -> Iterator[Mapping[str, MaintainedPipeline]]:
    """Yield the pipelines of the scope, by name.

    Raises `UsageError` if there is no ledger, or no table with a known location.
    """
    tables = scope.tables_meant
    if not ledger_exists(scope.settings):
        raise UsageError(f"There is no ledger at {scope.name}; the first worker or ingest creates it.")
    probe = killing_probe(load_settings().kill_at)
    ledger = scope_ledger(scope, probe=probe)
    try:
        yield {
            name: MaintainedPipeline(paths=paths, ledger=ledger, bus=bus, probe=probe) for name, paths in tables.items()
        }
    finally:
        ledger.close()


def archive_scope(
    scope: Scope, *, app: str | None, older_than_seconds: float, dry_run: bool
) -> Mapping[str, ArchiveResult]:
    """Archive the selected pipelines and object handlers; return the results by pipeline.

    Raises `UsageError` for an age below the minimum, and if the locations of an app's tables are unknown.
    """
    check_retention(older_than_seconds)
    settings = load_settings()
    tableless = [name for name in sorted(scope.tableless) if scope.pipeline in (None, name)]
    tables = {} if tableless and scope.pipeline in tableless else _tables(scope, tableless)
    if not ledger_exists(scope.settings):
        raise UsageError(f"There is no ledger {scope.name} yet: the first worker, or ingest, creates it.")
    cleans_up = dict.fromkeys(tableless, False)
    if app is not None:
        loaded = load_app(app)
        objects = [service for service in loaded.services if isinstance(service, ObjectService)]
        cleans_up |= cleanups_of([*loaded.pipelines, *objects])
    probe, clock = killing_probe(settings.kill_at), SystemClock()
    where_settings = settings.model_copy(update={"data_dir": scope.settings.data_dir})
    with closing(scope_ledger(scope, probe=probe)) as ledger:
        return {
            store.pipeline: archive(
                store, ledger, older_than_seconds=older_than_seconds, probe=probe, clock=clock, dry_run=dry_run
            )
            for store in stores(tables, tableless, ledger, where_settings, cleans_up=cleans_up)
        }


def _tables(scope: Scope, tableless: list[str]) -> Mapping[str, TablePaths]:
    if tableless and not scope.tables:
        return {}
    return scope.tables_meant
