"""Retracted objects: their batch, their state, and what reads them again."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from tests.conformance.ledger.archiving import FILE, adopt, archive, contents, ids_with_row, next_file
from tests.conformance.ledger.ledger_harness import (
    AFTER,
    LEASE_SECONDS,
    OVER,
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)

from penstock.errors import ClaimLost
from penstock.ledger import Ledger
from penstock.ledger.archive import ArchiveFile
from penstock.ledger.database import OutcomeUnknown
from penstock.ledger.records import (
    AttemptFailure,
    AttemptState,
    BadLines,
    Committed,
    LedgerRepair,
    ObjectState,
    QuarantineState,
    replaced_objects,
)
from penstock.ledger.retractions import Retracted, Retraction
from penstock.ledger.returns import ReturningObject
from penstock.ledger.rules import retry_id
from penstock.messaging.steps import Step

WHY = "wrong customer"


def address(name: str) -> str:
    return candidate(name).uri


def retraction(*names: str, attempt: str = "retraction-1", archived: Sequence[ReturningObject] = ()) -> Retraction:
    return Retraction(
        pipeline=PIPELINE,
        attempt_id=attempt,
        worker="anna@host",
        addresses=[address(name) for name in names],
        reason=WHY,
        archived=archived,
    )


def retract(harness: LedgerHarness, *names: str, attempt: str = "retraction-1") -> Retracted:
    return harness.ledger.retractions.retract(retraction(*names, attempt=attempt))


def retry_of(harness: LedgerHarness, name: str) -> str:
    """Return the replay id that a retry of the object's present end has."""
    (row,) = [row for row in harness.ledger.objects(PIPELINE) if row.object_id == object_id_of(name)]
    return retry_id(PIPELINE, row.object_id, row.ended_at)


