"""The rows that a repair writes to the ledger; the other tests are in tests/conformance/repair, with a table."""

import pytest
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness

from penstock.ledger.records import ImportedBatch, LedgerRepair

CLAIMED_AT, COMMITTED_AT = 1_000.0, 2_000.0


def test_an_imported_batch_keeps_its_times(harness: LedgerHarness) -> None:
    batch = ImportedBatch(seq=1, attempt_id="a", objects=(), claimed_at=CLAIMED_AT, committed_at=COMMITTED_AT)
    undated = ImportedBatch(seq=2, attempt_id="b", objects=())
    harness.ledger.repair(
        LedgerRepair(pipeline=PIPELINE, seen_next_seq=1, next_seq=3, table_schema=None, imported=[batch, undated])
    )
    first, second = harness.ledger.batches(PIPELINE)
    attempt, other = harness.ledger.attempt("a"), harness.ledger.attempt("b")
    assert attempt is not None
    assert other is not None
    assert (attempt.started_at, first.committed_at) == (CLAIMED_AT, COMMITTED_AT)
    assert second.committed_at == pytest.approx(other.started_at, abs=60.0), (
        "the time of the import, since no other is known"
    )
    assert second.committed_at > COMMITTED_AT
