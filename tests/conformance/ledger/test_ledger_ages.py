"""Ages of waiting objects and batches, on every database."""

from sqlalchemy import update
from tests.conformance.ledger.ledger_harness import OVER, PIPELINE, LedgerHarness, candidate, candidates, object_id_of

from penstock.ledger.queries import ProcessedCount
from penstock.ledger.records import AttemptFailure, ObjectState
from penstock.ledger.schema import batches, objects

HOUR = 3_600.0


def make_older(harness: LedgerHarness, name: str, seconds: float) -> None:
    """Make the ledger's first sight of an object that much older."""
    with harness.ledger.database.engine.begin() as connection:
        connection.execute(
            update(objects)
            .where(objects.c.object_id == object_id_of(name))
            .values(first_seen_at=objects.c.first_seen_at - seconds)
        )


def test_a_pipeline_without_objects_has_none_waiting(harness: LedgerHarness) -> None:
    found = harness.ledger.ages.waiting("unheard of", overdue_after_seconds=HOUR)
    assert (found.oldest_age_seconds, found.overdue, found.committed_seq) == (0.0, 0, 0)
    assert set(found.objects.values()) == {0}
    assert ObjectState.PROCESSED not in found.objects


def test_free_and_claimed_objects_count_as_waiting_with_their_ages(harness: LedgerHarness) -> None:
    harness.process("done", "also done")
    harness.fail(AttemptFailure.RETRY, candidate("free"), "free")
    harness.claim(candidates("held", "late"))
    for name, hours in (("done", 9), ("free", 2), ("late", 3)):
        make_older(harness, name, hours * HOUR)
    found = harness.ledger.ages.waiting(PIPELINE, overdue_after_seconds=2.5 * HOUR)
    assert found.objects[ObjectState.UNPROCESSED] == 1
    assert found.objects[ObjectState.PROCESSING] == 2
    assert found.overdue == 1
    assert 3 * HOUR <= found.oldest_age_seconds < 3 * HOUR + 60
    assert harness.ledger.ages.waiting(PIPELINE, overdue_after_seconds=HOUR).overdue == 2
    assert found.committed_seq == 1


def test_a_processed_count_updated_by_later_batches_equals_a_full_count(harness: LedgerHarness) -> None:
    ages = harness.ledger.ages
    harness.process("a", "b")
    count = ages.processed_count(PIPELINE)
    assert count == ProcessedCount(processed=2, seq=1)
    harness.process("c")
    harness.process("d", "e", "f")
    updated = ages.updated_count(PIPELINE, count)
    assert updated == ProcessedCount(processed=6, seq=3) == ages.processed_count(PIPELINE)
    assert ages.updated_count(PIPELINE, updated) == updated
    assert ages.processed_count("unheard of") == ProcessedCount(processed=0, seq=0)
    assert updated.processed == harness.ledger.counts(PIPELINE)[ObjectState.PROCESSED]


def test_a_batch_reports_the_seconds_since_its_commit(harness: LedgerHarness) -> None:
    harness.process("a")
    with harness.ledger.database.engine.begin() as connection:
        connection.execute(update(batches).values(committed_at=batches.c.committed_at - HOUR))
    age = harness.ledger.ages.seconds_since_commit(PIPELINE, 1)
    assert age is not None
    assert HOUR <= age < HOUR + 60
    assert harness.ledger.ages.seconds_since_commit(PIPELINE, 2) is None


def test_an_object_with_an_expired_claim_still_counts_as_processing(harness: LedgerHarness) -> None:
    harness.claim(candidates("expired"), lease_seconds=OVER)
    assert harness.ledger.ages.waiting(PIPELINE, overdue_after_seconds=HOUR).objects[ObjectState.PROCESSING] == 1
