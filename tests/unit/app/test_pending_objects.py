"""When an ingest sends notifications, and when it is done. On a real data directory, without Spark."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.app.housekeeping import HolderAwareBroker
from penstock.app.paths import TablePaths, table_paths
from penstock.app.pending import ANNOUNCEMENTS_MAX, CALM_SECONDS, PendingObjects
from penstock.app.state import StateFolder, open_state
from penstock.brokers.memory.broker import MemoryBroker
from penstock.ledger.records import BatchOutcome, Candidate, ObjectResult, ObjectState, OriginalMessage
from penstock.messaging.broker import Broker, BrokerCapabilities, QueueStats
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
    return table_paths(tmp_path / "table")


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
        release_dead=state.release_dead,
        probe=no_probe,
        objects=REFS,
        clock=clock or SystemClock(),
    )


def advanced(goal: PendingObjects) -> bool:
    goal.advance()
    return goal.is_done()


def received(state: StateFolder) -> list[Delivery]:
    return list(state.broker.receive(QUEUE, messages_max=10, lease_seconds=LEASE_SECONDS))


def acked(state: StateFolder, deliveries: list[Delivery]) -> None:
    assert not state.broker.settle([(delivery, Ack()) for delivery in deliveries])


def processed(state: StateFolder, where: TablePaths) -> None:
    original_message = OriginalMessage(message_id="1", enqueued_at=1.0)
    candidates = [
        Candidate(
            object_id=ref.object_id,
            bucket=ref.bucket,
            key=ref.key_bytes,
            size_bytes=ref.size_bytes,
            uri=ref.uri,
            original_message=original_message,
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
    def capabilities(self) -> BrokerCapabilities:
        return replace(super().capabilities, exact_stats=False)

    def stats(self, queue: str) -> QueueStats:
        return replace(super().stats(queue), visible=0, in_flight=0, delayed=0)


def test_what_a_broker_does_not_count_yet_is_not_announced_again(state: StateFolder, where: TablePaths) -> None:
    broker, clock = Forgetful(), FakeClock()
    goal = new_goal(state, where, broker=broker, clock=clock)
    goal.begin()
    for _ in range(2 * ANNOUNCEMENTS_MAX):
        assert not advanced(goal)
    assert len(broker.receive(QUEUE, messages_max=10, lease_seconds=LEASE_SECONDS)) == len(REFS)
    clock.advance(CALM_SECONDS)
    assert not advanced(goal)
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
    assert not advanced(goal)
    assert received(state) == [], "while somebody holds the messages, nothing is missing"
    acked(state, deliveries)
    assert not advanced(goal)
    assert len(received(state)) == len(REFS)


def test_a_goal_is_reached_when_all_is_processed_and_no_message_waits(state: StateFolder, where: TablePaths) -> None:
    goal = new_goal(state, where)
    goal.begin()
    processed(state, where)
    assert not advanced(goal)
    acked(state, received(state))
    assert advanced(goal)


def test_a_goal_is_not_reached_while_messages_of_finished_objects_are_in_flight(
    state: StateFolder, where: TablePaths
) -> None:
    goal = new_goal(state, where)
    goal.begin()
    deliveries = received(state)
    processed(state, where)
    assert not advanced(goal), "a worker that stops now would release them, and they would stay in the queue"
    acked(state, deliveries)
    assert advanced(goal)


def test_messages_in_flight_of_a_dead_process_are_released_when_all_objects_are_done(
    state: StateFolder, where: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = new_goal(state, where)
    goal.begin()
    received(state)
    processed(state, where)
    assert not advanced(goal)
    broker = state.broker
    assert isinstance(broker, HolderAwareBroker)
    monkeypatch.setattr(goal, "_release_dead", lambda: broker.release_holder(state.worker))
    assert not advanced(goal)
    acked(state, received(state))
    assert advanced(goal)


def test_an_object_that_another_process_finishes_meanwhile_is_not_announced_again(
    state: StateFolder, where: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = new_goal(state, where)
    goal.begin()
    deliveries = received(state)
    states = state.ledger.states

    def states_before_the_others_commit(pipeline: str, object_ids: Sequence[bytes]) -> Mapping[bytes, ObjectState]:
        found = states(pipeline, object_ids)
        if deliveries:
            processed(state, where)
            acked(state, deliveries)
            deliveries.clear()
        return found

    monkeypatch.setattr(state.ledger, "states", states_before_the_others_commit)
    assert not advanced(goal)
    assert received(state) == []
    assert advanced(goal)


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
    assert goal.has_work()
    acked(state, received(state))
    assert not goal.has_work()
