"""Commits, on every database: atomic, fenced, in sequence."""

import pytest
from sqlalchemy import text
from tests.conformance.ledger.ledger_harness import (
    OVER,
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)

from penstock.errors import ClaimLost, ConfigurationError, SchemaMoved
from penstock.ledger.records import (
    AttemptFailure,
    AttemptState,
    BatchOutcome,
    BatchRecord,
    Committed,
    FailedObject,
    ObjectResult,
    ObjectState,
)

A, B = object_id_of("a"), object_id_of("b")


def test_a_batch_is_recorded_with_all_its_fields(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a", "b"), attempt="first", worker="worker-7")
    record = BatchRecord(
        rows=20,
        lines_quarantined=2,
        bytes=200,
        manifest='[{"path":"x"}]',
        quarantine_manifest="[]",
        stage_seconds={"run": 1.5},
        spark_ui_url="http://history/1",
    )
    assert harness.ledger.commit(outcome(claim, record=record)) == Committed(seq=1)
    batch = harness.ledger.batch(PIPELINE, 1)
    assert batch is not None
    assert batch.record == record
    assert (batch.pipeline, batch.seq, batch.attempt_id, batch.objects) == (PIPELINE, 1, "first", 2)
    assert (batch.worker, batch.table_schema) == ("worker-7", None)


def test_processed_objects_name_their_batch(harness: LedgerHarness) -> None:
    harness.process("a")
    assert harness.process("b") == 2
    rows = {row.object_id: row for row in harness.ledger.objects(PIPELINE)}
    assert {id: row.batch_seq for id, row in rows.items()} == {A: 1, B: 2}
    assert (rows[A].rows, rows[A].lines_quarantined, rows[A].reason) == (10, 1, None)
    assert rows[A].ended_at is not None
    assert [(word, reason) for _, word, reason in harness.timeline("a")] == [("processed", None)]


def test_a_commit_closes_its_attempt_as_committed(harness: LedgerHarness) -> None:
    harness.ledger.commit(outcome(harness.claim(candidates("a"), attempt="first")))
    attempt = harness.ledger.attempt("first")
    assert attempt is not None
    assert attempt.state is AttemptState.COMMITTED
    assert attempt.ended_at is not None
    assert harness.ledger.open_attempts(PIPELINE) == []
    assert harness.ledger.abandoned_attempts(PIPELINE) == []


def test_a_commit_records_failed_objects_in_the_same_transaction(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("ok", "again", "dead", "gone", "old"))
    failed = {
        "again": AttemptFailure.RETRY,
        "dead": AttemptFailure.DEAD,
        "gone": AttemptFailure.DELETED,
        "old": AttemptFailure.SUPERSEDED,
    }
    assert harness.ledger.commit(outcome(claim, failed=failed)) == Committed(seq=1)
    assert {name: harness.state(name) for name in ("ok", *failed)} == {
        "ok": ObjectState.PROCESSED,
        "again": ObjectState.UNPROCESSED,
        "dead": ObjectState.DEAD,
        "gone": ObjectState.DELETED,
        "old": ObjectState.SUPERSEDED,
    }
    batch = harness.ledger.batch(PIPELINE, 1)
    assert batch is not None
    assert batch.objects == 1
    for name, failure in failed.items():
        assert harness.timeline(name) == [(claim.attempt_id, failure.value, f"{name} is {failure}")]
    ended = {row.object_id: row.ended_at is not None for row in harness.ledger.objects(PIPELINE)}
    assert ended[object_id_of("dead")]
    assert not ended[object_id_of("again")]


def test_an_uncounted_failure_adds_no_attempt_and_an_unattributed_one_is_recorded(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a", "b"))
    failed = [
        FailedObject(object_id=A, failure=AttemptFailure.RETRY, reason="", uncounted=True),
        FailedObject(object_id=B, failure=AttemptFailure.RETRY, reason="", unattributed=True),
    ]
    harness.ledger.commit(BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=[], failed=failed))
    again = harness.claim(candidates("a", "b")).claimed
    assert [(again[id].attempts, again[id].unattributed_failures) for id in (A, B)] == [(1, 0), (2, 1)]


def test_a_commit_without_processed_objects_makes_no_batch_and_its_files_may_be_deleted(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a"), attempt="first")
    failed = outcome(claim, failed={"a": AttemptFailure.DEAD}, new_schema="{}")
    assert harness.ledger.commit(failed) is None
    assert harness.ledger.batches(PIPELINE) == []
    assert harness.ledger.abandoned_attempts(PIPELINE) == ["first"]
    row = harness.ledger.pipeline(PIPELINE)
    assert row is not None
    assert (row.next_seq, row.schema_id) == (1, 0)
    assert harness.ledger.commit(failed) is None, "the same outcome again returns the same"


def test_a_stale_attempt_changes_nothing(harness: LedgerHarness) -> None:
    stale = harness.claim(candidates("a"), attempt="stale", lease_seconds=OVER)
    fresh = harness.claim(candidates("a"), attempt="fresh")
    before = harness.everything()
    with pytest.raises(ClaimLost, match="stale is abandoned: its lease ran out"):
        harness.ledger.commit(outcome(stale))
    assert harness.everything() == before
    assert harness.ledger.commit(outcome(fresh)) == Committed(seq=1)


def test_a_stale_attempt_without_processed_objects_changes_nothing(harness: LedgerHarness) -> None:
    stale = harness.claim(candidates("a"), attempt="stale", lease_seconds=OVER)
    harness.claim(candidates("a"))
    before = harness.everything()
    with pytest.raises(ClaimLost):
        harness.ledger.commit(outcome(stale, failed={"a": AttemptFailure.DEAD}))
    assert harness.everything() == before


def test_a_commit_of_an_unknown_attempt_raises_claim_lost(harness: LedgerHarness) -> None:
    never = BatchOutcome(
        pipeline=PIPELINE, attempt_id="never", processed=[ObjectResult(object_id=A, rows=1, lines_quarantined=0)]
    )
    with pytest.raises(ClaimLost, match="never"):
        harness.ledger.commit(never)


def test_a_commit_for_another_pipeline_raises_claim_lost(harness: LedgerHarness) -> None:
    harness.ledger.ensure_pipeline("other")
    claim = harness.claim(candidates("a"))
    with pytest.raises(ClaimLost):
        harness.ledger.commit(outcome(claim, pipeline="other"))
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=1)


def test_a_commit_to_an_unknown_pipeline_names_it(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a"), pipeline="unheard of")
    with pytest.raises(ConfigurationError, match="unheard of"):
        harness.ledger.commit(outcome(claim, pipeline="unheard of"))


def test_committing_the_same_outcome_again_returns_the_same_batch(harness: LedgerHarness) -> None:
    first = outcome(harness.claim(candidates("a")))
    assert harness.ledger.commit(first) == Committed(seq=1)
    harness.process("b")
    before = harness.everything()
    assert harness.ledger.commit(first) == Committed(seq=1)
    assert harness.everything() == before


@pytest.mark.parametrize(
    ("processed", "expected"),
    [
        pytest.param([A, object_id_of("foreign")], ClaimLost, id="an object of another attempt"),
        pytest.param([A], ValueError, id="a claimed object missing"),
        pytest.param([A, B, B], ValueError, id="an object twice"),
    ],
)
def test_an_outcome_that_does_not_fit_the_claim_changes_nothing(
    harness: LedgerHarness, processed: list[bytes], expected: type[Exception]
) -> None:
    harness.claim(candidates("foreign"))
    claim = harness.claim(candidates("a", "b"))
    results = [ObjectResult(object_id=object_id, rows=1, lines_quarantined=0) for object_id in processed]
    before = harness.everything()
    with pytest.raises(expected):
        harness.ledger.commit(BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=results))
    assert harness.everything() == before
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=1)


