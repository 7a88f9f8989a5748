"""The short form of `benchmarks/leases.py`: leases of a few seconds, fewer messages, and the same accounting."""

from collections.abc import Callable, Mapping

import pytest
from benchmarks.leases import measure
from tests.services.aws_server import NO_ACCOUNT
from tests.services.plugin import need_aws, need_mariadb, need_postgresql, need_redis

LEASE_SECONDS = 10.0  # a busy machine may stop for some seconds
SECONDS = 1.5 * LEASE_SECONDS  # a lease that is not extended ends meanwhile
NEEDS: Mapping[str, Callable[[], None]] = {
    "objects": lambda: need_aws("moto"),
    "claims-postgresql": need_postgresql,
    "rows-mariadb": need_mariadb,
    "redis": lambda: need_redis("7.0"),
    "sqlite": lambda: None,
    "sqs": lambda: need_aws("fauxqs"),
}


SLOW = {"sqlite"}  # quick: the parts that fail, whose messages are in SQLite


@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.slow if part in SLOW else ()) for part in NEEDS])
def test_no_message_is_lost_while_its_handler_is_alive(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    NEEDS[part]()
    for name, value in NO_ACCOUNT.items():
        monkeypatch.setenv(name, value)
    found = measure(part, seconds=SECONDS, messages=2_000, claims=200, lease_seconds=LEASE_SECONDS)
    assert found["lost"] == 0, found
    assert found["claims lost"] == 0, found
    assert found["leases/s"] > 0, "leases were extended"
