"""`penstock objects`: list objects with their states, show one, and retry, reprocess, retract or import them."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import typer

from penstock.app.scope import Scope
from penstock.cli.objects_import import import_
from penstock.cli.objects_reprocess import reprocess
from penstock.cli.objects_retract import retract
from penstock.cli.objects_retry import retry
from penstock.cli.options import duration_if, grouped_options, object_uri
from penstock.cli.output import (
    Json,
    moment,
    print_fields,
    print_json,
    print_table,
    printable,
    talk,
    transform_text,
)
from penstock.cli.where import ScopeOptions, first_of, print_each
from penstock.errors import UsageError
from penstock.ledger.records import (
    ObjectAttempt,
    ObjectRow,
    ObjectState,
    QuarantineRow,
    UnknownCounts,
)
from penstock.messaging.wording import counted
from penstock.objects.replays import is_replay
from penstock.operations.advice import advice_in
from penstock.operations.archived_objects import ArchivedVersion, archived_objects
from penstock.operations.inspection import ScopeView, view
from penstock.operations.objects.history import ObjectVersion, history_of

LOCAL = "file://"  # omitted in tables

app = typer.Typer(no_args_is_help=True)
app.command("import")(import_)
app.command("reprocess")(reprocess)
app.command("retract")(retract)
app.command("retry")(retry)


@app.command("list")
@grouped_options
def list_(
    where: ScopeOptions,
    only: Annotated[ObjectState | None, typer.Option("--only", help="Only objects in this state.")] = None,
    filter_: Annotated[
        str | None, typer.Option("--filter", help="Only objects with this text in their address.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DURATION", help="Only objects that ended, or were first seen, before."),
    ] = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="List archived objects instead of those in the ledger.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Maximum number.")] = 100,
    json_: Json = False,
) -> None:
    """List objects with their state.

    Archived ones were processed long ago, or imported as processed.
    """
    if archived and only not in (None, ObjectState.PROCESSED):
        raise UsageError(f"Archived objects are processed, so --only {only} leaves none of them.")
    older_than_seconds = duration_if("--older-than", older_than)
    if archived and older_than_seconds is not None:
        raise UsageError("--older-than is for objects in the ledger; leave out --archived.")
    documents: list[dict[str, Any]] = []
    wanted = _Wanted(only=only, text=filter_, older_than_seconds=older_than_seconds, archived=archived, limit=limit)
    print_each(where.scopes(), lambda scope: documents.extend(_listed(scope, wanted, quiet=json_)), quiet=json_)
    if json_:
        print_json(documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The selection of a list."""

    only: ObjectState | None
    text: str | None  # in their addresses
    older_than_seconds: float | None
    archived: bool
    limit: int


