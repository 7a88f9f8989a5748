"""Progress of maintenance tasks, and the objects that a batch processed."""

from sqlalchemy import update
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, object_id_of, outcome, seq_of

from penstock.ledger.records import AttemptFailure
from penstock.ledger.schema import batches

TASK = "cleanup"
HOUR_SECONDS = 3_600.0


def age(harness: LedgerHarness, seq: int, *, seconds: float) -> None:
    """Make a batch's commit that much older."""
    harness.ledger.database.transact(
        lambda connection: connection.execute(
            update(batches)
            .where(batches.c.pipeline == PIPELINE, batches.c.seq == seq)
            .values(committed_at=batches.c.committed_at - seconds)
        )
    )


def test_the_progress_of_a_task_starts_before_the_first_batch(harness: LedgerHarness) -> None:
    assert harness.ledger.progress(PIPELINE, TASK) == 0


def test_progress_only_grows_and_is_kept_per_task_and_pipeline(harness: LedgerHarness) -> None:
    harness.ledger.advance_progress(PIPELINE, TASK, 3)
    harness.ledger.advance_progress(PIPELINE, TASK, 2)
    harness.ledger.advance_progress(PIPELINE, "archive", 1)
    assert harness.ledger.progress(PIPELINE, TASK) == 3
    assert harness.ledger.progress(PIPELINE, "archive") == 1
    assert harness.ledger.progress("another", TASK) == 0


def test_a_batch_lists_exactly_the_objects_it_processed(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("good", "bad", "better"))
    seq = seq_of(harness.ledger.commit(outcome(claim, failed={"bad": AttemptFailure.DEAD})))
    harness.process("later")
    assert seq is not None
    found = harness.ledger.processed_objects(PIPELINE, seq)
    assert [row.object_id for row in found] == sorted(map(object_id_of, ("good", "better")))
    assert {row.batch_seq for row in found} == {seq}


def test_processed_objects_of_a_batch_are_listed_in_pages(harness: LedgerHarness) -> None:
    names = [f"o-{number}" for number in range(5)]
    seq = harness.process(*names)
    assert seq is not None
    pages, after = [], b""
    while page := harness.ledger.processed_objects(PIPELINE, seq, after=after, limit=2):
        pages.append([row.object_id for row in page])
        after = page[-1].object_id
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [one for page in pages for one in page] == sorted(map(object_id_of, names))


def test_batches_become_old_enough_in_order_by_the_databases_clock(harness: LedgerHarness) -> None:
    for name in ("one", "two", "three"):
        harness.process(name)
    assert harness.ledger.last_batch_older_than(PIPELINE, after_seq=0, older_than_seconds=HOUR_SECONDS) == 0
    age(harness, 1, seconds=2 * HOUR_SECONDS)
    age(harness, 3, seconds=2 * HOUR_SECONDS)  # the clock was set back in between: the second batch still blocks it
    assert harness.ledger.last_batch_older_than(PIPELINE, after_seq=0, older_than_seconds=HOUR_SECONDS) == 1
    assert harness.ledger.last_batch_older_than(PIPELINE, after_seq=1, older_than_seconds=HOUR_SECONDS) == 1
    age(harness, 2, seconds=2 * HOUR_SECONDS)
    assert harness.ledger.last_batch_older_than(PIPELINE, after_seq=0, older_than_seconds=HOUR_SECONDS) == 3
    assert harness.ledger.last_batch_older_than(PIPELINE, after_seq=3, older_than_seconds=HOUR_SECONDS) == 3