def test_a_commit_is_refused_if_an_object_left_its_open_attempt(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a", "b"))
    with harness.ledger.database.writing() as connection:  # nothing in Penstock does this
        connection.execute(text("UPDATE objects SET state = 'unprocessed' WHERE uri LIKE '%/a'"))
    before = harness.everything()
    with pytest.raises(ClaimLost, match="holds 1 of the 2"):
        harness.ledger.commit(outcome(claim))
    assert harness.everything() == before


# The table's schema


def test_a_new_schema_applies_from_its_batch_on(harness: LedgerHarness) -> None:
    harness.process("a")
    claim = harness.claim(candidates("b"))
    harness.ledger.commit(outcome(claim, schema_id=0, new_schema='{"one": 1}'))
    harness.ledger.commit(outcome(harness.claim(candidates("c")), schema_id=1))
    harness.ledger.commit(outcome(harness.claim(candidates("d")), schema_id=1, new_schema='{"two": 2}'))
    assert [batch.table_schema for batch in harness.ledger.batches(PIPELINE)] == [
        None,
        '{"one": 1}',
        '{"one": 1}',
        '{"two": 2}',
    ]
    row = harness.ledger.pipeline(PIPELINE)
    assert row is not None
    assert (row.schema_id, row.table_schema, row.next_seq) == (2, '{"two": 2}', 5)


def test_one_of_two_runs_that_change_the_schema_must_plan_again(harness: LedgerHarness) -> None:
    one, two = harness.claim(candidates("a")), harness.claim(candidates("b"))
    assert harness.ledger.commit(outcome(one, schema_id=0, new_schema='{"x": "int"}')) == Committed(seq=1)
    before = harness.everything()
    with pytest.raises(SchemaMoved, match="schema 1"):
        harness.ledger.commit(outcome(two, schema_id=0, new_schema='{"x": "string"}'))
    assert harness.everything() == before
    assert harness.ledger.commit(outcome(two, schema_id=1)) == Committed(seq=2), "the claim still holds"


def test_a_lost_claim_is_reported_before_a_changed_schema(harness: LedgerHarness) -> None:
    stale = harness.claim(candidates("a"), lease_seconds=OVER)
    harness.ledger.abandon_expired(PIPELINE)
    with pytest.raises(ClaimLost):
        harness.ledger.commit(outcome(stale, schema_id=7))


def test_a_reason_is_escaped_and_truncated(harness: LedgerHarness) -> None:
    claim = harness.claim([candidate("a")])
    reason = "cannot read /landing/\udcff\0 " + "x" * 10_000
    failed = [FailedObject(object_id=A, failure=AttemptFailure.DEAD, reason=reason)]
    harness.ledger.commit(BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=[], failed=failed))
    kept = harness.claim(candidates("a")).ended[A].reason
    assert kept is not None
    assert kept.startswith("cannot read /landing/\\udcff\\x00 xxx")
    assert len(kept) < 5_000
