"""Claims, on every database: which objects are claimed, which are busy and which have ended."""

from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.conformance.ledger.ledger_harness import (
    AFTER,
    BEFORE,
    LEASE_SECONDS,
    OVER,
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)

from penstock.ledger import sets
from penstock.ledger.records import AttemptFailure, AttemptState, Candidate, Committed, ObjectState, OriginalMessage
from penstock.ledger.schema import attempts

A, B, C = (object_id_of(name) for name in "abc")


def test_free_objects_are_claimed_and_the_attempt_is_counted(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a", "b"), attempt="first", worker="worker-7")
    assert set(claim.claimed) == {A, B}
    assert (claim.attempt_id, claim.busy, claim.ended) == ("first", {}, {})
    assert [(one.attempts, one.unattributed_failures) for one in claim.claimed.values()] == [(1, 0), (1, 0)]
    assert claim.claimed[A].original_message == OriginalMessage(message_id="m-1", enqueued_at=BEFORE)
    assert harness.state("a") is ObjectState.PROCESSING
    assert harness.timeline("a") == [("first", "open", None)]


def test_an_attempts_lease_is_measured_by_the_databases_clock(harness: LedgerHarness) -> None:
    harness.claim(candidates("a"), attempt="first", worker="worker-7")
    attempt = harness.ledger.attempt("first")
    assert attempt is not None
    assert (attempt.state, attempt.worker, attempt.pipeline) == (AttemptState.OPEN, "worker-7", PIPELINE)
    assert attempt.lease_until - attempt.started_at == pytest.approx(LEASE_SECONDS, abs=LEASE_SECONDS / 3)
    assert attempt.ended_at is None


def test_objects_of_another_attempt_are_busy_for_the_rest_of_its_lease(harness: LedgerHarness) -> None:
    harness.claim(candidates("a"))
    claim = harness.claim(candidates("a"), attempt="second")
    assert claim.claimed == {}
    assert 0 < claim.busy[A] <= LEASE_SECONDS
    assert harness.attempts("a") == 1


def test_a_claim_without_any_free_object_leaves_no_attempt(harness: LedgerHarness) -> None:
    harness.claim(candidates("a"), attempt="first")
    harness.claim(candidates("a"), attempt="second")
    assert harness.ledger.attempt("second") is None
    assert [attempt.id for attempt in harness.ledger.open_attempts(PIPELINE)] == ["first"]


def test_a_claim_of_no_objects_claims_nothing(harness: LedgerHarness) -> None:
    claim = harness.claim([], attempt="first")
    assert (claim.claimed, claim.busy, claim.ended) == ({}, {}, {})
    assert harness.ledger.attempt("first") is None


def test_every_candidate_is_either_claimed_busy_or_ended(harness: LedgerHarness) -> None:
    harness.process("a")
    harness.claim(candidates("b"))
    claim = harness.claim(candidates("a", "b", "c"))
    assert (set(claim.claimed), set(claim.busy), set(claim.ended)) == ({C}, {B}, {A})


@pytest.mark.parametrize("failure", [AttemptFailure.DEAD, AttemptFailure.DELETED, AttemptFailure.SUPERSEDED])
def test_an_ended_object_is_reported_with_its_reason(harness: LedgerHarness, failure: AttemptFailure) -> None:
    harness.fail(failure, candidate("a", message="m-9"), "a")
    ended = harness.claim(candidates("a")).ended[A]
    assert (ended.state, ended.reason) == (ObjectState(failure.value), f"a is {failure}")
    original_message = OriginalMessage(message_id="m-9", enqueued_at=BEFORE) if failure is AttemptFailure.DEAD else None
    assert ended.original_message == original_message


def test_a_processed_object_is_reported_as_ended(harness: LedgerHarness) -> None:
    harness.process("a")
    ended = harness.claim(candidates("a")).ended[A]
    assert (ended.state, ended.reason, ended.original_message) == (ObjectState.PROCESSED, None, None)


def test_an_object_to_be_retried_is_free_and_its_next_attempt_is_counted(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.RETRY, candidate("a"), "a")
    assert harness.claim(candidates("a")).claimed[A].attempts == 2


def test_a_claim_abandons_an_expired_attempt_and_takes_its_objects(harness: LedgerHarness) -> None:
    harness.claim(candidates("a"), attempt="slow", lease_seconds=OVER)
    claim = harness.claim(candidates("a"), attempt="next")
    assert claim.claimed[A].attempts == 2
    slow = harness.ledger.attempt("slow")
    assert slow is not None
    assert slow.state is AttemptState.ABANDONED
    assert harness.timeline("a") == [("slow", "expired", "its lease ran out"), ("next", "open", None)]


def test_an_expired_attempt_of_another_pipeline_is_left_alone(harness: LedgerHarness) -> None:
    harness.ledger.ensure_pipeline("other")
    harness.claim(candidates("a"), attempt="slow", lease_seconds=OVER, pipeline="other")
    harness.claim(candidates("a"))
    slow = harness.ledger.attempt("slow")
    assert slow is not None
    assert slow.state is AttemptState.OPEN


def test_an_extended_attempt_is_not_taken_over(harness: LedgerHarness) -> None:
    harness.claim(candidates("a"), attempt="first", lease_seconds=OVER)
    assert harness.ledger.extend("first", lease_seconds=LEASE_SECONDS), "past its lease, but not taken over"
    assert harness.claim(candidates("a")).claimed == {}


def test_extending_an_open_attempt_succeeds_even_if_its_lease_does_not_move(harness: LedgerHarness) -> None:
    harness.claim(candidates("a"), attempt="first")
    assert [harness.ledger.extend("first", lease_seconds=5.0) for _ in range(3)] == [True, True, True]
    with (
        harness.ledger.database.reading() as connection
    ):  # where unchanged rows are not counted, this one column changes
        assert connection.execute(select(attempts.c.heartbeat_seq)).scalars().all() == [3]


def test_an_attempt_that_is_not_open_cannot_be_extended(harness: LedgerHarness) -> None:
    harness.ledger.commit(outcome(harness.claim(candidates("a"), attempt="committed")))
    harness.claim(candidates("b"), attempt="abandoned")
    harness.ledger.abandon("abandoned", reason="", outcome="given_back", uncounted=False, unattributed=False)
    attempts = ["committed", "abandoned", "never heard of"]
    assert [harness.ledger.extend(attempt, lease_seconds=9.0) for attempt in attempts] == [False, False, False]


def test_an_attempt_id_cannot_be_used_twice(harness: LedgerHarness) -> None:
    harness.claim(candidates("a"), attempt="first")
    harness.ledger.claim(PIPELINE, candidates("b"), attempt_id="other", worker="w", lease_seconds=1.0)
    before = harness.everything()["objects"]
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        harness.claim(candidates("c"), attempt="first")
    assert [row for row in harness.everything()["objects"] if row[1] != C] == before
    assert harness.state("c") is None, "nothing of the refused claim is stored"


def test_two_pipelines_claim_one_object_independently(harness: LedgerHarness) -> None:
    harness.ledger.ensure_pipeline("other")
    assert set(harness.claim(candidates("a")).claimed) == {A}
    assert set(harness.claim(candidates("a"), pipeline="other").claimed) == {A}


def test_the_first_of_several_messages_for_one_object_is_its_original_message(harness: LedgerHarness) -> None:
    claim = harness.claim([candidate("a", message="m-1"), candidate("a", message="m-2")])
    assert len(claim.claimed) == 1
    assert claim.claimed[A].original_message == OriginalMessage(message_id="m-1", enqueued_at=BEFORE)
    assert harness.attempts("a") == 1


def test_the_original_message_is_the_one_of_the_last_claim(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.RETRY, candidate("a", message="m-1"), "a")
    harness.fail(AttemptFailure.DEAD, candidate("a", message="m-2"), "a")
    original_message = harness.claim(candidates("a")).ended[A].original_message
    assert original_message is not None
    assert original_message.message_id == "m-2"


# Sequencers: the database decides the order; a later version of a key supersedes an earlier one


def sequenced(name: str, sequencer: str, *, version_id: str | None = None) -> Candidate:
    return replace(
        candidate(name, sequencer=sequencer, version_id=version_id), key=b"one key", uri="s3://landing/one key"
    )


def test_row_59_older_sequencer_after_a_newer_one_is_superseded(harness: LedgerHarness) -> None:
    harness.ledger.commit(outcome(harness.claim([sequenced("new", "0055AB")])))
    claim = harness.claim([sequenced("old", "0055AA")], attempt="late")
    assert claim.claimed == {}
    assert claim.ended[object_id_of("old")].state is ObjectState.SUPERSEDED
    assert harness.ledger.attempt("late") is None
    assert harness.attempts("old") == 0


def test_row_59_a_newer_version_in_progress_supersedes_too(harness: LedgerHarness) -> None:
    harness.claim([sequenced("new", "0055AB")])
    assert set(harness.claim([sequenced("old", "0055AA")]).ended) == {object_id_of("old")}


def test_row_59_the_newer_of_two_versions_in_one_claim_is_claimed(harness: LedgerHarness) -> None:
    claim = harness.claim([sequenced("old", "0055AA"), sequenced("new", "0055AB"), candidate("a")])
    assert set(claim.claimed) == {object_id_of("new"), A}
    assert set(claim.ended) == {object_id_of("old")}
    assert harness.timeline("old") == []


def test_row_59_a_newer_version_that_is_retried_supersedes_an_older_one_in_its_claim(harness: LedgerHarness) -> None:
    new, old = sequenced("new", "0055AB"), sequenced("old", "0055AA")
    harness.fail(AttemptFailure.RETRY, new, "new")
    claim = harness.claim([old, new, candidate("a")])
    assert set(claim.claimed) == {object_id_of("new"), A}
    assert set(claim.ended) == {object_id_of("old")}
    assert (harness.timeline("old"), harness.attempts("old")) == ([], 0)
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=1)