def _listed(scope: Scope, wanted: _Wanted, *, quiet: bool) -> list[dict[str, Any]]:
    """Print the objects of a scope, unless ``quiet``; return them as documents."""
    only, filter_, archived, limit = wanted.only, wanted.text, wanted.archived, wanted.limit
    found: list[tuple[str, ObjectRow]] = []
    with view(scope) as seen:
        archives = [archive for pipeline in seen.pipelines() for archive in seen.ledger.archives.all(pipeline)]
        kept = sum(archive.objects for archive in archives)
        imported = sum(archive.objects for archive in archives if archive.uri is None)
        for pipeline in seen.pipelines():
            left = limit + 1 - len(found)
            if archived:
                found += [(pipeline, row) for row in islice(_archived_rows(seen, pipeline, filter_), left)]
            elif left:
                of_one = seen.ledger.objects(
                    pipeline,
                    state=only,
                    uri_contains=filter_,
                    older_than_seconds=wanted.older_than_seconds,
                    limit=left,
                )
                found += [(pipeline, row) for row in of_one]
    rows = sorted(found[:limit], key=lambda pair: (pair[0], pair[1].uri))
    if len(found) > limit:
        talk(f"There are more than {limit:,}; --limit shows more, --only and --filter fewer.")
    if kept and not archived and only in (None, ObjectState.PROCESSED):
        talk(
            f"Beside these {counted(kept, 'processed object')} left the ledger for the archive; --archived lists them."
        )
    if archived and imported:
        talk(f"Of {counted(imported, 'imported object')} only the identity is known; they are not listed.")
    documents = [as_document(one, row, archived=archived) for one, row in rows]
    if quiet:
        return documents
    print_table(
        (
            *(("pipeline",) if seen.several else ()),
            *("object", "state", "attempts", "rows read", "bad lines", "batch", "since", "reason"),
        ),
        [
            (
                *((one,) if seen.several else ()),
                row.uri.removeprefix(LOCAL),
                _short_state(row),
                row.attempts,
                _or_blank(row.rows),
                _or_blank(row.lines_quarantined),
                _or_blank(row.batch_seq),
                moment(row.ended_at or row.first_seen_at),
                (row.reason or "").removeprefix(f"{row.uri} "),
            )
            for one, row in rows
        ],
        empty="No such objects.",
    )
    failed = {one for one, row in rows if row.state is ObjectState.DEAD}
    for pipeline in sorted(failed):
        talk(printable(advice_in(scope, pipeline=pipeline)))
    return documents


@app.command()
@grouped_options
def show(
    uri: Annotated[str, typer.Argument(metavar="OBJECT", help="The object's address (file:///...), or its path.")],
    where: ScopeOptions,
    json_: Json = False,
) -> None:
    """Show one object: all its versions, with all attempts."""
    address = object_uri(uri)
    first_of(where.scopes(), lambda scope: _show(scope, address, json_=json_))


def _show(scope: Scope, address: str, *, json_: bool) -> None:
    """Print everything that the ledger of a scope knows about an object. Raises `UsageError` if it knows nothing."""
    with view(scope) as seen:
        history = history_of(seen, address)
    if not history.is_known:
        raise UsageError(
            f"The ledger of {scope.name} knows no object {address}; `penstock objects list{scope.options}` shows all."
        )
    if json_:
        print_json(
            [
                *map(_version_document, history.versions),
                *(_identity_document(one, address) for one in history.identities),
            ]
        )
        return
    for index, version in enumerate(history.versions):
        if index:
            print()
        _print_version(version, pipeline=version.pipeline if scope.table is None else "")
        if version.row.state is ObjectState.DEAD:
            print(printable(advice_in(scope, pipeline=version.pipeline, uri=version.row.uri)))
        if version.warns and version.bad is not None:
            print(printable(_warning(version.bad, scope.options)))
    for position, identity in enumerate(history.identities, start=len(history.versions)):
        if position:
            print()
        print_fields(
            {
                "object": address,
                "pipeline": identity.pipeline if scope.table is None else "",
                "state": f"processed, {identity.problem}" if identity.imported else "processed, archived",
                "reason": "" if identity.imported else identity.problem or "",
            }
        )


def _version_document(version: ObjectVersion) -> dict[str, Any]:
    return as_document(version.pipeline, version.row, archived=version.is_archived) | {
        "warning": version.warns,
        "transform": version.transform,
        "timeline": [_attempt(attempt) for attempt in version.timeline],
    }


def _warning(bad: QuarantineRow, options: str) -> str:
    return (
        f"Warning: {bad.share:.1%} of its lines are bad ({bad.bad.reason or 'see the quarantine'}); `penstock "
        f"quarantine show{options} {shlex.quote(bad.bad.uri)}` shows them, `replay` and `dismiss` end the warning."
    )


