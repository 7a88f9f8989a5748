"""`penstock admin audit`: list manual changes of queues, dead letters, objects and schemas, with user and time."""

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import grouped_options
from penstock.cli.output import Json, moment, print_json, print_table
from penstock.cli.where import ScopeOptions
from penstock.operations.inspection import view

if TYPE_CHECKING:
    from penstock.ledger.dead_letters import AuditRow


@grouped_options
def audit(
    where: ScopeOptions,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Maximum number, newest first.")] = 100,
    json_: Json = False,
) -> None:
    """List manual changes of queues, dead letters, objects and schemas.

    Pauses and their ends, replays, moves, purges, exports and imports of dead letters, retries of failed objects,
    replays and dismissals of bad lines, and changes of remembered schemas; the newest first. An entry without an
    outcome is still in progress, or was killed.
    """
    rows: list[AuditRow] = []
    for scope in where.scopes():
        with view(scope) as seen:
            rows += seen.ledger.audits.latest(limit=limit)
    rows = sorted(rows, key=lambda row: row.began_at, reverse=True)[:limit]
    if json_:
        print_json([dataclasses.asdict(row) for row in rows])
        return
    print_table(
        ("began", "who", "did", "queue", "messages", "outcome", "ended", "asked for"),
        [
            (
                moment(row.began_at),
                row.who,
                row.action,
                row.queue,
                row.messages,
                row.outcome or "",
                moment(row.ended_at),
                ", ".join(f"{name}={json.dumps(value)}" for name, value in row.details.items()),
            )
            for row in rows
        ],
        empty="Nothing was done to queues, dead letters, failed objects or schemas yet.",
    )
