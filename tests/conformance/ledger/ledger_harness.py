"""Helpers of the ledger's tests: make candidates and outcomes in one line, and read everything stored."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from penstock.ledger import Ledger
from penstock.ledger.records import (
    AttemptFailure,
    BatchOutcome,
    Candidate,
    Committed,
    FailedObject,
    ObjectClaims,
    ObjectResult,
    ObjectState,
    OnChange,
    OriginalMessage,
    WorkClaimResult,
    WorkRow,
)
from penstock.ledger.schema import metadata

PIPELINE = "file:///lake/clicks"
HANDLER = "thumbnails"
LEASE_SECONDS = 60.0
OVER = -1.0  # a lease that has expired when it is granted: no test has to wait for one
BEFORE = 1_000.0  # long before any test's database clock
AFTER = time.time() + 86_400.0  # and long after it


def object_id_of(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:16]


def candidate(
    name: str,
    *,
    message: str = "m-1",
    enqueued_at: float = BEFORE,
    replay: str | None = None,
    key: bytes | None = None,
    version_id: str | None = None,
    sequencer: str | None = None,
) -> Candidate:
    key = key if key is not None else f"/landing/{name}".encode()
    return Candidate(
        object_id=object_id_of(name),
        bucket="landing",
        key=key,
        size_bytes=100,
        uri=f"s3://landing/{key.decode('utf-8', 'backslashreplace')}",
        original_message=OriginalMessage(message_id=message, enqueued_at=enqueued_at, replay_id=replay),
        version_id=version_id,
        etag="etag",
        sequencer=sequencer,
    )


def candidates(*names: str) -> list[Candidate]:
    return [candidate(name) for name in names]


def outcome(
    claim: ObjectClaims,
    *,
    failed: Mapping[str, AttemptFailure] | None = None,
    uncounted: bool = False,
    pipeline: str = PIPELINE,
    **fields: Any,
) -> BatchOutcome:
    """Return an outcome in which every claimed object is processed except those in ``failed``."""
    failures = [
        FailedObject(object_id=object_id_of(name), failure=failure, reason=f"{name} is {failure}", uncounted=uncounted)
        for name, failure in (failed or {}).items()
    ]
    failed_ids = {failure.object_id for failure in failures}
    processed = [
        ObjectResult(object_id=object_id, rows=10, lines_quarantined=1)
        for object_id in claim.claimed
        if object_id not in failed_ids
    ]
    return BatchOutcome(pipeline=pipeline, attempt_id=claim.attempt_id, processed=processed, failed=failures, **fields)


def seq_of(committed: Committed | None) -> int | None:
    """Return the number of a committed batch."""
    return None if committed is None else committed.seq


@dataclass
class LedgerHarness:
    """A ledger with its pipeline, and attempt ids that never repeat."""

    ledger: Ledger
    numbers: "count[int]" = field(default_factory=count)
    url: str = ""  # of the ledger's database, if others can open it

    def next_attempt_id(self) -> str:
        return f"attempt-{next(self.numbers):04}"

    def claim(
        self,
        wanted: Sequence[Candidate],
        *,
        attempt: str | None = None,
        worker: str = "worker-1",
        lease_seconds: float = LEASE_SECONDS,
        pipeline: str = PIPELINE,
        on_change: OnChange = OnChange.ADD,
    ) -> ObjectClaims:
        return self.ledger.claim(
            pipeline,
            wanted,
            attempt_id=attempt or self.next_attempt_id(),
            worker=worker,
            lease_seconds=lease_seconds,
            on_change=on_change,
        )

    def process(self, *names: str) -> int | None:
        return seq_of(self.ledger.commit(outcome(self.claim(candidates(*names)))))

    def fail(self, failure: AttemptFailure, wanted: Candidate, name: str) -> None:
        claim = self.claim([wanted])
        assert self.ledger.commit(outcome(claim, failed={name: failure})) is None

    def begin(
        self,
        key: str = "k",
        *,
        attempt: str | None = None,
        handler: str = HANDLER,
        worker: str = "worker-1",
        lease_seconds: float = LEASE_SECONDS,
    ) -> WorkClaimResult:
        return self.ledger.begin_work(
            handler, key, attempt_id=attempt or self.next_attempt_id(), worker=worker, lease_seconds=lease_seconds
        )

    def work(self, key: str = "k") -> WorkRow:
        row = self.ledger.work(HANDLER, key)
        assert row is not None
        return row

    def state(self, name: str) -> ObjectState | None:
        return self.ledger.states(PIPELINE, [object_id_of(name)]).get(object_id_of(name))

    def attempts(self, name: str) -> int:
        """Return the attempts as the next claim would see them, without those not counted."""
        (row,) = [row for row in self.ledger.objects(PIPELINE) if row.object_id == object_id_of(name)]
        return row.attempts

    def timeline(self, name: str) -> list[tuple[str, str, str | None]]:
        rows = self.ledger.attempts_of(PIPELINE, object_id_of(name))
        return [(row.attempt_id, row.outcome, row.reason) for row in rows]

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table, to show that nothing changed."""
        with self.ledger.database.reading() as connection:
            return {
                table.name: sorted((tuple(row) for row in connection.execute(table.select())), key=repr)
                for table in metadata.sorted_tables
            }
