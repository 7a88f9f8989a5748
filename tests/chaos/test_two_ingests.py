"""Two ingests of one folder at once, on one state: each object once, and neither depends on the other's living."""

import pytest
from tests.chaos.oracle import check_done, query, truth
from tests.chaos.runs import KILLED, Case, write_objects

from penstock.messaging.steps import Step

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

OPTIONS = ("--max-objects", "10")


def test_two_at_once_share_the_work(case: Case) -> None:
    write_objects(case.source, range(80))
    whole = truth(case.source)
    reports = [running.end().but(0).report for running in [case.start(*OPTIONS), case.start(*OPTIONS)]]
    check_done(whole, case.table)
    assert sum(report["rows_written"] for report in reports) == len(whole.good)
    assert sum(report["lines_quarantined"] for report in reports) == len(whole.bad)
    assert sum(report["batches"] for report in reports) == query(case.table, "SELECT count(*) FROM batches")[0][0]
    assert [report["objects_processed"] + report["objects_skipped"] for report in reports] == [80, 80]
    assert max(number for (number,) in query(case.table, "SELECT charged - refunds FROM objects")) == 1


def test_one_is_killed_and_the_other_finishes_everything_at_once(case: Case) -> None:
    """Their leases last longer than the test may: only the proof that the other is dead can free what it held."""
    write_objects(case.source, range(160))
    whole = truth(case.source)
    survivor = case.start(*OPTIONS)
    survivor.wait_until(lambda: "to do" in survivor.said())  # it has looked for dead processes, and found none
    case.start(*OPTIONS, kill_at=Step.WRITTEN.value).end().but(KILLED)
    assert survivor.process.poll() is None, "the survivor was done before there was anything to survive"
    report = survivor.end().but(0).report
    check_done(whole, case.table)
    assert report["rows_written"] == len(whole.good)
    outcomes = query(case.table, "SELECT outcome, count(*) FROM attempts WHERE state = 'abandoned' GROUP BY 1")
    assert [tuple(row) for row in outcomes] == [("worker_died", 1)]
