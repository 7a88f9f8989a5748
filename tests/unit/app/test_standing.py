"""What `status` makes of messages that no worker of this host works on."""

from dataclasses import replace

import pytest

from penstock.app.backends import has_workers_elsewhere
from penstock.app.status import Standing
from penstock.config import Settings
from penstock.ledger.records import ObjectState

NOBODY_HERE = Standing(
    table=None,
    table_version=None,
    objects=dict.fromkeys(ObjectState, 0),
    batches_committed=1,
    batches_unpublished=0,
    messages_visible=2,
    messages_in_flight=3,
    messages_delayed=5,
    oldest_visible_message_age_seconds=1.0,
    dead_letters=0,
    workers=(),
)


def test_on_a_broker_of_this_host_messages_without_a_worker_are_a_trouble() -> None:
    assert NOBODY_HERE.troubles == ["messages waiting with no worker running: 10"]


def test_on_a_broker_that_hosts_share_a_worker_may_be_elsewhere() -> None:
    shared = replace(NOBODY_HERE, workers_elsewhere=True)
    assert shared.troubles == []
    assert shared.verdict == "messages waiting or in work: 10; workers of other hosts cannot be seen from here"
    assert replace(shared, workers=("here",)).verdict == "all well"
    assert replace(shared, messages_visible=0, messages_in_flight=0, messages_delayed=0).verdict == "all well"
    assert replace(shared, dead_letters=1).verdict == "dead letters: 1"


@pytest.mark.parametrize(
    ("address", "elsewhere"),
    [("redis://h", True), ("unix:///s", True), ("sqs://", True), ("sqlite:///f", False), ("memory://", False)],
)
def test_which_brokers_hosts_share(address: str, elsewhere: bool) -> None:
    assert has_workers_elsewhere(Settings(broker=address)) is elsewhere