def bad_lines_of(name: str) -> BadLines:
    wanted = candidate(name)
    return BadLines(
        object_id=wanted.object_id,
        replay_id=object_id_of(f"replay of {name}"),
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


def process_with_bad_lines(harness: LedgerHarness, name: str, *, replay: str | None = None) -> None:
    claim = harness.claim([candidate(name, replay=replay)])
    harness.ledger.commit(outcome(claim, bad=[bad_lines_of(name)]))


def test_a_retraction_is_a_batch_without_objects_that_replaces_their_rows(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    done = retract(harness, "b", "a", "absent")
    assert done == Retracted(seq=2, versions=2)
    batch = harness.ledger.batch(PIPELINE, 2)
    assert batch is not None
    assert json.loads(batch.record.replaces) == sorted(map(address, ["a", "absent", "b"]))
    assert (batch.objects, batch.record.rows, batch.record.manifest, batch.worker) == (0, 0, "", "anna@host")
    assert harness.process("c") == 3
    first = harness.ledger.batch(PIPELINE, 1)
    assert first is not None
    assert first.record.replaces == ""


def test_its_objects_end_as_retracted_with_the_reason(harness: LedgerHarness) -> None:
    harness.process("a", "kept")
    retract(harness, "a")
    (row,) = harness.ledger.objects(PIPELINE, state=ObjectState.RETRACTED)
    assert (row.uri, row.reason, row.rows, row.batch_seq) == (address("a"), WHY, None, None)
    assert harness.timeline("a") == [("attempt-0000", "processed", None), ("retraction-1", "retracted", WHY)]
    assert harness.state("kept") is ObjectState.PROCESSED
    assert harness.ledger.counts(PIPELINE)[ObjectState.RETRACTED] == 1
    attempt = harness.ledger.attempt("retraction-1")
    assert attempt is not None
    assert attempt.state is AttemptState.COMMITTED


def test_every_processed_version_of_an_object_is_retracted_and_no_other_end(harness: LedgerHarness) -> None:
    key = b"/landing/a"
    harness.ledger.commit(outcome(harness.claim([candidate("v1", key=key), candidate("v2", key=key)])))
    harness.fail(AttemptFailure.DEAD, candidate("v3", key=key), "v3")
    harness.fail(AttemptFailure.RETRY, candidate("v4", key=key), "v4")
    assert retract(harness, "a").versions == 2
    states = [harness.state(name) for name in ("v1", "v2", "v3", "v4")]
    assert states == [ObjectState.RETRACTED, ObjectState.RETRACTED, ObjectState.DEAD, ObjectState.UNPROCESSED]


def test_objects_that_are_being_processed_are_refused_and_nothing_changes(harness: LedgerHarness) -> None:
    harness.process("a")
    harness.claim(candidates("b"))
    before = harness.everything()
    assert retract(harness, "a", "b") == Retracted(seq=None, busy=[address("b")])
    assert harness.everything() == before


def test_a_retracted_object_is_not_read_again(harness: LedgerHarness) -> None:
    harness.process("a")
    retract(harness, "a")
    claim = harness.claim(
        [
            candidate("a"),
            candidate("a", message="m-2", enqueued_at=AFTER),
            candidate("a", message="m-3", enqueued_at=AFTER, replay="of-a-dead-letter"),
        ]
    )
    assert not claim.claimed
    assert claim.ended[object_id_of("a")].state is ObjectState.RETRACTED
    assert harness.ledger.known_among(PIPELINE, [object_id_of("a")], seen_at=AFTER) == {object_id_of("a")}
    assert b"".join(harness.ledger.known_ids(PIPELINE, seen_at=AFTER)) == object_id_of("a")
    assert adopt(harness.ledger, "a").known == 1
    assert harness.state("a") is ObjectState.RETRACTED


def test_a_retry_of_the_retraction_reads_it_once_and_a_later_retraction_needs_its_own(harness: LedgerHarness) -> None:
    harness.process("a")
    retract(harness, "a")
    replay = retry_of(harness, "a")
    claim = harness.claim([candidate("a", message="m-2", replay=replay)])
    assert claim.claimed[object_id_of("a")].attempts == 1
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=3)
    assert harness.state("a") is ObjectState.PROCESSED
    assert retract(harness, "a", attempt="retraction-2").versions == 1
    assert not harness.claim([candidate("a", message="m-2", replay=replay)]).claimed
    assert harness.claim([candidate("a", message="m-3", replay=retry_of(harness, "a"))]).claimed


def test_a_revived_object_whose_attempt_is_lost_is_claimed_again(harness: LedgerHarness) -> None:
    harness.process("a")
    retract(harness, "a")
    message = candidate("a", message="m-2", replay=retry_of(harness, "a"))
    assert harness.claim([message], lease_seconds=OVER).claimed
    assert harness.claim([message]).claimed[object_id_of("a")].attempts == 2


def test_an_older_version_that_comes_late_ends_as_superseded(harness: LedgerHarness) -> None:
    key = b"/landing/a"
    harness.ledger.commit(outcome(harness.claim([candidate("new", key=key, sequencer="0B")])))
    retract(harness, "a")
    assert not harness.claim([candidate("old", key=key, sequencer="0A")]).claimed
    assert harness.state("old") is ObjectState.SUPERSEDED


def test_bad_lines_of_retracted_objects_are_dismissed_and_recorded_anew_when_processed_again(
    harness: LedgerHarness,
) -> None:
    process_with_bad_lines(harness, "a")
    assert harness.ledger.quarantines.warning(PIPELINE).objects == 1
    retract(harness, "a")
    assert harness.ledger.quarantines.warning(PIPELINE).objects == 0
    (row,) = harness.ledger.quarantines.rows(PIPELINE)
    assert row.state is QuarantineState.DISMISSED
    process_with_bad_lines(harness, "a", replay=retry_of(harness, "a"))
    (row,) = harness.ledger.quarantines.rows(PIPELINE)
    assert row.state is QuarantineState.OPEN


def test_the_count_of_processed_objects_follows(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    count = harness.ledger.ages.processed_count(PIPELINE)
    retract(harness, "a")
    harness.process("c")
    updated = harness.ledger.ages.updated_count(PIPELINE, count)
    assert not updated.is_exact
    harness.process("d")
    assert not harness.ledger.ages.updated_count(PIPELINE, updated).is_exact, "until it is counted again"
    assert harness.ledger.ages.processed_count(PIPELINE).processed == 3
    waiting = harness.ledger.ages.waiting(PIPELINE, overdue_after_seconds=0.0)
    assert waiting.objects[ObjectState.RETRACTED] == 1


def test_an_archived_object_returns_as_retracted_and_can_be_processed_again(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    (retired,) = [
        one for one in contents(harness.ledger, next_file(harness.ledger)) if one.row.object_id == object_id_of("a")
    ]
    assert archive(harness.ledger)
    returning = ReturningObject(archive_id="archive-1", retired=retired)
    done = harness.ledger.retractions.retract(retraction("a", archived=[returning]))
    assert done == Retracted(seq=2, versions=1)
    assert ids_with_row(harness.ledger) == {object_id_of("a")}
    assert harness.state("a") is ObjectState.RETRACTED
    assert harness.ledger.archives.count(PIPELINE) == 1
    assert harness.ledger.archives.still_archived(PIPELINE, [object_id_of("a"), object_id_of("b")]) == {
        object_id_of("b")
    }
    assert [outcome for _, outcome, _ in harness.timeline("a")] == ["processed", "retracted"]
    again = harness.ledger.retractions.retract(retraction("a", attempt="retraction-2", archived=[returning]))
    assert again.versions == 0, "another retraction took it out of the archive"
    claim = harness.claim([candidate("a", message="m-2", replay=retry_of(harness, "a"))])
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=4)


def test_objects_retracted_while_their_archive_is_written_stay_out_of_it(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    retiring = next_file(harness.ledger)
    file = ArchiveFile(uri=FILE, objects=len(contents(harness.ledger, retiring)), bytes=100)
    retract(harness, "a")
    assert not harness.ledger.archives.retire(retiring, archive_id="stale", file=file)
    assert archive(harness.ledger, "fresh")
    assert ids_with_row(harness.ledger) == {object_id_of("a")}
    assert harness.state("a") is ObjectState.RETRACTED


def test_a_retraction_whose_commit_was_not_confirmed_counts_once(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.process("a")
    database = harness.ledger.database
    transact, lost = type(database).transact, iter([1])

    def losing(self: object, work: Callable[..., object], **options: Any) -> object:
        done = transact(database, work, **options)
        if next(lost, None):
            raise OutcomeUnknown("no answer")
        return done

    monkeypatch.setattr(type(database), "transact", losing)
    assert retract(harness, "a") == Retracted(seq=2, versions=1)
    assert harness.ledger.batch(PIPELINE, 3) is None


def test_a_retraction_that_a_repair_gave_up_is_refused(harness: LedgerHarness) -> None:
    harness.process("a")
    harness.ledger.repair(
        LedgerRepair(pipeline=PIPELINE, seen_next_seq=2, next_seq=2, table_schema=None, forgotten=["retraction-1"])
    )
    with pytest.raises(ClaimLost, match="given up by a repair"):
        retract(harness, "a")
    assert harness.state("a") is ObjectState.PROCESSED


@pytest.mark.parametrize("step", [Step.COMMITTING, Step.COMMITTED])
def test_a_death_leaves_all_of_a_retraction_or_nothing(harness: LedgerHarness, step: Step) -> None:
    harness.process("a")

    class Died(BaseException):
        pass

    def dying(reached: Step) -> None:
        if reached is step:
            raise Died

    with pytest.raises(Died):
        Ledger(harness.ledger.database, dying).retractions.retract(retraction("a"))
    done = step is Step.COMMITTED
    assert (harness.state("a") is ObjectState.RETRACTED) is done
    assert (harness.ledger.batch(PIPELINE, 2) is not None) is done
    again = harness.ledger.retractions.retract(replace(retraction("a"), attempt_id="retraction-2"))
    assert again.versions == (0 if done else 1)


def test_retractions_beside_commits_leave_each_object_as_its_last_batch_says(shared_harness: LedgerHarness) -> None:
    ledger = shared_harness.ledger
    names = [f"object {number}" for number in range(30)]
    refused: list[Retracted] = []

    def process() -> None:
        for start in range(0, len(names), 3):
            claim = ledger.claim(
                PIPELINE, candidates(*names[start : start + 3]), attempt_id=f"batch-{start}", worker="w",
                lease_seconds=LEASE_SECONDS,
            )  # fmt: skip
            ledger.commit(outcome(claim))

    def retracting(who: str) -> Callable[[], None]:
        def work() -> None:
            for number in range(10):
                wanted = names[number * 3 : number * 3 + 2]
                done = ledger.retractions.retract(retraction(*wanted, attempt=f"{who}-{number}"))
                if done.seq is None:
                    refused.append(done)

        return work

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work) for work in (process, retracting("anna"), retracting("ben"))]:
            done.result(120)
    replaced: dict[str, int] = {}
    batches = ledger.batches(PIPELINE, limit=1_000)
    assert [batch.seq for batch in batches] == list(range(1, len(batches) + 1))
    for batch in batches:
        replaced |= dict.fromkeys(replaced_objects(batch.record.replaces), batch.seq)
    assert len(batches) == 10 + 20 - len(refused)
    for row in ledger.objects(PIPELINE, limit=1_000):
        if row.state is ObjectState.PROCESSED:
            assert (row.batch_seq or 0) > replaced.get(row.uri, 0)
        else:
            assert row.state is ObjectState.RETRACTED
            assert row.uri in replaced
