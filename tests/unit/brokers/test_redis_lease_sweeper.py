"""Schedule of the lease sweeps of the Redis broker."""

from penstock.brokers.redis.keys import QueueKeys
from penstock.brokers.redis.recovery import LeaseSweeper
from penstock.brokers.redis.server import Server
from penstock.testing import FakeClock


def test_a_client_with_a_longer_lease_does_not_delay_a_workers_sweep() -> None:
    clock = FakeClock()
    sweeper = LeaseSweeper(
        Server("redis://localhost"),  # never connected: it connects on first use
        QueueKeys("penstock"),
        every_seconds=None,
        clock=clock,
        random=lambda: 1.0,
        emit=lambda _: None,
    )
    assert sweeper.take_due(["q"], 60.0) == ["q"]  # the client with the longer lease
    assert sweeper.take_due(["q"], 3.0) == []
    clock.advance(1.5)
    assert sweeper.take_due(["q", "other"], 60.0) == ["other"]
    assert sweeper.take_due(["q"], 3.0) == ["q"]
    assert sweeper.take_due(["q"], 3.0) == []
    clock.advance(29.0)
    assert sweeper.take_due(["q"], 60.0) == []
    clock.advance(1.0)
    assert sweeper.take_due(["q"], 60.0) == ["q"]
