"""Reopened objects: they are read again, and their rows stay in the table until another batch replaces them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update
from tests.conformance.ledger.archiving import adopt, archive, contents, ids_with_row, next_file
from tests.conformance.ledger.concurrency import together
from tests.conformance.ledger.ledger_harness import (
    OVER,
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)

from penstock.errors import ConfigurationError, VersionsMoved
from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING, ArchiveFile
from penstock.ledger.records import (
    AttemptFailure,
    BadLines,
    Candidate,
    Committed,
    ImportedBatch,
    ImportedObject,
    LedgerRepair,
    ObjectClaims,
    ObjectRow,
    ObjectState,
    OnChange,
    QuarantineState,
    ReopeningState,
    replaced_objects,
)
from penstock.ledger.reopening_choice import LeftAlone
from penstock.ledger.reopenings import KEPT, STAY, Reopened, Withdrawn
from penstock.ledger.retractions import Retraction
from penstock.ledger.returns import ReturningObject
from penstock.ledger.schema import objects
from penstock.messaging.steps import Step

KEY = b"/landing/report.csv"
SCHEMA = '{"type":"struct"}'


def address(name: str, *, key: bytes | None = None) -> str:
    return candidate(name, key=key).uri


def reopen(harness: LedgerHarness, *names: str) -> Reopened:
    return harness.ledger.reopenings.reopen(PIPELINE, [address(name) for name in names])


def withdraw(harness: LedgerHarness, *names: str) -> Withdrawn:
    return harness.ledger.reopenings.withdraw(PIPELINE, [address(name) for name in names])


def claim(harness: LedgerHarness, *names: str, on_change: OnChange = OnChange.REPLACE, **more: Any) -> ObjectClaims:
    return harness.claim(candidates(*names), on_change=on_change, **more)


def commit(harness: LedgerHarness, held: ObjectClaims, **fields: Any) -> Committed | None:
    return harness.ledger.commit(outcome(held, on_change=OnChange.REPLACE, since_seq=held.next_seq, **fields))


def row_of(harness: LedgerHarness, name: str) -> ObjectRow:
    (row,) = [row for row in harness.ledger.objects(PIPELINE) if row.object_id == object_id_of(name)]
    return row


def counts(harness: LedgerHarness) -> dict[str, int]:
    return {state.value: count for state, count in harness.ledger.reopenings.counts(PIPELINE).items() if count}


def replaces(harness: LedgerHarness, seq: int) -> Sequence[str]:
    batch = harness.ledger.batch(PIPELINE, seq)
    assert batch is not None
    return replaced_objects(batch.record.replaces)


def bad_lines_of(wanted: Candidate, replay: str) -> BadLines:
    return BadLines(
        object_id=wanted.object_id,
        replay_id=object_id_of(replay),
        bucket=wanted.bucket,
        key=wanted.key,
        uri=wanted.uri,
        size_bytes=wanted.size_bytes,
        version_id=None,
        etag=wanted.etag,
        place="_offset",
        rows=10,
        lines_quarantined=5,
    )


# Reopening


def test_a_reopened_object_is_unprocessed_and_keeps_batch_and_counts(harness: LedgerHarness) -> None:
    harness.process("a", "kept")
    done = reopen(harness, "a")
    assert [row.object_id for row in done.objects] == [object_id_of("a")]
    row = row_of(harness, "a")
    assert (row.state, row.batch_seq, row.rows, row.attempts) == (ObjectState.UNPROCESSED, 1, 10, 0)
    assert row.is_reopened
    assert harness.state("kept") is ObjectState.PROCESSED
    assert counts(harness) == {"open": 1}
    assert harness.ledger.reopenings.of_batch(PIPELINE, 1) == [object_id_of("a")]
    assert [row.object_id for row in harness.ledger.reopenings.open(PIPELINE, limit=10)] == [object_id_of("a")]


def test_reopening_again_changes_nothing_and_names_the_waiting_objects(harness: LedgerHarness) -> None:
    harness.process("a")
    reopen(harness, "a")
    before = harness.everything()
    again = reopen(harness, "a")
    assert ([row.object_id for row in again.again], again.objects) == ([object_id_of("a")], [])
    assert harness.everything() == before


def test_a_preview_changes_nothing(harness: LedgerHarness) -> None:
    harness.process("a")
    harness.ledger.reopenings.reopen(PIPELINE, [])
    before = harness.everything()
    found = harness.ledger.reopenings.preview(PIPELINE, [address("a"), address("absent")])
    assert [row.object_id for row in found.objects] == [object_id_of("a")]
    assert found.left_alone == {address("absent"): LeftAlone.UNKNOWN}
    assert harness.everything() == before


def test_objects_that_are_not_processed_are_left_alone_and_named(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.DEAD, candidate("dead"), "dead")
    harness.fail(AttemptFailure.RETRY, candidate("waits"), "waits")
    harness.process("retracted")
    retraction = Retraction(
        pipeline=PIPELINE, attempt_id="retraction", worker="w", addresses=[address("retracted")], reason="wrong"
    )
    harness.ledger.retractions.retract(retraction)
    harness.claim(candidates("busy"))
    adopt(harness.ledger, "imported")
    before = harness.everything()
    done = reopen(harness, "dead", "waits", "retracted", "busy", "imported", "absent")
    assert not done.objects
    assert done.left_alone == {
        address("dead"): LeftAlone.UNPROCESSED,
        address("waits"): LeftAlone.UNPROCESSED,
        address("retracted"): LeftAlone.UNPROCESSED,
        address("busy"): LeftAlone.BUSY,
        address("imported"): LeftAlone.ARCHIVED,
        address("absent"): LeftAlone.UNKNOWN,
    }
    assert done.states[address("retracted")] is ObjectState.RETRACTED
    before["progress"] = [(PIPELINE, ARCHIVING, 0)]  # locked, so it must exist
    assert harness.everything() == before


def test_an_unknown_pipeline_is_refused(harness: LedgerHarness) -> None:
    with pytest.raises(ConfigurationError, match="has no pipeline absent"):
        harness.ledger.reopenings.reopen("absent", [address("a")])


def test_of_versions_that_replaced_each_other_the_last_one_is_reopened(harness: LedgerHarness) -> None:
    for name in ("v1", "v2"):
        commit(harness, harness.claim([candidate(name, key=KEY)], on_change=OnChange.REPLACE))
    done = harness.ledger.reopenings.reopen(PIPELINE, [address("v1", key=KEY)])
    assert [row.object_id for row in done.objects] == [object_id_of("v2")]


def test_an_object_with_rows_of_several_versions_is_left_alone(harness: LedgerHarness) -> None:
    for name in ("v1", "v2"):
        harness.ledger.commit(outcome(harness.claim([candidate(name, key=KEY)])))
    done = harness.ledger.reopenings.reopen(PIPELINE, [address("v1", key=KEY)])
    assert done.left_alone == {address("v1", key=KEY): LeftAlone.VERSIONS}


def test_an_object_with_a_waiting_replay_of_its_bad_lines_is_left_alone(harness: LedgerHarness) -> None:
    wanted = candidate("a", key=KEY)
    harness.ledger.commit(outcome(harness.claim([wanted]), bad=[bad_lines_of(wanted, "replay")]))
    harness.fail(AttemptFailure.RETRY, candidate("replay", key=KEY), "replay")
    done = harness.ledger.reopenings.reopen(PIPELINE, [wanted.uri])
    assert done.left_alone == {wanted.uri: LeftAlone.REPLAYING}
    harness.ledger.commit(outcome(harness.claim([candidate("replay", key=KEY)]), replays=[object_id_of("replay")]))
    done = harness.ledger.reopenings.reopen(PIPELINE, [wanted.uri])
    assert [row.object_id for row in done.objects] == [wanted.object_id], "the replay is no version of it"


def test_an_archived_object_returns_and_is_read_again(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    (retired,) = [
        one for one in contents(harness.ledger, next_file(harness.ledger)) if one.row.object_id == object_id_of("a")
    ]
    assert archive(harness.ledger)
    assert reopen(harness, "a").left_alone == {address("a"): LeftAlone.ARCHIVED}
    returning = [ReturningObject(archive_id="archive-1", retired=retired)]
    assert len(harness.ledger.reopenings.preview(PIPELINE, [address("a")], archived=returning).objects) == 1
    assert len(harness.ledger.reopenings.reopen(PIPELINE, [address("a")], archived=returning).objects) == 1
    assert ids_with_row(harness.ledger) == {object_id_of("a")}
    assert harness.ledger.archives.count(PIPELINE) == 1
    assert [end for _, end, _ in harness.timeline("a")] == ["processed"]
    assert commit(harness, claim(harness, "a")) == Committed(seq=2, replaced_objects=1, replaced_rows=10)


def test_an_object_reopened_while_its_archive_is_written_stays_out_of_it(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    retiring = next_file(harness.ledger)
    file = ArchiveFile(uri="file:///archive/1.parquet", objects=len(contents(harness.ledger, retiring)), bytes=100)
    reopen(harness, "a")
    assert not harness.ledger.archives.retire(retiring, archive_id="stale", file=file)
    assert archive(harness.ledger, "fresh")
    assert ids_with_row(harness.ledger) == {object_id_of("a")}
    assert harness.state("a") is ObjectState.UNPROCESSED


def test_an_import_of_processed_objects_leaves_a_reopened_one(harness: LedgerHarness) -> None:
    harness.process("a")
    reopen(harness, "a")
    assert adopt(harness.ledger, "a").new == 0
    assert row_of(harness, "a").is_reopened


def test_the_step_after_a_reopening_is_reported_once_it_is_committed(shared_url: str) -> None:
    steps: list[tuple[Step, int]] = []
    ledger = Ledger.open(shared_url, probe=lambda step: steps.append((step, _open_reopenings(shared_url))))
    ledger.ensure_pipeline(PIPELINE)
    harness = LedgerHarness(ledger)
    harness.process("a")
    steps.clear()
    reopen(harness, "a")
    assert steps == [(Step.REOPENED, 1)]
    ledger.close()


def _open_reopenings(url: str) -> int:
    other = Ledger.open(url)
    try:
        return other.reopenings.counts(PIPELINE)[ReopeningState.OPEN]
    finally:
        other.close()


# Reading again


def test_the_commit_replaces_the_rows_of_the_earlier_reading(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    reopen(harness, "a")
    held = claim(harness, "a", "new")
    assert {id: one.is_reopened for id, one in held.claimed.items()} == {
        object_id_of("a"): True,
        object_id_of("new"): False,
    }
    assert held.claimed[object_id_of("a")].attempts == 1
    assert commit(harness, held) == Committed(seq=2, replaced_objects=1, replaced_rows=10)
    assert replaces(harness, 2) == (address("a"),)
    row = row_of(harness, "a")
    assert (row.state, row.batch_seq, row.is_reopened) == (ObjectState.PROCESSED, 2, False)
    assert counts(harness) == {"read": 1}
    assert not claim(harness, "a").claimed, "once"
    reopen(harness, "a")
    assert commit(harness, claim(harness, "a")) == Committed(seq=3, replaced_objects=1, replaced_rows=10)


def test_a_claim_of_a_reopened_object_knows_the_next_batch_under_every_rule(harness: LedgerHarness) -> None:
    harness.process("a")
    reopen(harness, "a")
    held = claim(harness, "a", on_change=OnChange.ADD)
    assert held.next_seq == 2
    assert commit(harness, held) == Committed(seq=2, replaced_objects=1, replaced_rows=10)


def test_rows_are_never_added_to_the_earlier_ones(harness: LedgerHarness) -> None:
    harness.ledger.commit(outcome(harness.claim(candidates("a")), new_schema=SCHEMA))
    reopen(harness, "a")
    held = claim(harness, "a", on_change=OnChange.ADD)
    before = harness.everything()
    with pytest.raises(ValueError, match="would add the rows"):
        harness.ledger.commit(outcome(held, schema_id=1))
    assert harness.everything() == before


def test_an_object_handler_without_a_table_just_processes_it_again(harness: LedgerHarness) -> None:
    harness.process("a")
    reopen(harness, "a")
    assert harness.ledger.commit(outcome(harness.claim(candidates("a")))) == Committed(seq=2)
    assert replaces(harness, 2) == ()
    assert row_of(harness, "a").batch_seq == 2


def test_bad_lines_of_the_earlier_reading_are_dismissed(harness: LedgerHarness) -> None:
    wanted = candidate("a")
    harness.ledger.commit(outcome(harness.claim([wanted]), bad=[bad_lines_of(wanted, "replay")]))
    reopen(harness, "a")
    commit(harness, claim(harness, "a"))
    (row,) = harness.ledger.quarantines.rows(PIPELINE)
    assert (row.state, row.replaced_seq) == (QuarantineState.DISMISSED, 2)
    replay = harness.claim([candidate("replay", key=wanted.key)], on_change=OnChange.REPLACE)
    with pytest.raises(VersionsMoved):
        commit(harness, replay, replays=[object_id_of("replay")])


def test_rows_of_a_replay_are_replaced_too(harness: LedgerHarness) -> None:
    wanted = candidate("a")
    commit(harness, claim(harness, "a"), bad=[bad_lines_of(wanted, "replay")])
    replay = harness.claim([candidate("replay", key=wanted.key)], on_change=OnChange.REPLACE)
    commit(harness, replay, replays=[object_id_of("replay")])
    reopen(harness, "a")
    assert commit(harness, claim(harness, "a")) == Committed(seq=3, replaced_objects=1, replaced_rows=20)


def test_a_new_version_replaces_the_rows_of_a_reopened_one(harness: LedgerHarness) -> None:
    commit(harness, harness.claim([candidate("v1", key=KEY)], on_change=OnChange.REPLACE))
    harness.ledger.reopenings.reopen(PIPELINE, [address("v1", key=KEY)])
    held = harness.claim([candidate("v2", key=KEY)], on_change=OnChange.REPLACE)
    assert commit(harness, held) == Committed(seq=2, replaced_objects=1, replaced_rows=10)
    overtaken = harness.claim([candidate("v1", key=KEY)], on_change=OnChange.REPLACE)
    assert harness.ledger.overtaken(PIPELINE, list(overtaken.claimed)) == {object_id_of("v1")}
    commit(harness, overtaken, failed={"v1": AttemptFailure.SUPERSEDED})
    assert harness.state("v1") is ObjectState.PROCESSED
    assert harness.ledger.changed(PIPELINE, [object_id_of("v2")]) == {object_id_of("v2")}


def test_a_reopened_version_that_came_back_replaces_the_one_after_it(harness: LedgerHarness) -> None:
    commit(harness, harness.claim([candidate("v1", key=KEY)], on_change=OnChange.REPLACE))
    harness.ledger.reopenings.reopen(PIPELINE, [address("v1", key=KEY)])
    commit(harness, harness.claim([candidate("v2", key=KEY)], on_change=OnChange.REPLACE))
    held = harness.claim([candidate("v1", key=KEY)], on_change=OnChange.REPLACE)
    assert commit(harness, held) == Committed(seq=3, replaced_objects=1, replaced_rows=10)


def test_a_version_committed_since_the_claim_refuses_the_commit(harness: LedgerHarness) -> None:
    commit(harness, harness.claim([candidate("v1", key=KEY)], on_change=OnChange.REPLACE))
    harness.ledger.reopenings.reopen(PIPELINE, [address("v1", key=KEY)])
    held = harness.claim([candidate("v1", key=KEY)], on_change=OnChange.REPLACE)
    assert not harness.ledger.overtaken(PIPELINE, list(held.claimed))
    commit(harness, harness.claim([candidate("v2", key=KEY)], on_change=OnChange.REPLACE))
    with pytest.raises(VersionsMoved):
        commit(harness, held)


def test_a_version_counts_as_changed_beside_a_reopened_one(harness: LedgerHarness) -> None:
    commit(harness, harness.claim([candidate("v1", key=KEY)], on_change=OnChange.REPLACE))
    harness.ledger.reopenings.reopen(PIPELINE, [address("v1", key=KEY)])
    held = harness.claim([candidate("v2", key=KEY)], on_change=OnChange.REFUSE)
    assert harness.ledger.changed(PIPELINE, list(held.claimed)) == {object_id_of("v2")}


# Failures and withdrawals


@pytest.mark.parametrize("failure", [AttemptFailure.DELETED, AttemptFailure.SUPERSEDED])
def test_an_object_that_the_store_has_no_more_is_processed_as_before(
    harness: LedgerHarness, failure: AttemptFailure
) -> None:
    harness.process("a")
    before = row_of(harness, "a")
    reopen(harness, "a")
    commit(harness, claim(harness, "a"), failed={"a": failure})
    row = row_of(harness, "a")
    assert row.reason == f"{KEPT}: a is {failure}"
    assert (row.state, row.batch_seq, row.rows, row.ended_at) == (ObjectState.PROCESSED, 1, 10, before.ended_at)
    assert counts(harness) == {"kept": 1}
    assert [end for _, end, _ in harness.timeline("a")] == ["processed", failure.value]
    assert archive(harness.ledger)


def test_one_that_is_overtaken_in_the_claim_is_processed_as_before(harness: LedgerHarness) -> None:
    def at(name: str, sequencer: str) -> Candidate:
        return candidate(name, key=KEY, sequencer=sequencer)

    harness.ledger.commit(outcome(harness.claim([at("v1", "01")])))
    harness.ledger.reopenings.reopen(PIPELINE, [address("v1", key=KEY)])
    commit(harness, harness.claim([at("v2", "02")], on_change=OnChange.REPLACE))
    assert not harness.claim([at("v1", "01")], on_change=OnChange.REPLACE).claimed
    row = row_of(harness, "v1")
    assert (row.state, row.batch_seq) == (ObjectState.PROCESSED, 1)
    assert counts(harness) == {"kept": 1}


def test_one_that_fails_keeps_its_rows_and_says_so_and_can_be_read_again(harness: LedgerHarness) -> None:
    harness.ledger.commit(outcome(harness.claim(candidates("a")), new_schema=SCHEMA))
    reopen(harness, "a")
    commit(harness, claim(harness, "a"), failed={"a": AttemptFailure.DEAD}, schema_id=1)
    row = row_of(harness, "a")
    assert (row.state, row.batch_seq, row.rows, row.lines_quarantined) == (ObjectState.DEAD, 1, 10, 1)
    assert row.reason == f"a is dead; {STAY}"
    assert reopen(harness, "a").left_alone == {address("a"): LeftAlone.FAILED}
    held = harness.claim([candidate("a", message="m-2", replay="r-1")], on_change=OnChange.REPLACE)
    assert held.claimed[object_id_of("a")].is_reopened
    assert commit(harness, held, schema_id=1) == Committed(seq=2, replaced_objects=1, replaced_rows=10)


@pytest.mark.parametrize("how", ["retried", "abandoned", "expired"])
def test_one_whose_attempt_ends_without_a_batch_is_still_reopened(harness: LedgerHarness, how: str) -> None:
    harness.process("a")
    reopen(harness, "a")
    held = claim(harness, "a", lease_seconds=OVER if how == "expired" else 60.0)
    if how == "retried":
        commit(harness, held, failed={"a": AttemptFailure.RETRY})
    elif how == "abandoned":
        harness.ledger.abandon(held.attempt_id, reason="", outcome="failed", uncounted=False, unattributed=False)
    else:
        harness.ledger.abandon_expired(PIPELINE)
    assert (row_of(harness, "a").batch_seq, row_of(harness, "a").is_reopened) == (1, True)
    again = claim(harness, "a")
    assert again.claimed[object_id_of("a")].is_reopened
    assert commit(harness, again) == Committed(seq=2, replaced_objects=1, replaced_rows=10)


def test_a_withdrawal_makes_objects_processed_as_they_were(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    before = harness.everything()["objects"]
    reopen(harness, "a", "b")
    commit(harness, claim(harness, "b"), failed={"b": AttemptFailure.DEAD})
    assert withdraw(harness, "a", "b", "absent") == Withdrawn(withdrawn=(address("a"), address("b")))
    assert counts(harness) == {}
    states = [(row[1], row[10]) for row in harness.everything()["objects"]]
    assert states == [(row[1], row[10]) for row in before]
    assert {(row.state, row.batch_seq, row.rows) for row in harness.ledger.objects(PIPELINE)} == {
        (ObjectState.PROCESSED, 1, 10)
    }
    assert archive(harness.ledger), "they are processed by the same attempt again"
    assert ids_with_row(harness.ledger) == set()
    assert withdraw(harness, "a") == Withdrawn()


def test_one_that_is_being_read_is_not_withdrawn(harness: LedgerHarness) -> None:
    harness.process("a")
    reopen(harness, "a")
    held = claim(harness, "a")
    assert withdraw(harness, "a") == Withdrawn(busy=(address("a"),))
    assert commit(harness, held) is not None


def test_a_reopened_object_can_be_retracted(harness: LedgerHarness) -> None:
    harness.process("a")
    reopen(harness, "a")
    retraction = Retraction(
        pipeline=PIPELINE, attempt_id="retraction", worker="w", addresses=[address("a")], reason="wrong"
    )
    assert harness.ledger.retractions.retract(retraction).versions == 1
    assert harness.state("a") is ObjectState.RETRACTED
    assert counts(harness) == {}
    assert not harness.claim(candidates("a")).claimed


def test_reopened_objects_need_a_message(harness: LedgerHarness) -> None:
    harness.process("a")
    reopen(harness, "a")
    assert not harness.ledger.known_among(PIPELINE, [object_id_of("a")], seen_at=0.0)
    assert b"".join(harness.ledger.known_ids(PIPELINE)) == b""
    assert harness.ledger.processed_objects(PIPELINE, 1) == [], "a cleanup deletes the sources of these"


def test_a_reopened_object_waits_since_it_was_reopened(harness: LedgerHarness) -> None:
    harness.process("a")
    with harness.ledger.database.writing() as connection:
        connection.execute(update(objects).values(first_seen_at=objects.c.first_seen_at - 86_400.0))
    reopen(harness, "a")
    found = harness.ledger.ages.waiting(PIPELINE, overdue_after_seconds=3_600.0)
    assert (found.objects[ObjectState.UNPROCESSED], found.overdue) == (1, 0)
    assert found.oldest_age_seconds < 3_600.0


def test_reopenings_and_claims_at_once_end_as_one_reading(shared_harness: LedgerHarness) -> None:
    names = [f"n{number}" for number in range(40)]
    shared_harness.process(*names)

    def work(number: int) -> None:
        if number % 4 == 3:
            read(number)
        else:
            reopen(shared_harness, *(names[:25] if number % 2 else names[15:][::-1]))

    def read(number: int) -> None:
        held = shared_harness.claim(candidates(*names), attempt=f"other-{number}", on_change=OnChange.REPLACE)
        if held.claimed:
            commit(shared_harness, held)

    together(work)
    read(10)
    rows = shared_harness.ledger.objects(PIPELINE, limit=100)
    assert {row.state for row in rows} == {ObjectState.PROCESSED}
    assert counts(shared_harness) == {"read": len(names)}
    batches = shared_harness.ledger.batches(PIPELINE)
    assert shared_harness.ledger.replaced_totals(PIPELINE)[1] == 10 * sum(batch.objects for batch in batches[1:])


def test_withdrawals_and_claims_at_once_leave_no_object_to_both(shared_harness: LedgerHarness) -> None:
    names = [f"n{number}" for number in range(60)]
    shared_harness.process(*names)
    reopen(shared_harness, *names)

    def work(number: int) -> None:
        some = names[number * 5 : number * 5 + 30]
        if number % 2:
            withdraw(shared_harness, *some)
            return
        held = shared_harness.claim(candidates(*some), attempt=f"other-{number}", on_change=OnChange.REPLACE)
        if held.claimed:
            commit(shared_harness, held)

    together(work)
    states = Counter(row.state for row in shared_harness.ledger.objects(PIPELINE, limit=100))
    waiting = shared_harness.ledger.reopenings.counts(PIPELINE)[ReopeningState.OPEN]
    assert states == Counter({ObjectState.PROCESSED: len(names) - waiting, ObjectState.UNPROCESSED: waiting})
    read = shared_harness.ledger.reopenings.counts(PIPELINE)[ReopeningState.READ]
    assert shared_harness.ledger.replaced_totals(PIPELINE) == (read, 10 * read)


# Repairs


def imported(seq: int, *names: str, on_change: OnChange = OnChange.REPLACE) -> ImportedBatch:
    return ImportedBatch(
        seq=seq,
        attempt_id=f"imported-{seq}",
        objects=[ImportedObject(candidate=candidate(name), rows=7, lines_quarantined=0) for name in names],
        on_change=on_change,
    )


def repair(harness: LedgerHarness, **changes: Any) -> None:
    next_seq = harness.ledger.ensure_pipeline(PIPELINE).next_seq
    planned = LedgerRepair(pipeline=PIPELINE, seen_next_seq=next_seq, next_seq=next_seq, table_schema=None)
    harness.ledger.repair(replace(planned, **changes))


@pytest.mark.parametrize("on_change", [OnChange.ADD, OnChange.REPLACE])
@pytest.mark.parametrize("reopened", [False, True])
def test_an_imported_batch_that_read_an_object_again_replaces_its_earlier_rows(
    harness: LedgerHarness, on_change: OnChange, reopened: bool
) -> None:
    harness.process("a")
    if reopened:
        reopen(harness, "a")
    repair(harness, next_seq=3, imported=[imported(2, "a", on_change=on_change)])
    assert replaces(harness, 2) == (address("a"),)
    assert (row_of(harness, "a").state, row_of(harness, "a").batch_seq) == (ObjectState.PROCESSED, 2)
    assert harness.ledger.replaced_totals(PIPELINE) == (1, 10)
    assert counts(harness) == {"read": 1}


def test_a_withdrawn_batch_that_read_objects_again_leaves_them_reopened(harness: LedgerHarness) -> None:
    harness.process("a")
    reopen(harness, "a")
    commit(harness, claim(harness, "a"))
    repair(harness, next_seq=2, withdrawn=[2])
    assert (row_of(harness, "a").is_reopened, row_of(harness, "a").batch_seq) == (True, 1)
    assert counts(harness) == {"open": 1}
    assert commit(harness, claim(harness, "a")) == Committed(seq=2, replaced_objects=1, replaced_rows=10)


@pytest.mark.parametrize("failed", [False, True])
def test_a_reopened_object_of_a_withdrawn_batch_has_no_rows_any_more(harness: LedgerHarness, failed: bool) -> None:
    harness.process("a")
    reopen(harness, "a")
    if failed:
        commit(harness, claim(harness, "a"), failed={"a": AttemptFailure.DEAD})
    repair(harness, next_seq=1, withdrawn=[1])
    assert not row_of(harness, "a").is_reopened
    held = claim(harness, "a")
    assert not held.claimed[object_id_of("a")].is_reopened
    assert commit(harness, held) == Committed(seq=1)
    assert replaces(harness, 1) == ()


def test_a_batch_that_moves_takes_its_reopened_objects_along(harness: LedgerHarness) -> None:
    harness.process("a")
    reopen(harness, "a")
    repair(harness, next_seq=3, imported=[imported(1, "x")], moved={1: 2})
    assert row_of(harness, "a").batch_seq == 2
    assert withdraw(harness, "a").withdrawn == (address("a"),)
    assert row_of(harness, "a").batch_seq == 2
    reopen(harness, "a")
    assert commit(harness, claim(harness, "a")) == Committed(seq=3, replaced_objects=1, replaced_rows=10)
