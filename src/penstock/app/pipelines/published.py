"""Telling handlers of each batch that became visible: one durable message a batch, in order, at least once.

How far was told stands in the ledger and moves after the send: a process that dies in between leaves its successor to
send once more, and the message's deduplication id lets the broker drop what it has already.
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

SEND_MAX = 100  # messages in one call


class PublishedBatch(BaseModel):
    """One batch that became visible. ``rows`` is 0 where its objects gave none, or only lines for the quarantine."""

    model_config = ConfigDict(frozen=True)

    pipeline: str
    seq: int  # of the pipeline's batches, without a gap
    table: str  # its folder
    rows: int
    lines_quarantined: int
    objects: int
    committed_at: datetime  # UTC, the ledger's clock


class PublishNotifier:
    """Tells of one pipeline's batches. Any thread may call it, and any number of processes."""

    def __init__(
        self, *, ledger: "Ledger", broker: Broker, queue: Queue[PublishedBatch], pipeline: str, table: str
    ) -> None:
        self._ledger = ledger
        self._broker = broker
        self._queue = queue.name
        self._codec = BodyCodec(queue)
        self._pipeline = pipeline
        self._table = table
        ledger.begin_telling(pipeline)

    def tell(self, visible_to: int) -> None:
        """Tell of every batch up to this one that was not told of. Raises `TemporaryError` where the broker is away."""
        told = self._ledger.begin_telling(self._pipeline)  # never from memory: a ledger may give numbers again
        if visible_to <= told:
            return
        batches = takewhile(lambda batch: batch.seq <= visible_to, self._ledger.batches_after(self._pipeline, told))
        while chunk := tuple(islice(batches, SEND_MAX)):
            answers = send_each(self._broker, self._queue, [self._message(batch) for batch in chunk])
            taken = list(takewhile(lambda answer: isinstance(answer, str), answers))
            if taken:
                self._ledger.advance_told(self._pipeline, chunk[len(taken) - 1].seq)
            for answer in answers:
                if isinstance(answer, PenstockError):
                    raise answer

    def _message(self, batch: "BatchRow") -> Outgoing:
        body = PublishedBatch(
            pipeline=self._pipeline,
            seq=batch.seq,
            table=self._table,
            rows=batch.rows,
            lines_quarantined=batch.lines_quarantined,
            objects=batch.objects,
            committed_at=datetime.fromtimestamp(batch.committed_at, UTC),
        )
        return Outgoing(
            body=self._codec.encode(body),
            attributes=self._codec.attributes(),
            deduplication_id=f"{self._pipeline}:{batch.seq}:{batch.attempt_id}",
        )
