"""The ledger, a SQLite file, by the number of processed objects that it has.

Filled by SQL, as by a pipeline with batches of 5,000 objects: a row for each object and for its attempt, and batches
with a manifest of 2 kB. Claimed objects are new, with ids between those of the others. `benchmarks.growth.servers`
makes the same calls on MariaDB and PostgreSQL.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.growth.curves import Curve, Series
from penstock.ledger import Ledger
from penstock.ledger.object_lists import ObjectFilter
from penstock.ledger.records import (
    BatchOutcome,
    BatchRecord,
    Candidate,
    ObjectResult,
    ObjectState,
    OnChange,
    OriginalMessage,
)

PIPELINE = "clicks"
_BATCH = 5_000  # objects, of the rows that are there
_FILL_AT_ONCE = 500_000
_CLAIM = 1_000
_ROUNDS = 10
_PAGE, _READ = 50, 1_000  # of a list: objects, and rows that may be read for them
_STEP = 2**62

UNITS = {
    "claim": "object",
    "commit": "object",
    "known?": "object",
    "list, newest page": "call",
    "waiting objects": "call",
    "count, since the last one": "call",
    "totals, at a start": "call",
    "count, all": "call",
}
_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last) "
_ID = "CAST(printf('%016x', i * :step) AS BLOB)"
_ATTEMPT = "printf('attempt-%010d', i / :batch)"
_FILL_OBJECTS = (
    _NUMBERS
    + f"""
INSERT INTO objects (pipeline, object_id, bucket, key, uri, uri_digest, size_bytes, etag, sequencer, state, attempt_id,
    charged, refunds, unattributed_failures, batch_seq, rows, lines_quarantined, carrier_message_id,
    carrier_enqueued_at, first_seen_at, ended_at)
SELECT :pipeline, {_ID}, 'landing', CAST('clicks/2024/01/' || i || '.jsonl.gz' AS BLOB),
    's3://landing/clicks/2024/01/' || i || '.jsonl.gz', {_ID}, 10000, printf('%032x', i), printf('%016x', i),
    'processed', {_ATTEMPT}, 1, 0, 0, i / :batch + 1, 50, 0, printf('message-%020d', i), 1.7e9, 1.7e9, 1.7e9
FROM n"""
)
_FILL_OBJECT_ATTEMPTS = (
    _NUMBERS
    + f"INSERT INTO object_attempts (pipeline, object_id, attempt_id) SELECT :pipeline, {_ID}, {_ATTEMPT} FROM n"
)
_FILL_ATTEMPTS = (
    _NUMBERS
    + """
INSERT INTO attempts (id, pipeline, state, worker, started_at, ended_at, lease_until, heartbeat_seq)
SELECT printf('attempt-%010d', i), :pipeline, 'committed', 'growth', 1.7e9, 1.7e9, 1.7e9, 1 FROM n"""
)
_FILL_BATCHES = (
    _NUMBERS
    + """
INSERT INTO batches (pipeline, seq, attempt_id, schema_id, manifest, quarantine_manifest, objects, rows,
    lines_quarantined, bytes, committed_at, stage_seconds)
