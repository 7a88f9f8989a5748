"""Two ingests of one folder at once, with one ledger: each object is ingested once, even if one of them is killed."""

from tests.chaos import transforms
from tests.chaos.oracle import check_done, query, truth
from tests.chaos.runs import KILLED, Case, write_objects

from penstock.messaging.steps import Step

OPTIONS = ("--max-batch-objects", "10")


def test_an_ingest_finishes_the_work_of_a_killed_one_at_once(case: Case) -> None:
    """Leases are longer than the test, so the survivor must detect the death to take over the objects."""
    write_objects(case.source, range(160))
    whole = truth(case.source)
    gate = case.folder / transforms.GATE
    gate.touch()
    survivor = case.start(*OPTIONS)
    survivor.wait_until(
        (case.folder / transforms.AT_GATE).exists
    )  # by now it has checked for dead processes and found none
    other = case.start(*OPTIONS, kill_at=Step.WRITTEN.value)
    other.wait_until(lambda: "batch of" in other.log())
    gate.unlink()
    other.end().expect(KILLED)
    report = survivor.end().expect(0).report
    check_done(whole, case.table)
    assert report["rows_written"] == len(whole.good)
    outcomes = query(case.table, "SELECT outcome, count(*) FROM attempts WHERE state = 'abandoned' GROUP BY 1")
    ((outcome, count),) = map(tuple, outcomes)
    assert outcome == "worker_died"
    assert count in (1, 2), "two batches overlap in a process"
