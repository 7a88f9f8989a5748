"""`penstock batches`: what was committed."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Json, StateFolder, Table, moment, print_json, print_table, talk

app = typer.Typer(help="Committed batches: rows, bytes, seconds a stage.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Committed batches: rows, bytes, seconds a stage."""


@app.command("list")
def list_(
    table: Table = None,
    state: StateFolder = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many, the newest.")] = 50,
    json_: Json = False,
) -> None:
    """List committed batches in the order in which they became visible."""
    from penstock.app.inspect import view
    from penstock.app.places import find_table

    places = find_table(table, state, here=Path.cwd())
    with view(places) as seen:
        row = seen.ledger.pipeline(places.pipeline)
        newest = row.next_seq - 1 if row else 0
        batches = seen.ledger.batches(places.pipeline, after_seq=max(0, newest - limit), limit=limit)
    if newest > limit:
        talk(f"The newest {limit:,} of {newest:,}; --limit shows more.")
    if json_:
        print_json(
            [
                {
                    "batch": batch.seq,
                    "attempt_id": batch.attempt_id,
                    "objects": batch.objects,
                    "rows": batch.rows,
                    "lines_quarantined": batch.lines_quarantined,
                    "bytes": batch.bytes,
                    "committed_at": batch.committed_at,
                    "worker": batch.worker,
                    "stage_seconds": dict(batch.stage_seconds),
                }
                for batch in batches
            ]
        )
        return
    print_table(
        ("batch", "committed", "objects", "rows", "bad lines", "bytes", "stages", "attempt"),
        [
            (
                batch.seq,
                moment(batch.committed_at),
                f"{batch.objects:,}",
                f"{batch.rows:,}",
                f"{batch.lines_quarantined:,}",
                f"{batch.bytes:,}",
                ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in batch.stage_seconds.items()),
                batch.attempt_id,
            )
            for batch in batches
        ],
        empty="No batch was committed yet.",
    )
