"""Versions of one object in pipelines that show one of them: their order, replacement, bad lines and return."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event
from tests.conformance.ledger.archiving import adopt, archive, contents, ids_with_row, next_file
from tests.conformance.ledger.concurrency import together
from tests.conformance.ledger.ledger_harness import (
    AFTER,
    LEASE_SECONDS,
    OVER,
    PIPELINE,
    LedgerHarness,
    candidate,
    object_id_of,
    outcome,
)
from tests.conformance.ledger.lost_responses import responses_lost

from penstock.errors import VersionsMoved
from penstock.ledger import Ledger
from penstock.ledger.archive import ArchiveFile
from penstock.ledger.records import (
    AttemptFailure,
    BadLines,
    Candidate,
    Committed,
    ImportedBatch,
    ImportedObject,
    LedgerRepair,
    ObjectClaims,
    ObjectResult,
    ObjectState,
    OnChange,
    QuarantineState,
    replaced_objects,
)
from penstock.ledger.retractions import Retraction
from penstock.messaging.steps import Step

KEY = b"/landing/report.csv"
ADDRESS = "s3://landing//landing/report.csv"
REPLACED_ONE = (ADDRESS,)


def version(name: str, *, key: bytes = KEY, **more: Any) -> Candidate:
    return candidate(name, key=key, **more)


def claim(
    harness: LedgerHarness, *wanted: Candidate, on_change: OnChange = OnChange.REPLACE, **more: Any
) -> ObjectClaims:
    return harness.claim(wanted, on_change=on_change, **more)


def commit(
    harness: LedgerHarness, held: ObjectClaims, *, on_change: OnChange = OnChange.REPLACE, **fields: Any
) -> Committed | None:
    return harness.ledger.commit(outcome(held, on_change=on_change, since_seq=held.next_seq, **fields))


def process(harness: LedgerHarness, *wanted: Candidate, **fields: Any) -> Committed | None:
    return commit(harness, claim(harness, *wanted), **fields)


def replaces(harness: LedgerHarness, seq: int) -> Sequence[str]:
    batch = harness.ledger.batch(PIPELINE, seq)
    assert batch is not None
    return replaced_objects(batch.record.replaces)


def retract(harness: LedgerHarness) -> None:
    retraction = Retraction(
        pipeline=PIPELINE, attempt_id="retraction", worker="anna@host", addresses=[ADDRESS], reason="wrong"
    )
    assert harness.ledger.retractions.retract(retraction).seq is not None


def bad_lines_of(name: str, replay: str) -> BadLines:
    return BadLines(
        object_id=object_id_of(name),
        replay_id=object_id_of(replay),
        bucket="landing",
        key=KEY,
        uri=ADDRESS,
        size_bytes=100,
        version_id=None,
        etag=name,
        place="_offset",
        rows=10,
        lines_quarantined=5,
    )


# Order


def test_a_claim_returns_the_number_of_the_next_batch_unless_versions_are_added(harness: LedgerHarness) -> None:
    assert claim(harness, version("v1")).next_seq == 1
    assert claim(harness, version("other", key=b"other"), on_change=OnChange.ADD).next_seq is None
    harness.process("x")
    assert claim(harness, version("v2"), on_change=OnChange.REFUSE).next_seq == 2
    harness.fail(AttemptFailure.RETRY, version("v3"), "v3")
    assert claim(harness, version("v3")).next_seq == 2, "an object that the ledger knows"


def test_a_version_claimed_before_another_one_was_committed_is_refused(harness: LedgerHarness) -> None:
    old = claim(harness, version("v1"))
    process(harness, version("v2"))
    before = harness.everything()
    with pytest.raises(VersionsMoved, match=f"another version of {ADDRESS} was committed"):
        commit(harness, old)
    assert harness.everything() == before
    assert harness.ledger.abandon(old.attempt_id, reason="", outcome="given_back", uncounted=True, unattributed=False)
    again = claim(harness, version("v1"))
    assert again.claimed[object_id_of("v1")].attempts == 1
    assert commit(harness, again) == Committed(seq=2, replaced_objects=1, replaced_rows=10)


def test_two_versions_in_one_batch_are_refused(harness: LedgerHarness) -> None:
    held = claim(harness, version("v1"), version("v2"))
    with pytest.raises(VersionsMoved):
        commit(harness, held)
    superseded = commit(harness, held, failed={"v1": AttemptFailure.SUPERSEDED})
    assert superseded == Committed(seq=1)


def test_other_objects_and_pipelines_move_nothing(harness: LedgerHarness) -> None:
    held = claim(harness, version("v1"))
    process(harness, version("another", key=b"/landing/another.csv"))
    harness.ledger.ensure_pipeline("other")
    elsewhere = harness.claim([version("v2")], pipeline="other", on_change=OnChange.REPLACE)
    assert commit(harness, elsewhere, pipeline="other") == Committed(seq=1)
    assert commit(harness, held) == Committed(seq=2)


def test_a_version_that_moved_to_the_archive_since_the_claim_is_seen(harness: LedgerHarness) -> None:
    old = claim(harness, version("v1"))
    process(harness, version("v2"))
    assert archive(harness.ledger)
    with pytest.raises(VersionsMoved):
        commit(harness, old)


def test_a_commit_without_the_number_of_its_claim_is_a_mistake(harness: LedgerHarness) -> None:
    held = claim(harness, version("v1"))
    with pytest.raises(ValueError, match="needs since_seq"):
        harness.ledger.commit(outcome(held, on_change=OnChange.REPLACE))


# Replacement


def test_a_version_replaces_the_rows_of_the_one_before(harness: LedgerHarness) -> None:
    assert process(harness, version("v1"), version("x", key=b"x")) == Committed(seq=1)
    assert replaces(harness, 1) == ()
    assert process(harness, version("v2")) == Committed(seq=2, replaced_objects=1, replaced_rows=10)
    assert replaces(harness, 2) == REPLACED_ONE
    assert process(harness, version("v3")) == Committed(seq=3, replaced_objects=1, replaced_rows=10)


def test_versions_that_are_added_replace_nothing(harness: LedgerHarness) -> None:
    for name in ("v1", "v2"):
        held = claim(harness, version(name), on_change=OnChange.ADD)
        assert harness.ledger.commit(outcome(held)) == Committed(seq=1 if name == "v1" else 2)
    assert replaces(harness, 2) == ()
    assert process(harness, version("v3")) == Committed(seq=3, replaced_objects=1, replaced_rows=20)
    assert replaces(harness, 3) == REPLACED_ONE, "also of versions that were added"
    assert process(harness, version("v4")) == Committed(seq=4, replaced_objects=1, replaced_rows=10)


@pytest.mark.parametrize("archived", [0, 2, 4])
def test_all_rows_of_versions_that_were_added_leave_and_count(harness: LedgerHarness, archived: int) -> None:
    """A pipeline that replaced rows, then added some, and replaces them again."""
    for seq, on_change in enumerate([OnChange.REPLACE, OnChange.REPLACE, OnChange.ADD, OnChange.ADD], start=1):
        name = f"v{seq}"
        bad = [bad_lines_of(name, "replay")] if name == "v2" else []
        commit(harness, claim(harness, version(name), on_change=on_change), on_change=on_change, bad=bad)
    replay = version("replay")
    assert process(harness, replay, replays=[replay.object_id]) == Committed(seq=5)
    for file in range(archived):
        assert archive(harness.ledger, f"archive-{file}", up_to_seq=file + 1)
    assert process(harness, version("v5")) == Committed(seq=6, replaced_objects=1, replaced_rows=40), "all but v1's"


def test_versions_that_failed_or_were_retracted_are_not_replaced(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.DEAD, version("v1"), "v1")
    assert process(harness, version("v2")) == Committed(seq=1)
    retract(harness)
    assert process(harness, version("v3")) == Committed(seq=3)
    assert replaces(harness, 3) == ()


def test_an_archived_version_is_replaced_with_its_rows(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    assert archive(harness.ledger)
    assert process(harness, version("v2")) == Committed(seq=2, replaced_objects=1, replaced_rows=10)
    assert replaces(harness, 2) == REPLACED_ONE


def test_a_version_that_another_system_processed_is_replaced(harness: LedgerHarness) -> None:
    harness.ledger.adoptions.adopt(PIPELINE, [version("v1")], source="done.csv")
    assert process(harness, version("v2")) == Committed(seq=1, replaced_objects=1)


@pytest.mark.parametrize("committed", [True, False])
def test_a_replacement_whose_response_is_lost_returns_the_same(harness: LedgerHarness, committed: bool) -> None:
    process(harness, version("v1"))
    held = claim(harness, version("v2"))
    with responses_lost(harness.ledger.database.engine, times=1, committed=committed):
        done = commit(harness, held)
    assert done == Committed(seq=2, replaced_objects=1, replaced_rows=10)
    assert commit(harness, held) == done


@pytest.mark.parametrize("step", [Step.COMMITTING, Step.COMMITTED])
def test_a_death_leaves_all_of_a_replacement_or_nothing(harness: LedgerHarness, step: Step) -> None:
    class Died(BaseException):
        pass

    def dying(reached: Step) -> None:
        if reached is step:
            raise Died

    process(harness, version("v1"), bad=[bad_lines_of("v1", "replay")])
    held = claim(harness, version("v2"))
    before = harness.everything()
    with pytest.raises(Died):
        commit(LedgerHarness(Ledger(harness.ledger.database, dying)), held)
    assert (harness.everything() == before) is (step is Step.COMMITTING)
    assert commit(harness, held) == Committed(seq=2, replaced_objects=1, replaced_rows=10)


# A version that returns


def test_a_replaced_version_is_claimed_again_and_replaces_the_other(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"))
    held = claim(harness, version("v1", message="m-2"))
    assert held.claimed[object_id_of("v1")].attempts == 1
    assert held.claimed[object_id_of("v1")].original_message.message_id == "m-2"
    assert commit(harness, held) == Committed(seq=3, replaced_objects=1, replaced_rows=10)
    assert not claim(harness, version("v1")).claimed, "it is the last one"
    assert claim(harness, version("v2")).claimed


def test_a_late_duplicate_of_a_replaced_version_changes_nothing_in_the_table(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"))
    held = claim(harness, version("v1"))
    assert commit(harness, held, failed={"v1": AttemptFailure.SUPERSEDED}) is None
    assert harness.state("v1") is ObjectState.SUPERSEDED
    assert len(harness.ledger.batches(PIPELINE)) == 2
    assert not claim(harness, version("v1")).claimed, "no second check of the store"
    assert claim(harness, version("v1", message="m-9", enqueued_at=AFTER)).claimed


@pytest.mark.parametrize("archived", [False, True])
def test_a_version_that_comes_back_while_another_one_is_read_waits_for_it(
    harness: LedgerHarness, archived: bool
) -> None:
    """Its message would be lost otherwise: the other version replaces it, and the store has it again."""
    process(harness, version("v1"))
    if archived:
        archive(harness.ledger)
    read = claim(harness, version("v2"))
    waits = claim(harness, version("v1"))
    assert not waits.ended
    assert 0.0 < waits.busy[object_id_of("v1")] <= LEASE_SECONDS
    commit(harness, read)
    assert commit(harness, claim(harness, version("v1"))) == Committed(seq=3, replaced_objects=1, replaced_rows=10)


def test_a_version_beside_one_that_was_released_or_expired_is_processed(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    read = claim(harness, version("v2"))
    harness.ledger.abandon(read.attempt_id, reason="", outcome="given_back", uncounted=True, unattributed=False)
    assert claim(harness, version("v1")).ended[object_id_of("v1")].state is ObjectState.PROCESSED
    claim(harness, version("v2"), lease_seconds=OVER)
    assert claim(harness, version("v1")).ended[object_id_of("v1")].state is ObjectState.PROCESSED


def test_pipelines_that_add_versions_acknowledge_a_processed_one_beside_another(harness: LedgerHarness) -> None:
    harness.process("v1")
    claim(harness, version("v2"), on_change=OnChange.ADD)
    assert claim(harness, version("v1"), on_change=OnChange.ADD).ended.keys() == {object_id_of("v1")}


def test_pipelines_that_add_versions_never_take_a_processed_one(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"))
    for on_change in (OnChange.ADD, OnChange.REFUSE):
        before = harness.everything()
        assert claim(harness, version("v1"), on_change=on_change).ended.keys() == {object_id_of("v1")}
        assert harness.everything() == before
    ids = [object_id_of("v1"), object_id_of("v2")]
    assert harness.ledger.known_among(PIPELINE, ids, seen_at=0.0) == set(ids)


@pytest.mark.parametrize("archived", [(), ("v1",), ("v1", "v2")])
def test_listings_need_a_message_for_a_replaced_version(harness: LedgerHarness, archived: Sequence[str]) -> None:
    for seq, name in enumerate(("v1", "v2"), start=1):
        process(harness, version(name))
        if name in archived:
            assert archive(harness.ledger, f"archive-{seq}")
    process(harness, version("x", key=b"x"))
    ids = [object_id_of(name) for name in ("v1", "v2", "x")]
    known = harness.ledger.known_among(PIPELINE, ids, seen_at=float("inf"), on_change=OnChange.REPLACE)
    assert known == {object_id_of("v2"), object_id_of("x")}
    assert harness.ledger.superseded(PIPELINE, ids) == {object_id_of("v1")}
    assert _ids(harness, OnChange.REPLACE) == known
    assert _ids(harness, OnChange.ADD) == set(ids)


def test_a_version_that_was_replaced_after_a_listing_needs_no_message(harness: LedgerHarness) -> None:
    for name in ("v1", "v2"):
        process(harness, version(name))
    replaced_at = harness.ledger.batches(PIPELINE)[-1].committed_at
    ids = {object_id_of("v1"), object_id_of("v2")}
    for seen_at, known in ((replaced_at, ids), (replaced_at + 1.0, {object_id_of("v2")})):
        among = harness.ledger.known_among(PIPELINE, ids, seen_at=seen_at, on_change=OnChange.REPLACE)
        assert among == known
        assert _ids(harness, OnChange.REPLACE, seen_at=seen_at) == known


def _ids(harness: LedgerHarness, on_change: OnChange, *, seen_at: float = float("inf")) -> set[bytes]:
    found = b"".join(harness.ledger.known_ids(PIPELINE, on_change=on_change, seen_at=seen_at))
    return {found[start : start + 16] for start in range(0, len(found), 16)}


def test_the_last_version_stays_processed_while_others_return_in_a_pipeline_that_added_them(
    harness: LedgerHarness,
) -> None:
    for name in ("v1", "v2"):
        commit(harness, claim(harness, version(name), on_change=OnChange.ADD), on_change=OnChange.ADD)
    held = claim(harness, version("v1"))
    assert commit(harness, held, failed={"v1": AttemptFailure.SUPERSEDED}) is None
    assert harness.state("v2") is ObjectState.PROCESSED
    assert process(harness, version("v3")) == Committed(seq=3, replaced_objects=1, replaced_rows=20)
    assert replaces(harness, 3) == REPLACED_ONE, "with the rows of both"


def test_only_versions_whose_rows_left_the_table_are_replaced(harness: LedgerHarness) -> None:
    for name in ("v1", "v2"):
        commit(harness, claim(harness, version(name), on_change=OnChange.ADD), on_change=OnChange.ADD)
    ids = [object_id_of(name) for name in ("v1", "v2", "v3", "x")]
    assert harness.ledger.replaced(PIPELINE, ids) == set()
    process(harness, version("v3"), version("x", key=b"x"))
    assert harness.ledger.replaced(PIPELINE, ids) == {object_id_of("v1"), object_id_of("v2")}
    process(harness, version("v1"))
    assert harness.ledger.replaced(PIPELINE, ids) == {object_id_of("v2"), object_id_of("v3")}


@pytest.mark.parametrize("archived", [("v1",), ("v1", "v2")])
def test_an_archived_version_returns(harness: LedgerHarness, archived: Sequence[str]) -> None:
    for seq, name in enumerate(("v1", "v2"), start=1):
        process(harness, version(name))
        if name in archived:
            assert archive(harness.ledger, f"archive-{seq}")
    assert harness.ledger.archives.count(PIPELINE) == len(archived)
    held = claim(harness, version("v1", message="m-2"))
    assert held.claimed[object_id_of("v1")].attempts == 1
    assert harness.ledger.archives.count(PIPELINE) == len(archived) - 1
    assert commit(harness, held) == Committed(seq=3, replaced_objects=1, replaced_rows=10)
    assert not claim(harness, version("v1")).claimed
    assert harness.ledger.counts(PIPELINE)[ObjectState.PROCESSED] == 2


def test_a_returned_version_that_its_worker_loses_is_free_again(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"))
    assert claim(harness, version("v1"), lease_seconds=OVER).claimed
    assert claim(harness, version("v1")).claimed[object_id_of("v1")].attempts == 2


def test_versions_that_return_while_their_archive_is_written_stay_out_of_it(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    retiring = next_file(harness.ledger)
    file = ArchiveFile(uri="file:///archive/1.parquet", objects=len(contents(harness.ledger, retiring)), bytes=100)
    process(harness, version("v2"))
    held = claim(harness, version("v1"))
    assert not harness.ledger.archives.retire(retiring, archive_id="stale", file=file)
    assert commit(harness, held) == Committed(seq=3, replaced_objects=1, replaced_rows=10)
    assert object_id_of("v1") in ids_with_row(harness.ledger)


def test_a_version_whose_batch_is_unknown_came_before_those_of_known_ones(harness: LedgerHarness) -> None:
    """Identities that an import stored, or revision 0014, have no batch."""
    harness.ledger.adoptions.adopt(PIPELINE, [version("v1")], source="done.csv")
    assert not claim(harness, version("v1")).claimed
    process(harness, version("v2"))
    assert commit(harness, claim(harness, version("v1"))) == Committed(seq=2, replaced_objects=1, replaced_rows=10)


def test_objects_of_an_import_are_not_taken_again_without_a_later_version(harness: LedgerHarness) -> None:
    adopt(harness.ledger, "a")
    assert not claim(harness, candidate("a")).claimed


# Bad lines


def test_bad_lines_of_a_replaced_version_are_dismissed(harness: LedgerHarness) -> None:
    process(harness, version("v1"), bad=[bad_lines_of("v1", "replay")])
    process(harness, version("v2"), bad=[bad_lines_of("v2", "replay of v2")])
    rows = {row.bad.object_id: row for row in harness.ledger.quarantines.rows(PIPELINE)}
    old, new = rows[object_id_of("v1")], rows[object_id_of("v2")]
    assert (old.state, old.replaced_seq, old.ended_at is None) == (QuarantineState.DISMISSED, 2, False)
    assert (new.state, new.replaced_seq, new.ended_at) == (QuarantineState.OPEN, None, None)
    assert harness.ledger.quarantines.warning(PIPELINE).objects == 1


def test_a_replay_adds_rows_and_is_no_version(harness: LedgerHarness) -> None:
    process(harness, version("v1"), bad=[bad_lines_of("v1", "replay")])
    replay = version("replay")
    assert process(harness, replay, replays=[replay.object_id]) == Committed(seq=2)
    assert replaces(harness, 2) == ()
    assert not claim(harness, version("v1")).claimed, "the replay does not replace its source"
    assert harness.ledger.changed(PIPELINE, [replay.object_id]) == set()
    assert process(harness, version("v2")) == Committed(seq=3, replaced_objects=1, replaced_rows=20)
    assert not claim(harness, replay).claimed


def test_a_replay_of_a_version_that_was_replaced_meanwhile_is_refused(harness: LedgerHarness) -> None:
    process(harness, version("v1"), bad=[bad_lines_of("v1", "replay")])
    replay = version("replay")
    held = claim(harness, replay)
    process(harness, version("v2"))
    with pytest.raises(VersionsMoved, match="bad lines were read again"):
        commit(harness, held, replays=[replay.object_id])


def test_a_replay_in_the_batch_that_replaces_its_version_is_refused(harness: LedgerHarness) -> None:
    process(harness, version("v1"), bad=[bad_lines_of("v1", "replay")])
    replay = version("replay")
    held = claim(harness, replay, version("v2"))
    with pytest.raises(VersionsMoved, match="bad lines were read again"):
        commit(harness, held, replays=[replay.object_id])


@pytest.mark.parametrize("on_change", [OnChange.REPLACE, OnChange.ADD])
def test_a_replay_of_a_version_that_was_retracted_meanwhile_is_refused(
    harness: LedgerHarness, on_change: OnChange
) -> None:
    process(harness, version("v1"), bad=[bad_lines_of("v1", "replay")])
    retract(harness)
    replay = version("replay")
    held = claim(harness, replay, on_change=on_change)
    with pytest.raises(VersionsMoved, match="bad lines were read again"):
        commit(harness, held, on_change=on_change, replays=[replay.object_id])


# Refusing


def test_a_pipeline_that_refuses_changes_knows_them_before_the_run_and_at_the_commit(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    held = claim(harness, version("v2"), version("x", key=b"x"), on_change=OnChange.REFUSE)
    ids = list(held.claimed)
    assert harness.ledger.changed(PIPELINE, ids) == {object_id_of("v2")}
    with pytest.raises(VersionsMoved):
        commit(harness, held, on_change=OnChange.REFUSE)
    done = commit(harness, held, on_change=OnChange.REFUSE, failed={"v2": AttemptFailure.DEAD})
    assert done == Committed(seq=2)
    retract(harness)
    assert harness.ledger.changed(PIPELINE, [object_id_of("v2")]) == set()


def test_an_archived_version_is_refused_too(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    assert archive(harness.ledger)
    held = claim(harness, version("v2"), on_change=OnChange.REFUSE)
    assert harness.ledger.changed(PIPELINE, [object_id_of("v2")]) == {object_id_of("v2")}
    with pytest.raises(VersionsMoved):
        commit(harness, held, on_change=OnChange.REFUSE)


# Repairs


def imported(seq: int, *names: str, on_change: OnChange = OnChange.REPLACE, **more: Any) -> ImportedBatch:
    objects = [ImportedObject(candidate=version(name), rows=10, lines_quarantined=0) for name in names]
    return ImportedBatch(seq=seq, attempt_id=f"imported-{seq}", objects=objects, on_change=on_change, **more)


def test_a_repair_computes_again_the_objects_that_imported_batches_replace(harness: LedgerHarness) -> None:
    process(harness, version("v1"), bad=[bad_lines_of("v1", "replay")])
    batches = [imported(4, "v1"), imported(2, "x"), imported(3, "v2")]
    batches[1] = replace(
        batches[1],
        objects=[ImportedObject(candidate=version("x", key=b"x"), rows=10, lines_quarantined=0)],
    )
    harness.ledger.repair(
        LedgerRepair(pipeline=PIPELINE, seen_next_seq=2, next_seq=5, table_schema=None, imported=batches)
    )
    assert [replaces(harness, seq) for seq in (1, 2, 3, 4)] == [(), (), REPLACED_ONE, REPLACED_ONE]
    (row,) = harness.ledger.quarantines.rows(PIPELINE)
    assert (row.state, row.replaced_seq) == (QuarantineState.DISMISSED, 3)
    assert not claim(harness, version("v1")).claimed
    assert claim(harness, version("v2")).claimed


def test_imported_batches_that_add_replace_nothing(harness: LedgerHarness) -> None:
    batches = [imported(seq, name, on_change=OnChange.ADD) for seq, name in enumerate(("v1", "v2"), start=1)]
    harness.ledger.repair(
        LedgerRepair(pipeline=PIPELINE, seen_next_seq=1, next_seq=3, table_schema=None, imported=batches)
    )
    assert replaces(harness, 2) == ()


def test_a_repair_dismisses_no_bad_lines_of_later_versions(harness: LedgerHarness) -> None:
    process(harness, version("v2"))
    process(harness, version("v3"), bad=[bad_lines_of("v3", "replay")])
    harness.ledger.repair(
        LedgerRepair(
            pipeline=PIPELINE,
            seen_next_seq=3,
            next_seq=4,
            table_schema=None,
            imported=[imported(1, "v1")],
            moved={1: 2, 2: 3},
        )
    )
    assert [replaces(harness, seq) for seq in (1, 2, 3)] == [(), REPLACED_ONE, REPLACED_ONE]
    (row,) = harness.ledger.quarantines.rows(PIPELINE)
    assert (row.state, row.replaced_seq) == (QuarantineState.OPEN, None)


def test_a_repair_keeps_the_addresses_of_versions_that_returned_since(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"), bad=[bad_lines_of("v2", "replay")])
    process(harness, version("v1"))
    harness.ledger.repair(
        LedgerRepair(
            pipeline=PIPELINE,
            seen_next_seq=4,
            next_seq=5,
            table_schema=None,
            imported=[imported(1, "x")],
            moved={1: 2, 2: 3, 3: 4},
        )
    )
    assert [replaces(harness, seq) for seq in (2, 3, 4)] == [(), REPLACED_ONE, REPLACED_ONE]
    held = claim(harness, version("v2"))
    assert commit(harness, held) == Committed(seq=5, replaced_objects=1, replaced_rows=10)
    (row,) = harness.ledger.quarantines.rows(PIPELINE)
    assert row.replaced_seq == 4, "the number that the batch has now"


def test_a_batch_that_is_withdrawn_replaces_nothing(harness: LedgerHarness) -> None:
    process(harness, version("v1"), bad=[bad_lines_of("v1", "replay")])
    process(harness, version("v2"))
    batch = imported(2, "v2")
    harness.ledger.repair(
        LedgerRepair(
            pipeline=PIPELINE,
            seen_next_seq=3,
            next_seq=3,
            table_schema=None,
            imported=[replace(batch, objects=[])],
            withdrawn=[2],
        )
    )
    (row,) = harness.ledger.quarantines.rows(PIPELINE)
    assert (row.state, row.replaced_seq) == (QuarantineState.OPEN, None)
    replay = version("replay")
    assert process(harness, replay, replays=[replay.object_id]) == Committed(seq=3)


def test_a_batch_that_moves_behind_imported_ones_replaces_their_versions(harness: LedgerHarness) -> None:
    process(harness, version("v2"))
    assert replaces(harness, 1) == ()
    harness.ledger.repair(
        LedgerRepair(
            pipeline=PIPELINE,
            seen_next_seq=2,
            next_seq=3,
            table_schema=None,
            imported=[imported(1, "v1")],
            moved={1: 2},
        )
    )
    assert (replaces(harness, 1), replaces(harness, 2)) == ((), REPLACED_ONE)


# Races


def test_concurrent_workers_commit_versions_in_one_order(shared_harness: LedgerHarness) -> None:
    """One of the claims taken before the first commit commits; the others are refused, and one of them at each try."""
    ledger = shared_harness.ledger

    def work(number: int) -> int:
        refused = 0
        while True:
            held = shared_harness.claim(
                [version(f"v{number}")], attempt=f"by {number}, {refused}", on_change=OnChange.REPLACE
            )
            try:
                commit(shared_harness, held)
            except VersionsMoved:
                refused += 1
                ledger.abandon(held.attempt_id, reason="", outcome="given_back", uncounted=True, unattributed=False)
            else:
                return refused

    refusals = together(work)
    batches = ledger.batches(PIPELINE)
    assert [batch.seq for batch in batches] == list(range(1, len(refusals) + 1))
    assert [replaces(shared_harness, batch.seq) for batch in batches] == [(), *[REPLACED_ONE] * (len(batches) - 1)]
    assert all(refused < len(refusals) for refused in refusals), "each refusal is another version's commit"


def test_overlapping_claims_of_versions_that_return_never_deadlock(shared_harness: LedgerHarness) -> None:
    names = [f"{number}" for number in range(60)]

    def versions_of(names: Sequence[str], prefix: str) -> list[Candidate]:
        return [version(f"{prefix} {name}", key=name.encode()) for name in names]

    process(shared_harness, *versions_of(names[:30], "old"))
    assert archive(shared_harness.ledger)
    process(shared_harness, *versions_of(names[30:], "old"))
    process(shared_harness, *versions_of(names, "new"))

    def take(number: int) -> set[bytes]:
        turned = names[number * 7 :] + names[: number * 7]
        wanted = versions_of(turned[:40] if number % 2 else turned[40::-1], "old")
        return set(shared_harness.claim(wanted, attempt=f"by {number}", on_change=OnChange.REPLACE).claimed)

    taken = together(take)
    assert sum(map(len, taken)) == len(set().union(*taken)) == len(names)


def test_pipelines_that_add_versions_run_no_statement_for_them(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    def count(on_change: OnChange, name: str) -> int:
        harness.fail(AttemptFailure.RETRY, version(name), name)
        statements.clear()
        event.listen(harness.ledger.database.engine, "after_cursor_execute", note)
        held = claim(harness, version(name), candidate(f"new {name}"), on_change=on_change)
        commit(harness, held, on_change=on_change, failed={name: AttemptFailure.SUPERSEDED})
        event.remove(harness.ledger.database.engine, "after_cursor_execute", note)
        return len(statements)

    added = count(OnChange.ADD, "v2")
    words = "\n".join(statements)
    assert "version" not in words.replace("version_id", "")
    assert count(OnChange.REPLACE, "v3") > added


def test_the_record_names_addresses_as_json(harness: LedgerHarness) -> None:
    process(harness, version("v1"), version("w1", key=b"w"))
    process(harness, version("v2"), version("w2", key=b"w"))
    batch = harness.ledger.batch(PIPELINE, 2)
    assert batch is not None
    assert json.loads(batch.record.replaces) == sorted([ADDRESS, "s3://landing/w"])


def test_counts_of_rows_include_each_replaced_object(harness: LedgerHarness) -> None:
    process(harness, version("v1"), version("w1", key=b"w"))
    held = claim(harness, version("v2"), version("w2", key=b"w"))
    results = [ObjectResult(object_id=id, rows=3, lines_quarantined=0) for id in held.claimed]
    done = harness.ledger.commit(
        replace(outcome(held, on_change=OnChange.REPLACE, since_seq=held.next_seq), processed=results)
    )
    assert done == Committed(seq=2, replaced_objects=2, replaced_rows=20)
    assert process(harness, version("v3")) == Committed(seq=3, replaced_objects=1, replaced_rows=3)
