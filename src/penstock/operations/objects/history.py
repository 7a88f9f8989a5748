"""Everything that the ledger and its archive know about one object: all its versions, with all attempts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.ledger.records import (
    ObjectAttempt,
    ObjectRow,
    ObjectState,
    QuarantineRow,
    QuarantineState,
    ReopeningRow,
    ReopeningState,
)
from penstock.objects.replays import is_replay
from penstock.operations.archived_objects import ArchivedVersion, find_archived
from penstock.operations.inspection import ScopeView


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """One version of an object in one pipeline."""

    pipeline: str
    row: ObjectRow
    timeline: Sequence[ObjectAttempt]
    is_archived: bool = False
    transform: str | None = None  # that made its rows; empty: none. None: unknown, or there are no rows
    bad: QuarantineRow | None = None  # its bad lines
    reopening: ReopeningRow | None = None  # the last time that it was to be read again
    is_replaced: bool = False  # a later version took its rows out of the table
    replaced_in: int | None = None  # the batch of that version; None: not replaced, or not known

    @property
    def is_replay(self) -> bool:
        """Return True if it is no version of its own: the bad lines of one are read again."""
        return is_replay(self.row.version_id, self.row.etag)

    @property
    def warns(self) -> bool:
        """Return True if so many of its lines are bad that a person should know, and nothing was done about them."""
        return self.bad is not None and self.bad.warns and self.bad.state is QuarantineState.OPEN

    @property
    def waiting_since(self) -> float | None:
        """Return since when it waits or is processed; None if it has ended."""
        if self.row.state not in (ObjectState.UNPROCESSED, ObjectState.PROCESSING):
            return None
        if self.reopening is not None and self.reopening.state is ReopeningState.OPEN:
            return self.reopening.reopened_at
        return self.row.first_seen_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHistory:
    """All versions of one object, in the pipelines of a scope."""

    address: str
    versions: Sequence[ObjectVersion]
    identities: Sequence[ArchivedVersion]  # archived versions that no file describes

    @property
    def is_known(self) -> bool:
        return bool(self.versions or self.identities)


def history_of(seen: ScopeView, address: str) -> ObjectHistory:
    """Return the history of the object with exactly this address. The versions of a pipeline are in order of time."""
    meant = seen.pipelines()
    found = [(pipeline, row) for pipeline, row in seen.ledger.find(address) if pipeline in meant]
    archived = [one for one in find_archived(seen.ledger, address, seen.scope.aws) if one.pipeline in meant]
    versions = [
        ObjectVersion(pipeline=one.pipeline, row=one.retired.row, timeline=one.retired.timeline, is_archived=True)
        for one in archived
        if one.retired is not None
    ]
    for pipeline in dict.fromkeys(pipeline for pipeline, _ in found):
        versions += _versions_in(seen, pipeline, [row for whose, row in found if whose == pipeline])
    bad = {
        (pipeline, one.bad.object_id): one
        for pipeline in {version.pipeline for version in versions}
        for one in seen.ledger.quarantines.find(pipeline, address)
    }
    return ObjectHistory(
        address=address,
        versions=[
            replace(version, bad=bad.get((version.pipeline, version.row.object_id)))
            for version in sorted(versions, key=lambda version: (version.pipeline, version.row.first_seen_at))
        ],
        identities=[one for one in archived if one.retired is None],
    )


def _versions_in(seen: ScopeView, pipeline: str, rows: Sequence[ObjectRow]) -> Sequence[ObjectVersion]:
    ids = [row.object_id for row in rows]
    replaced = seen.ledger.replaced(pipeline, ids)
    reopenings = seen.ledger.reopenings.last(pipeline, ids)
    return [
        ObjectVersion(
            pipeline=pipeline,
            row=row,
            timeline=seen.ledger.attempts_of(pipeline, row.object_id),
            transform=_transform(seen, pipeline, row),
            reopening=reopenings.get(row.object_id),
            is_replaced=row.object_id in replaced,
            replaced_in=_replaced_in(row, rows) if row.object_id in replaced else None,
        )
        for row in rows
    ]


def _replaced_in(replaced: ObjectRow, rows: Sequence[ObjectRow]) -> int | None:
    """Return the first later batch that read another version."""
    later = [row.batch_seq for row in rows if row.batch_seq is not None and row.batch_seq > (replaced.batch_seq or 0)]
    return min(later, default=None)


def _transform(seen: ScopeView, pipeline: str, row: ObjectRow) -> str | None:
    batch = None if row.batch_seq is None else seen.ledger.batch(pipeline, row.batch_seq)
    return None if batch is None else batch.record.transform
