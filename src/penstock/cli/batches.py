"""`penstock admin batches`: list committed batches, and show one."""

from heapq import merge
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.scope import Scope
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, moment, print_fields, print_json, print_table, printable, talk, transform_text
from penstock.cli.where import ScopeOptions, first_of, print_each
from penstock.ledger.records import replaced_objects
from penstock.messaging.wording import counted
from penstock.operations.inspection import view
from penstock.operations.tables.batches import BatchDetails, BatchInTable, details_of, is_reachable

if TYPE_CHECKING:
    from penstock.ledger.records import BatchRow

app = typer.Typer(no_args_is_help=True)


@app.command("list")
@grouped_options
def list_(
    where: ScopeOptions,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Maximum number, newest first.")] = 50,
    json_: Json = False,
) -> None:
    """List committed batches in commit order."""
    documents: list[dict[str, Any]] = []
    scopes = where.scopes()
    print_each(scopes, lambda scope: documents.extend(_listed(scope, limit=limit, quiet=json_)), quiet=json_)
    if json_:
        print_json(documents)


def _listed(scope: Scope, *, limit: int, quiet: bool) -> list[dict[str, Any]]:
    """Print the newest batches of a scope, unless ``quiet``; return them as documents."""
    with view(scope) as seen:
        rows = [seen.ledger.pipeline(pipeline) for pipeline in seen.pipelines()]
        newest = {row.id: row.next_seq - 1 for row in rows if row is not None}
        found = [
            seen.ledger.batches(batch, after_seq=max(0, seq - limit), limit=limit)
            for batch, seq in newest.items()
            if seq
        ]
    batches = list(merge(*found, key=lambda batch: batch.committed_at))[-limit:]  # each in its own order
    if (count := sum(newest.values())) > limit:
        talk(f"The newest {limit:,} of {count:,}; --limit shows more.")
    documents = [_document(batch) for batch in batches]
    if quiet:
        return documents
    print_table(
        (
            *(("pipeline",) if seen.several else ()),
            *("batch", "committed", "objects", "rows written", "bad lines", "bytes", "stages", "attempt"),
        ),
        [
            (
                *((batch.pipeline,) if seen.several else ()),
                batch.seq,
                moment(batch.committed_at),
                _objects(batch),
                f"{batch.record.rows:,}",
                f"{batch.record.lines_quarantined:,}",
                f"{batch.record.bytes:,}",
                ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in batch.record.stage_seconds.items()),
                batch.attempt_id,
            )
            for batch in batches
        ],
        empty="No batch was committed yet.",
    )
    return documents


@app.command()
@grouped_options
def show(
    seq: Annotated[int, typer.Argument(metavar="BATCH", min=1, help="The number of the batch in its pipeline.")],
    where: ScopeOptions,
    limit: Annotated[int, typer.Option("--limit", min=0, max=100_000, help="Maximum number of objects.")] = 20,
    json_: Json = False,
) -> None:
    """Show one batch: its contents, its stages with their seconds, its files, and the address of its Spark run."""

    def find_batch(scope: Scope) -> BatchDetails:
        with view(scope) as seen:
            return details_of(seen, seq, objects_max=limit)

    found = first_of(where.scopes(), find_batch)
    if json_:
        print_json(_details(found))
        return
    _print_details(found)


def _objects(batch: "BatchRow") -> str:
    """Return the number of objects; for a batch that took rows out of the table, of how many objects these were."""
    replaced = len(replaced_objects(batch.record.replaces))
    if not replaced:
        return f"{batch.objects:,}, {batch.grown_objects:,} grown" if batch.grown_objects else f"{batch.objects:,}"
    return f"{batch.objects:,}, {replaced:,} replaced" if batch.objects else f"{replaced:,} retracted"


