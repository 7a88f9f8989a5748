"""What a person does to tables and their ledger beside the workers: publish, repair, compact.

Any of it may be done at any time and from any host that reaches both; none of it needs Spark.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.app.backends import open_ledger
from penstock.app.kill import killing_probe
from penstock.app.places import Places
from penstock.app.scope import Scope, is_there
from penstock.app.state import check_owner
from penstock.app.tables import Tables
from penstock.config import load_settings
from penstock.errors import UsageError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.messaging.steps import Probe
from penstock.pipeline.repair import Repairer
from penstock.sinks.delta import DeltaTableSink
from penstock.sinks.manifest import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One pipeline whose tables are looked after."""

    places: Places
    ledger: Ledger
    bus: Bus
    probe: Probe

    @property
    def pipeline(self) -> str:
        return self.places.pipeline

    @property
    def sinks(self) -> tuple[DeltaTableSink, DeltaTableSink]:
        """Of the rows and of the quarantine, whatever they are partitioned by."""
        return tuple(  # type: ignore[return-value]  # two places, two sinks
            DeltaTableSink(place, pipeline=self.pipeline, partition_by=None)
            for place in (self.places.table, self.places.quarantine)
        )

    def repairer(self, *, adopt: bool) -> Repairer:
        """One look at what a repair would have to do."""
        rows, quarantine = self.sinks
        return Repairer(self.ledger, pipeline=self.pipeline, rows=rows, quarantine=quarantine, adopt=adopt)

    def publish(self) -> int:
        """Make committed batches visible in both tables; answers how many there were.

        Raises as `Tables.publish` does.
        """
        tables = Tables(self.places, self.ledger, partition_by=self._partition_by(), bus=self.bus, probe=self.probe)
        waiting = tables.unpublished()
        tables.publish()
        return waiting

    def _partition_by(self) -> tuple[str, ...]:
        """As the table is; one that is still to be made, as its first files are."""
        table = self.sinks[0].load()
        if table is not None:
            return tuple(table.partition_by)
        files = (file for batch in self.ledger.batches_after(self.pipeline, 0) for file in decode(batch.manifest))
        first = next(files, None)
        return () if first is None else tuple(first.partition_values)


@contextmanager
def kept(scope: Scope, *, bus: Bus) -> Iterator[Mapping[str, Kept]]:
    """The pipelines that the scope means, by name, until the block ends.

    Raises `UsageError` where there is no ledger, or no table whose place is known.
    """
    tables = scope.tables_meant
    if not is_there(scope.settings.ledger):
        raise UsageError(f"There is no ledger at {scope.name}; the first worker or ingest makes it.")
    probe = killing_probe(load_settings().kill_at)
    ledger = open_ledger(scope.settings, probe=probe)
    try:
        if scope.table is not None:
            check_owner(ledger, scope.table)
        yield {name: Kept(places=places, ledger=ledger, bus=bus, probe=probe) for name, places in tables.items()}
    finally:
        ledger.close()
