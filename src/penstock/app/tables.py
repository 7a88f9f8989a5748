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
