"""Cleaning up batch by batch: what is due, in which order, what holds it up, and what a failure leaves."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import delete, update

from penstock.errors import ObjectDenied, TemporaryError
from penstock.events import Bus, Event, SourceCleaned
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptFailure, BatchOutcome, Candidate, FailedObject, ObjectResult, OriginalMessage
from penstock.ledger.schema import batches, objects
from penstock.messaging.steps import Step, no_probe
from penstock.objects.cleanup import ALREADY, CHANGED, DONE, MISSING, CleanupResult, refused
from penstock.objects.reference import ObjectRef
from penstock.pipeline.maintenance import cleanup
from penstock.pipeline.maintenance.cleanup import TASK, CleanupPass, CleanupPassResult, SourceCleanup

DEADLINE_SECONDS = 60.0
CLICKS, VIEWS = "clicks", "views"
DAY_SECONDS = 86_400.0
EVERYTHING = 1_000_000


class Died(BaseException):
    pass


@dataclass(kw_only=True)
class Hand:
    """A cleaner that remembers, and answers as it is told."""

    answers: Mapping[str, CleanupResult | Exception] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)  # appended to by several threads
    lock: threading.Lock = field(default_factory=threading.Lock)

    def clean(self, ref: ObjectRef) -> CleanupResult:
        answer = self.answers.get(ref.key, DONE)
        if isinstance(answer, Exception):
            raise answer
        with self.lock:
            self.done.append(ref.key)
        return answer


class Leaping:
    """A clock on which every wait is over at once."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.seconds += seconds
        return event.is_set()


@dataclass(kw_only=True)
class Site:
    """A ledger with batches, and whoever cleans up after them."""

    ledger: Ledger
    hand: Hand = field(default_factory=Hand)
    told: list[Event] = field(default_factory=list)
    clock: Leaping = field(default_factory=Leaping)
    shown: int = EVERYTHING
    attempts: int = 0

    def claim(self, *keys: str, pipeline: str = CLICKS, version: str | None = None) -> str:
        self.attempts += 1
        attempt_id = f"attempt-{self.attempts}"
        self.ledger.ensure_pipeline(pipeline)
        self.ledger.claim(
            pipeline,
            [
                Candidate(
                    object_id=ref.object_id,
                    bucket=ref.bucket,
                    key=ref.key_bytes,
                    size_bytes=ref.size_bytes,
                    uri=ref.uri,
                    original_message=OriginalMessage(message_id="m", enqueued_at=0.0),
                    version_id=ref.version_id,
                    etag=ref.etag,
                )
                for ref in (reference(key, version) for key in keys)
            ],
            attempt_id=attempt_id,
            worker="w",
            lease_seconds=600.0,
        )
        return attempt_id

    def commit(self, attempt_id: str, *keys: str, version: str | None = None, **more: Any) -> int | None:
        processed = [
            ObjectResult(object_id=reference(key, version).object_id, rows=1, lines_quarantined=0) for key in keys
        ]
        fields = {"pipeline": CLICKS, "processed": processed, **more}
        return self.ledger.commit(BatchOutcome(attempt_id=attempt_id, **fields))

    def process(self, *keys: str, pipeline: str = CLICKS, version: str | None = None) -> None:
        attempt_id = self.claim(*keys, pipeline=pipeline, version=version)
        self.commit(attempt_id, *keys, version=version, pipeline=pipeline)

    def fail(self, failure: AttemptFailure, key: str, *, pipeline: str = CLICKS) -> None:
        failed = FailedObject(object_id=reference(key).object_id, failure=failure, reason="as the test wants it")
        attempt_id = self.claim(key, pipeline=pipeline)
        self.commit(attempt_id, pipeline=pipeline, failed=[failed])

    def age(self, *, seconds: float) -> None:
        """Let every batch have been committed that much earlier."""
        statement = update(batches).values(committed_at=batches.c.committed_at - seconds)
        self.ledger.database.transact(lambda connection: connection.execute(statement))

    def work(self, *, after_seconds: float = 0.0, probe: Any = no_probe, exclusive: bool = True) -> SourceCleanup:
        return SourceCleanup(
            pipeline=CLICKS,
            action="delete",
            after_seconds=after_seconds,
            exclusive=exclusive,
            cleaner=self.hand,
            ledger=self.ledger,
            shown_to=lambda after, up_to: max(after, min(up_to, self.shown)),
            bus=Bus(self.told.append),
            probe=probe,
            clock=self.clock,
        )

    def run(self, *, bounds: CleanupPass | None = None, **options: Any) -> CleanupPassResult:
        return self.work(**options).run(bounds or CleanupPass())

    @property
    def done_to(self) -> int:
        return self.ledger.progress(CLICKS, TASK)


