"""Ages of waiting objects and batches, on every database."""

from sqlalchemy import update
from tests.conformance.ledger.desk import OVER, PIPELINE, Desk, candidate, candidates, object_id_of

from penstock.ledger.queries import ProcessedCount
from penstock.ledger.records import AttemptFailure, ObjectState
from penstock.ledger.schema import batches, objects

HOUR = 3_600.0


def make_older(desk: Desk, name: str, seconds: float) -> None:
    """Make the ledger's first sight of an object that much older."""
    with desk.ledger.database.engine.begin() as connection:
        connection.execute(
            update(objects)
            .where(objects.c.object_id == object_id_of(name))
            .values(first_seen_at=objects.c.first_seen_at - seconds)
        )


def test_a_pipeline_without_objects_has_none_waiting(desk: Desk) -> None:
    found = desk.ledger.ages.waiting("unheard of", overdue_after_seconds=HOUR)
    assert (found.oldest_age_seconds, found.overdue, found.committed_seq) == (0.0, 0, 0)
    assert set(found.objects.values()) == {0}
    assert ObjectState.PROCESSED not in found.objects


def test_free_and_claimed_objects_count_as_waiting_with_their_ages(desk: Desk) -> None:
    desk.process("done", "also done")
    desk.fail(AttemptFailure.RETRY, candidate("free"), "free")
    desk.claim(candidates("held", "late"))
    for name, hours in (("done", 9), ("free", 2), ("late", 3)):
        make_older(desk, name, hours * HOUR)
    found = desk.ledger.ages.waiting(PIPELINE, overdue_after_seconds=2.5 * HOUR)
    assert found.objects[ObjectState.UNPROCESSED] == 1
    assert found.objects[ObjectState.PROCESSING] == 2
    assert found.overdue == 1
    assert 3 * HOUR <= found.oldest_age_seconds < 3 * HOUR + 60
    assert desk.ledger.ages.waiting(PIPELINE, overdue_after_seconds=HOUR).overdue == 2
    assert found.committed_seq == 1


def test_a_processed_count_updated_by_later_batches_equals_a_full_count(desk: Desk) -> None:
    ages = desk.ledger.ages
    desk.process("a", "b")
    count = ages.processed_count(PIPELINE)
    assert count == ProcessedCount(processed=2, seq=1)
    desk.process("c")
    desk.process("d", "e", "f")
    updated = ages.updated_count(PIPELINE, count)
    assert updated == ProcessedCount(processed=6, seq=3) == ages.processed_count(PIPELINE)
    assert ages.updated_count(PIPELINE, updated) == updated
    assert ages.processed_count("unheard of") == ProcessedCount(processed=0, seq=0)
    assert updated.processed == desk.ledger.counts(PIPELINE)[ObjectState.PROCESSED]


def test_a_batch_reports_the_seconds_since_its_commit(desk: Desk) -> None:
    desk.process("a")
    with desk.ledger.database.engine.begin() as connection:
        connection.execute(update(batches).values(committed_at=batches.c.committed_at - HOUR))
    age = desk.ledger.ages.seconds_since_commit(PIPELINE, 1)
    assert age is not None
    assert HOUR <= age < HOUR + 60
    assert desk.ledger.ages.seconds_since_commit(PIPELINE, 2) is None


def test_an_object_with_an_expired_claim_still_counts_as_processing(desk: Desk) -> None:
    desk.claim(candidates("expired"), lease_seconds=OVER)
    assert desk.ledger.ages.waiting(PIPELINE, overdue_after_seconds=HOUR).objects[ObjectState.PROCESSING] == 1
