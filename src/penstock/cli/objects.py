"""`penstock objects`: the ledger's answer to "where is this object?"."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.output import (
    AppName,
    Json,
    Pipeline,
    StateFolder,
    Table,
    moment,
    print_fields,
    print_json,
    print_table,
    printable,
    talk,
)
from penstock.errors import UsageError
from penstock.ledger.records import ObjectAttempt, ObjectRow, ObjectState
from penstock.objects.reference import LOCAL_BUCKET, uri_of

LOCAL = "file://"  # what need not be read in every row

app = typer.Typer(help="The ledger: which objects there are, and what became of them.", no_args_is_help=True)


@app.command("list")
def list_(
    table: Table = None,
    state: StateFolder = None,
    pipeline: Pipeline = None,
    app_name: AppName = None,
    only: Annotated[ObjectState | None, typer.Option("--only", help="Objects in this state alone.")] = None,
    filter_: Annotated[str | None, typer.Option("--filter", help="Objects whose address contains this text.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many.")] = 100,
    json_: Json = False,
) -> None:
    """List objects, with their state."""
    from penstock.app.inspect import view
    from penstock.app.scope import Asked, find_scope

    scope = find_scope(Asked(table=table, state=state, pipeline=pipeline, app=app_name), here=Path.cwd())
    found: list[tuple[str, ObjectRow]] = []
    with view(scope) as seen:
        for one in seen.pipelines():
            left = limit + 1 - len(found)
            of_one = seen.ledger.objects(one, state=only, uri_contains=filter_, limit=left) if left else ()
            found += [(one, row) for row in of_one]
    rows = sorted(found[:limit], key=lambda pair: (pair[0], pair[1].uri))
    if len(found) > limit:
        talk(f"There are more than {limit:,}; --limit shows more, --only and --filter fewer.")
    if json_:
        print_json([as_document(one, row) for one, row in rows])
        return
    print_table(
        (
            *(("pipeline",) if seen.several else ()),
            *("object", "state", "attempts", "rows", "bad lines", "batch", "since", "reason"),
        ),
        [
            (
                *((one,) if seen.several else ()),
                row.uri.removeprefix(LOCAL),
                row.state,
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


@app.command()
def show(
    uri: Annotated[str, typer.Argument(metavar="OBJECT", help="The object's address (file:///...), or its path.")],
    table: Table = None,
    state: StateFolder = None,
    pipeline: Pipeline = None,
    app_name: AppName = None,
    json_: Json = False,
) -> None:
    """Show one object: every version of it that was seen, with all attempts."""
    from penstock.app.inspect import view
    from penstock.app.scope import Asked, find_scope

    scope = find_scope(Asked(table=table, state=state, pipeline=pipeline, app=app_name), here=Path.cwd())
    address = uri if "://" in uri else uri_of(LOCAL_BUCKET, str(Path(uri).resolve()))
    with view(scope) as seen:
        meant = seen.pipelines()
        versions = [
            (one, row, seen.ledger.attempts_of(one, row.object_id))
            for one, row in seen.ledger.find(address)
            if one in meant
        ]
    if not versions:
        raise UsageError(
            f"The ledger of {scope.name} knows no object {address}; `penstock objects list{scope.options}` shows all."
        )
    if json_:
        print_json(
            [
                as_document(one, row) | {"timeline": [_attempt(attempt) for attempt in timeline]}
                for one, row, timeline in versions
            ]
        )
        return
    for place, (one, row, timeline) in enumerate(versions):
        if place:
            print()
        _print_version(one if scope.table is None else "", row, timeline)


def as_document(pipeline: str, row: ObjectRow) -> dict[str, Any]:
    """An object as JSON. Times are epoch seconds."""
    return {
        "pipeline": pipeline,
        "object": row.uri,
        "object_id": row.object_id.hex(),
        "state": row.state.value,
        "reason": row.reason,
        "attempts": row.attempts,
        "size_bytes": row.size_bytes,
        "version": row.version_id or row.etag,
        "rows": row.rows,
        "lines_quarantined": row.lines_quarantined,
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
    }


def _print_version(pipeline: str, row: ObjectRow, timeline: Sequence[ObjectAttempt]) -> None:
    print_fields(
        {
            "object": row.uri,
            "pipeline": pipeline,
            "version": row.version_id or row.etag,
            "state": row.state.value,
            "reason": row.reason or "",
            "size": f"{row.size_bytes:,} bytes",
            "rows": _or_blank(row.rows),
            "bad lines": _or_blank(row.lines_quarantined),
            "batch": _or_blank(row.batch_seq),
            "first seen": moment(row.first_seen_at),
            "ended": moment(row.ended_at),
        }
    )
    if not timeline:
        talk("No attempt yet.")
    for place, one in enumerate(timeline, start=1):
        name = f"attempt {place}"
        print(f"{name:<10}  {one.outcome}, {moment(one.started_at)} to {moment(one.ended_at) or 'now'}")
        for line in (f"{one.attempt_id} by {one.worker}", one.reason):
            if line:
                print(f"{'':<10}  {printable(line)}")


def _or_blank(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
