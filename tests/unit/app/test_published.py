"""Messages about published batches: in order, each at least once, even if a process dies in between."""

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
    """A ledger and a broker with any number of notifiers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.ledger = Ledger.open(folder / "ledger.db")
        self.ledger.ensure_pipeline("clicks")
        self.clock = FakeClock()
        self.broker = MemoryBroker(clock=self.clock)

    def notifier(self, *, broker: MemoryBroker | None = None, ledger: Ledger | None = None) -> PublishNotifier:
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
            results = [ObjectResult(object_id=object_id, rows=2, lines_quarantined=1) for object_id in claim.claimed]
            self.ledger.commit(
                BatchOutcome(
                    pipeline="clicks",
                    attempt_id=name,
                    processed=results,
                    record=BatchRecord(rows=2, lines_quarantined=1),
                )
            )

    def published(self) -> list[PublishedBatch]:
        codec = BodyCodec(QUEUE)
        found = [codec.decode(message) for message in self.broker.browse(QUEUE.name, messages_max=1_000)]
        assert all(isinstance(batch, PublishedBatch) for batch in found)
        return found  # type: ignore[return-value]  # checked in the line above

    def seqs(self) -> list[int]:
        return [batch.seq for batch in self.published()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


class UnreachableBroker(MemoryBroker):
    """A broker that accepts no message."""

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        raise TemporaryError("the broker is away")


def test_each_batch_is_announced_once_and_in_order(scene: Scene) -> None:
    notifier = scene.notifier()
    scene.commit(3)
    notifier.announce(2)
    assert scene.seqs() == [1, 2], "the third is not visible yet"
    notifier.announce(3)
    notifier.announce(3)
    assert scene.seqs() == [1, 2, 3]
    first = scene.published()[0]
    assert (first.pipeline, first.table, first.rows, first.lines_quarantined) == ("clicks", "/lake/clicks", 2, 1)
    assert first.committed_at.tzinfo is not None


def test_more_batches_than_fit_in_one_call_are_announced(scene: Scene) -> None:
    notifier = scene.notifier()
    scene.commit(SEND_MAX + 5)
    notifier.announce(SEND_MAX + 5)
    assert scene.seqs() == list(range(1, SEND_MAX + 6))


def test_batches_that_one_process_could_not_announce_are_announced_by_the_next(scene: Scene) -> None:
    failing = scene.notifier(broker=UnreachableBroker(clock=scene.clock))
    scene.commit(2)
    with pytest.raises(TemporaryError):
        failing.announce(2)
    assert scene.seqs() == []
    scene.notifier().announce(2)
    assert scene.seqs() == [1, 2]


def test_messages_that_were_sent_and_not_recorded_are_sent_again_and_deduplicated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = scene.notifier()
    scene.commit(2)
    with monkeypatch.context() as dead:
        dead.setattr(scene.ledger, "advance_announced", lambda *_: (_ for _ in ()).throw(TemporaryError("dead")))
        with pytest.raises(TemporaryError):
            failing.announce(2)
    assert scene.ledger.begin_announcing("clicks") == 0
    scene.notifier().announce(2)
    assert (scene.seqs(), scene.ledger.begin_announcing("clicks")) == ([1, 2], 2)


def test_two_workers_announce_the_same_batches_and_each_arrives_once(scene: Scene) -> None:
    first, second = scene.notifier(), scene.notifier()
    scene.commit(2)
    first.announce(1)
    second.announce(2)
    first.announce(2)
    assert scene.seqs() == [1, 2]


def test_batches_committed_before_the_first_notifier_are_not_announced(scene: Scene) -> None:
    scene.commit(2)
    notifier = scene.notifier()
    scene.commit()
    notifier.announce(3)
    assert scene.seqs() == [3]


def test_batches_that_reuse_numbers_of_lost_ones_are_announced_by_the_process_that_announced_those(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger fails over to a replica that has neither the last commits nor the record of their messages."""
    notifier = scene.notifier()
    scene.commit(3)
    notifier.announce(3)
    replica = Scene(scene.folder / "replica")
    replica.ledger.begin_announcing("clicks")
    replica.commit()
    replica.ledger.advance_announced("clicks", 1)
    replica.commit(2, prefix="another")
    for name in ("begin_announcing", "batches_after", "advance_announced"):
        monkeypatch.setattr(scene.ledger, name, getattr(replica.ledger, name))
    notifier.announce(3)
    assert scene.seqs() == [1, 2, 3, 2, 3]


def test_messages_of_a_partly_accepted_call_are_not_sent_again(scene: Scene) -> None:
    class Partial(MemoryBroker):
        def try_send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
            return [*scene.broker.send(queue, messages[:2]), *[TemporaryError("away")] * (len(messages) - 2)]

    notifier = scene.notifier(broker=Partial(clock=scene.clock))
    scene.commit(5)
    with pytest.raises(TemporaryError, match="away"):
        notifier.announce(5)
    assert scene.ledger.begin_announcing("clicks") == 2
    scene.notifier().announce(5)
    assert scene.seqs() == [1, 2, 3, 4, 5]
