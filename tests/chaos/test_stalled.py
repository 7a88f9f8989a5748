"""A process that is suspended beyond its lease can neither commit nor settle when it resumes, and ends normally."""

import signal

from tests.chaos import transforms
from tests.chaos.oracle import check_done, query, truth
from tests.chaos.runs import Case, write_objects

OBJECTS = 20
LEASE_SECONDS = 6


def test_a_stalled_ingest_wakes_up_to_find_its_work_done(case: Case) -> None:
    write_objects(case.source, range(OBJECTS))
    whole = truth(case.source)
    gate = case.folder / transforms.GATE
    gate.touch()
    stalled = case.start(worker_lease=LEASE_SECONDS)
    stalled.wait_until((case.folder / transforms.AT_GATE).exists)
    stalled.send_group(signal.SIGSTOP)
    gate.unlink()

    other = case.ingest().report  # the stalled process still holds its lock, so only its lease can end
    assert other["rows_written"] == len(whole.good)
    stalled.send_group(signal.SIGCONT)
    report = stalled.end().expect(0).report
    assert report["rows_written"] == 0
    assert report["batches"] == 0
    check_done(whole, case.table)
    outcomes = query(case.table, "SELECT state, outcome FROM attempts ORDER BY started_at")
    assert [tuple(row) for row in outcomes] == [("abandoned", "expired"), ("committed", None)]