def reference(key: str, version: str | None = None) -> ObjectRef:
    return ObjectRef(bucket="landing", key=key, size_bytes=3, etag="0f", version_id=version)


@pytest.fixture
def site() -> Iterator[Site]:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline(CLICKS)
    yield Site(ledger=ledger)
    ledger.close()


def names(*numbers: int) -> Sequence[str]:
    return [f"o-{number:03}" for number in numbers]


def test_processed_is_not_enough_it_has_to_be_published(site: Site) -> None:
    site.process("a")
    site.shown = 0
    assert (site.run().objects, site.done_to) == (0, 0)
    site.shown = 1
    assert (site.run().objects, site.done_to) == (1, 1)
    assert site.hand.done == ["a"]


def test_and_it_has_to_be_old_enough_by_the_databases_clock(site: Site) -> None:
    site.process("a")
    site.age(seconds=29 * DAY_SECONDS)
    assert site.run(after_seconds=30 * DAY_SECONDS).objects == 0
    site.age(seconds=DAY_SECONDS)
    assert site.run(after_seconds=30 * DAY_SECONDS).objects == 1


def test_what_is_done_is_not_looked_at_again(site: Site) -> None:
    site.process("a")
    site.run()
    site.process("b")
    site.run()
    assert (site.hand.done, site.done_to) == (["a", "b"], 2)


@pytest.mark.parametrize(
    "failure", [AttemptFailure.DEAD, AttemptFailure.DELETED, AttemptFailure.SUPERSEDED, AttemptFailure.RETRY]
)
def test_what_was_not_processed_is_never_touched(site: Site, failure: AttemptFailure) -> None:
    attempt_id = site.claim("good", "bad")
    failed = FailedObject(object_id=reference("bad").object_id, failure=failure, reason="bad")
    site.commit(attempt_id, "good", failed=[failed])
    site.claim("in work")
    site.run()
    assert site.hand.done == ["good"]


def test_what_is_skipped_is_counted_by_its_reason_and_passed(site: Site) -> None:
    site.hand.answers = {"b": MISSING, "c": CHANGED, "d": refused("Object Lock protects it"), "e": ALREADY}
    site.process("a", "b", "c", "d", "e")
    swept = site.run()
    assert (swept.objects, swept.already, site.done_to) == (1, 1, 1)
    assert swept.skipped == {"gone": 1, "changed": 1, "Object Lock protects it": 1}
    reasons = {"gone": 1, "changed": 1, "Object Lock protects it": 1}
    assert site.told == [SourceCleaned(pipeline=CLICKS, action="delete", seq=1, objects=1, skipped=3, reasons=reasons)]


def test_where_nothing_was_done_nothing_is_told(site: Site) -> None:
    site.hand.answers = {"a": ALREADY}
    site.process("a")
    site.run()
    assert (site.told, site.done_to) == ([], 1)


@pytest.mark.parametrize("error", [ObjectDenied("403"), TemporaryError("away")])
def test_a_fault_holds_the_batch_up_and_the_next_pass_makes_it_good(site: Site, error: Exception) -> None:
    site.process("a", "b")
    site.process("c")
    site.hand.answers = {"a": error}
    with pytest.raises(type(error)):
        site.run()
    assert site.done_to == 0
    assert "c" not in site.hand.done
    assert sum(event.objects for event in site.told if isinstance(event, SourceCleaned)) == len(site.hand.done)
    site.hand.answers = {}
    site.run()
    assert (set(site.hand.done), site.done_to) == ({"a", "b", "c"}, 2)


@pytest.mark.parametrize("step", [Step.CLEANING, Step.CLEANED])
def test_a_death_at_a_step_is_made_good(site: Site, step: Step) -> None:
    def die(at: Step) -> None:
        if at is step:
            raise Died

    site.process("a", "b")
    with pytest.raises(Died):
        site.run(probe=die)
    assert site.done_to == 0
    site.run()
    assert (set(site.hand.done), site.done_to) == ({"a", "b"}, 1)


def test_a_limit_is_kept_to_the_object_and_the_next_pass_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "PAGE_OBJECTS", 5)
    keys = names(*range(23))
    site.process(*keys)
    work, most = site.work(), CleanupPass(objects_max=10)
    passes = [work.run(most) for _ in range(3)]
    assert [(swept.objects, swept.more, swept.batches) for swept in passes] == [
        (10, True, 0),
        (10, True, 0),
        (3, False, 1),
    ]
    assert (sorted(site.hand.done), site.done_to) == (keys, 1)


