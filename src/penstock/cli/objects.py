"""`penstock objects`: the ledger's answer to "where is this object?"."""

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.output import Json, StateFolder, Table, moment, print_fields, print_json, print_table, talk
from penstock.errors import UsageError
from penstock.ledger.records import ObjectAttempt, ObjectRow, ObjectState

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
        rows = seen.ledger.objects(places.pipeline, state=only, uri_contains=filter_, limit=limit)
    if json_:
        print_json([as_document(row) for row in rows])
        return
    print_table(
        ("object", "state", "attempts", "rows", "bad lines", "batch", "since", "reason"),
        [
            (
                row.uri,
                row.state,
                row.attempts,
                _or_blank(row.rows),
                _or_blank(row.lines_quarantined),
                _or_blank(row.batch_seq),
                moment(row.ended_at or row.first_seen_at),
                row.reason or "",
            )
            for row in rows
        ],
        empty="No such objects.",
    )
    if len(rows) == limit:
        talk(f"The first {limit}; --limit shows more, --only and --filter fewer.")


@app.command()
def show(
    uri: Annotated[str, typer.Argument(metavar="OBJECT", help="The object's address: file:///..., or a path.")],
    table: Table = None,
    state: StateFolder = None,
    json_: Json = False,
) -> None:
    """Show one object: every version of it that was seen, with all attempts."""
    from penstock.app.inspect import view
    from penstock.app.places import find_table

    places = find_table(table, state, here=Path.cwd())
    address = uri if "://" in uri else f"file://{Path(uri).resolve()}"
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
    for row, timeline in versions:
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


def _print_version(row: ObjectRow, timeline: Any) -> None:
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
    print_table(
        ("attempt", "outcome", "started", "ended", "worker", "reason"),
        [
            (one.attempt_id, one.outcome, moment(one.started_at), moment(one.ended_at), one.worker, one.reason or "")
            for one in timeline
        ],
        empty="No attempt yet.",
    )


def _or_blank(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