def test_row_59_a_newer_version_that_is_replayed_supersedes_an_older_one_in_its_claim(harness: LedgerHarness) -> None:
    new, old = sequenced("new", "0055AB"), sequenced("old", "0055AA")
    harness.fail(AttemptFailure.DEAD, new, "new")
    again = replace(new, original_message=replace(new.original_message, replay_id="replay"))
    claim = harness.claim([old, again])
    assert (set(claim.claimed), set(claim.ended)) == ({object_id_of("new")}, {object_id_of("old")})


def test_row_59_a_newer_version_waiting_for_a_retry_supersedes_nothing_yet(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.RETRY, sequenced("new", "0055AB"), "new")
    claim = harness.claim([sequenced("old", "0055AA"), candidate("a")])
    assert set(claim.claimed) == {object_id_of("old"), A}
    assert [ended for _, ended, _ in harness.timeline("old")] == ["open"]
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=1)


def test_row_59_the_shorter_sequencer_is_padded_on_the_right(harness: LedgerHarness) -> None:
    harness.claim([sequenced("long", "0055AA0")])
    assert set(harness.claim([sequenced("equal", "0055AA")]).claimed) == {object_id_of("equal")}
    assert set(harness.claim([sequenced("later", "0055AA1")]).claimed) == {object_id_of("later")}
    assert set(harness.claim([sequenced("earlier", "0055A9FFFFFFFF")]).ended) == {object_id_of("earlier")}


