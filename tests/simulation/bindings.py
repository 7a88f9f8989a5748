"""Publish and collect garbage as `penstock.app` does, with the simulation's tables."""

import threading

import pyarrow as pa
from tests.simulation.fakes import SCHEMA, FakeTable, World

from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow
from penstock.messaging.steps import Step
from penstock.pipeline.maintenance.gc import collect
from penstock.pipeline.publish import Published, publish, rows_schema
from penstock.pipeline.quarantine_progress import QuarantineProgress
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock


class Tables:
    """Both tables of a schedule, as one process publishes to them."""

    def __init__(self, world: World, ledger: Ledger, pipeline: str, clock: FakeClock) -> None:
        self._world = world
        self._ledger = ledger
        self._pipeline = pipeline
        self._clock = InstantClock(clock)
        self._rows_published: Published | None = None
        self._quarantine_progress = QuarantineProgress(ledger, pipeline=pipeline, probe=world.probe)

    def publish(self, rows: FakeTable, quarantine: FakeTable) -> None:
        self._rows_published = publish(
            self._ledger,
            rows,
            pipeline=self._pipeline,
            manifest_of=_rows_manifest,
            schema_of=_rows_schema,
            bus=Bus(),
            probe=self._world.probe,
            step=Step.ROWS_PUBLISHED,
            clock=self._clock,
            after=self._rows_published,
        )
        reading = self._quarantine_progress.begin(rows_position=self._rows_published.position)
        published = publish(
            self._ledger,
            quarantine,
            pipeline=self._pipeline,
            manifest_of=reading.manifest_of,
            schema_of=lambda _: SCHEMA,
            bus=Bus(),
            probe=self._world.probe,
            step=Step.QUARANTINE_PUBLISHED,
            clock=self._clock,
            after=reading.after,
            empty_to=reading.empty_to,
        )
        reading.end(published)

    def sweep(self) -> None:
        collect(
            self._ledger,
            pipeline=self._pipeline,
            roots=(LocalFiles(self._world.table_root), LocalFiles(self._world.quarantine_root)),
            work=LocalFiles(self._world.root / "work"),
            bus=Bus(),
            probe=self._world.probe,
        )


class InstantClock:
    """A clock whose waits return at once and always take the same time, so that a schedule is reproducible."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.now = clock.now
        self.monotonic = clock.monotonic

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self._clock.advance(0.01)
        return event.is_set()


def _rows_manifest(batch: BatchRow) -> str:
    return batch.record.manifest


def _rows_schema(batch: BatchRow) -> pa.Schema:
    return rows_schema(batch, partition_by=None)
