"""Queries, on every database."""

from collections.abc import Collection
from dataclasses import replace

import pytest
from sqlalchemy import Connection
from tests.conformance.ledger.ledger_harness import (
    OVER,
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)

from penstock.ledger import sets
from penstock.ledger.records import AttemptFailure, Committed, FailedObject, ObjectState

UNKNOWN = b"?" * 16


def test_a_pipeline_is_created_once(harness: LedgerHarness) -> None:
    created = harness.ledger.ensure_pipeline("new")
    assert (created.id, created.next_seq, created.schema_id, created.table_schema, created.source_schema) == (
        "new",
        1,
        0,
        None,
        None,
    )
    harness.process("a")
    again = harness.ledger.ensure_pipeline(PIPELINE)
    assert again.next_seq == 2
    assert [row.id for row in harness.ledger.pipelines()] == sorted([PIPELINE, "new"])
    assert harness.ledger.pipeline("unheard of") is None


def test_the_first_source_schema_is_kept(harness: LedgerHarness) -> None:
    first = harness.ledger.remember_source_schema(PIPELINE, "id long", '{"format":"csv"}')
    assert (first.source_schema, first.source_options) == ("id long", '{"format":"csv"}')
    assert harness.ledger.remember_source_schema(PIPELINE, "id string", "{}") == first
    assert harness.ledger.remember_source_schema("new", "v double").source_schema == "v double"
    row = harness.ledger.pipeline(PIPELINE)
    assert row is not None
    assert row.source_schema == "id long"


def test_a_source_schema_is_replaced_only_as_it_was_seen(harness: LedgerHarness) -> None:
    ledger = harness.ledger
    new = ledger.ensure_pipeline(PIPELINE)
    assert ledger.replace_source_schema(new, "id long", None)
    assert not ledger.replace_source_schema(new, "id string", "{}"), "another process was faster"
    seen = ledger.ensure_pipeline(PIPELINE)
    assert (seen.source_schema, seen.source_options) == ("id long", None)
    assert ledger.replace_source_schema(seen, "`ID` string", '{"format":"csv","origin":"é"}')
    assert not ledger.replace_source_schema(seen, "id int", None)
    changed = ledger.ensure_pipeline(PIPELINE)
    assert (changed.source_schema, changed.source_options) == ("`ID` string", '{"format":"csv","origin":"é"}')
    assert ledger.replace_source_schema(changed, "`ID` string", None), "the same schema, another dialect"
    assert not ledger.replace_source_schema(changed, "`ID` string", None)
    assert ledger.remember_source_schema(PIPELINE, "id date").source_schema == "`ID` string"


def test_the_schema_of_an_unknown_pipeline_is_not_replaced(harness: LedgerHarness) -> None:
    seen = harness.ledger.ensure_pipeline(PIPELINE)
    assert not harness.ledger.replace_source_schema(replace(seen, id="new"), "id long", None)
    assert harness.ledger.pipeline("new") is None


def test_batches_are_listed_in_order_and_in_pages(harness: LedgerHarness) -> None:
    for name in "abcde":
        harness.process(name)
    assert [batch.seq for batch in harness.ledger.batches(PIPELINE)] == [1, 2, 3, 4, 5]
    assert [batch.seq for batch in harness.ledger.batches(PIPELINE, after_seq=1, limit=2)] == [2, 3]
    assert harness.ledger.batches("unheard of") == []
    assert harness.ledger.batch(PIPELINE, 6) is None


def test_states_omit_unknown_objects(harness: LedgerHarness) -> None:
    harness.process("a")
    harness.claim(candidates("b"))
    a, b = object_id_of("a"), object_id_of("b")
    expected = {a: ObjectState.PROCESSED, b: ObjectState.PROCESSING}
    assert harness.ledger.states(PIPELINE, [a, b, UNKNOWN, a]) == expected
    assert harness.ledger.states(PIPELINE, []) == {}
    assert harness.ledger.states("other", [a]) == {}


def test_live_objects_are_those_under_a_valid_lease(harness: LedgerHarness) -> None:
    harness.process("done")
    harness.claim(candidates("held"))
    harness.fail(AttemptFailure.RETRY, candidate("free"), "free")
    harness.claim(candidates("expired"), lease_seconds=OVER)
    ids = [object_id_of(name) for name in ("done", "held", "free", "expired")]
    assert harness.ledger.live(PIPELINE, [*ids, UNKNOWN]) == {object_id_of("held")}


