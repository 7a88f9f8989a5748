"""When an ingest announces, and when it is done. On a real state folder, without Spark."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.app.paths import TablePaths, places
from penstock.app.pending import ANNOUNCEMENTS_MAX, CALM_SECONDS, PendingObjects
from penstock.app.state import StateFolder, open_state
from penstock.brokers.memory.broker import MemoryBroker
from penstock.ledger.records import BatchOutcome, Candidate, Carrier, ObjectResult
from penstock.messaging.broker import Broker, Capabilities, QueueStats
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Ack
from penstock.messaging.steps import no_probe
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef
from penstock.testing import FakeClock

QUEUE = "ingest"
LEASE_SECONDS = 600.0
REFS = [ObjectRef(bucket=LOCAL_BUCKET, key=f"/in/{name}", size_bytes=1, etag="1") for name in "abc"]


@pytest.fixture
def where(tmp_path: Path) -> TablePaths:
    return places(tmp_path / "table")


@pytest.fixture
def state(where: TablePaths) -> Iterator[StateFolder]:
    with open_state(where.state) as opened:
        opened.ledger.ensure_pipeline(where.pipeline)
        yield opened


def new_goal(
    state: StateFolder, where: TablePaths, *, broker: Broker | None = None, clock: Clock | None = None
) -> PendingObjects:
    return PendingObjects(
        ledger=state.ledger,
        broker=broker or state.broker,
        pipeline=where.pipeline,
        queue=QUEUE,
        free_the_dead=state.free_what_the_dead_held,
        probe=no_probe,
        objects=REFS,
        clock=clock or SystemClock(),
    )


def received(state: StateFolder) -> list[Delivery]:
    return list(state.broker.receive(QUEUE, messages_max=10, lease_seconds=LEASE_SECONDS))


def acked(state: StateFolder, deliveries: list[Delivery]) -> None:
    assert not state.broker.settle([(delivery, Ack()) for delivery in deliveries])


def processed(state: StateFolder, where: TablePaths) -> None:
    carrier = Carrier(message_id="1", enqueued_at=1.0)
    candidates = [
        Candidate(
            object_id=ref.object_id,
            bucket=ref.bucket,
            key=ref.key_bytes,
            size_bytes=ref.size_bytes,
            uri=ref.uri,
            carrier=carrier,
            etag=ref.etag,
        )
        for ref in REFS
    ]
    claim = state.ledger.claim(
        where.pipeline, candidates, attempt_id="one", worker=state.worker, lease_seconds=LEASE_SECONDS
    )
    results = [ObjectResult(object_id=object_id, rows=1, lines_quarantined=0) for object_id in claim.claimed]
    state.ledger.commit(BatchOutcome(pipeline=where.pipeline, attempt_id="one", processed=results))


def test_a_goal_announces_each_object_once(state: StateFolder, where: TablePaths) -> None:
    new_goal(state, where).begin()
    assert state.broker.stats(QUEUE).visible == len(REFS)


class Forgetful(MemoryBroker):
    """Tells of nothing that is in it, as SQS may for a while."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, exact_stats=False)

    def stats(self, queue: str) -> QueueStats:
        return replace(super().stats(queue), visible=0, in_flight=0, delayed=0)


def test_what_a_broker_does_not_count_yet_is_not_announced_again(state: StateFolder, where: TablePaths) -> None:
    broker, clock = Forgetful(), FakeClock()
    goal = new_goal(state, where, broker=broker, clock=clock)
    goal.begin()
    for _ in range(2 * ANNOUNCEMENTS_MAX):
        assert not goal.reached()
    assert len(broker.receive(QUEUE, messages_max=10, lease_seconds=LEASE_SECONDS)) == len(REFS)
    clock.advance(CALM_SECONDS)
    assert not goal.reached()
    assert len(broker.receive(QUEUE, messages_max=10, lease_seconds=LEASE_SECONDS)) == len(REFS)


def test_what_a_killed_ingest_announced_is_not_announced_again(state: StateFolder, where: TablePaths) -> None:
    new_goal(state, where).begin()
    new_goal(state, where).begin()
    assert len(received(state)) == len(REFS)


def test_objects_are_announced_again_when_the_queue_is_empty_and_they_are_not_done(
    state: StateFolder, where: TablePaths
) -> None:
    goal = new_goal(state, where)
    goal.begin()
    deliveries = received(state)
    assert not goal.reached()
    assert received(state) == [], "while somebody holds the messages, nothing is missing"
    acked(state, deliveries)
    assert not goal.reached()
    assert len(received(state)) == len(REFS)


def test_a_goal_is_reached_when_all_is_processed_and_no_message_waits(state: StateFolder, where: TablePaths) -> None:
    goal = new_goal(state, where)
    goal.begin()
    processed(state, where)
    assert not goal.reached()
    acked(state, received(state))
    assert goal.reached()


def test_a_scan_tells_of_the_messages_that_were_there(state: StateFolder, where: TablePaths) -> None:
    new_goal(state, where).begin()
    processed(state, where)
    scanned = new_goal(state, where).scanned("/in")
    assert (scanned.found, scanned.unfinished, scanned.messages) == (len(REFS), 0, len(REFS))


def test_messages_that_a_killed_ingest_did_not_live_to_settle_are_something_to_do(
    state: StateFolder, where: TablePaths
) -> None:
    new_goal(state, where).begin()
    processed(state, where)
    goal = new_goal(state, where)
    assert not goal.reached_before()
    acked(state, received(state))
    assert goal.reached_before()
