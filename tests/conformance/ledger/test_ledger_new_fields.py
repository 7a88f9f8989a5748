"""Fields without a column, and the columns that batches add for them: recorded with the commit, or not at all."""

from dataclasses import replace

import pytest
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, object_id_of, outcome

from penstock.errors import SchemaMoved
from penstock.ledger.records import BatchOutcome, ObjectClaims, ObjectResult, UnknownCounts
from penstock.ledger.rows import unknown_of

UNKNOWN = UnknownCounts(fields={"x": 3, 'é "x"': 1}, others=7)
WRONG_TYPE = UnknownCounts(wrong_type={"amount": 400, 'é "x"': 1}, wrong_type_others=2)


def with_unknown(claim: ObjectClaims, unknown: UnknownCounts = UNKNOWN) -> BatchOutcome:
    processed = [
        ObjectResult(
            object_id=object_id,
            rows=10,
            lines_quarantined=0,
            unknown=unknown if object_id == object_id_of("a") else None,
        )
        for object_id in claim.claimed
    ]
    return BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=processed)


@pytest.mark.parametrize(
    "unknown", [UNKNOWN, WRONG_TYPE, replace(WRONG_TYPE, fields={"x": 1})], ids=["unknown", "wrong type", "both"]
)
def test_unknown_fields_and_wrong_types_of_an_object_are_recorded(
    harness: LedgerHarness, unknown: UnknownCounts
) -> None:
    harness.ledger.commit(with_unknown(harness.claim(candidates("a", "b")), unknown))
    found = {row.object_id: row.unknown for row in harness.ledger.objects(PIPELINE)}
    assert found == {object_id_of("a"): unknown, object_id_of("b"): None}


def test_fields_that_an_earlier_version_recorded_are_read() -> None:
    assert unknown_of('{"fields":{"x":3},"others":7}') == UnknownCounts(fields={"x": 3}, others=7)


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
