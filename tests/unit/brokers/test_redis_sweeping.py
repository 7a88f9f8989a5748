"""When a queue of the Redis broker is swept."""

from penstock.brokers.redis.keys import QueueKeys
from penstock.brokers.redis.recovery import LeaseSweeper
from penstock.brokers.redis.server import Server
from penstock.testing import FakeClock


def test_who_looks_with_a_longer_lease_makes_no_worker_wait_for_its_sweep() -> None:
    clock = FakeClock()
    sweeping = LeaseSweeper(
        Server("redis://localhost"),  # connects when asked, and is not
        QueueKeys("penstock"),
        every_seconds=None,
        clock=clock,
        random=lambda: 1.0,
        emit=lambda _: None,
    )
    assert sweeping.take_due(["q"], 60.0) == ["q"]  # who looks
    assert sweeping.take_due(["q"], 3.0) == []
    clock.advance(1.5)
    assert sweeping.take_due(["q", "other"], 60.0) == ["other"]
    assert sweeping.take_due(["q"], 3.0) == ["q"]
    assert sweeping.take_due(["q"], 3.0) == []
    clock.advance(29.0)
    assert sweeping.take_due(["q"], 60.0) == []
    clock.advance(1.0)
    assert sweeping.take_due(["q"], 60.0) == ["q"]
