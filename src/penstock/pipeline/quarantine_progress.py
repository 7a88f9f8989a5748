"""The batches after the quarantine table's position that have no bad lines. A publish does not read them again.

Most pipelines never have a bad line, so the position of their quarantine never moves: without this, each publish would
read all of their batches.
"""

from dataclasses import dataclass, replace

from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.publish import Published
from penstock.pipeline.publish_chunk import position_of
from penstock.sinks.sink import Position

RECORD_EVERY_BATCHES = 100


class QuarantineProgress:
    """The last batch up to which a pipeline's quarantine has nothing to publish, as one process knows it. Thread-safe.

    A publish may skip the batches after the table's position P up to a batch B if all of this holds:

    - A publish read these batches when the table was at P, and none of them had bad lines.
    - B was the rows table's last batch then, and the publish read it, or began after it. After a rollback of the
      ledger, a repair puts the batches that the tables show in the place of those that the ledger has. It may replace
      a batch that no table shows and keep the next one. B and the batches before it are shown, so it keeps them.
    - The ledger still has B.

    B is remembered in this process, by number and attempt. Every `RECORD_EVERY_BATCHES` batches it is recorded in the
    ledger, by its number and that of P: a process that starts, or that sees another position, begins there.
    """

    def __init__(self, ledger: Ledger, *, pipeline: str, probe: Probe) -> None:
        self._ledger = ledger
        self._pipeline = pipeline
        self._probe = probe
        self._known: _Known | None = None  # written by any thread that publishes; an older value does no harm

    def recorded(self, position: Position) -> Position:
        """Return the last batch that may be skipped at this position, as the ledger records it; else the position."""
        seq = self._ledger.progress(self._pipeline, _record(position))
        batch = self._ledger.batch(self._pipeline, seq) if seq > position.seq else None
        return position if batch is None else position_of(batch)

    def begin(self, *, rows_position: Position) -> "QuarantineReading":
        """Begin a publish. ``rows_position`` is the rows table's position after this process's last publish of it."""
        return QuarantineReading(self, known=self._known, rows_position=rows_position)

    def remember(self, known: "_Known | None") -> None:
        """Let the next publish begin there. Record it in the ledger first if it is far from the last record."""
        if known is not None and known.unrecorded >= RECORD_EVERY_BATCHES:
            skipped_to = known.published.read_to
            self._ledger.advance_progress(self._pipeline, _record(known.published.position), skipped_to.seq)
            self._probe(Step.NO_BAD_LINES_RECORDED)
            known = replace(known, recorded=skipped_to)
        self._known = known


class QuarantineReading:
    """The batches that one publish of the quarantine reads or skips. Used by one thread."""

    def __init__(self, progress: QuarantineProgress, *, known: "_Known | None", rows_position: Position) -> None:
        self._progress = progress
        self._known = known
        self._recorded = None if known is None else known.recorded
        self._rows_position = rows_position
        self._has_read_rows_tip = False  # the batch at the rows table's position, or began after it

    @property
    def after(self) -> Published | None:
        """The earlier result after which the publish begins, unless the table's position has moved."""
        return None if self._known is None else self._known.published

    def manifest_of(self, batch: BatchRow) -> str:
        """Return the files with bad lines of a batch, and note that the publish has read it."""
        self._has_read_rows_tip = self._has_read_rows_tip or position_of(batch) == self._rows_position
        return batch.record.quarantine_manifest

    def empty_to(self, position: Position) -> Position:
        """Return the last batch to skip at a position. `publish` calls this whenever it does not begin at `after`."""
        self._known = None
        self._recorded = begin = self._progress.recorded(position)
        self._has_read_rows_tip = begin == self._rows_position
        return begin

    def end(self, published: Published) -> None:
        """Remember the rows table's position, if the publish found no bad line up to it."""
        recorded = published.position if self._recorded is None else self._recorded
        if self._has_read_rows_tip and self._rows_position.seq >= max(published.position.seq, recorded.seq):
            self._known = _Known(published=replace(published, read_to=self._rows_position), recorded=recorded)
        self._progress.remember(self._known)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """Batches without bad lines after the table's position."""

    published: Published  # the next publish begins after its ``read_to``, the last of them
    recorded: Position  # the last of them in the ledger's record

    @property
    def unrecorded(self) -> int:
        """The number of these batches after the last one that the ledger records."""
        return self.published.read_to.seq - max(self.published.position.seq, self.recorded.seq)


def _record(position: Position) -> str:
    """Return the name of the record in the ledger, which is valid for this position alone."""
    return f"no bad lines after {position.seq}"
