"""The monitor's part of the history."""

from pathlib import Path

from penstock.app.flows import QueueFlow
from penstock.app.history.points import PipelinePoint, QueuePoint
from penstock.app.jobs.monitor.history import MonitorHistory, history_sample
from penstock.app.jobs.monitor.sample import MonitorSample
from penstock.app.system_health import DeadLetterHealth, PipelineHealth, QueueHealth
from penstock.config import Settings
from penstock.events import ignore
from penstock.ledger.records import ObjectState
from penstock.messaging.clock import SystemClock

ORDERS = QueueHealth(
    queue="orders",
    visible=3,
    in_flight=2,
    delayed=1,
    oldest_visible_message_age_seconds=9.5,
    oldest_visible_message_age_source="exact",
    oldest_message_age_seconds=11.0,
    oldest_message_age_source="exact",
)
CLICKS = PipelineHealth(
    pipeline="clicks",
    objects={ObjectState.PROCESSED: 7, ObjectState.UNPROCESSED: 2, ObjectState.PROCESSING: 1, ObjectState.DEAD: 4},
    objects_overdue=0,
    oldest_unprocessed_age_seconds=1.0,
    batches_committed=5,
    reconciled=None,
)


def test_a_sample_has_the_values_of_queues_and_pipelines() -> None:
    sample = MonitorSample(
        at=5.0,
        queues=[ORDERS],
        dead_letters=[
            DeadLetterHealth(queue="orders", tier="dlq", dead_letters=3, oldest_age_seconds=1.0),
            DeadLetterHealth(queue="orders", tier="dead", dead_letters=4, oldest_age_seconds=1.0),
        ],
        pipelines=[CLICKS],
        publish_lags_seconds={"clicks": 2.5},
        batches_unpublished={"clicks": 2},
    )
    flow = QueueFlow(in_per_second=1.5, out_per_second=2.5, net_per_second=-1.0, drained_in_seconds=6.0)
    recorded = history_sample(sample, {"orders": flow})
    assert recorded.queues == {
        "orders": QueuePoint(
            visible=3,
            in_flight=2,
            delayed=1,
            oldest_visible_age_seconds=9.5,
            dead_letters=7,
            settled_per_second=2.5,
            arrived_per_second=1.5,
        )
    }
    assert recorded.pipelines == {
        "clicks": PipelinePoint(processed=7, waiting=3, failed=4, batches=5, unpublished=2, publish_lag_seconds=2.5)
    }


def test_unknown_values_stay_unknown() -> None:
    recorded = history_sample(MonitorSample(at=5.0, queues=[ORDERS], pipelines=[CLICKS]), {})
    assert (recorded.queues["orders"].dead_letters, recorded.queues["orders"].settled_per_second) == (None, None)
    assert recorded.pipelines["clicks"].unpublished is None


def test_a_data_directory_that_cannot_be_read_does_not_stop_the_monitor(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    settings = Settings(broker="sqlite:///q.db", data_dir=str(tmp_path / "state"))
    MonitorHistory(settings, clock=SystemClock(), emit=ignore).write(MonitorSample(at=5.0, queues=[ORDERS]))
