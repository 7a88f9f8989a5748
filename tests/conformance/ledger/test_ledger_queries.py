"""Queries, on every database."""

from dataclasses import replace

from tests.conformance.ledger.desk import OVER, PIPELINE, Desk, candidate, candidates, object_id_of, outcome

from penstock.ledger.records import AttemptFailure, FailedObject, ObjectState

UNKNOWN = b"?" * 16


def test_a_pipeline_is_created_once(desk: Desk) -> None:
    created = desk.ledger.ensure_pipeline("new")
    assert (created.id, created.next_seq, created.schema_id, created.table_schema, created.source_schema) == (
        "new",
        1,
        0,
        None,
        None,
    )
    desk.process("a")
    again = desk.ledger.ensure_pipeline(PIPELINE)
    assert again.next_seq == 2
    assert [row.id for row in desk.ledger.pipelines()] == sorted([PIPELINE, "new"])
    assert desk.ledger.pipeline("unheard of") is None


def test_the_first_source_schema_is_kept(desk: Desk) -> None:
    assert desk.ledger.remember_source_schema(PIPELINE, "id long") == "id long"
    assert desk.ledger.remember_source_schema(PIPELINE, "id string") == "id long"
    assert desk.ledger.remember_source_schema("new", "v double") == "v double"
    row = desk.ledger.pipeline(PIPELINE)
    assert row is not None
    assert row.source_schema == "id long"


def test_batches_are_listed_in_order_and_in_pages(desk: Desk) -> None:
    for name in "abcde":
        desk.process(name)
    assert [batch.seq for batch in desk.ledger.batches(PIPELINE)] == [1, 2, 3, 4, 5]
    assert [batch.seq for batch in desk.ledger.batches(PIPELINE, after_seq=1, limit=2)] == [2, 3]
    assert desk.ledger.batches("unheard of") == []
    assert desk.ledger.batch(PIPELINE, 6) is None


def test_states_omit_unknown_objects(desk: Desk) -> None:
    desk.process("a")
    desk.claim(candidates("b"))
    a, b = object_id_of("a"), object_id_of("b")
    expected = {a: ObjectState.PROCESSED, b: ObjectState.PROCESSING}
    assert desk.ledger.states(PIPELINE, [a, b, UNKNOWN, a]) == expected
    assert desk.ledger.states(PIPELINE, []) == {}
    assert desk.ledger.states("other", [a]) == {}


def test_live_objects_are_those_under_a_valid_lease(desk: Desk) -> None:
    desk.process("done")
    desk.claim(candidates("held"))
    desk.fail(AttemptFailure.RETRY, candidate("free"), "free")
    desk.claim(candidates("expired"), lease_seconds=OVER)
    ids = [object_id_of(name) for name in ("done", "held", "free", "expired")]
    assert desk.ledger.live(PIPELINE, [*ids, UNKNOWN]) == {object_id_of("held")}


def test_objects_are_filtered_and_paged(desk: Desk) -> None:
    desk.process("apple", "apricot", "plum")
    desk.claim(candidates("100%_ripe"))
    assert {row.uri for row in desk.ledger.objects(PIPELINE, uri_contains="AP")} == {
        "s3://landing//landing/apple",
        "s3://landing//landing/apricot",
    }
    assert len(desk.ledger.objects(PIPELINE, state=ObjectState.PROCESSED)) == 3
    assert len(desk.ledger.objects(PIPELINE, state=ObjectState.PROCESSED, uri_contains="plum")) == 1
    assert len(desk.ledger.objects(PIPELINE, uri_contains="0%_r")) == 1
    assert desk.ledger.objects(PIPELINE, uri_contains="_pple") == [], "user input is no pattern"
    first = desk.ledger.objects(PIPELINE, limit=3)
    second = desk.ledger.objects(PIPELINE, limit=3, after=first[-1].object_id)
    assert [row.object_id for row in (*first, *second)] == sorted(row.object_id for row in (*first, *second))
    assert (len(first), len(second)) == (3, 1)


def test_an_object_is_found_by_its_uri_in_every_version_and_pipeline(desk: Desk) -> None:
    desk.ledger.ensure_pipeline("other")
    first = candidate("v1", key=b"clicks")
    second = replace(candidate("v2", key=b"clicks"), etag="another")
    desk.ledger.commit(outcome(desk.claim([first])))
    desk.claim([second])
    desk.claim([first], pipeline="other")
    found = desk.ledger.find("s3://landing/clicks")
    assert [(pipeline, row.etag) for pipeline, row in found] == [
        (PIPELINE, "etag"),
        (PIPELINE, "another"),
        ("other", "etag"),
    ]
    assert desk.ledger.find("s3://landing/CLICKS") == []


def test_other_versions_of_a_key_are_counted(desk: Desk) -> None:
    for name in ("v1", "v2", "v3"):
        desk.claim([candidate(name, key=b"changed")])
    desk.claim(candidates("same"))
    ids = [object_id_of("v3"), object_id_of("same"), UNKNOWN]
    assert desk.ledger.other_versions(PIPELINE, ids) == 1
    assert desk.ledger.other_versions("other", ids) == 0


