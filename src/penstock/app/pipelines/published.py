"""Notify handlers of published batches: one durable message per batch, in order, at least once.

The ledger records the last notified batch, after the send: if a process dies in between, its successor sends again, and
the deduplication id lets the broker drop the duplicate.
"""

from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from penstock.errors import PenstockError
from penstock.messaging.broker import Broker, send_each
from penstock.messaging.message import Outgoing
from penstock.messaging.schema import BodyCodec, Queue

if TYPE_CHECKING:
    from penstock.ledger import Ledger
    from penstock.ledger.records import BatchRow

SEND_MAX = 100  # messages per call


class PublishedBatch(BaseModel):
    """One published batch: the body of the message that is sent for it.

    Attributes:
        pipeline: The pipeline's name.
        seq: The number of the batch in the pipeline's gapless sequence, from 1.
        table: The table's folder or S3 address.
        rows: Rows written to the table; 0 if the objects contained none, or only lines for the quarantine.
        lines_quarantined: Lines written to the quarantine.
        objects: Objects processed.
        committed_at: The time of the commit in UTC, by the ledger's clock.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    seq: int
    table: str
    rows: int
    lines_quarantined: int
    objects: int
    committed_at: datetime


class PublishNotifier:
    """Send the messages for one pipeline's published batches. Thread-safe, and safe across processes."""

    def __init__(
        self, *, ledger: "Ledger", broker: Broker, queue: Queue[PublishedBatch], pipeline: str, table: str
    ) -> None:
        self._ledger = ledger
        self._broker = broker
        self._queue = queue.name
        self._codec = BodyCodec(queue)
        self._pipeline = pipeline
        self._table = table
        ledger.begin_announcing(pipeline)

    def announce(self, visible_to: int) -> None:
        """Send a message for every batch up to this one that had none.

        Raises `TemporaryError` if the broker is unavailable.
        """
        announced = self._ledger.begin_announcing(self._pipeline)  # not cached: a ledger may reuse numbers
        if visible_to <= announced:
            return
        batches = takewhile(
            lambda batch: batch.seq <= visible_to, self._ledger.batches_after(self._pipeline, announced)
        )
        while chunk := tuple(islice(batches, SEND_MAX)):
            results = send_each(self._broker, self._queue, [self._message(batch) for batch in chunk])
            taken = list(takewhile(lambda result: isinstance(result, str), results))
            if taken:
                self._ledger.advance_announced(self._pipeline, chunk[len(taken) - 1].seq)
            for result in results:
                if isinstance(result, PenstockError):
                    raise result

    def _message(self, batch: "BatchRow") -> Outgoing:
        body = PublishedBatch(
            pipeline=self._pipeline,
            seq=batch.seq,
            table=self._table,
            rows=batch.record.rows,
            lines_quarantined=batch.record.lines_quarantined,
            objects=batch.objects,
            committed_at=datetime.fromtimestamp(batch.committed_at, UTC),
        )
        return Outgoing(
            body=self._codec.encode(body),
            attributes=self._codec.attributes(),
            deduplication_id=f"{self._pipeline}:{batch.seq}:{batch.attempt_id}",
        )
