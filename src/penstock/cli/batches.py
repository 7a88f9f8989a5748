"""`penstock batches`: what was committed."""

from heapq import merge
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import AppName, Json, Pipeline, StateFolder, Table, moment, print_json, print_table, talk

app = typer.Typer(help="Committed batches: rows, bytes, seconds a stage.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Committed batches: rows, bytes, seconds a stage."""


@app.command("list")
def list_(
    table: Table = None,
    state: StateFolder = None,
    pipeline: Pipeline = None,
    app_name: AppName = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many, the newest.")] = 50,
    json_: Json = False,
) -> None:
    """List committed batches in the order in which they were committed."""
    from penstock.app.inspect import view
    from penstock.app.scope import Asked, find_scope

    scope = find_scope(Asked(table=table, state=state, pipeline=pipeline, app=app_name), here=Path.cwd())
    with view(scope) as seen:
        rows = [seen.ledger.pipeline(one) for one in seen.pipelines()]
        newest = {row.id: row.next_seq - 1 for row in rows if row is not None}
        found = [
            seen.ledger.batches(one, after_seq=max(0, seq - limit), limit=limit) for one, seq in newest.items() if seq
        ]
    batches = list(merge(*found, key=lambda batch: batch.committed_at))[-limit:]  # each in its own order
    if (count := sum(newest.values())) > limit:
        talk(f"The newest {limit:,} of {count:,}; --limit shows more.")
    if json_:
        print_json(
            [
                {
                    "pipeline": batch.pipeline,
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
        (
            *(("pipeline",) if seen.several else ()),
            *("batch", "committed", "objects", "rows", "bad lines", "bytes", "stages", "attempt"),
        ),
        [
            (
                *((batch.pipeline,) if seen.several else ()),
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
