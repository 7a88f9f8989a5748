"""Register one table in a data catalog after it was published: once per process, and again when columns were added.

A failure does not affect the rows, which are published before. It is emitted as an event, and a later call tries again.
"""

import threading

from penstock.errors import TableError, TemporaryError
from penstock.events import Bus, TableNotRegistered, TableRegistered
from penstock.messaging.backoff import ceiling_seconds
from penstock.messaging.clock import Clock
from penstock.sinks.catalogs.catalog import Catalog, CatalogEntry, CatalogError, Change
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.schema import encode
from penstock.sinks.sink import TableSink

RETRY_SECONDS = 60.0  # after a failure, doubled with each further one
RETRY_SECONDS_MAX = 3_600.0


class Registrar:
    """Keeps the entry of one table in a catalog. Any thread may call it; one at a time calls the catalog."""

    def __init__(
        self, catalog: Catalog, name: CatalogName, sink: TableSink, *, pipeline: str, bus: Bus, clock: Clock
    ) -> None:
        self._catalog = catalog
        self._name = name
        self._sink = sink
        self._pipeline = pipeline
        self._bus = bus
        self._clock = clock
        # Under the lock:
        self._lock = threading.Lock()
        self._version: int | None = None  # of the table when its entry was last up to date
        self._schema: str | None = None  # the columns of that entry
        self._failures = 0  # in a row
        self._next_at = 0.0  # monotonic; not before, after a failure

    def register(self, version: int | None, *, at_once: bool = False) -> str | None:
        """Bring the entry up to date with a version of the table, unless it is. Return the reason of a failure.

        Args:
            version: The version that the last publish saw; None: the table does not exist yet.
            at_once: Do not wait after an earlier failure.
        """
        with self._lock:
            if version is None or version == self._version:
                return None
            if not at_once and self._clock.monotonic() < self._next_at:
                return None
            try:
                table = self._sink.load()
                if table is None:
                    return None
                schema = encode(table.schema)
                if schema != self._schema:
                    self._change(CatalogEntry(location=self._sink.uri, schema=table.schema))
            except (CatalogError, TableError, TemporaryError) as error:
                return self._failed(str(error))
            self._version, self._schema, self._failures = version, schema, 0
            return None

    def _change(self, entry: CatalogEntry) -> None:
        change = self._catalog.register(self._name, entry)
        if change is not Change.NONE:
            self._bus.emit(
                TableRegistered(
                    pipeline=self._pipeline, sink=self._sink.uri, entry=str(self._name), change=change.value
                )
            )

    def _failed(self, error: str) -> str:
        self._failures += 1
        wait = ceiling_seconds(attempt=self._failures, base_seconds=RETRY_SECONDS, cap_seconds=RETRY_SECONDS_MAX)
        self._next_at = self._clock.monotonic() + wait
        self._bus.emit(
            TableNotRegistered(pipeline=self._pipeline, sink=self._sink.uri, entry=str(self._name), error=error)
        )
        return error
