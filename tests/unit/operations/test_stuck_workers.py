"""Signs that a worker is stuck, as a pure function of its record."""

from dataclasses import replace

import pytest

from penstock.app.held_messages import HeldMessage
from penstock.app.registry import WorkerRecord
from penstock.operations.workers.stuck import (
    HEARTBEAT_SECONDS_MAX,
    HELD_SECONDS_MAX,
    LAG_SECONDS_MAX,
    TIMEOUT_GRACE_SECONDS,
    StuckSign,
    stuck_signs,
)

NOW = 1_700_000_000.0
WELL = WorkerRecord(
    worker="w",
    host="h",
    namespace="n",
    pid=1,
    version="1",
    started_at=NOW - 86_400,
    state="serving",
    queues=("slow", "quick"),
    in_flight=0,
    beat_at=NOW - 2,
    lag_seconds=0.01,
)


def held(queue: str, message: str, seconds: float) -> HeldMessage:
    return HeldMessage(queue=queue, message_id=message, since=NOW - seconds)


def signs(record: WorkerRecord, **timeouts: float) -> list[StuckSign]:
    return [one.sign for one in stuck_signs(record, now=NOW, timeouts=timeouts)]


@pytest.mark.parametrize(
    "record",
    [
        WELL,
        replace(WELL, beat_at=NOW - HEARTBEAT_SECONDS_MAX),
        replace(WELL, beat_at=NOW + 5),  # a clock that was set back
        replace(WELL, lag_seconds=LAG_SECONDS_MAX),
        replace(WELL, lag_seconds=None),
        replace(WELL, held=(held("slow", "m", HELD_SECONDS_MAX),)),
        replace(WELL, state="draining"),
    ],
)
def test_a_worker_that_is_well_has_no_sign(record: WorkerRecord) -> None:
    assert signs(record) == []


@pytest.mark.parametrize(
    ("record", "sign", "seconds"),
    [
        (replace(WELL, troubles=("the thread penstock-io has ended",)), StuckSign.HANGING, 0.0),
        (replace(WELL, beat_at=NOW - HEARTBEAT_SECONDS_MAX - 1), StuckSign.SILENT, HEARTBEAT_SECONDS_MAX + 1),
        (replace(WELL, lag_seconds=LAG_SECONDS_MAX + 1), StuckSign.BLOCKED, LAG_SECONDS_MAX + 1),
        (replace(WELL, held=(held("slow", "m", HELD_SECONDS_MAX + 1),)), StuckSign.HOLDING, HELD_SECONDS_MAX + 1),
    ],
)
def test_each_sign_alone(record: WorkerRecord, sign: StuckSign, seconds: float) -> None:
    (found,) = stuck_signs(record, now=NOW, timeouts={})
    assert found.sign is sign
    assert found.seconds == pytest.approx(seconds)


def test_the_strongest_sign_is_first() -> None:
    record = replace(
        WELL, troubles=("x", "y"), beat_at=0.0, lag_seconds=60.0, held=(held("slow", "m", 10 * HELD_SECONDS_MAX),)
    )
    assert signs(record) == [
        StuckSign.HANGING,
        StuckSign.HANGING,
        StuckSign.SILENT,
        StuckSign.BLOCKED,
        StuckSign.HOLDING,
    ]


def test_the_timeout_of_a_handler_is_the_limit_of_its_queue_alone() -> None:
    record = replace(WELL, held=(held("quick", "m", 5 + TIMEOUT_GRACE_SECONDS + 1), held("slow", "n", 300)))
    (found,) = stuck_signs(record, now=NOW, timeouts={"quick": 5.0})
    assert (found.queue, found.message_id, found.limit_seconds) == ("quick", "m", 5.0 + TIMEOUT_GRACE_SECONDS)
    assert signs(record, quick=60.0) == []


def test_one_sign_names_the_oldest_message_of_a_queue_and_counts_the_others() -> None:
    record = replace(WELL, held=(held("slow", "young", 700), held("slow", "old", 900), held("slow", "fresh", 1)))
    (found,) = stuck_signs(record, now=NOW, timeouts={})
    assert (found.message_id, found.others) == ("old", 1)
