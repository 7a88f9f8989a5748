"""Fields without a column, and the columns that batches add for them: recorded with the commit, or not at all."""

import pytest
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, object_id_of, outcome

from penstock.errors import SchemaMoved
from penstock.ledger.records import BatchOutcome, ObjectClaims, ObjectResult, UnknownCounts

UNKNOWN = UnknownCounts(fields={"x": 3, 'é "x"': 1}, others=7)


def with_unknown(claim: ObjectClaims) -> BatchOutcome:
    processed = [
        ObjectResult(
            object_id=object_id,
            rows=10,
            lines_quarantined=0,
            unknown=UNKNOWN if object_id == object_id_of("a") else None,
        )
        for object_id in claim.claimed
    ]
    return BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=processed)


def test_unknown_fields_of_an_object_are_recorded(harness: LedgerHarness) -> None:
    harness.ledger.commit(with_unknown(harness.claim(candidates("a", "b"))))
    found = {row.object_id: row.unknown for row in harness.ledger.objects(PIPELINE)}
    assert found == {object_id_of("a"): UNKNOWN, object_id_of("b"): None}


def test_added_columns_are_merged_and_the_first_type_stays(harness: LedgerHarness) -> None:
    harness.ledger.commit(outcome(harness.claim(candidates("a")), added_columns={"x": "BIGINT"}))
    harness.ledger.commit(outcome(harness.claim(candidates("b")), added_columns={"y": "STRING", "X": "STRING"}))
    harness.ledger.commit(outcome(harness.claim(candidates("c"))))
    assert harness.ledger.ensure_pipeline(PIPELINE).added_columns == {"x": "BIGINT", "y": "STRING"}


def test_a_refused_commit_adds_no_column(harness: LedgerHarness) -> None:
    first, second = harness.claim(candidates("a")), harness.claim(candidates("b"))
    harness.ledger.commit(outcome(first, new_schema="{}", added_columns={"x": "BIGINT"}))
    with pytest.raises(SchemaMoved):
        harness.ledger.commit(outcome(second, new_schema="{}", added_columns={"y": "BIGINT"}))
    assert harness.ledger.ensure_pipeline(PIPELINE).added_columns == {"x": "BIGINT"}
    harness.ledger.commit(outcome(second, schema_id=1, added_columns={"y": "BIGINT"}))
    assert harness.ledger.ensure_pipeline(PIPELINE).added_columns == {"x": "BIGINT", "y": "BIGINT"}
