"""Cleanup batch by batch: due batches, their order, waits for other pipelines, and the effects of a failure."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import delete, update

from penstock.errors import ObjectDenied, TemporaryError
from penstock.events import Bus, Event, SourceCleaned
from penstock.ledger import Ledger
from penstock.ledger.records import (
    AttemptFailure,
    BatchOutcome,
    Candidate,
    FailedObject,
    ObjectResult,
    OnChange,
    OriginalMessage,
)
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
class FakeCleaner:
    """A cleaner that records its objects and returns scripted results."""

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


class SkippingClock:
    """A clock on which every wait returns at once."""

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
    """A ledger with batches, and their cleanup."""

    ledger: Ledger
    cleaner: FakeCleaner = field(default_factory=FakeCleaner)
    events: list[Event] = field(default_factory=list)
    clock: SkippingClock = field(default_factory=SkippingClock)
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
        committed = self.ledger.commit(BatchOutcome(attempt_id=attempt_id, **fields))
        return None if committed is None else committed.seq

    def process(self, *keys: str, pipeline: str = CLICKS, version: str | None = None) -> None:
        attempt_id = self.claim(*keys, pipeline=pipeline, version=version)
        self.commit(attempt_id, *keys, version=version, pipeline=pipeline)

    def fail(self, failure: AttemptFailure, key: str, *, pipeline: str = CLICKS) -> None:
        failed = FailedObject(object_id=reference(key).object_id, failure=failure, reason="as the test wants it")
        attempt_id = self.claim(key, pipeline=pipeline)
        self.commit(attempt_id, pipeline=pipeline, failed=[failed])

    def age(self, *, seconds: float) -> None:
        """Move the commit of every batch that far into the past."""
        statement = update(batches).values(committed_at=batches.c.committed_at - seconds)
        self.ledger.database.transact(lambda connection: connection.execute(statement))

    def work(self, *, after_seconds: float = 0.0, probe: Any = no_probe, exclusive: bool = True) -> SourceCleanup:
        return SourceCleanup(
            pipeline=CLICKS,
            action="delete",
            after_seconds=after_seconds,
            exclusive=exclusive,
            cleaner=self.cleaner,
            ledger=self.ledger,
            shown_to=lambda after, up_to: max(after, min(up_to, self.shown)),
            bus=Bus(self.events.append),
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


def test_only_published_batches_are_cleaned(site: Site) -> None:
    site.process("a")
    site.shown = 0
    assert (site.run().objects, site.done_to) == (0, 0)
    site.shown = 1
    assert (site.run().objects, site.done_to) == (1, 1)
    assert site.cleaner.done == ["a"]


def test_only_batches_old_enough_by_the_database_clock_are_cleaned(site: Site) -> None:
    site.process("a")
    site.age(seconds=29 * DAY_SECONDS)
    assert site.run(after_seconds=30 * DAY_SECONDS).objects == 0
    site.age(seconds=DAY_SECONDS)
    assert site.run(after_seconds=30 * DAY_SECONDS).objects == 1


def test_a_cleaned_batch_is_not_cleaned_again(site: Site) -> None:
    site.process("a")
    site.run()
    site.process("b")
    site.run()
    assert (site.cleaner.done, site.done_to) == (["a", "b"], 2)


@pytest.mark.parametrize(
    "failure", [AttemptFailure.DEAD, AttemptFailure.DELETED, AttemptFailure.SUPERSEDED, AttemptFailure.RETRY]
)
def test_objects_that_were_not_processed_are_never_touched(site: Site, failure: AttemptFailure) -> None:
    attempt_id = site.claim("good", "bad")
    failed = FailedObject(object_id=reference("bad").object_id, failure=failure, reason="bad")
    site.commit(attempt_id, "good", failed=[failed])
    site.claim("in progress")
    site.run()
    assert site.cleaner.done == ["good"]


def test_skipped_objects_are_counted_by_reason_and_do_not_block(site: Site) -> None:
    site.cleaner.answers = {"b": MISSING, "c": CHANGED, "d": refused("Object Lock protects it"), "e": ALREADY}
    site.process("a", "b", "c", "d", "e")
    swept = site.run()
    assert (swept.objects, swept.already, site.done_to) == (1, 1, 1)
    assert swept.skipped == {"gone": 1, "changed": 1, "Object Lock protects it": 1}
    reasons = {"gone": 1, "changed": 1, "Object Lock protects it": 1}
    assert site.events == [
        SourceCleaned(pipeline=CLICKS, action="delete", seq=1, objects=1, skipped=3, reasons=reasons)
    ]


def test_a_pass_that_cleans_nothing_reports_nothing(site: Site) -> None:
    site.cleaner.answers = {"a": ALREADY}
    site.process("a")
    site.run()
    assert (site.events, site.done_to) == ([], 1)


@pytest.mark.parametrize("error", [ObjectDenied("403"), TemporaryError("down")])
def test_a_fault_blocks_the_batch_until_the_next_pass(site: Site, error: Exception) -> None:
    site.process("a", "b")
    site.process("c")
    site.cleaner.answers = {"a": error}
    with pytest.raises(type(error)):
        site.run()
    assert site.done_to == 0
    assert "c" not in site.cleaner.done
    assert sum(event.objects for event in site.events if isinstance(event, SourceCleaned)) == len(site.cleaner.done)
    site.cleaner.answers = {}
    site.run()
    assert (set(site.cleaner.done), site.done_to) == ({"a", "b", "c"}, 2)


@pytest.mark.parametrize("step", [Step.CLEANING, Step.CLEANED])
def test_a_process_death_at_a_step_is_made_good_by_the_next_pass(site: Site, step: Step) -> None:
    def die(at: Step) -> None:
        if at is step:
            raise Died

    site.process("a", "b")
    with pytest.raises(Died):
        site.run(probe=die)
    assert site.done_to == 0
    site.run()
    assert (set(site.cleaner.done), site.done_to) == ({"a", "b"}, 1)


def test_a_limit_is_exact_and_the_next_pass_continues(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (sorted(site.cleaner.done), site.done_to) == (keys, 1)


def test_another_process_continues_after_a_limit(site: Site) -> None:
    keys = names(*range(23))
    site.process(*keys)
    for _ in range(3):
        site.run(bounds=CleanupPass(objects_max=10))
        site.cleaner.answers = dict.fromkeys(site.cleaner.done, MISSING)
    assert (set(site.cleaner.done), site.done_to) == (set(keys), 1)


def test_a_stop_takes_effect_between_objects(site: Site) -> None:
    site.process(*names(*range(50)))
    swept = site.run(bounds=CleanupPass(stopped=lambda: len(site.cleaner.done) >= 8))
    assert (swept.objects, swept.more, site.done_to) == (8, True, 0)


def test_a_rate_limit_is_kept(site: Site) -> None:
    site.process(*names(*range(40)))
    site.run(bounds=CleanupPass(per_second=4.0))
    assert site.clock.monotonic() == pytest.approx(10.0, abs=1.0)


def test_the_published_batches_are_read_again_before_a_much_later_batch(site: Site) -> None:
    site.process(*names(*range(10)))
    site.process("o-later")

    def restored(step: Step) -> None:
        site.shown = 1

    assert site.run(bounds=CleanupPass(per_second=0.1), probe=restored).objects == 10
    assert site.done_to == 1


def test_versions_of_a_key_are_cleaned_one_at_a_time(site: Site) -> None:
    at_work: set[str] = set()

    class Careful(FakeCleaner):
        def clean(self, ref: ObjectRef) -> CleanupResult:
            with self.lock:
                assert ref.key not in at_work
                at_work.add(ref.key)
            cleaned = super().clean(ref)
            with self.lock:
                at_work.remove(ref.key)
            return cleaned

    site.cleaner = Careful()
    for version in ("v1", "v2", "v3"):
        site.process("a", "b", version=version)
    assert site.run().objects == 6


def test_cleanup_waits_for_an_object_that_another_pipeline_still_has_to_read(site: Site) -> None:
    attempt_id = site.claim("b", pipeline=VIEWS)
    site.process("a", "b")
    swept = site.run()
    assert (swept.waits_for, site.cleaner.done, site.done_to) == (VIEWS, [], 0)
    site.commit(attempt_id, "b", pipeline=VIEWS)
    assert (site.run().objects, site.done_to) == (2, 1)


def test_tagging_waits_for_no_other_pipeline(site: Site) -> None:
    site.claim("a", pipeline=VIEWS)
    site.process("a")
    assert site.run(exclusive=False).objects == 1


def test_an_object_that_failed_in_another_pipeline_is_kept(site: Site) -> None:
    site.fail(AttemptFailure.DEAD, "b", pipeline=VIEWS)
    site.process("a", "b")
    swept = site.run()
    assert (site.cleaner.done, site.done_to) == (["a"], 1)
    assert swept.skipped == {cleanup.NEEDED_BY_A_DEAD_ONE: 1}


def test_archived_rows_are_counted_as_skipped(site: Site) -> None:
    site.process("a", "b")
    statement = delete(objects).where(objects.c.object_id == reference("b").object_id)
    site.ledger.database.transact(lambda connection: connection.execute(statement))
    assert site.run().skipped == {cleanup.ARCHIVED: 1}


def test_counting_touches_nothing(site: Site) -> None:
    site.process(*names(*range(7)))
    site.process("b")
    counted = site.work().count()
    assert (counted.objects, counted.batches) == (8, 2)
    assert (site.cleaner.done, site.done_to) == ([], 0)


def test_two_concurrent_passes_end_like_one(site: Site) -> None:
    keys = names(*range(60))
    for start in range(0, 60, 20):
        site.process(*keys[start : start + 20])
    threads = [threading.Thread(target=site.run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert (set(site.cleaner.done), site.done_to) == (set(keys), 3)


def test_batches_are_queried_a_few_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "BATCHES_PER_QUERY", 2)
    for number in range(5):
        site.process(f"{number}")
    work = site.work()
    assert [list(work.due()), list(work.due(most=2))] == [[1, 2, 3, 4, 5], [1, 2]]
    assert work.run(CleanupPass()).batches == 5
    assert (site.cleaner.done, site.done_to) == ([*"01234"], 5)


def test_a_stop_takes_effect_between_empty_batches(site: Site) -> None:
    site.process("a")
    site.ledger.database.transact(lambda connection: connection.execute(delete(objects)))
    swept = site.run(bounds=CleanupPass(stopped=lambda: True))
    assert (swept.more, site.done_to) == (True, 0)


def change(site: Site, version: int, *, pipeline: str = CLICKS, on_change: OnChange = OnChange.REPLACE) -> None:
    """Process a version of an object in a store that keeps one version."""
    site.attempts += 1
    ref = ObjectRef(bucket="landing", key="changing", size_bytes=version, etag="0f")
    site.ledger.ensure_pipeline(pipeline)
    claim = site.ledger.claim(
        pipeline,
        [
            Candidate(
                object_id=ref.object_id,
                bucket=ref.bucket,
                key=ref.key_bytes,
                size_bytes=ref.size_bytes,
                uri=ref.uri,
                original_message=OriginalMessage(message_id="m", enqueued_at=0.0),
                etag=ref.etag,
            )
        ],
        attempt_id=f"attempt-{site.attempts}",
        worker="w",
        lease_seconds=600.0,
        on_change=on_change,
    )
    assert claim.claimed
    done = [ObjectResult(object_id=ref.object_id, rows=1, lines_quarantined=0)]
    site.ledger.commit(
        BatchOutcome(
            pipeline=pipeline,
            attempt_id=claim.attempt_id,
            processed=done,
            on_change=on_change,
            since_seq=claim.next_seq,
        )
    )


@pytest.mark.parametrize("pipeline", [CLICKS, VIEWS])
def test_a_version_whose_rows_were_replaced_is_not_deleted_if_the_store_has_it_again(site: Site, pipeline: str) -> None:
    """The object has changed back, and its notification is on the way."""
    change(site, 1)
    change(site, 2)
    if pipeline == VIEWS:  # whose table shows the second version, while the other one adds both
        site.ledger.close()
        site.ledger = Ledger.open("sqlite://")
        change(site, 1, on_change=OnChange.ADD)
        for version in (1, 2):
            change(site, version, pipeline=VIEWS)
    swept = site.run()
    assert swept.skipped == {cleanup.REPLACED: 1}
    assert len(site.cleaner.done) == (1 if pipeline == CLICKS else 0), "the version that the table shows"


def test_versions_that_were_added_are_cleaned(site: Site) -> None:
    change(site, 1, on_change=OnChange.ADD)
    change(site, 2, on_change=OnChange.ADD)
    assert (site.run().objects, site.done_to) == (2, 2)


@pytest.mark.parametrize("pipeline", [CLICKS, VIEWS])
def test_the_source_of_an_object_that_is_to_be_read_again_is_kept(site: Site, pipeline: str) -> None:
    site.process("a", "b")
    site.process("a", pipeline=VIEWS)
    site.ledger.reopenings.reopen(pipeline, [reference("a").uri])
    swept = site.run()
    assert "a" not in site.cleaner.done
    assert swept.waits_for == (VIEWS if pipeline == VIEWS else None)
    site.process("a", pipeline=pipeline)
    site.run()
    assert set(site.cleaner.done) == {"a", "b"}


def test_an_object_reopened_during_a_slow_pass_is_kept(site: Site) -> None:
    site.process(*names(*range(20)))
    last = names(19)[0]

    def reopening(step: Step) -> None:
        site.ledger.reopenings.reopen(CLICKS, [reference(last).uri])

    swept = site.run(bounds=CleanupPass(per_second=0.1), probe=reopening)
    assert (swept.objects, swept.skipped) == (19, {cleanup.REOPENED: 1})
    assert last not in site.cleaner.done
