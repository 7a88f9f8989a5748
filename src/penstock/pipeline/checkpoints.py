"""Checkpoints of Delta tables and version hints of Iceberg tables, written after the commits that call for one.

The rows are committed without them. Until the next checkpoint, reading a Delta table takes longer with every commit;
until the next version hint, readers of an Iceberg table's folder may see an older version. So a failure does not fail
the publish: the checkpoint is due again after the next commit.
"""

import threading

from penstock.errors import TableError, TemporaryError
from penstock.events import Bus, CheckpointFailed
from penstock.messaging.steps import Probe
from penstock.sinks.sink import CheckpointedTable


class CheckpointWriter:
    """Write the checkpoints of one table in one process, and report the first failure. Thread-safe."""

    def __init__(self, *, pipeline: str, sink: str, bus: Bus) -> None:
        self._pipeline = pipeline
        self._sink = sink
        self._bus = bus
        self._lock = threading.Lock()
        self._reported = False  # under the lock

    def after_commit(self, snapshot: object, version: int | None, *, probe: Probe) -> None:
        """Write the checkpoint of ``version``, which was committed to this snapshot, if the table is due for one."""
        if version is None or not isinstance(snapshot, CheckpointedTable) or not snapshot.is_checkpoint_due(version):
            return
        try:
            snapshot.write_checkpoint(version, probe=probe)
        except (TableError, TemporaryError) as error:
            self._report(version, str(error))

    def _report(self, version: int, error: str) -> None:
        with self._lock:
            reported, self._reported = self._reported, True
        if not reported:
            self._bus.emit(CheckpointFailed(pipeline=self._pipeline, sink=self._sink, version=version, error=error))
