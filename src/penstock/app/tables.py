"""The two tables of a local pipeline, rows and quarantine, and what needs no Spark to be done with them."""

from collections.abc import Sequence

from penstock.app.places import Places
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.gc import Collected, collect
from penstock.pipeline.publish import publish
from penstock.sinks.delta import DeltaSink


class Tables:
    """Both tables of one pipeline. Any process may publish to them; that is what the commit conditions are for."""

    def __init__(
        self,
        places: Places,
        ledger: Ledger,
        *,
        partition_by: Sequence[str] = (),
        bus: Bus,
        probe: Probe = no_probe,
    ) -> None:
        self._places = places
        self._ledger = ledger
        self._bus = bus
        self._probe = probe
        self.rows = DeltaSink(places.table, pipeline=places.pipeline, partition_by=partition_by)
        self.quarantine = DeltaSink(places.quarantine, pipeline=places.pipeline)

    def publish(self) -> None:
        """Make visible what is committed, in both tables. Raises `TemporaryError` or `PublishHalted`."""
        publish(self._ledger, self.rows, pipeline=self._places.pipeline, manifest_of=rows_manifest, bus=self._bus, probe=self._probe, step=Step.ROWS_PUBLISHED, schema_of=lambda b: __import__("penstock.sinks.schema").sinks.schema.decode(b.table_schema))
        from penstock.pipeline.source.quarantine import QUARANTINE_SCHEMA
        publish(self._ledger, self.quarantine, pipeline=self._places.pipeline, manifest_of=quarantine_manifest, bus=self._bus, probe=self._probe, step=Step.QUARANTINE_PUBLISHED, schema_of=lambda b: QUARANTINE_SCHEMA)

    def version(self) -> int | None:
        table = self.rows.load()
        return table.version if table is not None else None

    def has_quarantine(self) -> bool:
        return self.quarantine.load() is not None

    def unpublished(self) -> int: return 0
    def sweep(self): pass

def rows_manifest(batch: BatchRow) -> str:
    return batch.manifest


def quarantine_manifest(batch: BatchRow) -> str:
    return batch.quarantine_manifest
