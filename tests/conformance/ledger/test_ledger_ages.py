"""How long objects and batches wait, on every database."""

from sqlalchemy import update
from tests.conformance.ledger.desk import OVER, PIPELINE, Desk, candidate, candidates, object_id_of

from penstock.ledger.queries import ProcessedCount
from penstock.ledger.records import AttemptFailure, ObjectState
from penstock.ledger.schema import batches, objects

HOUR = 3_600.0


def seen_before(desk: Desk, name: str, seconds: float) -> None:
    """Let the ledger have heard of an object so long ago."""
    with desk.ledger.database.engine.begin() as connection:
        connection.execute(
            update(objects)
            .where(objects.c.object_id == object_id_of(name))
            .values(first_seen_at=objects.c.first_seen_at - seconds)
        )


def test_a_pipeline_without_objects_has_nothing_waiting(desk: Desk) -> None:
    found = desk.ledger.ages.waiting("unheard of", overdue_after_seconds=HOUR)
    assert (found.oldest_age_seconds, found.overdue, found.committed_seq) == (0.0, 0, 0)
    assert set(found.objects.values()) == {0}
    assert ObjectState.PROCESSED not in found.objects


def test_what_waits_is_counted_and_aged_whether_free_or_claimed(desk: Desk) -> None:
    desk.process("done", "also done")
    desk.fail(AttemptFailure.RETRY, candidate("free"), "free")
    desk.claim(candidates("held", "late"))
    for name, hours in (("done", 9), ("free", 2), ("late", 3)):
        seen_before(desk, name, hours * HOUR)
    found = desk.ledger.ages.waiting(PIPELINE, overdue_after_seconds=2.5 * HOUR)
    assert found.objects[ObjectState.UNPROCESSED] == 1
    assert found.objects[ObjectState.PROCESSING] == 2
    assert found.overdue == 1
    assert 3 * HOUR <= found.oldest_age_seconds < 3 * HOUR + 60
    assert desk.ledger.ages.waiting(PIPELINE, overdue_after_seconds=HOUR).overdue == 2
    assert found.committed_seq == 1


def test_a_tally_is_brought_up_by_the_batches_and_is_what_counting_finds(desk: Desk) -> None:
    ages = desk.ledger.ages
    desk.process("a", "b")
    tally = ages.processed_count(PIPELINE)
    assert tally == ProcessedCount(processed=2, seq=1)
    desk.process("c")
    desk.process("d", "e", "f")
    brought = ages.updated_count(PIPELINE, tally)
    assert brought == ProcessedCount(processed=6, seq=3) == ages.processed_count(PIPELINE)
    assert ages.updated_count(PIPELINE, brought) == brought
    assert ages.processed_count("unheard of") == ProcessedCount(processed=0, seq=0)
    assert brought.processed == desk.ledger.counts(PIPELINE)[ObjectState.PROCESSED]


def test_a_batch_shows_how_long_ago_it_was_committed(desk: Desk) -> None:
    desk.process("a")
    with desk.ledger.database.engine.begin() as connection:
        connection.execute(update(batches).values(committed_at=batches.c.committed_at - HOUR))
    age = desk.ledger.ages.seconds_since_commit(PIPELINE, 1)
    assert age is not None
    assert HOUR <= age < HOUR + 60
    assert desk.ledger.ages.seconds_since_commit(PIPELINE, 2) is None


def test_an_expired_claim_is_still_unfinished(desk: Desk) -> None:
    desk.claim(candidates("expired"), lease_seconds=OVER)
    assert desk.ledger.ages.waiting(PIPELINE, overdue_after_seconds=HOUR).objects[ObjectState.PROCESSING] == 1
