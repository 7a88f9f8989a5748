"""The health of queues and dead letters, shared by status, `penstock queues` and the monitor."""

from pathlib import Path

import pytest

from penstock.app.queues import queue_statuses
from penstock.app.system_health import tier_by_dlq
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import Settings
from penstock.messaging.broker import QueueSettings
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter
from penstock.testing import FakeClock


@pytest.mark.parametrize(
    ("dead_letter_queue", "tiers"),
    [
        (None, {"orders-dlq": "dlq", "orders-dead": "dead"}),
        ("failed", {"failed": "dlq", "failed-dead": "dead"}),
        ("orders-dead", {"orders-dead": "dead"}),
    ],
)
def test_a_queue_has_a_dlq_and_a_final_dlq_which_may_be_the_same(
    dead_letter_queue: str | None, tiers: dict[str, str]
) -> None:
    broker = MemoryBroker(queues=[QueueSettings(name="orders", dead_letter_queue=dead_letter_queue)])
    assert tier_by_dlq(broker, "orders") == tiers
    broker.close()


def test_dead_letters_in_a_final_dlq_count_once_and_as_set_aside(tmp_path: Path) -> None:
    clock = FakeClock()
    broker = MemoryBroker(clock=clock, queues=[QueueSettings(name="orders", dead_letter_queue="orders-dead")])
    broker.send("orders", [Outgoing(body=b"1")])
    (delivery,) = broker.receive("orders", messages_max=1, lease_seconds=60.0)
    assert not broker.settle([(delivery, DeadLetter(reason="no"))])
    (status,) = queue_statuses(Settings.model_construct(data_dir=str(tmp_path)), broker, ["orders"])
    assert (status.dead_letters, status.dead_letters_set_aside) == (1, 1)
    broker.close()
