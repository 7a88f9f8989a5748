"""Telling of published batches: in order, each at least once, whoever dies in between."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.app.pipelines.published import SEND_MAX, PublishedBatch, PublishNotifier
from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import PenstockError, TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.records import BatchOutcome, BatchRecord, Candidate, ObjectResult, OriginalMessage
from penstock.messaging.message import Outgoing
from penstock.messaging.schema import BodyCodec, Queue
from penstock.testing import FakeClock

QUEUE = Queue("clicks-published", PublishedBatch)


class Scene:
    """A ledger, a broker, and heralds that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.ledger = Ledger.open(folder / "ledger.db")
        self.ledger.ensure_pipeline("clicks")
        self.clock = FakeClock()
        self.broker = MemoryBroker(clock=self.clock)

    def herald(self, *, broker: MemoryBroker | None = None, ledger: Ledger | None = None) -> PublishNotifier:
        return PublishNotifier(
            ledger=ledger or self.ledger,
            broker=broker or self.broker,
            queue=QUEUE,
            pipeline="clicks",
            table="/lake/clicks",
        )

    def commit(self, count: int = 1, *, prefix: str = "object") -> None:
        for _ in range(count):
            name = f"{prefix} {self.ledger.ensure_pipeline('clicks').next_seq}"
            candidate = Candidate(
                object_id=name.encode().ljust(16)[:16],
                bucket="file",
                key=name.encode(),
                size_bytes=1,
                uri=f"file:///{name}",
                original_message=OriginalMessage(message_id="1", enqueued_at=1.0),
            )
            claim = self.ledger.claim("clicks", [candidate], attempt_id=name, worker="w", lease_seconds=60)
            results = [ObjectResult(object_id=one, rows=2, lines_quarantined=1) for one in claim.claimed]
            self.ledger.commit(
                BatchOutcome(
                    pipeline="clicks",
                    attempt_id=name,
                    processed=results,
                    record=BatchRecord(rows=2, lines_quarantined=1),
                )
            )

    def told(self) -> list[PublishedBatch]:
        codec = BodyCodec(QUEUE)
        found = [codec.decode(message) for message in self.broker.browse(QUEUE.name, messages_max=1_000)]
        assert all(isinstance(one, PublishedBatch) for one in found)
        return found  # type: ignore[return-value]  # as was just looked at

    def seqs(self) -> list[int]:
        return [batch.seq for batch in self.told()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


class Away(MemoryBroker):
    """It never takes anything."""

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        raise TemporaryError("the broker is away")


def test_each_batch_is_told_of_once_and_in_order(scene: Scene) -> None:
    herald = scene.herald()
    scene.commit(3)
    herald.announce(2)
    assert scene.seqs() == [1, 2], "the third is not visible yet"
    herald.announce(3)
    herald.announce(3)
    assert scene.seqs() == [1, 2, 3]
    first = scene.told()[0]
    assert (first.pipeline, first.table, first.rows, first.lines_quarantined) == ("clicks", "/lake/clicks", 2, 1)
    assert first.committed_at.tzinfo is not None


def test_more_than_one_call_takes(scene: Scene) -> None:
    herald = scene.herald()
    scene.commit(SEND_MAX + 5)
    herald.announce(SEND_MAX + 5)
    assert scene.seqs() == list(range(1, SEND_MAX + 6))


def test_what_was_published_and_not_sent_is_sent_by_the_next_process(scene: Scene) -> None:
    dying = scene.herald(broker=Away(clock=scene.clock))
    scene.commit(2)
    with pytest.raises(TemporaryError):
        dying.announce(2)
    assert scene.seqs() == []
    scene.herald().announce(2)
    assert scene.seqs() == [1, 2]


def test_what_was_sent_and_not_remembered_is_sent_again_and_dropped_by_the_broker(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = scene.herald()
    scene.commit(2)
    with monkeypatch.context() as dead:
        dead.setattr(scene.ledger, "advance_announced", lambda *_: (_ for _ in ()).throw(TemporaryError("dead")))
        with pytest.raises(TemporaryError):
            dying.announce(2)
    assert scene.ledger.announced_seq("clicks") == 0
    scene.herald().announce(2)
    assert (scene.seqs(), scene.ledger.announced_seq("clicks")) == ([1, 2], 2)


def test_two_workers_tell_of_the_same_batches_and_each_arrives_once(scene: Scene) -> None:
    one, other = scene.herald(), scene.herald()
    scene.commit(2)
    one.announce(1)
    other.announce(2)
    one.announce(2)
    assert scene.seqs() == [1, 2]


def test_batches_from_before_anybody_listened_are_not_told_of(scene: Scene) -> None:
    scene.commit(2)
    herald = scene.herald()
    scene.commit()
    herald.announce(3)
    assert scene.seqs() == [3]


def test_batches_that_get_numbers_of_lost_ones_are_told_of_by_a_process_that_told_of_those(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger fails over to a replica that knows neither the last commits nor that messages were sent for them."""
    herald = scene.herald()
    scene.commit(3)
    herald.announce(3)
    replica = Scene(scene.folder / "replica")
    replica.ledger.begin_announcing("clicks")
    replica.commit()
    replica.ledger.advance_announced("clicks", 1)
    replica.commit(2, prefix="another")
    for name in ("begin_announcing", "batches_after", "advance_announced"):
        monkeypatch.setattr(scene.ledger, name, getattr(replica.ledger, name))
    herald.announce(3)
    assert scene.seqs() == [1, 2, 3, 2, 3]


def test_of_a_call_that_the_broker_took_in_part_what_it_took_is_not_sent_again(scene: Scene) -> None:
    class Partial(MemoryBroker):
        def try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
            return [*scene.broker.send(queue, messages[:2]), *[TemporaryError("away")] * (len(messages) - 2)]

    herald = scene.herald(broker=Partial(clock=scene.clock))
    scene.commit(5)
    with pytest.raises(TemporaryError, match="away"):
        herald.announce(5)
    assert scene.ledger.announced_seq("clicks") == 2
    scene.herald().announce(5)
    assert scene.seqs() == [1, 2, 3, 4, 5]
