"""Read processed objects again, under the present transform and reader, and replace their rows.

Chunk by chunk, the ledger reopens the objects, and then their notifications are sent. A process that dies in between
leaves reopened objects without a message. The next call sends it, and so do ``ingest`` and ``reconcile``, which find
these objects unprocessed. Their rows stay in the table until the batch that reads them again is committed.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ulid import ULID

from penstock.dead_letters.operator import ProgressCallback, ReplayRate, Stopped
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.merges import check_not_merged
from penstock.ledger.records import ObjectRow, ObjectState
from penstock.ledger.reopening_choice import LeftAlone
from penstock.ledger.reopenings import Reopened, Withdrawn
from penstock.ledger.returns import ReturningObject
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.objects.notification import announce
from penstock.objects.reference import ObjectRef, decode_key
from penstock.objects.replays import is_replay
from penstock.operations.archived_objects import find_archived
from penstock.operations.dead_letters.selection import audited
from penstock.operations.inspection import PAGE, ScopeView
from penstock.operations.objects.retry import queues_of

OBJECT = "_object"  # as in `penstock.pipeline.replacing`, which loads Arrow
LISTED_MAX = 100  # objects left alone that are reported by name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessSelection:
    """The selected objects: named ones, or else processed ones by address and age, by default all of them."""

    uris: Sequence[str] = ()
    uri_contains: str | None = None
    older_than_seconds: float | None = None  # since they were processed
    newer_than_seconds: float | None = None
    queue: str | None = None  # for the notifications; None: the pipeline's own
    rate: float | None = None  # objects per second

    def details(self, pipeline: str) -> Mapping[str, object]:
        """Return the options for the audit log."""
        selection: Mapping[str, object] = {
            "pipeline": pipeline,
            "objects": list(self.uris),
            "filter": self.uri_contains,
            "older_than_seconds": self.older_than_seconds,
            "newer_than_seconds": self.newer_than_seconds,
            "rate": self.rate,
        }
        return {name: value for name, value in selection.items() if value}


@dataclass(slots=True, kw_only=True)
class ReprocessPlan:
    """The objects that would be read again, and those that would be left alone."""

    pipeline: str
    queue: str | None  # None: the next ingest of the table finds the objects without messages
    objects: int = 0
    again: int = 0  # reopened by an earlier call; their notifications are sent once more
    rows: int = 0  # of the earlier readings of ``objects``
    left_alone: Counter[LeftAlone] = field(default_factory=Counter)
    named: list[tuple[str, LeftAlone, ObjectState | None]] = field(
        default_factory=list
    )  # the first of those left alone
    archived: int = 0  # archived objects, which are found by name only and were not searched

    @property
    def total(self) -> int:
        """The number of objects to enqueue."""
        return self.objects + self.again

    def add(self, found: Reopened) -> None:
        self.objects += len(found.objects)
        self.again += len(found.again)
        self.rows += sum(row.rows or 0 for row in found.objects)
        self.left_alone.update(found.left_alone.values())
        more = [(uri, why, found.states.get(uri)) for uri, why in found.left_alone.items()]
        self.named += more[: LISTED_MAX - len(self.named)]


def plan(seen: ScopeView, selection: ReprocessSelection) -> ReprocessPlan:
    """Inspect and count the selected objects.

    Raises `UsageError` if the pipeline or its queue is unknown, or if rows of its table cannot be replaced by object.
    """
    pipeline = _pipeline_of(seen, selection.uris)
    _check_replaceable(seen, pipeline)
    planned = ReprocessPlan(pipeline=pipeline, queue=_queue_of(seen, pipeline, selection.queue))
    for chunk in _chunks(seen, pipeline, selection, PAGE):
        archived = _archived(seen, pipeline, chunk.addresses) if selection.uris else ()
        planned.add(chunk.kept(seen.ledger.reopenings.preview(pipeline, chunk.addresses, archived=archived)))
    planned.archived = 0 if selection.uris else seen.ledger.archives.count(pipeline)
    return planned


def reprocess(
    seen: ScopeView,
    selection: ReprocessSelection,
    planned: ReprocessPlan,
    *,
    ledger: Ledger,
    stopped: Stopped,
    on_progress: ProgressCallback,
    clock: Clock | None = None,
    probe: Probe = no_probe,
) -> ReprocessPlan:
    """Reopen the selected objects and enqueue them, with an audit entry; return what was done.

    After an interruption, call it again.
    """
    pipeline = planned.pipeline
    done = replace(planned, objects=0, again=0, rows=0, left_alone=Counter(), named=[])
    pace = ReplayRate(selection.rate, clock=clock or SystemClock(), stopped=stopped)
    details = selection.details(pipeline)
    with audited(ledger, "reprocess", queue=planned.queue or "", details=details, stopped=stopped) as entry:
        ledger.abandon_expired(pipeline)
        for chunk in _chunks(seen, pipeline, selection, pace.chunk):
            if stopped():
                break
            archived = _archived(seen, pipeline, chunk.addresses) if selection.uris else ()
            found = chunk.kept(ledger.reopenings.reopen(pipeline, chunk.addresses, archived=archived))
            rows = [*found.objects, *found.again]
            if planned.queue is not None and rows:
                seen.broker.send(planned.queue, [_announced(row) for row in rows])
                probe(Step.ANNOUNCED)
            done.add(found)
            entry.messages += len(rows)
            on_progress(len(rows))
            pace.wait(len(rows))
    return done


def withdraw(seen: ScopeView, uris: Sequence[str], *, ledger: Ledger) -> Withdrawn:
    """Make reopened objects processed as before, with an audit entry."""
    pipeline = _pipeline_of(seen, uris)
    with audited(
        ledger,
        "reprocess withdraw",
        queue="",
        details={"pipeline": pipeline, "objects": list(uris)},
        stopped=lambda: False,
    ) as entry:
        ledger.abandon_expired(pipeline)
        done = ledger.reopenings.withdraw(pipeline, uris)
        entry.messages = len(done.withdrawn)
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    addresses: Sequence[str]
    is_open: bool | None  # True: objects that wait to be read again; False: processed ones; None: named ones

    def kept(self, found: Reopened) -> Reopened:
        """Return the part of the result that this chunk stands for.

        An address of which one version is processed and another one reopened is in chunks of both kinds.
        """
        if self.is_open is None:
            return found
        return replace(found, objects=()) if self.is_open else replace(found, again=())


def _chunks(seen: ScopeView, pipeline: str, selection: ReprocessSelection, size: int) -> Iterator[_Chunk]:
    if selection.uris:
        yield from _sliced(iter(dict.fromkeys(selection.uris)), size, is_open=None)
        return
    yield from _sliced(_waiting(seen, pipeline, selection.uri_contains), size, is_open=True)
    yield from _sliced(_processed(seen, pipeline, selection), size, is_open=False)


def _sliced(addresses: Iterator[str], size: int, *, is_open: bool | None) -> Iterator[_Chunk]:
    while chunk := list(islice(addresses, size)):
        yield _Chunk(addresses=list(dict.fromkeys(chunk)), is_open=is_open)


def _waiting(seen: ScopeView, pipeline: str, uri_contains: str | None) -> Iterator[str]:
    """Yield the reopened objects that are unprocessed: an interrupted call may not have sent their notifications."""
    after = b""
    while rows := seen.ledger.reopenings.open(pipeline, limit=PAGE, after=after):
        yield from (
            row.uri
            for row in rows
            if row.state is ObjectState.UNPROCESSED and (uri_contains or "").lower() in row.uri.lower()
        )
        after = rows[-1].object_id


def _processed(seen: ScopeView, pipeline: str, selection: ReprocessSelection) -> Iterator[str]:
    newest = selection.newer_than_seconds
    since = None if newest is None else seen.ledger.now() - newest
    after: bytes | None = None
    while rows := seen.ledger.objects(
        pipeline,
        state=ObjectState.PROCESSED,
        uri_contains=selection.uri_contains,
        older_than_seconds=selection.older_than_seconds,
        limit=PAGE,
        after=after,
    ):
        for row in rows:
            is_recent = since is None or (row.ended_at or 0.0) >= since
            if is_recent and not is_replay(row.version_id, row.etag):
                yield row.uri
        after = rows[-1].object_id


def _pipeline_of(seen: ScopeView, uris: Sequence[str]) -> str:
    """Return the one pipeline that is meant. Raises `UsageError` if there are several, or none."""
    names = seen.pipelines()
    if len(names) > 1 and uris:
        knowing = {name for uri in uris for name, _ in seen.ledger.find(uri)}
        knowing |= {one.archive.pipeline for uri in uris for one in seen.ledger.archives.find(uri)}
        names = [name for name in names if name in knowing] or names
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError(f"The ledger {seen.scope.name} has no pipeline yet, so nothing was processed.")
    raise UsageError(f"Which pipeline? Give --pipeline; there are {', '.join(names)}.")


def _check_replaceable(seen: ScopeView, pipeline: str) -> None:
    """Raise `UsageError` if the rows of an object cannot be replaced. An object handler has no table."""
    row = seen.ledger.pipeline(pipeline)
    if row is None or row.table_schema is None:
        return
    check_not_merged(row, "Reprocessing objects")
    if OBJECT not in {field["name"] for field in json.loads(row.table_schema)["fields"]}:
        raise UsageError(
            f"The table of {pipeline} has no column {OBJECT}, so it does not say which rows are of which object, and "
            "new rows could only be added to the old ones. Read the objects into another table (`penstock ingest`, or "
            f"a pipeline of another name). To replace rows there later, let the transform keep the column {OBJECT}."
        )


def _queue_of(seen: ScopeView, pipeline: str, given: str | None) -> str | None:
    """Return the queue for the notifications; None if the table has none yet."""
    if seen.scope.table is not None and given is None and not seen.broker.queue_names():
        return None
    queue = queues_of(seen, given).get(pipeline)
    if queue is None:
        raise UsageError(f"The app has no pipeline {pipeline}; it has: {', '.join(sorted(seen.scope.served))}.")
    return queue


def _archived(seen: ScopeView, pipeline: str, uris: Sequence[str]) -> Sequence[ReturningObject]:
    if not seen.ledger.archives.count(pipeline):
        return ()
    return [
        ReturningObject(archive_id=one.archive.id, retired=one.retired)
        for uri in uris
        for one in find_archived(seen.ledger, uri, seen.scope.aws)
        if one.pipeline == pipeline and one.retired is not None
    ]


def _announced(row: ObjectRow) -> Outgoing:
    """Return the notification of a reopened object. Its deduplication id is new, whatever was sent before."""
    ref = ObjectRef(
        bucket=row.bucket,
        key=decode_key(row.key),
        size_bytes=row.size_bytes,
        version_id=row.version_id,
        etag=row.etag,
    )
    return Outgoing(body=announce(ref), deduplication_id=str(ULID()))
