"""The replay scene on every broker, with the record of replays in a ledger."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.conformance.broker_stands import Stand
from tests.conformance.replay.scene import TIERS, Scene

from penstock.ledger import Ledger


@pytest.fixture
def scene(stand: Stand) -> Iterator[Scene]:
    with closing(Ledger.open("sqlite://")) as ledger:
        yield Scene(stand=stand, broker=stand.broker(queues=TIERS), log=ledger.replays)
