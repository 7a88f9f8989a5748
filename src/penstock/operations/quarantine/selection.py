"""Select objects with bad lines, with the state of their replays, and read the lines themselves."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from penstock.errors import UsageError
from penstock.ledger.records import ObjectRow, ObjectState, QuarantineRow, QuarantineState
from penstock.objects.reference import ObjectRef, decode_key
from penstock.objects.replays import source_of
from penstock.operations.inspection import PAGE, ScopeView
from penstock.pipeline.extra import require_tables
from penstock.sinks.registry import open_sink

REPLAY_ENDED = frozenset({ObjectState.DEAD, ObjectState.DELETED, ObjectState.SUPERSEDED})
"""Ends of a replay that read nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSelection:
    """The selected objects: named ones, or all in one state, whose address contains a text."""

    uris: Sequence[str] = ()
    state: QuarantineState | None = QuarantineState.OPEN  # used if none are named; None: any
    uri_contains: str | None = None
    attempt: str | None = None
    only_warnings: bool = False

    def details(self, pipeline: str) -> Mapping[str, object]:
        """Return the options for the audit log."""
        selection: Mapping[str, object] = {
            "pipeline": pipeline,
            "objects": list(self.uris),
            "filter": self.uri_contains,
            "attempt": self.attempt,
            "warnings": self.only_warnings,
        }
        return {name: value for name, value in selection.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """An object with bad lines, and the object that replays them, once a worker has claimed it."""

    row: QuarantineRow
    replay: ObjectState | None = None
    replay_row: ObjectRow | None = None  # of a replay that is under way or ended without reading the lines

    @property
    def ref(self) -> ObjectRef:
        """The version as the attempt read it; a replay's is that of the replay."""
        return reference_of(self.row)

    @property
    def outcome(self) -> str:
        """The outcome of the lines, for people; empty if nothing was done yet."""
        if self.row.state is not QuarantineState.OPEN:
            return self.row.state.value
        match self.replay:
            case ObjectState.PROCESSING:
                return "replay runs"
            case ObjectState.UNPROCESSED:
                return "replay waits"
            case ObjectState.DEAD | ObjectState.DELETED | ObjectState.SUPERSEDED:
                reason = self.replay_row.reason if self.replay_row is not None else None
                return f"replay failed: {reason or self.replay.value}"
            case _:
                return ""


def reference_of(row: QuarantineRow) -> ObjectRef:
    """Return the reference to the version that a row describes."""
    return ObjectRef(
        bucket=row.bad.bucket,
        key=decode_key(row.bad.key),
        size_bytes=row.bad.size_bytes,
        version_id=row.bad.version_id,
        etag=row.bad.etag,
    )


def version_of(ref: ObjectRef) -> str:
    """Return the version of the object that was read, for people."""
    source = source_of(ref)
    return source.version_id or source.etag or ""


def select(seen: ScopeView, selection: QuarantineSelection) -> Iterator[Quarantined]:
    """Yield the selected objects of each pipeline in turn, by id; named ones oldest first."""
    for pipeline in seen.pipelines():
        rows = iter(_rows(seen, pipeline, selection))
        while page := list(islice(rows, PAGE)):
            yield from _with_replays(seen, pipeline, page)


def lines_of(seen: ScopeView, row: QuarantineRow, *, limit: int) -> Sequence[Mapping[str, object]]:
    """Return the first bad lines of one object, as dictionaries with the columns of the quarantine table.

    Raises `UsageError` if the table's location is unknown or the table no longer has the lines.
    """
    where = seen.scope.tables.get(row.pipeline)
    if where is None:
        raise UsageError(
            "Only the app's code names the folder of the pipeline's table: give --app, such as --app shop:app."
        )
    require_tables(where.scheme, work="Quarantined lines are in a table")
    from penstock.pipeline.quarantine_lines import QuarantineLines  # loads Arrow

    sink = open_sink(where.quarantine, scheme=where.scheme, pipeline=row.pipeline, partition_by=None)
    found: list[Mapping[str, object]] = []
    with closing(QuarantineLines(seen.ledger, sink, pipeline=row.pipeline).of(row)) as batches:
        for batch in batches:
            found += batch.slice(0, limit - len(found)).to_pylist()
            if len(found) >= limit:
                break
    return found


def _rows(seen: ScopeView, pipeline: str, selection: QuarantineSelection) -> Iterator[QuarantineRow]:
    if selection.uris:
        found = [row for uri in dict.fromkeys(selection.uris) for row in seen.ledger.quarantines.find(pipeline, uri)]
        yield from (row for row in found if _is_meant(row, selection))
        return
    after: bytes | None = None
    while page := seen.ledger.quarantines.rows(
        pipeline,
        state=selection.state,
        only_warnings=selection.only_warnings,
        uri_contains=selection.uri_contains,
        limit=PAGE,
        after=after,
    ):
        yield from (row for row in page if _is_meant(row, selection))
        after = page[-1].bad.object_id


def _is_meant(row: QuarantineRow, selection: QuarantineSelection) -> bool:
    if selection.attempt is not None and row.attempt_id != selection.attempt:
        return False
    return row.warns or not selection.only_warnings


def _with_replays(seen: ScopeView, pipeline: str, rows: Sequence[QuarantineRow]) -> Iterator[Quarantined]:
    states = seen.ledger.states(pipeline, {row.bad.replay_id for row in rows})
    for row in rows:
        state = states.get(row.bad.replay_id)
        ended = _replay_row(seen, row) if state in REPLAY_ENDED else None
        yield Quarantined(row=row, replay=state, replay_row=ended)


def _replay_row(seen: ScopeView, row: QuarantineRow) -> ObjectRow | None:
    found = seen.ledger.find(row.bad.uri)
    return next((one for whose, one in found if (whose, one.object_id) == (row.pipeline, row.bad.replay_id)), None)
