"""`penstock ingest`: the main job without writing code."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import StopTimeout
from penstock.cli.output import Json, counted, print_json, printable
from penstock.cli.progress import IngestProgress, losses
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.operations.ingest.ingest import IngestReport

SETTLE_SECONDS = 2.0  # as in the request; not imported from there, to keep `--help` quick


def ingest(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The folder to read, or s3://BUCKET/PREFIX.")],
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="The folder or s3:// prefix of the Delta table; made if need be.")
    ],
    format_: Annotated[
        str, typer.Option("--format", help="How the files are written: jsonl, csv, text (also .gz, .bz2, .zst).")
    ] = "jsonl",
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="DDL", help="The rows' columns, e.g. 'id long, v double'; default: inferred."),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option("--transform", metavar="MODULE:FUNCTION", help="DataFrame -> DataFrame, plain PySpark."),
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", metavar="COLUMNS", help="Columns to partition by, with commas.")
    ] = None,
    no_provenance: Annotated[
        bool, typer.Option("--no-provenance", help="Leave out the columns _object and _offset.")
    ] = False,
    delimiter: Annotated[
        str | None, typer.Option("--delimiter", metavar="CHARACTER", help=r"Of CSV: ; or \t; default: a comma.")
    ] = None,
    no_header: Annotated[
        bool, typer.Option("--no-header", help="Of CSV: the first line is data; columns come as in the schema.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay up and take what comes, until SIGTERM or Ctrl-C.")
    ] = False,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="QUEUE", help="Take what this queue announces (SQS: name, URL or ARN)."),
    ] = None,
    settle: Annotated[
        float,
        typer.Option("--settle", metavar="SECONDS", min=0.1, help="With --watch: how long a file has to be at rest."),
    ] = SETTLE_SECONDS,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", metavar="URL", help="With --queue: a ledger that hosts share (mysql, postgresql)."),
    ] = None,
    one_host: Annotated[
        bool | None,
        typer.Option("--one-host", help="With --queue: nobody else works on it, so a ledger in a file will do."),
    ] = None,
    cleanup: Annotated[
        str | None,
        typer.Option("--cleanup", metavar="WHAT", help="Of published objects: tag, move or delete; default: keep."),
    ] = None,
    cleanup_after: Annotated[
        str | None, typer.Option("--cleanup-after", metavar="TIME", help="So long after their commit, such as 7d.")
    ] = None,
    cleanup_to: Annotated[
        str | None, typer.Option("--cleanup-to", metavar="ADDRESS", help="Where --cleanup move moves them.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Where the state lives; default: TABLE/_penstock, for a table in S3 a folder of yours.",
        ),
    ] = None,
    master: Annotated[str | None, typer.Option("--master", help="Where Spark runs; default: local[*].")] = None,
    max_objects: Annotated[
        int | None, typer.Option("--max-objects", min=1, max=100_000, help="Objects a batch.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, max=100, help="Attempts before an object is dead.")
    ] = None,
    max_quarantine_ratio: Annotated[
        float | None,
        typer.Option("--max-quarantine-ratio", min=0, max=1, help="An object with a larger share of bad lines fails."),
    ] = None,
    stop_timeout: StopTimeout = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="With --watch: answer here for metrics.")
    ] = None,
    json_: Json = False,
) -> None:
    """Bring every file of SOURCE into TABLE exactly once, on Spark.

    Run it again at any time: what is in the table stays as it is, new and changed files are added, and what a killed
    run left half done is finished. Exit code 3: some object is dead. 75: stopped before everything was done. With
    --watch it ends when it is asked to stop: 0 when all that it saw at rest is done then. Its queue and ledger are
    files beside the table (for a table in S3 in a folder of this host), whatever the settings broker and ledger say.

    With --queue nothing is looked for: what that queue announces is taken, until it is empty or, with --watch, until
    the end. It is in SQS unless the setting broker says otherwise; the ledger is that of the setting ledger (--ledger)
    where hosts can share it.
    """
    from penstock.pipeline.extra import require_spark

    require_spark()
    from penstock.app.cleanup import cleanup_of
    from penstock.app.scope import ScopeRequest, options_for
    from penstock.app.telemetry import is_logged
    from penstock.cli.exits import leave_job, stoppable
    from penstock.config import load_settings
    from penstock.operations.ingest.ingest import ingest as run
    from penstock.operations.ingest.pipeline import IngestRequest

    if queue is None and (ledger is not None or one_host is not None):
        raise UsageError("--ledger and --one-host are for --queue: without one the ledger is a file beside the table.")
    if metrics is not None and not watch:
        raise UsageError("--metrics is for --watch: an ingest without it ends before it is asked.")
    request = IngestRequest(
        source=source,
        table=table,
        format=format_,
        delimiter=delimiter,
        header=not no_header,
        watch=watch,
        queue=queue,
        settle_seconds=settle,
        cleanup=cleanup_of(cleanup, after=cleanup_after, target=cleanup_to),
        schema=schema,
        transform=transform,
        state=state,
        provenance=not no_provenance,
        partition_by=_columns(partition_by) if partition_by is not None else (),
        settings=load_settings(
            ledger=ledger,
            one_host=one_host,
            spark_master=master,
            max_objects=max_objects,
            max_attempts=max_attempts,
            max_quarantine_ratio=max_quarantine_ratio,
            stop_timeout_seconds=stop_timeout,
            metrics_address=metrics,
        ),
    )
    with stoppable() as stop, IngestProgress(options=ScopeRequest(table=table, state=state).options) as progress:
        if is_logged(request.settings):
            progress.silence()
        report = run(request, stop=stop, listeners=(progress,))
    if json_:
        print_json(dataclasses.asdict(report))
    else:
        print_report(report, options=options_for(report.table, state=state, here=Path.cwd()))
    leave_job(report, stop, forced=progress.forced)


def print_report(report: "IngestReport", *, options: str = "") -> None:
    """The end of an ingest for people: what is in the table now, and what is not and where to look. ``options`` lead
    the verbs of a hint to this table."""
    if report.objects_found and report.objects_skipped == report.objects_found:
        print(f"Nothing new: all {counted(report.objects_found, 'object')} are in the table already. 0 rows added.")
    elif not report.objects_found:
        empty = "the source holds no objects" if report.queue is None else f"the queue {report.queue} announced nothing"
        print(printable(f"Nothing to do: {empty}. 0 rows added."))
    else:
        print(
            f"{counted(report.objects_processed, 'object')} processed, {report.objects_skipped:,} skipped (already in "
            f"the table), {counted(report.rows_written, 'row')} written in "
            f"{counted(report.batches, 'batch', 'batches')}, {report.seconds:.1f} s."
        )
    version = "no version yet" if report.table_version is None else f"version {report.table_version}"
    print(f"Table: {printable(report.table)} ({version})")
    for line in _remarks(report, options):
        print(printable(line))


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(
            f"--partition-by {text!r} names no column in one place; write column names with commas between."
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"--partition-by {text!r} names {twice[0]} more than once.")
    return names


def _remarks(report: "IngestReport", options: str) -> list[str]:
    remarks: list[str] = []
    if report.objects_new_versions:
        remarks.append(f"Files seen before in another version: {report.objects_new_versions:,}.")
    remarks += losses(report, options)
    if report.objects_superseded:
        changed = counted(report.objects_superseded, "object")
        remarks.append(f"Superseded: {changed}, changed before they were read; run it again for them.")
    if report.objects_unfinished:
        left = counted(report.objects_unfinished, "object")
        remarks.append(f"Stopped with {left} left; run the same command again to go on.")
    if report.files_ignored:
        kinds = ", ".join(f"{number:,} {reason}" for reason, number in report.files_ignored.items())
        remarks.append(f"Left out: {kinds}.")
    return remarks + [f"Could not be looked at: {problem}" for problem in report.problems]