def test_objects_are_filtered_and_paged(harness: LedgerHarness) -> None:
    harness.process("apple", "apricot", "plum")
    harness.claim(candidates("100%_ripe"))
    assert {row.uri for row in harness.ledger.objects(PIPELINE, uri_contains="AP")} == {
        "s3://landing//landing/apple",
        "s3://landing//landing/apricot",
    }
    assert len(harness.ledger.objects(PIPELINE, state=ObjectState.PROCESSED)) == 3
    assert len(harness.ledger.objects(PIPELINE, state=ObjectState.PROCESSED, uri_contains="plum")) == 1
    assert len(harness.ledger.objects(PIPELINE, uri_contains="0%_r")) == 1
    assert harness.ledger.objects(PIPELINE, uri_contains="_pple") == [], "user input is no pattern"
    first = harness.ledger.objects(PIPELINE, limit=3)
    second = harness.ledger.objects(PIPELINE, limit=3, after=first[-1].object_id)
    assert [row.object_id for row in (*first, *second)] == sorted(row.object_id for row in (*first, *second))
    assert (len(first), len(second)) == (3, 1)


def test_an_object_is_found_by_its_uri_in_every_version_and_pipeline(harness: LedgerHarness) -> None:
    harness.ledger.ensure_pipeline("other")
    first = candidate("v1", key=b"clicks")
    second = replace(candidate("v2", key=b"clicks"), etag="another")
    harness.ledger.commit(outcome(harness.claim([first])))
    harness.claim([second])
    harness.claim([first], pipeline="other")
    found = harness.ledger.find("s3://landing/clicks")
    assert [(pipeline, row.etag) for pipeline, row in found] == [
        (PIPELINE, "etag"),
        (PIPELINE, "another"),
        ("other", "etag"),
    ]
    assert harness.ledger.find("s3://landing/CLICKS") == []


def test_other_versions_of_a_key_are_counted(harness: LedgerHarness) -> None:
    for name in ("v1", "v2", "v3"):
        harness.claim([candidate(name, key=b"changed")])
    harness.claim(candidates("same"))
    ids = [object_id_of("v3"), object_id_of("same"), UNKNOWN]
    assert harness.ledger.other_versions(PIPELINE, ids) == 1
    assert harness.ledger.other_versions("other", ids) == 0