def as_document(pipeline: str, row: ObjectRow, *, archived: bool = False) -> dict[str, Any]:
    """Return an object as a JSON document. Times are epoch seconds."""
    unknown = row.unknown or UnknownCounts()
    return {
        "pipeline": pipeline,
        "object": row.uri,
        "object_id": row.object_id.hex(),
        "state": row.state.value,
        "archived": archived,
        "reason": row.reason,
        "attempts": row.attempts,
        "size_bytes": row.size_bytes,
        "version": row.version_id or row.etag,
        "replay": is_replay(row.version_id, row.etag),
        "reopened": row.is_reopened,
        "rows": row.rows,
        "lines_quarantined": row.lines_quarantined,
        "unknown_fields": dict(unknown.fields),
        "unknown_others": unknown.others,
        "wrong_type_fields": dict(unknown.wrong_type),
        "wrong_type_others": unknown.wrong_type_others,
        "batch": row.batch_seq,
        "first_seen_at": row.first_seen_at,
        "ended_at": row.ended_at,
    }


def _attempt(attempt: ObjectAttempt) -> dict[str, Any]:
    return {
        "attempt_id": attempt.attempt_id,
        "worker": attempt.worker,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "traceback": attempt.traceback,
    }


def _archived_rows(seen: ScopeView, pipeline: str, uri_contains: str | None) -> Iterator[ObjectRow]:
    """Yield objects from the archive's files. Without an archive, no file is opened."""
    if not seen.ledger.archives.count(pipeline):
        return
    found = archived_objects(seen.ledger, pipeline, seen.scope.aws, uri_contains=uri_contains)
    yield from (one.row for one in found)


def _identity_document(archived: ArchivedVersion, uri: str) -> dict[str, Any]:
    """Return the document of an archived object that no file describes."""
    return {
        "pipeline": archived.pipeline,
        "object": uri,
        "object_id": archived.object_id.hex(),
        "state": ObjectState.PROCESSED.value,
        "archived": True,
        "reason": archived.problem,
    }


def _print_version(version: ObjectVersion, *, pipeline: str) -> None:
    row = version.row
    unknown = row.unknown or UnknownCounts()
    print_fields(
        {
            "object": row.uri,
            "pipeline": pipeline,
            "version": row.version_id or row.etag,
            "state": f"{row.state.value}, archived" if version.is_archived else _state(row),
            "reason": row.reason or "",
            "size": f"{row.size_bytes:,} bytes",
            "rows read": _or_blank(row.rows),
            "bad lines": _or_blank(row.lines_quarantined),
            "unknown": _by_field(unknown.fields, unknown.others),
            "wrong type": _by_field(unknown.wrong_type, unknown.wrong_type_others),
            "batch": _or_blank(row.batch_seq),
            "transform": transform_text(version.transform),
            "first seen": moment(row.first_seen_at),
            "ended": moment(row.ended_at),
        }
    )
    if not version.timeline:
        talk("No attempt yet.")
    for index, attempt in enumerate(version.timeline, start=1):
        name = f"attempt {index}"
        print(f"{name:<10}  {attempt.outcome}, {moment(attempt.started_at)} to {moment(attempt.ended_at) or 'now'}")
        for line in (f"{attempt.attempt_id} by {attempt.worker}", attempt.reason):
            if line:
                print(f"{'':<10}  {printable(line)}")
        for line in (attempt.traceback or "").splitlines():
            print(f"{'':<10}  | {printable(line)}")


def _short_state(row: ObjectRow) -> str:
    kind = "replay" if is_replay(row.version_id, row.etag) else "reopened" if row.is_reopened else ""
    return f"{row.state.value}, {kind}" if kind else row.state.value


def _state(row: ObjectRow) -> str:
    if row.is_reopened:
        return f"{row.state.value}, to be read again; until then the table keeps the rows of batch {row.batch_seq}"
    return row.state.value


def _by_field(fields: Mapping[str, int], others: int) -> str:
    named = [f"{name} ({counted(rows, 'row')})" for name, rows in fields.items()]
    return ", ".join([*named, f"others ({others:,})"] if others else named)


def _or_blank(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