SELECT :pipeline, i + 1, printf('attempt-%010d', i), 1, hex(randomblob(1000)), '', :batch, 50 * :batch, 0,
    10000 * :batch, 1.7e9, '{}' FROM n"""
)


def measure(sizes: Sequence[int], folder: Path) -> Sequence[Curve]:
    series = Series("ledger", UNITS)
    for size in sizes:
        file = folder / f"ledger-{size}.db"
        _fill(file, size)
        ledger = Ledger.open(file)
        Calls(ledger=ledger, size=size, candidate=_candidate, measured=series.of).measure()
        ledger.close()
        series.done(size)
        for path in folder.glob(f"{file.name}*"):  # gigabytes
            path.unlink()
    return series.curves()


def _fill(file: Path, size: int) -> None:
    ledger = Ledger.open(file)
    ledger.ensure_pipeline(PIPELINE)
    ledger.close()
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    common = {"pipeline": PIPELINE, "batch": _BATCH, "step": _STEP // max(size, 1)}
    for first in range(0, size, _FILL_AT_ONCE):
        last = min(first + _FILL_AT_ONCE, size) - 1
        objects = {**common, "first": first, "last": last}
        batches = {**common, "first": first // _BATCH, "last": last // _BATCH}
        for statement, binds in (
            (_FILL_ATTEMPTS, batches),
            (_FILL_BATCHES, batches),
            (_FILL_OBJECTS, objects),
            (_FILL_OBJECT_ATTEMPTS, objects),
        ):
            connection.execute(statement, binds)
    connection.execute("UPDATE pipelines SET next_seq = (SELECT COUNT(*) FROM batches) + 1")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The measured calls of a ledger that has ``size`` processed objects.

    ``candidate`` returns a new object of a name. ``measured`` measures a block, given the operation and its units.
    """

    ledger: Ledger
    size: int
    candidate: Callable[[str], Candidate]
    measured: Callable[..., AbstractContextManager[None]]

    def measure(self) -> None:
        discarded = Series("ledger", UNITS)
        self._claim_and_commit("warming", discarded.of)
        for number in range(_ROUNDS):
            self._claim_and_commit(f"round-{number}", self.measured)
        self._count()
        for number in range(_ROUNDS):
            self._query(f"round-{number}")

    def _claim_and_commit(self, attempt: str, measured: Callable[..., AbstractContextManager[None]]) -> None:
        candidates = self._candidates(attempt)
        with measured("claim", _CLAIM):
            claim = self.ledger.claim(PIPELINE, candidates, attempt_id=attempt, worker="growth", lease_seconds=600)
        assert len(claim.claimed) == _CLAIM
        results = [ObjectResult(object_id=object_id, rows=50, lines_quarantined=0) for object_id in claim.claimed]
        outcome = BatchOutcome(
            pipeline=PIPELINE, attempt_id=attempt, processed=results, record=BatchRecord(rows=50 * len(results))
        )
        with measured("commit", _CLAIM):
            assert self.ledger.commit(outcome) is not None

    def _count(self) -> None:
        with self.measured("count, all"):
            count = self.ledger.ages.processed_count(PIPELINE)
        assert count.processed == self.size + (_ROUNDS + 1) * _CLAIM
        for _ in range(_ROUNDS):
            with self.measured("count, since the last one"):
                self.ledger.ages.updated_count(PIPELINE, count)

    def _query(self, attempt: str) -> None:
        ids = [candidate.object_id for candidate in self._candidates(attempt)]
        with self.measured("known?", _CLAIM):
            known = self.ledger.known_among(PIPELINE, ids, seen_at=0.0, on_change=OnChange.ADD)
        assert len(known) == _CLAIM
        processed = ObjectFilter(pipelines=[PIPELINE], states=frozenset({ObjectState.PROCESSED}))
        with self.measured("list, newest page"):
            page = self.ledger.lists.by_attempt(processed, limit=_PAGE, read=_READ, after=None)
        assert len(page.objects) == _PAGE
        with self.measured("waiting objects"):
            self.ledger.ages.waiting(PIPELINE, overdue_after_seconds=60.0)
        with self.measured("totals, at a start"):
            self.ledger.replaced_totals(PIPELINE)
            self.ledger.grown_totals(PIPELINE)

    def _candidates(self, attempt: str) -> Sequence[Candidate]:
        return [self.candidate(f"{attempt}/{index}") for index in range(_CLAIM)]


def _candidate(name: str) -> Candidate:
    key = f"clicks/2024/02/{name}.jsonl.gz"
    digest = hashlib.sha256(key.encode()).hexdigest()
    return Candidate(
        object_id=f"{int(digest[:16], 16) >> 2:016x}".encode(),  # among those that are there
        bucket="landing",
        key=key.encode(),
        size_bytes=10_000,
        uri=f"s3://landing/{key}",
        etag=digest,
        sequencer="0055AED6DCD90281E5",
        original_message=OriginalMessage(message_id=digest, enqueued_at=1.7e9),
    )