def test_many_ids_are_read_in_parts(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("v1", "v2", "v3"):
        harness.claim([candidate(name, key=b"changed")])
    harness.process("a", "b")
    sizes: list[int] = []

    def measured(connection: Connection, object_ids: Collection[bytes]) -> None:
        sizes.append(len(object_ids))
        sets.ids_wanted(connection, object_ids)

    monkeypatch.setattr("penstock.ledger.queries.ids_wanted", measured)
    monkeypatch.setattr(sets, "_ROWS", 2)
    ids = [object_id_of(name) for name in ("v1", "v2", "v3", "a", "b")]
    assert harness.ledger.other_versions(PIPELINE, ids) == 3
    states = [ObjectState.PROCESSING] * 3 + [ObjectState.PROCESSED] * 2
    assert harness.ledger.states(PIPELINE, [*ids, UNKNOWN]) == dict(zip(ids, states, strict=True))
    assert sizes == [2, 2, 1, 2, 2, 2]


def test_counts_include_every_state(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    harness.claim(candidates("c"))
    harness.fail(AttemptFailure.DEAD, candidate("d"), "d")
    harness.fail(AttemptFailure.RETRY, candidate("e"), "e")
    assert harness.ledger.counts(PIPELINE) == {
        ObjectState.UNPROCESSED: 1,
        ObjectState.PROCESSING: 1,
        ObjectState.PROCESSED: 2,
        ObjectState.DEAD: 1,
        ObjectState.DELETED: 0,
        ObjectState.SUPERSEDED: 0,
        ObjectState.RETRACTED: 0,
    }


def test_a_timeline_lists_attempts_in_order_with_their_outcomes(harness: LedgerHarness) -> None:
    harness.claim(candidates("a", "b"), attempt="z", worker="one", lease_seconds=OVER)
    harness.ledger.commit(
        outcome(harness.claim(candidates("a"), attempt="y", worker="two"), failed={"a": AttemptFailure.RETRY})
    )
    harness.ledger.commit(outcome(harness.claim(candidates("a"), attempt="x", worker="three")))
    rows = harness.ledger.attempts_of(PIPELINE, object_id_of("a"))
    assert [(row.attempt_id, row.worker, row.outcome) for row in rows] == [
        ("z", "one", "expired"),
        ("y", "two", "retry"),
        ("x", "three", "processed"),
    ]
    assert all(row.ended_at is not None and row.ended_at >= row.started_at for row in rows)
    assert harness.ledger.attempts_of(PIPELINE, UNKNOWN) == []
    assert harness.ledger.attempt("unheard of") is None


def test_five_thousand_objects_are_claimed_and_committed_in_one_call(harness: LedgerHarness) -> None:
    names = [f"object {number}" for number in range(5_000)]
    claim = harness.claim(candidates(*names))
    assert len(claim.claimed) == 5_000
    failed = dict.fromkeys(names[:10], AttemptFailure.RETRY)
    assert harness.ledger.commit(outcome(claim, failed=failed)) == Committed(seq=1)
    ids = [object_id_of(name) for name in names]
    assert len(harness.ledger.states(PIPELINE, ids)) == 5_000
    again = harness.claim(candidates(*names))
    assert (len(again.claimed), len(again.ended)) == (10, 4_990)


def test_the_attempts_before_one_are_the_latest_other_attempts(harness: LedgerHarness) -> None:
    harness.claim(candidates("a", "b"), attempt="z", worker="one", lease_seconds=OVER)
    harness.ledger.commit(
        outcome(harness.claim(candidates("a"), attempt="y", worker="two"), failed={"a": AttemptFailure.RETRY})
    )
    harness.claim(candidates("a", "b", "c"), attempt="x", worker="three")
    before = harness.ledger.attempts_before(PIPELINE, "x", [object_id_of(name) for name in "abc"])
    assert {id: (one.attempt_id, one.worker, one.outcome) for id, one in before.items()} == {
        object_id_of("a"): ("y", "two", "retry"),
        object_id_of("b"): ("z", "one", "expired"),
    }
    assert harness.ledger.attempts_before("other", "x", [object_id_of("a")]) == {}


def test_an_attempt_keeps_the_traceback_of_its_failure(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a"), attempt="z")
    failed = FailedObject(
        object_id=object_id_of("a"),
        failure=AttemptFailure.DEAD,
        reason="ValueError: two\nlines (t.py:8)",
        traceback='Traceback (most recent call last):\n  File "t.py", line 8\nValueError: two\nlines\n',
    )
    harness.ledger.commit(replace(outcome(claim), processed=(), failed=[failed]))
    [attempt] = harness.ledger.attempts_of(PIPELINE, object_id_of("a"))
    assert (attempt.reason, attempt.traceback) == (failed.reason, (failed.traceback or "").rstrip())
    [row] = harness.ledger.objects(PIPELINE, state=ObjectState.DEAD, uri_contains=None, limit=10, after=None)
    assert row.reason == failed.reason, "an object keeps a reason of one line"


def test_written_rows_are_summed_up_to_a_batch(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    one = harness.ledger.written_to(PIPELINE, 1)
    harness.process("c")
    batches = harness.ledger.batches(PIPELINE, after_seq=0, limit=10)
    assert one == (batches[0].record.rows, batches[0].record.lines_quarantined)
    assert harness.ledger.written_to(PIPELINE, 2) == (
        sum(batch.record.rows for batch in batches),
        sum(batch.record.lines_quarantined for batch in batches),
    )
    assert harness.ledger.written_to("other", 2) == (0, 0)


def test_known_among_returns_the_objects_that_need_no_message(harness: LedgerHarness) -> None:
    harness.process("done")
    harness.claim(candidates("held"))
    harness.claim(candidates("left"), lease_seconds=OVER)
    for failure, name in (
        (AttemptFailure.DEAD, "dead"),
        (AttemptFailure.RETRY, "again"),
        (AttemptFailure.DELETED, "gone"),
    ):
        harness.fail(failure, candidate(name), name)
    names = ("done", "held", "left", "dead", "again", "gone")
    ids = {object_id_of(name): name for name in names}

    def known(seen_at: float) -> set[str]:
        return {ids[id] for id in harness.ledger.known_among(PIPELINE, [*ids, UNKNOWN], seen_at=seen_at)}

    assert known(0.0) == {"done", "held", "dead", "gone"}
    assert known(1e15) == {"done", "held", "dead"}, "objects seen later were not deleted or replaced"
    assert harness.ledger.known_among("other", list(ids), seen_at=0.0) == set()
