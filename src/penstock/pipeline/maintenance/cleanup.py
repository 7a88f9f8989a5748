"""Clean up a source batch by batch: tag, move or delete objects whose batch is published in both tables and old enough.

The ledger stores the number of the last batch that is done. It advances only when each object of the next batch is
done, or can be left for good: changed, deleted, or refused by its store. Several processes may clean up concurrently,
and each may die at any point: actions that it had not recorded are repeated, and each action is idempotent.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

from penstock.events import Bus, SourceCleaned
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectRow, ObjectState
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe, Step
from penstock.objects.cleanup import Cleaner, CleanupOutcome, CleanupResult
from penstock.objects.reference import ObjectRef, decode_key
from penstock.objects.replays import is_replay

TASK = "cleanup"  # the name of this task's progress in the ledger
PAGE_OBJECTS = 200  # per query
BATCHES_PER_QUERY = 100  # due batches per query; the manifests of each are read
RECHECK_SECONDS = 60.0  # after which the tables are checked again before the next batch
PARALLEL = 8  # concurrent requests to S3; each spends most of its time waiting

_STILL_READING = frozenset({ObjectState.UNPROCESSED, ObjectState.PROCESSING})
NEEDED_BY_A_DEAD_ONE = "dead in another pipeline, which may be sent it again"
REPLACED = "another version replaced its rows, so that it is read again if the object is the same once more"
REOPENED = "is to be read again"
ARCHIVED = "its row left the ledger for the archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPass:
    """The bounds of one pass."""

    objects_max: int | None = None  # None: no limit
    per_second: float | None = None  # objects per second; None: no limit
    stopped: Callable[[], bool] = lambda: False


@dataclass(slots=True, kw_only=True)
class CleanupPassResult:
    """The counts of one pass. Used by one thread."""

    objects: int = 0  # tagged, moved or deleted
    already: int = 0  # tagged before
    skipped: Counter[str] = field(default_factory=Counter)  # left alone for good, by reason
    batches: int = 0  # finished batches
    more: bool = False  # True if the pass ended at its own bounds
    waits_for: str | None = None  # a pipeline that has yet to read one of the objects


class SourceCleanup:
    """The cleanup of the objects that one pipeline has processed. Used by one thread at a time. A pass resumes after
    the last object of the previous one."""

    def __init__(
        self,
        *,
        pipeline: str,
        action: str,
        after_seconds: float,
        exclusive: bool,
        cleaner: Cleaner,
        ledger: Ledger,
        shown_to: Callable[[int, int], int],
        bus: Bus,
        probe: Probe,
        clock: Clock,
    ) -> None:
        """``exclusive``: objects become unreadable, so no other pipeline may still need them. ``shown_to(after,
        up_to)`` returns up to which of these batches both tables show everything, and raises `PublishHalted` if rows
        may have left them."""
        self._pipeline = pipeline
        self._action = action
        self._after_seconds = after_seconds
        self._exclusive = exclusive
        self._cleaner = cleaner
        self._ledger = ledger
        self._shown_to = shown_to
        self._bus = bus
        self._probe = probe
        self._clock = clock
        self._cursor: tuple[int, bytes] = (0, b"")  # the unfinished batch, and the last object done in it

    def due(self, *, most: int | None = None) -> range:
        """Return the batches that are due, limited to the first ``most``."""
        done = self._ledger.progress(self._pipeline, TASK)
        last_due = self._ledger.last_batch_older_than(
            self._pipeline, after_seq=done, older_than_seconds=self._after_seconds
        )
        up_to = last_due if most is None else min(last_due, done + most)
        return range(done + 1, self._shown_to(done, up_to) + 1)

    def count(self) -> CleanupPassResult:
        """Return the counts of a pass without bounds, and change nothing."""
        swept = CleanupPassResult()
        for seq in self.due():
            swept.batches += 1
            swept.objects += sum(
                not is_replay(row.version_id, row.etag) for page in self._pages(seq, b"") for row in page
            )
        return swept

    def run(self, bounds: CleanupPass) -> CleanupPassResult:
        """Clean up due batches within the bounds. If the `Cleaner` raises, the error propagates and the batch stays
        due."""
        swept = CleanupPassResult()
        pace = _CleanupRate(bounds, self._clock)
        while due := self.due(most=BATCHES_PER_QUERY):
            checked_at = self._clock.monotonic()
            for seq in due:
                if self._clock.monotonic() - checked_at > RECHECK_SECONDS:
                    break
                if not self._clean_and_report(seq, swept, bounds, pace):
                    return swept
                self._ledger.advance_progress(self._pipeline, TASK, seq)
                swept.batches += 1
        return swept

    def _clean_and_report(self, seq: int, swept: CleanupPassResult, bounds: CleanupPass, pace: "_CleanupRate") -> bool:
        before = CleanupPassResult(objects=swept.objects, skipped=Counter(swept.skipped))
        try:
            return self._clean_batch(seq, swept, bounds, pace)
        finally:
            self._report(seq, swept, before)

    def _clean_batch(self, seq: int, swept: CleanupPassResult, bounds: CleanupPass, pace: "_CleanupRate") -> bool:
        """Clean up one batch. Return True if it is finished."""
        if bounds.stopped():
            swept.more = True
            return False
        at, after = self._cursor
        seen = 0
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="penstock-cleanup") as pool:
            for page in self._pages(seq, after if at == seq else b""):
                seen += len(page)
                left = self._free(page, swept)
                while left:
                    allowed = _objects_allowed(swept, bounds)
                    if not allowed:
                        swept.more = True
                        return False
                    some, left = _apart(left, allowed)
                    self._do(self._without_reopened(some, swept), swept, pool)
                    pace.wait_after(len(some))
                if left is None:
                    return False
                self._cursor = (seq, page[-1].object_id)
        if at != seq:
            self._count_archived(seq, seen, swept)
        return True

    def _pages(self, seq: int, after: bytes) -> Iterator[Sequence[ObjectRow]]:
        while page := self._ledger.processed_objects(self._pipeline, seq, after=after, limit=PAGE_OBJECTS):
            yield page
            after = page[-1].object_id

    def _free(self, page: Sequence[ObjectRow], swept: CleanupPassResult) -> Sequence[ObjectRow] | None:
        """Return the objects that no pipeline needs, or None if one has yet to read some of them.

        Replays are left out: their source is an object of its own.
        """
        page = [row for row in page if not is_replay(row.version_id, row.etag)]
        if not self._exclusive:
            return page
        page = self._without_replaced(page, swept)
        needed: set[bytes] = set()
        ids = [row.object_id for row in page]
        for other in self._ledger.pipelines():
            if other.id == self._pipeline:
                continue
            states = self._ledger.states(other.id, ids)
            if _STILL_READING & set(states.values()):
                swept.waits_for = other.id
                return None
            needed |= {object_id for object_id, state in states.items() if state is ObjectState.DEAD}
        if needed:
            swept.skipped[NEEDED_BY_A_DEAD_ONE] += len(needed)
        return [row for row in page if row.object_id not in needed]

    def _without_replaced(self, page: Sequence[ObjectRow], swept: CleanupPassResult) -> Sequence[ObjectRow]:
        """Leave out versions whose rows left a table, unless the store keeps versions: no new object becomes one again.

        If the store has such a version, its object changed back, and the table still lacks its rows.
        """
        ids = [row.object_id for row in page if row.version_id is None]
        replaced = set[bytes]().union(*(self._ledger.replaced(other.id, ids) for other in self._ledger.pipelines()))
        if replaced:
            swept.skipped[REPLACED] += len(replaced)
        return [row for row in page if row.object_id not in replaced]

    def _without_reopened(self, rows: Sequence[ObjectRow], swept: CleanupPassResult) -> Sequence[ObjectRow]:
        """Leave out objects that are to be read again since the page was read: a slow pass may take hours for it."""
        reopened = self._ledger.reopenings.among(self._pipeline, [row.object_id for row in rows])
        if reopened:
            swept.skipped[REOPENED] += len(reopened)
        return [row for row in rows if row.object_id not in reopened]

    def _do(self, rows: Sequence[ObjectRow], swept: CleanupPassResult, pool: Executor) -> None:
        """Clean up objects concurrently. Those that succeed are counted even if another fails."""
        failures = []
        for done in pool.map(self._one, rows):
            if isinstance(done, CleanupResult):
                _count(swept, done)
            else:
                failures.append(done)
        if failures:
            raise failures[0]

    def _one(self, row: ObjectRow) -> CleanupResult | BaseException:
        try:
            self._probe(Step.CLEANING)
            cleaned = self._cleaner.clean(reference_of(row))
            self._probe(Step.CLEANED)
        except BaseException as failure:
            return failure
        return cleaned

    def _count_archived(self, seq: int, found: int, swept: CleanupPassResult) -> None:
        batch = self._ledger.batch(self._pipeline, seq)
        if batch is not None and batch.objects > found:
            swept.skipped[ARCHIVED] += batch.objects - found

    def _report(self, seq: int, swept: CleanupPassResult, before: CleanupPassResult) -> None:
        skipped = swept.skipped - before.skipped
        if swept.objects > before.objects or skipped:
            self._bus.emit(
                SourceCleaned(
                    pipeline=self._pipeline,
                    action=self._action,
                    seq=seq,
                    objects=swept.objects - before.objects,
                    skipped=skipped.total(),
                    reasons=dict(skipped),
                )
            )


def reference_of(row: ObjectRow) -> ObjectRef:
    """Return the reference to the version that a row of the ledger describes."""
    return ObjectRef(
        bucket=row.bucket,
        key=decode_key(row.key),
        size_bytes=row.size_bytes,
        version_id=row.version_id,
        etag=row.etag,
    )


class _CleanupRate:
    """The rate limit of a pass. Used by one thread."""

    def __init__(self, bounds: CleanupPass, clock: Clock) -> None:
        self._bounds = bounds
        self._clock = clock
        self._next_at = clock.monotonic()
        self._never = threading.Event()

    def wait_after(self, objects: int) -> None:
        if self._bounds.per_second is None:
            return
        self._next_at += objects / self._bounds.per_second
        while (wait_seconds := self._next_at - self._clock.monotonic()) > 0 and not self._bounds.stopped():
            self._clock.wait(self._never, min(wait_seconds, 0.5))


def _objects_allowed(swept: CleanupPassResult, bounds: CleanupPass) -> int:
    """Return how many objects may be cleaned up now."""
    if bounds.stopped():
        return 0
    return PARALLEL if bounds.objects_max is None else min(PARALLEL, bounds.objects_max - swept.objects)


def _apart(rows: Sequence[ObjectRow], most: int) -> tuple[Sequence[ObjectRow], Sequence[ObjectRow]]:
    """Return up to ``most`` objects with distinct keys, and the rest: versions of one key are cleaned up one by one."""
    taken: list[ObjectRow] = []
    left: list[ObjectRow] = []
    for row in rows:
        apart = all((row.bucket, row.key) != (other.bucket, other.key) for other in taken)
        (taken if apart and len(taken) < most else left).append(row)
    return taken, left


def _count(swept: CleanupPassResult, cleaned: CleanupResult) -> None:
    match cleaned.outcome:
        case CleanupOutcome.DONE:
            swept.objects += 1
        case CleanupOutcome.ALREADY:
            swept.already += 1
        case CleanupOutcome.REFUSED:
            swept.skipped[cleaned.reason] += 1
        case CleanupOutcome.MISSING | CleanupOutcome.CHANGED:
            swept.skipped[cleaned.outcome.value] += 1
