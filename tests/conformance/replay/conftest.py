"""The replay scene on every broker, with the record of replays in a ledger."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.conformance.broker_harnesses import BrokerHarness
from tests.conformance.replay.scene import TIERS, Scene

from penstock.ledger import Ledger


@pytest.fixture
def scene(harness: BrokerHarness) -> Iterator[Scene]:
    with closing(Ledger.open("sqlite://")) as ledger:
        yield Scene(harness=harness, broker=harness.broker(queues=TIERS), log=ledger.replays)
