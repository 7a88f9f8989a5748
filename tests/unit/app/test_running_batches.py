"""The running batches of a worker, and their way through its record."""

import pytest

from penstock.app.running_batches import RUNNING_MAX, RecordedRun, RunningBatches
from penstock.events import (
    AttemptAbandoned,
    BatchClaimed,
    BatchCommitted,
    BatchProgressed,
    BatchWritten,
    Event,
    RunFailed,
)


def claimed(attempt_id: str) -> BatchClaimed:
    return BatchClaimed(pipeline="clicks", attempt_id=attempt_id, objects=3, bytes=900, seconds=0.1)


def test_a_batch_is_there_from_its_claim_with_the_progress_of_spark() -> None:
    batches = RunningBatches()
    batches(claimed("a"))
    batches(BatchProgressed(pipeline="clicks", attempt_id="a", tasks_done=2, tasks=8))
    batches(BatchProgressed(pipeline="clicks", attempt_id="unknown", tasks_done=1, tasks=1))
    known = RecordedRun(pipeline="clicks", attempt_id="a", objects=3, bytes=900, tasks_done=2, tasks=8)
    assert batches.newest() == (known,)
    batches(BatchWritten(pipeline="clicks", attempt_id="a", rows=1, lines_quarantined=0, seconds=1.0))
    (written,) = batches.newest()
    assert written.is_written


@pytest.mark.parametrize(
    "end",
    [
        BatchCommitted(
            pipeline="clicks", attempt_id="a", seq=1, objects=3, rows=1, lines_quarantined=0, bytes=900, seconds=0.1
        ),
        AttemptAbandoned(pipeline="clicks", attempt_id="a", reason="released"),
        RunFailed(pipeline="clicks", attempt_id="a", objects=3, error="no executor"),
    ],
)
def test_a_batch_that_ended_is_no_longer_there(end: Event) -> None:
    batches = RunningBatches()
    batches(claimed("a"))
    batches(claimed("b"))
    batches(end)
    assert [batch.attempt_id for batch in batches.newest()] == ["b"]


def test_their_number_is_bounded() -> None:
    batches = RunningBatches()
    for number in range(RUNNING_MAX + 3):
        batches(claimed(f"{number}"))
    assert [batch.attempt_id for batch in batches.newest()][:1] == ["3"]
    assert len(batches.newest()) == RUNNING_MAX
