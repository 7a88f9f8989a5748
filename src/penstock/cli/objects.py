"""`penstock objects`: the ledger's answer to "where is this object?"."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.output import Json, StateFolder, Table, moment, print_fields, print_json, print_table, printable, talk
from penstock.errors import UsageError
from penstock.ledger.records import ObjectAttempt, ObjectRow, ObjectState
from penstock.objects.reference import LOCAL_BUCKET, uri_of

LOCAL = "file://"  # what need not be read in every row

app = typer.Typer(help="The ledger: which objects there are, and what became of them.", no_args_is_help=True)


@app.command("list")
def list_(
    table: Table = None,
    state: StateFolder = None,
    only: Annotated[ObjectState | None, typer.Option("--only", help="Objects in this state alone.")] = None,
    filter_: Annotated[str | None, typer.Option("--filter", help="Objects whose address contains this text.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many.")] = 100,
    json_: Json = False,
) -> None:
    """List objects, with their state."""
    from penstock.app.inspect import view
    from penstock.app.places import find_table

    places = find_table(table, state, here=Path.cwd())
    with view(places) as seen:
        found = seen.ledger.objects(places.pipeline, state=only, uri_contains=filter_, limit=limit + 1)
    rows = sorted(found[:limit], key=lambda row: row.uri)
    if len(found) > limit:
        talk(f"There are more than {limit:,}; --limit shows more, --only and --filter fewer.")
    if json_:
        print_json([as_document(row) for row in rows])
        return
    print_table(
        ("object", "state", "attempts", "rows", "bad lines", "batch", "since", "reason"),
        [
            (
                row.uri.removeprefix(LOCAL),
                row.state,
                row.attempts,
                _or_blank(row.rows),
                _or_blank(row.lines_quarantined),
                _or_blank(row.batch_seq),
                moment(row.ended_at or row.first_seen_at),
                (row.reason or "").removeprefix(f"{row.uri} "),
            )
            for row in rows
        ],
        empty="No such objects.",
    )


@app.command()
def show(
    uri: Annotated[str, typer.Argument(metavar="OBJECT", help="The object's address (file:///...), or its path.")],
    table: Table = None,
    state: StateFolder = None,
    json_: Json = False,
) -> None:
    """Show one object: every version of it that was seen, with all attempts."""
    from penstock.app.inspect import view
    from penstock.app.places import find_table

    places = find_table(table, state, here=Path.cwd())
    address = uri if "://" in uri else uri_of(LOCAL_BUCKET, str(Path(uri).resolve()))
    with view(places) as seen:
        found = [row for pipeline, row in seen.ledger.find(address) if pipeline == places.pipeline]
        if not found:
            raise UsageError(
                f"The ledger of {places.table} knows no object {address}; `penstock objects list` shows all."
            )
        versions = [(row, seen.ledger.attempts_of(places.pipeline, row.object_id)) for row in found]
    if json_:
        print_json([as_document(row) | {"timeline": [_attempt(one) for one in timeline]} for row, timeline in versions])
        return
    for place, (row, timeline) in enumerate(versions):
        if place:
            print()
        _print_version(row, timeline)


def as_document(row: ObjectRow) -> dict[str, Any]:
    """An object as JSON. Times are epoch seconds."""
    return {
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


def _print_version(row: ObjectRow, timeline: Sequence[ObjectAttempt]) -> None:
    print_fields(
        {
            "object": row.uri,
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