def _document(batch: "BatchRow") -> dict[str, Any]:
    return {
        "pipeline": batch.pipeline,
        "batch": batch.seq,
        "attempt_id": batch.attempt_id,
        "objects": batch.objects,
        "replaced_objects": replaced_objects(batch.record.replaces),
        "grown_objects": batch.grown_objects,
        "appended_rows": batch.appended_rows,
        "rows": batch.record.rows,
        "lines_quarantined": batch.record.lines_quarantined,
        "bytes": batch.record.bytes,
        "committed_at": batch.committed_at,
        "worker": batch.worker,
        "stage_seconds": dict(batch.record.stage_seconds),
        "spark_ui_url": batch.record.spark_ui_url,
        "transform": batch.record.transform,
    }


def _details(found: BatchDetails) -> dict[str, Any]:
    claimed_at = None if found.attempt is None else found.attempt.started_at
    return {
        **_document(found.batch),
        "schema_id": found.batch.schema_id,
        "claimed_at": claimed_at,
        "seconds": found.seconds,
        "tables": [
            {
                "holds": shown.holds,
                "uri": shown.uri,
                "visible": shown.visible,
                "table_version": shown.version,
                "published_at": shown.shown_at,
                "files": [{"path": file.path, "bytes": file.size_bytes, "rows": file.rows} for file in shown.files],
            }
            for shown in found.tables
        ],
        "object_uris": [row.uri for row in found.objects],
    }


def _print_details(found: BatchDetails) -> None:
    batch = found.batch
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in batch.record.stage_seconds.items())
    whole = "" if found.seconds is None else f" ({found.seconds:.1f} s from claim to commit)"
    print_fields(
        {
            "pipeline": batch.pipeline,
            "batch": batch.seq,
            "committed": moment(batch.committed_at),
            "claimed": moment(None if found.attempt is None else found.attempt.started_at),
            "stages": f"{stages or 'not known'}{whole}",
            "objects": _objects(batch),
            "rows written": f"{batch.record.rows:,}",
            "bad lines": f"{batch.record.lines_quarantined:,}",
            "bytes": f"{batch.record.bytes:,}",
            "worker": batch.worker,
            "attempt": batch.attempt_id,
            "schema": batch.schema_id,
            "transform": transform_text(batch.record.transform),
            "spark": _spark(batch.record.spark_ui_url),
        }
    )
    for shown in found.tables:
        print(printable(_files_shown(shown, batch.committed_at)))
        for file in shown.files:
            print(printable(f"  {file.path}  {file.size_bytes:,} bytes, {counted(file.rows, 'row')}"))
    for row in found.objects:
        print(printable(f"object  {row.uri}"))
    for uri in replaced_objects(batch.record.replaces):
        print(printable(f"{'replaced' if batch.objects else 'retracted'}  {uri}"))
    if len(found.objects) < batch.objects:
        objects = f"{len(found.objects):,} of {counted(batch.objects, 'object')}"
        talk(f"{objects}; --limit shows more, as far as the ledger has them.")


def _spark(url: str | None) -> str:
    if url is None:
        return "no link: Spark's UI was off (spark.conf: spark.ui.enabled), or its address was not recorded"
    return url if is_reachable(url) else f"{url} (no response: the application has ended, or runs elsewhere)"


def _files_shown(shown: BatchInTable, committed_at: float) -> str:
    prefix = f"{shown.uri}: " if shown.uri else ""
    files = counted(len(shown.files), "file")
    if shown.visible is None:
        it_is = "it is" if len(shown.files) == 1 else "they are"
        return f"{shown.holds}: {files}; whether {it_is} visible only the app can say (--app)"
    if not shown.visible:
        return f"{prefix}{files}, not visible yet"
    version = "a version that is no longer known" if shown.version is None else f"version {shown.version}"
    since = ""
    if shown.shown_at is not None:
        since = f", {moment(shown.shown_at)}, {max(0.0, shown.shown_at - committed_at):.1f} s after the commit"
    return f"{prefix}{files}, visible since {version}{since}"