def test_row_59_a_newer_version_that_was_deleted_unread_supersedes_nothing(harness: LedgerHarness) -> None:
    new = sequenced("new", "0055AB")
    harness.ledger.commit(outcome(harness.claim([new]), failed={"new": AttemptFailure.DELETED}))
    assert set(harness.claim([sequenced("old", "0055AA")]).claimed) == {object_id_of("old")}


def test_row_60_same_key_two_versions_are_both_processed(harness: LedgerHarness) -> None:
    harness.ledger.commit(outcome(harness.claim([sequenced("v2", "0055AB", version_id="v2")])))
    claim = harness.claim([sequenced("v1", "0055AA", version_id="v1")])
    assert set(claim.claimed) == {object_id_of("v1")}
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=2)


def test_row_64_a_duplicate_with_a_new_message_id_has_no_second_effect(harness: LedgerHarness) -> None:
    harness.process("a")
    claim = harness.claim([candidate("a", message="another", enqueued_at=AFTER)])
    assert (claim.claimed, set(claim.ended)) == ({}, {A})
    assert len(harness.ledger.batches(PIPELINE)) == 1


# Identity is bytes

SIMILAR_KEYS = {
    "row_41": ["'; DROP TABLE objects; --", '" OR 1=1', "%_\\", "`a`", ":named ? $1 %s %(x)s"],
    "row_43": ["Data.csv", "data.csv"],
    "row_44": ["a", "a ", " a"],
    "row_45": ["\U0001f600", "\U0001f601"],
    "row_46": ["が", "\u304b\u3099"],
    "not_utf_8": ["\udcff", "\udcfe"],
}


@pytest.mark.parametrize("names", SIMILAR_KEYS.values(), ids=SIMILAR_KEYS)
def test_rows_41_and_43_to_46_similar_keys_are_different_objects(harness: LedgerHarness, names: list[str]) -> None:
    keys = {object_id_of(name): name.encode("utf-8", "surrogateescape") for name in names}
    wanted = [candidate(name, key=key) for name, key in zip(names, keys.values(), strict=True)]
    assert harness.ledger.commit(outcome(harness.claim(wanted))) == Committed(seq=1)
    rows = harness.ledger.objects(PIPELINE)
    assert {row.object_id: row.key for row in rows} == keys
    assert {row.state for row in rows} == {ObjectState.PROCESSED}
    for row in rows:
        assert [found.object_id for _, found in harness.ledger.find(row.uri)] == [row.object_id]


def test_rows_43_and_44_similar_keys_do_not_supersede_each_other(harness: LedgerHarness) -> None:
    keys = [b"Data.csv", b"data.csv", b"data.csv "]
    wanted = [candidate(f"{n}", key=key, sequencer=f"{n}") for n, key in enumerate(keys)]
    assert len(harness.claim(wanted).claimed) == 3


def test_a_claim_and_a_commit_of_more_objects_than_one_statement_inserts(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "_ROWS", 2)
    first = harness.claim(candidates("a", "b", "c"), attempt="first")
    assert set(first.claimed) == {A, B, C}
    harness.ledger.commit(outcome(first, failed={"b": AttemptFailure.RETRY}))
    claim = harness.claim(candidates("a", "b", "c"), attempt="second")
    assert (set(claim.claimed), set(claim.ended)) == ({B}, {A, C})
