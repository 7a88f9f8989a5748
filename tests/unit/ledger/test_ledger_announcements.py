"""The last announced batch of a pipeline, kept across processes."""

from pathlib import Path

from penstock.ledger import Ledger
from penstock.ledger.records import BatchOutcome, Candidate, ObjectResult, OriginalMessage

PIPELINE = "clicks"


def commit(ledger: Ledger, name: str) -> int | None:
    candidate = Candidate(
        object_id=name.encode().ljust(16),
        bucket="file",
        key=name.encode(),
        size_bytes=1,
        uri=f"file:///{name}",
        original_message=OriginalMessage(message_id="1", enqueued_at=1.0),
    )
    claim = ledger.claim(PIPELINE, [candidate], attempt_id=name, worker="w", lease_seconds=60)
    processed = [ObjectResult(object_id=object_id, rows=1, lines_quarantined=0) for object_id in claim.claimed]
    committed = ledger.commit(BatchOutcome(pipeline=PIPELINE, attempt_id=name, processed=processed))
    return None if committed is None else committed.seq


def test_batches_committed_before_announcing_began_count_as_announced() -> None:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline(PIPELINE)
    commit(ledger, "a")
    assert ledger.begin_announcing(PIPELINE) == 1
    commit(ledger, "b")
    assert ledger.begin_announcing(PIPELINE) == 1, "a later batch is still to be announced, also after another begin"


def test_the_last_announced_batch_outlives_its_process_and_never_decreases(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    assert ledger.begin_announcing(PIPELINE) == 0, "also if the pipeline has no row yet"
    ledger.advance_announced(PIPELINE, 5)
    ledger.advance_announced(PIPELINE, 3)
    ledger.close()
    reopened = Ledger.open(tmp_path / "ledger.db")
    assert reopened.begin_announcing(PIPELINE) == 5
    assert reopened.begin_announcing("another") == 0