def test_counts_include_every_state(desk: Desk) -> None:
    desk.process("a", "b")
    desk.claim(candidates("c"))
    desk.fail(AttemptFailure.DEAD, candidate("d"), "d")
    desk.fail(AttemptFailure.RETRY, candidate("e"), "e")
    assert desk.ledger.counts(PIPELINE) == {
        ObjectState.UNPROCESSED: 1,
        ObjectState.PROCESSING: 1,
        ObjectState.PROCESSED: 2,
        ObjectState.DEAD: 1,
        ObjectState.DELETED: 0,
        ObjectState.SUPERSEDED: 0,
    }


def test_a_timeline_lists_attempts_in_order_with_their_outcomes(desk: Desk) -> None:
    desk.claim(candidates("a", "b"), attempt="z", worker="one", lease_seconds=OVER)
    desk.ledger.commit(
        outcome(desk.claim(candidates("a"), attempt="y", worker="two"), failed={"a": AttemptFailure.RETRY})
    )
    desk.ledger.commit(outcome(desk.claim(candidates("a"), attempt="x", worker="three")))
    rows = desk.ledger.attempts_of(PIPELINE, object_id_of("a"))
    assert [(row.attempt_id, row.worker, row.outcome) for row in rows] == [
        ("z", "one", "expired"),
        ("y", "two", "retry"),
        ("x", "three", "processed"),
    ]
    assert all(row.ended_at is not None and row.ended_at >= row.started_at for row in rows)
    assert desk.ledger.attempts_of(PIPELINE, UNKNOWN) == []
    assert desk.ledger.attempt("unheard of") is None


def test_five_thousand_objects_are_claimed_and_committed_in_one_call(desk: Desk) -> None:
    names = [f"object {number}" for number in range(5_000)]
    claim = desk.claim(candidates(*names))
    assert len(claim.claimed) == 5_000
    failed = dict.fromkeys(names[:10], AttemptFailure.RETRY)
    assert desk.ledger.commit(outcome(claim, failed=failed)) == 1
    ids = [object_id_of(name) for name in names]
    assert len(desk.ledger.states(PIPELINE, ids)) == 5_000
    again = desk.claim(candidates(*names))
    assert (len(again.claimed), len(again.ended)) == (10, 4_990)


def test_the_attempts_before_one_are_the_latest_other_attempts(desk: Desk) -> None:
    desk.claim(candidates("a", "b"), attempt="z", worker="one", lease_seconds=OVER)
    desk.ledger.commit(
        outcome(desk.claim(candidates("a"), attempt="y", worker="two"), failed={"a": AttemptFailure.RETRY})
    )
    desk.claim(candidates("a", "b", "c"), attempt="x", worker="three")
    before = desk.ledger.attempts_before(PIPELINE, "x", [object_id_of(name) for name in "abc"])
    assert {id: (one.attempt_id, one.worker, one.outcome) for id, one in before.items()} == {
        object_id_of("a"): ("y", "two", "retry"),
        object_id_of("b"): ("z", "one", "expired"),
    }
    assert desk.ledger.attempts_before("other", "x", [object_id_of("a")]) == {}


def test_an_attempt_keeps_the_traceback_of_its_failure(desk: Desk) -> None:
    claim = desk.claim(candidates("a"), attempt="z")
    failed = FailedObject(
        object_id=object_id_of("a"),
        failure=AttemptFailure.DEAD,
        reason="ValueError: two\nlines (t.py:8)",
        traceback='Traceback (most recent call last):\n  File "t.py", line 8\nValueError: two\nlines\n',
    )
    desk.ledger.commit(replace(outcome(claim), processed=(), failed=[failed]))
    [attempt] = desk.ledger.attempts_of(PIPELINE, object_id_of("a"))
    assert (attempt.reason, attempt.traceback) == (failed.reason, (failed.traceback or "").rstrip())
    [row] = desk.ledger.objects(PIPELINE, state=ObjectState.DEAD, uri_contains=None, limit=10, after=None)
    assert row.reason == failed.reason, "an object keeps what fits into one line"


def test_written_rows_are_summed_up_to_a_batch(desk: Desk) -> None:
    desk.process("a", "b")
    one = desk.ledger.written_to(PIPELINE, 1)
    desk.process("c")
    batches = desk.ledger.batches(PIPELINE, after_seq=0, limit=10)
    assert one == (batches[0].record.rows, batches[0].record.lines_quarantined)
    assert desk.ledger.written_to(PIPELINE, 2) == (
        sum(batch.record.rows for batch in batches),
        sum(batch.record.lines_quarantined for batch in batches),
    )
    assert desk.ledger.written_to("other", 2) == (0, 0)


def test_known_among_returns_the_objects_that_need_no_message(desk: Desk) -> None:
    desk.process("done")
    desk.claim(candidates("held"))
    desk.claim(candidates("left"), lease_seconds=OVER)
    for failure, name in (
        (AttemptFailure.DEAD, "dead"),
        (AttemptFailure.RETRY, "again"),
        (AttemptFailure.DELETED, "gone"),
    ):
        desk.fail(failure, candidate(name), name)
    names = ("done", "held", "left", "dead", "again", "gone")
    ids = {object_id_of(name): name for name in names}

    def known(seen_at: float) -> set[str]:
        return {ids[id] for id in desk.ledger.known_among(PIPELINE, [*ids, UNKNOWN], seen_at=seen_at)}

    assert known(0.0) == {"done", "held", "dead", "gone"}
    assert known(1e15) == {"done", "held", "dead"}, "what existed later proves an end wrong"
    assert desk.ledger.known_among("other", list(ids), seen_at=0.0) == set()
