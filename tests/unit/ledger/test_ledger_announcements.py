"""The last batch of a pipeline that was announced, kept across processes."""

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
    return ledger.commit(BatchOutcome(pipeline=PIPELINE, attempt_id=name, processed=processed))


def test_what_was_committed_before_anybody_listened_counts_as_told() -> None:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline(PIPELINE)
    commit(ledger, "a")
    assert ledger.announced_seq(PIPELINE) is None
    assert ledger.begin_announcing(PIPELINE) == 1
    commit(ledger, "b")
    assert ledger.begin_announcing(PIPELINE) == 1, "what comes afterwards is to be told, whoever begins again"


def test_the_account_outlives_its_process_and_never_goes_back(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    assert ledger.begin_announcing(PIPELINE) == 0, "even where the pipeline has no row yet"
    ledger.advance_announced(PIPELINE, 5)
    ledger.advance_announced(PIPELINE, 3)
    ledger.close()
    again = Ledger.open(tmp_path / "ledger.db")
    assert (again.announced_seq(PIPELINE), again.begin_announcing(PIPELINE)) == (5, 5)
    assert again.announced_seq("another") is None
