"""When an ingest sends notifications, and when it is done. On a real data directory, without Spark."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.app.housekeeping import HolderAwareBroker
from penstock.app.paths import TablePaths, table_paths
from penstock.app.pending import ANNOUNCEMENTS_MAX, CALM_SECONDS, PendingObjects
from penstock.app.state import StateFolder, open_state
from penstock.brokers.memory.broker import MemoryBroker
from penstock.ledger.records import BatchOutcome, Candidate, ObjectResult, ObjectState, OnChange, OriginalMessage
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
def paths(tmp_path: Path) -> TablePaths:
    return table_paths(tmp_path / "table")


@pytest.fixture
def state(paths: TablePaths) -> Iterator[StateFolder]:
    with open_state(paths.state) as opened:
        opened.ledger.ensure_pipeline(paths.pipeline)
        yield opened


def new_pending(
    state: StateFolder,
    paths: TablePaths,
    *,
    broker: Broker | None = None,
    clock: Clock | None = None,
    on_change: OnChange = OnChange.ADD,
) -> PendingObjects:
    return PendingObjects(
        ledger=state.ledger,
        broker=broker or state.broker,
        pipeline=paths.pipeline,
        queue=QUEUE,
        release_dead=state.release_dead,
        probe=no_probe,
        objects=REFS,
        change_rule=lambda: on_change,
        clock=clock or SystemClock(),
    )


def is_done_after_advance(pending: PendingObjects) -> bool:
    pending.advance()
    return pending.is_done()


def receive(state: StateFolder) -> list[Delivery]:
    return list(state.broker.receive(QUEUE, messages_max=10, lease_seconds=LEASE_SECONDS))


def ack(state: StateFolder, deliveries: list[Delivery]) -> None:
    assert not state.broker.settle([(delivery, Ack()) for delivery in deliveries])


def process(state: StateFolder, paths: TablePaths) -> None:
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
        paths.pipeline, candidates, attempt_id="one", worker=state.worker, lease_seconds=LEASE_SECONDS
    )
    results = [ObjectResult(object_id=object_id, rows=1, lines_quarantined=0) for object_id in claim.claimed]
    state.ledger.commit(BatchOutcome(pipeline=paths.pipeline, attempt_id="one", processed=results))


def test_the_states_of_processed_objects_are_not_read_again(
    state: StateFolder, paths: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = new_pending(state, paths)
    process(state, paths)
    assert is_done_after_advance(pending)
    asked: list[bytes] = []
    read_states = state.ledger.states

    def states(pipeline: str, object_ids: Sequence[bytes]) -> Mapping[bytes, ObjectState]:
        asked.extend(object_ids)
        return read_states(pipeline, object_ids)

    monkeypatch.setattr(state.ledger, "states", states)
    assert pending.states() == {ref.object_id: ObjectState.PROCESSED for ref in REFS}
    assert pending.left() == 0
    assert not asked


def test_a_notification_is_enqueued_for_each_object(state: StateFolder, paths: TablePaths) -> None:
    new_pending(state, paths).begin()
    assert state.broker.stats(QUEUE).visible == len(REFS)


class UncountedBroker(MemoryBroker):
    """A broker that counts none of its messages, as SQS may do for a while."""

    @property
    def capabilities(self) -> BrokerCapabilities:
        return replace(super().capabilities, exact_stats=False)

    def stats(self, queue: str) -> QueueStats:
        return replace(super().stats(queue), visible=0, in_flight=0, delayed=0)

    def is_empty(self, queue: str) -> bool:
        return not self.stats(queue).messages


def test_notifications_that_the_broker_does_not_count_yet_are_not_enqueued_again(
    state: StateFolder, paths: TablePaths
) -> None:
    broker, clock = UncountedBroker(), FakeClock()
    pending = new_pending(state, paths, broker=broker, clock=clock)
    pending.begin()
    for _ in range(2 * ANNOUNCEMENTS_MAX):
        assert not is_done_after_advance(pending)
    assert len(broker.receive(QUEUE, messages_max=10, lease_seconds=LEASE_SECONDS)) == len(REFS)
    clock.advance(CALM_SECONDS)
    assert not is_done_after_advance(pending)
    assert len(broker.receive(QUEUE, messages_max=10, lease_seconds=LEASE_SECONDS)) == len(REFS)


def test_no_messages_are_counted_after_a_batch(
    state: StateFolder, paths: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = new_pending(state, paths)
    pending.begin()
    monkeypatch.setattr(state.broker, "stats", None)  # it reads an entry for each message
    assert not is_done_after_advance(pending)
    state.broker.settle([(delivery, Ack()) for delivery in receive(state)])
    assert not is_done_after_advance(pending)
    assert len(receive(state)) == len(REFS), "they are sent again"


def test_notifications_of_a_killed_ingest_are_not_enqueued_again(state: StateFolder, paths: TablePaths) -> None:
    new_pending(state, paths).begin()
    new_pending(state, paths).begin()
    assert len(receive(state)) == len(REFS)


def test_unfinished_objects_are_enqueued_again_when_the_queue_is_empty(state: StateFolder, paths: TablePaths) -> None:
    pending = new_pending(state, paths)
    pending.begin()
    deliveries = receive(state)
    assert not is_done_after_advance(pending)
    assert receive(state) == [], "no notification is missing while messages are in flight"
    ack(state, deliveries)
    assert not is_done_after_advance(pending)
    assert len(receive(state)) == len(REFS)


def test_an_ingest_is_done_when_all_objects_are_processed_and_no_message_waits(
    state: StateFolder, paths: TablePaths
) -> None:
    pending = new_pending(state, paths)
    pending.begin()
    process(state, paths)
    assert not is_done_after_advance(pending)
    ack(state, receive(state))
    assert is_done_after_advance(pending)


def test_an_ingest_is_not_done_while_messages_of_finished_objects_are_in_flight(
    state: StateFolder, paths: TablePaths
) -> None:
    pending = new_pending(state, paths)
    pending.begin()
    deliveries = receive(state)
    process(state, paths)
    assert not is_done_after_advance(pending), (
        "a worker that stops now would release them, and they would stay in the queue"
    )
    ack(state, deliveries)
    assert is_done_after_advance(pending)


def test_messages_in_flight_of_a_dead_process_are_released_when_all_objects_are_done(
    state: StateFolder, paths: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = new_pending(state, paths)
    pending.begin()
    receive(state)
    process(state, paths)
    assert not is_done_after_advance(pending)
    broker = state.broker
    assert isinstance(broker, HolderAwareBroker)
    monkeypatch.setattr(pending, "_release_dead", lambda: broker.release_holder(state.worker))
    assert not is_done_after_advance(pending)
    ack(state, receive(state))
    assert is_done_after_advance(pending)


def test_an_object_that_another_process_finishes_meanwhile_is_not_enqueued_again(
    state: StateFolder, paths: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = new_pending(state, paths)
    pending.begin()
    deliveries = receive(state)
    states = state.ledger.states

    def states_before_the_others_commit(pipeline: str, object_ids: Sequence[bytes]) -> Mapping[bytes, ObjectState]:
        found = states(pipeline, object_ids)
        if deliveries:
            process(state, paths)
            ack(state, deliveries)
            deliveries.clear()
        return found

    monkeypatch.setattr(state.ledger, "states", states_before_the_others_commit)
    assert not is_done_after_advance(pending)
    assert receive(state) == []
    assert is_done_after_advance(pending)


def test_a_scan_reports_the_waiting_messages(state: StateFolder, paths: TablePaths) -> None:
    new_pending(state, paths).begin()
    process(state, paths)
    scanned = new_pending(state, paths).scanned("/in")
    assert (scanned.found, scanned.unfinished, scanned.messages) == (len(REFS), 0, len(REFS))


def test_unsettled_messages_of_a_killed_ingest_are_work(state: StateFolder, paths: TablePaths) -> None:
    new_pending(state, paths).begin()
    process(state, paths)
    pending = new_pending(state, paths)
    assert pending.has_work()
    ack(state, receive(state))
    assert not pending.has_work()


def test_objects_that_the_ledger_does_not_know_are_enqueued_without_a_second_query(
    state: StateFolder, paths: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = new_pending(state, paths)

    def live(pipeline: str, object_ids: Sequence[bytes]) -> set[bytes]:
        raise AssertionError(f"{len(object_ids)} objects of {pipeline} were looked up")

    monkeypatch.setattr(state.ledger, "live", live)
    pending.begin()
    assert len(receive(state)) == len(REFS)


class CountingSet(set[bytes]):
    """A set that counts how often its difference to another set is computed, which takes as long as it is large."""

    differences = 0

    def __sub__(self, other: object) -> "CountingSet":
        CountingSet.differences += 1
        return CountingSet(super().__sub__(other))  # type: ignore[operator] # any set


def test_the_objects_to_enqueue_are_computed_once_for_all(state: StateFolder, paths: TablePaths) -> None:
    pending = new_pending(state, paths)
    pending.unfinished = CountingSet(pending.unfinished)
    pending.announce()
    assert CountingSet.differences == 1


class ChangedBack:
    """The answers of a ledger about objects that changed back: processed, and replaced by a later version since."""

    def __init__(self, state: StateFolder, monkeypatch: pytest.MonkeyPatch, *refs: ObjectRef) -> None:
        self.ids = {ref.object_id for ref in refs}
        monkeypatch.setattr(state.ledger, "superseded", self.superseded)

    def superseded(self, _pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        return self.ids & set(object_ids)


def test_a_file_that_changed_back_is_read_again_and_done_once_its_rows_are_back(
    state: StateFolder, paths: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(state, paths)
    changed_back = ChangedBack(state, monkeypatch, REFS[0])
    pending = new_pending(state, paths, on_change=OnChange.REPLACE)
    assert pending.unfinished == {REFS[0].object_id}
    assert pending.before.keys() == {ref.object_id for ref in REFS[1:]}
    pending.begin()
    ack(state, receive(state))
    assert not is_done_after_advance(pending)
    assert pending.left() == 1
    ack(state, receive(state))
    changed_back.ids.clear()  # a batch has replaced the rows of the later version
    assert is_done_after_advance(pending)
    assert pending.left() == 0


def test_a_watched_file_that_changes_back_and_forth_is_enqueued_each_time(
    state: StateFolder, paths: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(state, paths)
    changed_back = ChangedBack(state, monkeypatch)
    pending = new_pending(state, paths, on_change=OnChange.REPLACE)
    for _ in range(ANNOUNCEMENTS_MAX + 1):
        pending.add([REFS[0]])
        assert not receive(state), "it is in the table in this version"
        changed_back.ids = {REFS[0].object_id}
        pending.add([REFS[0]])
        deliveries = receive(state)
        assert len(deliveries) == 1
        ack(state, deliveries)
        changed_back.ids = set()
        assert is_done_after_advance(pending)


def test_a_processed_file_stays_done_if_versions_are_added(
    state: StateFolder, paths: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(state, paths)
    ChangedBack(state, monkeypatch, *REFS)
    pending = new_pending(state, paths)
    pending.add(REFS)
    assert is_done_after_advance(pending)
    assert not receive(state)


def test_a_check_while_the_queue_holds_messages_reads_a_few_states_however_many_objects_there_are(
    state: StateFolder, paths: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = [ObjectRef(bucket=LOCAL_BUCKET, key=f"/in/{number}", size_bytes=1, etag="1") for number in range(200)]
    pending = new_pending(state, paths)
    pending.take(refs)
    pending.begin()
    monkeypatch.setattr("penstock.app.pending.STATES_AT_ONCE", 10)
    read: list[int] = []
    states = state.ledger.states

    def counting(pipeline: str, object_ids: Collection[bytes]) -> Mapping[bytes, ObjectState]:
        read.append(len(object_ids))
        return states(pipeline, object_ids)

    monkeypatch.setattr(state.ledger, "states", counting)
    for _ in range(5):
        pending.advance()
    assert read == [10] * 5
    assert len(pending.unfinished) == len(REFS) + len(refs)


def test_objects_that_ended_are_dropped_by_one_check_while_messages_are_left(
    state: StateFolder, paths: TablePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.app.pending.STATES_AT_ONCE", 1)
    pending = new_pending(state, paths)
    pending.begin()
    deliveries = receive(state)
    process(state, paths)
    pending.advance()
    assert not pending.unfinished
    assert not pending.is_done(), "their messages are in flight"
    ack(state, deliveries)
    assert is_done_after_advance(pending)
