"""The rates at which queues fill and empty, from samples."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from penstock.app.flows import UNKNOWN, FlowTracker, QueueFlow
from penstock.app.queues import QueueStatus
from penstock.app.registry import WorkerRecord
from penstock.ledger.records import ObjectState
from penstock.operations.status.model import Status

START = 1_000.0


def queue(name: str, messages: int) -> QueueStatus:
    given: dict[str, Any] = dict.fromkeys(field.name for field in fields(QueueStatus))
    return QueueStatus(**{**given, "queue": name, "visible": messages, "in_flight": 0, "delayed": 0})


def worker(name: str, *, beat_at: float, started_at: float = START - 500, **settled: int) -> WorkerRecord:
    return WorkerRecord(
        worker=name,
        host="h",
        namespace="",
        pid=1,
        version="1",
        started_at=started_at,
        state="serving",
        queues=tuple(settled),
        in_flight=0,
        beat_at=beat_at,
        settled=settled,
    )


def status(
    messages: int,
    workers: Sequence[WorkerRecord] = (),
    *,
    name: str = "q",
    elsewhere: bool = False,
    silent: bool = False,
) -> Status:
    return Status(
        table=None,
        table_version=None,
        objects=dict.fromkeys(ObjectState, 0),
        batches_committed=0,
        batches_unpublished=0,
        messages_visible=messages,
        messages_in_flight=0,
        messages_delayed=0,
        oldest_visible_message_age_seconds=None,
        dead_letters=0,
        workers=[record.worker for record in workers],
        workers_elsewhere=elsewhere,
        workers_silent=silent,
        queues=[queue(name, messages)],
        records=workers,
    )


def flow_of(*samples: tuple[float, Status]) -> QueueFlow:
    """Return the flow of the only queue in the last sample."""
    flows = FlowTracker()
    found = [flows.since(sampled, at=at) for at, sampled in samples]
    (last,) = found[-1].values()
    return last


def test_a_single_sample_gives_no_flow() -> None:
    assert flow_of((0.0, status(5))) == UNKNOWN


def test_a_new_queue_has_no_flow_yet() -> None:
    assert flow_of((0.0, status(5, name="p")), (2.0, status(5, name="q"))) == UNKNOWN


def test_the_outflow_is_counted_by_workers_and_the_inflow_follows_from_it() -> None:
    flow = flow_of(
        (0.0, status(100, [worker("a", beat_at=START, q=10), worker("b", beat_at=START, q=70)])),
        (10.0, status(80, [worker("a", beat_at=START + 10, q=40), worker("b", beat_at=START + 5, q=80)])),
    )
    assert flow == QueueFlow(in_per_second=3.0, out_per_second=5.0, net_per_second=-2.0, drained_in_seconds=40.0)


def test_a_new_worker_counts_from_its_start_and_a_stopped_one_not_at_all() -> None:
    flow = flow_of(
        (0.0, status(0, [worker("old", beat_at=START, q=1_000)])),
        (10.0, status(10, [worker("new", beat_at=START + 8, started_at=START + 4, q=20)])),
    )
    assert (flow.out_per_second, flow.net_per_second, flow.in_per_second) == (5.0, 1.0, 6.0)


def test_a_record_without_a_new_heartbeat_counts_as_no_outflow() -> None:
    record = worker("a", beat_at=START, q=10)
    assert flow_of((0.0, status(4, [record])), (1.0, status(4, [record]))).out_per_second == 0.0


@pytest.mark.parametrize("unseen", [{"elsewhere": True}, {"silent": True}])
def test_without_visible_workers_only_the_net_rate_is_known(unseen: dict[str, Any]) -> None:
    flow = flow_of((0.0, status(100, **unseen)), (10.0, status(50, **unseen)))
    assert flow == QueueFlow(in_per_second=None, out_per_second=None, net_per_second=-5.0, drained_in_seconds=10.0)


@pytest.mark.parametrize(("after", "drained_in_seconds"), [(100, None), (130, None), (0, 0.0), (75, 30.0)])
def test_the_time_until_the_queue_is_empty_follows_from_the_net_rate(
    after: int, drained_in_seconds: float | None
) -> None:
    assert flow_of((0.0, status(100)), (10.0, status(after))).drained_in_seconds == drained_in_seconds


def test_rates_cover_ten_seconds_whatever_the_sampling_interval() -> None:
    samples = [(float(second), status(1_000 - 10 * second)) for second in range(60)]
    samples += [(60.0, status(1_000 - 10 * 59 + 100))]
    assert flow_of(*samples).net_per_second == pytest.approx((100 - 90) / 10)


def test_after_a_long_interval_the_rate_covers_that_interval() -> None:
    assert flow_of((0.0, status(100)), (100.0, status(0)), (400.0, status(30))).net_per_second == 0.1