def test_another_process_goes_on_after_a_limit_too(site: Site) -> None:
    keys = names(*range(23))
    site.process(*keys)
    for _ in range(3):
        site.run(bounds=CleanupPass(objects_max=10))
        site.hand.answers = dict.fromkeys(site.hand.done, MISSING)
    assert (set(site.hand.done), site.done_to) == (set(keys), 1)


def test_a_stop_is_heard_between_objects(site: Site) -> None:
    site.process(*names(*range(50)))
    swept = site.run(bounds=CleanupPass(stopped=lambda: len(site.hand.done) >= 8))
    assert (swept.objects, swept.more, site.done_to) == (8, True, 0)


def test_a_rate_is_kept(site: Site) -> None:
    site.process(*names(*range(40)))
    site.run(bounds=CleanupPass(per_second=4.0))
    assert site.clock.monotonic() == pytest.approx(10.0, abs=1.0)


def test_the_tables_are_asked_anew_before_a_batch_that_comes_much_later(site: Site) -> None:
    site.process(*names(*range(10)))
    site.process("o-later")

    def restored(step: Step) -> None:
        site.shown = 1

    assert site.run(bounds=CleanupPass(per_second=0.1), probe=restored).objects == 10
    assert site.done_to == 1


def test_versions_of_a_key_follow_one_another(site: Site) -> None:
    at_work: set[str] = set()

    class Careful(Hand):
        def clean(self, ref: ObjectRef) -> CleanupResult:
            with self.lock:
                assert ref.key not in at_work
                at_work.add(ref.key)
            cleaned = super().clean(ref)
            with self.lock:
                at_work.remove(ref.key)
            return cleaned

    site.hand = Careful()
    for version in ("v1", "v2", "v3"):
        site.process("a", "b", version=version)
    assert site.run().objects == 6


def test_an_object_that_another_pipeline_has_still_to_read_is_waited_for(site: Site) -> None:
    attempt_id = site.claim("b", pipeline=VIEWS)
    site.process("a", "b")
    swept = site.run()
    assert (swept.waits_for, site.hand.done, site.done_to) == (VIEWS, [], 0)
    site.commit(attempt_id, "b", pipeline=VIEWS)
    assert (site.run().objects, site.done_to) == (2, 1)


def test_tags_wait_for_nobody(site: Site) -> None:
    site.claim("a", pipeline=VIEWS)
    site.process("a")
    assert site.run(exclusive=False).objects == 1


def test_what_is_dead_in_another_pipeline_is_kept_for_it(site: Site) -> None:
    site.fail(AttemptFailure.DEAD, "b", pipeline=VIEWS)
    site.process("a", "b")
    swept = site.run()
    assert (site.hand.done, site.done_to) == (["a"], 1)
    assert swept.skipped == {cleanup.NEEDED_BY_A_DEAD_ONE: 1}


def test_rows_that_left_the_ledger_are_counted_as_left_alone(site: Site) -> None:
    site.process("a", "b")
    gone = delete(objects).where(objects.c.object_id == reference("b").object_id)
    site.ledger.database.transact(lambda connection: connection.execute(gone))
    assert site.run().skipped == {cleanup.ARCHIVED: 1}


def test_counting_touches_nothing(site: Site) -> None:
    site.process(*names(*range(7)))
    site.process("b")
    counted = site.work().count()
    assert (counted.objects, counted.batches) == (8, 2)
    assert (site.hand.done, site.done_to) == ([], 0)


def test_two_at_once_end_as_one_would(site: Site) -> None:
    keys = names(*range(60))
    for start in range(0, 60, 20):
        site.process(*keys[start : start + 20])
    threads = [threading.Thread(target=site.run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert (set(site.hand.done), site.done_to) == (set(keys), 3)


def test_batches_are_looked_up_a_few_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "BATCHES_PER_QUERY", 2)
    for number in range(5):
        site.process(f"{number}")
    work = site.work()
    assert [list(work.due()), list(work.due(most=2))] == [[1, 2, 3, 4, 5], [1, 2]]
    assert work.run(CleanupPass()).batches == 5
    assert (site.hand.done, site.done_to) == ([*"01234"], 5)


def test_a_stop_is_heard_between_batches_that_have_nothing_left(site: Site) -> None:
    site.process("a")
    site.ledger.database.transact(lambda connection: connection.execute(delete(objects)))
    swept = site.run(bounds=CleanupPass(stopped=lambda: True))
    assert (swept.more, site.done_to) == (True, 0)
