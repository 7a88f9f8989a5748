"""`penstock ingest`: load files into a table, without code."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cleanup import cleanup_of
from penstock.app.scope import ScopeRequest, options_for
from penstock.app.telemetry import is_logged
from penstock.cli.exits import leave_job, stoppable
from penstock.cli.lazy import no_collections
from penstock.cli.options import Master, SparkSession, StopTimeout, grouped_options
from penstock.cli.output import Json, print_json, printable
from penstock.cli.progress import IngestProgress, grown, losses, merged, replaced, replayed, warning_of
from penstock.config import Settings, load_settings
from penstock.errors import UsageError
from penstock.messaging.wording import counted, worded
from penstock.objects.watcher import SETTLE_SECONDS
from penstock.pipeline.extra import require_spark
from penstock.sinks.partitions import split
from penstock.sinks.registry import split_address

if TYPE_CHECKING:
    from penstock.operations.ingest.ingest import IngestReport
    from penstock.operations.ingest.pipeline import IngestRequest
    from penstock.pipeline.merging.declaration import Merge

NAMED_MAX = 3  # excluded folders named in a report


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """The options for reading files and writing rows."""

    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="jsonl, json (documents), csv, text, parquet, orc, avro or binary; default: as the files tell.",
        ),
    ] = None
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="DDL", help="The columns, such as 'id long, v double'; default: inferred."),
    ] = None
    partitions: Annotated[
        str | None,
        typer.Option(
            "--partitions", metavar="DDL", help="Columns from paths such as day=2026-01-02/: 'day date, region string'."
        ),
    ] = None
    transform: Annotated[
        str | None,
        typer.Option("--transform", metavar="MODULE:FUNCTION", help="A PySpark function from DataFrame to DataFrame."),
    ] = None
    evolve: Annotated[
        str,
        typer.Option(
            "--evolve",
            metavar="HOW",
            help="Fields without a column: none (counted), rescue, add (as columns) or fail; default: none.",
        ),
    ] = "none"
    on_change: Annotated[
        str | None,
        typer.Option(
            "--on-change",
            metavar="HOW",
            help="A file that was loaded and has changed: replace its rows, tail (the same, but read only the lines "
            "appended to a file that grew), add, or refuse; default: replace.",
        ),
    ] = None
    merge_key: Annotated[
        str | None,
        typer.Option(
            "--merge-key", metavar="COLUMNS", help="Keep the last row of each key: the columns, separated by commas."
        ),
    ] = None
    order_by: Annotated[
        str | None,
        typer.Option("--order-by", metavar="COLUMNS", help="With --merge-key: which row of a key is the last one."),
    ] = None
    delete_when: Annotated[
        str | None,
        typer.Option(
            "--delete-when", metavar="SQL", help="With --merge-key: rows that delete their key, such as \"op = 'D'\"."
        ),
    ] = None
    merge_drop: Annotated[
        str | None,
        typer.Option("--merge-drop", metavar="COLUMNS", help="With --merge-key: columns that are not stored."),
    ] = None
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            metavar="COLUMNS",
            help="Columns to partition by, separated by commas; in Iceberg also day(COLUMN) or bucket(16, COLUMN).",
        ),
    ] = None
    register: Annotated[
        str | None,
        typer.Option(
            "--register",
            metavar="ENTRY",
            help="Register the table in a catalog: glue:DATABASE.TABLE or unity:CATALOG.SCHEMA.TABLE.",
        ),
    ] = None
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog",
            metavar="ENTRY",
            help="The Iceberg table in a catalog of PyIceberg's configuration: NAME:NAMESPACE.TABLE.",
        ),
    ] = None
    no_provenance: Annotated[
        bool, typer.Option("--no-provenance", help="Omit the columns _object and _offset (or _row).")
    ] = False
    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter", metavar="CHARACTER", help=r"CSV: the delimiter, such as ; or \t; default: detected."
        ),
    ] = None
    null: Annotated[
        list[str] | None,
        typer.Option("--null", metavar="TEXT", help="CSV: a text without quotes that means NULL; repeatable."),
    ] = None
    quote: Annotated[
        str | None, typer.Option("--quote", metavar="CHARACTER", help="CSV: the quote; '' for none; default: \".")
    ] = None
    escape: Annotated[
        str | None,
        typer.Option("--escape", metavar="CHARACTER", help="CSV: escapes quotes inside quotes; default: detected."),
    ] = None
    comment: Annotated[
        str | None,
        typer.Option("--comment", metavar="CHARACTER", help="CSV: skip lines that begin with it; default: detected."),
    ] = None
    skip_lines: Annotated[
        int | None,
        typer.Option("--skip-lines", metavar="NUMBER", min=0, help="CSV: lines before the header; default: detected."),
    ] = None
    no_header: Annotated[
        bool, typer.Option("--no-header", help="CSV: the first line is data; columns are in schema order.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalOptions:
    """Options for the source of objects, and for how long it is read."""

    watch: Annotated[
        bool, typer.Option("--watch", help="Keep running and take new files, until SIGTERM or Ctrl-C.")
    ] = False
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", metavar="QUEUE", help="Take the objects of this queue's notifications (SQS: name, URL or ARN)."
        ),
    ] = None
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="PATTERN", help="Only files that match, such as '*.csv'; repeatable."),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="PATTERN", help="Not the files that match, such as 'tmp/'; repeatable."),
    ] = None
    settle: Annotated[
        float,
        typer.Option("--settle", metavar="SECONDS", min=0.1, help="With --watch: how long a file must be stable."),
    ] = SETTLE_SECONDS
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", metavar="URL", help="With --queue: a ledger that hosts can share."),
    ] = None
    one_host: Annotated[
        bool | None,
        typer.Option("--one-host", help="With --queue: only this host works on it; allows a ledger file."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupOptions:
    """The fate of published objects."""

    cleanup: Annotated[
        str | None,
        typer.Option("--cleanup", metavar="WHAT", help="Tag, move or delete published objects; default: keep."),
    ] = None
    cleanup_after: Annotated[
        str | None, typer.Option("--cleanup-after", metavar="TIME", help="The time after their commit, such as 7d.")
    ] = None
    cleanup_to: Annotated[
        str | None, typer.Option("--cleanup-to", metavar="ADDRESS", help="The destination of --cleanup move.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Spark, limits and metrics: settings for this run."""

    master: Master = None
    spark_session: SparkSession = None
    max_objects: Annotated[
        int | None, typer.Option("--max-batch-objects", min=1, max=100_000, help="Maximum number of objects per batch.")
    ] = None
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, max=100, help="Attempts before an object fails for good.")
    ] = None
    max_quarantine_ratio: Annotated[
        float | None,
        typer.Option("--max-quarantine-ratio", min=0, max=1, help="An object with a larger share of bad lines fails."),
    ] = None
    stop_timeout: StopTimeout = None
    metrics: Annotated[
        str | None, typer.Option("--metrics-address", metavar="HOST:PORT", help="With --watch: serve metrics here.")
    ] = None


@grouped_options
def ingest(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder, a file, s3://BUCKET/PREFIX, or a pattern.")
    ],
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="The folder or s3:// prefix of the Delta table, or iceberg:FOLDER; created if missing.",
        ),
    ],
    format_: FormatOptions,
    arrival: ArrivalOptions,
    cleaning: CleanupOptions,
    limits: LimitOptions,
    state: Annotated[
        str | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="The data directory; default: TABLE/_penstock, for a table in S3 a local folder.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Load files into a table exactly once.

    Every file of SOURCE goes into TABLE, on Spark. Write a pattern in quotes. Run it again at any time: new files are
    added, the rows of changed files replaced, and an interrupted run is finished. Exit code 3: an object
    failed for good. 75: stopped before everything was done. With --watch it runs until it is stopped, and exits with 0
    if all stable files are done. Queue and ledger are files beside the table (for a table in S3 in a directory of this
    host), whatever the settings broker and ledger say.

    With --queue nothing is listed: it takes the objects that this queue announces, until the queue is empty or, with
    --watch, until it is stopped. The queue is in SQS unless the setting broker names another; the ledger is that of the
    setting ledger (or --ledger) if hosts can share it.
    """
    require_spark(split_address(table)[0])
    with no_collections():
        from penstock.operations.ingest.ingest import NOT_IN_JSON  # loads Spark
        from penstock.operations.ingest.ingest import ingest as run

    request = _request(source, table, state, format_, arrival, cleaning, limits)
    with stoppable() as stop, IngestProgress(options=ScopeRequest(table=table, state=state).options) as progress:
        if is_logged(request.settings):
            progress.silence()
        report = run(request, stop=stop, listeners=(progress,))
    if json_:
        print_json({name: value for name, value in dataclasses.asdict(report).items() if name not in NOT_IN_JSON})
    else:
        print_report(report, options=options_for(report.table, state=state, here=Path.cwd()))
    leave_job(report, stop, forced=progress.forced)


def _request(
    source: str,
    table: str,
    state: str | None,
    format_: FormatOptions,
    arrival: ArrivalOptions,
    cleaning: CleanupOptions,
    limits: LimitOptions,
) -> "IngestRequest":
    """Return the request of a command line. Raises `UsageError` for options that do not go together."""
    from penstock.operations.ingest.pipeline import IngestRequest  # loads Spark

    if arrival.queue is None and (arrival.ledger is not None or arrival.one_host is not None):
        raise UsageError("--ledger and --one-host are for --queue: without one the ledger is a file beside the table.")
    if limits.metrics is not None and not arrival.watch:
        raise UsageError("--metrics-address is for --watch: an ingest without it ends before it could be scraped.")
    return IngestRequest(
        source=source,
        table=table,
        format=format_.format_,
        delimiter=format_.delimiter,
        header=not format_.no_header,
        nulls=tuple(format_.null or ()),
        quote=format_.quote,
        escape=format_.escape,
        comment=format_.comment,
        skip_lines=format_.skip_lines,
        watch=arrival.watch,
        queue=arrival.queue,
        include=tuple(arrival.include or ()),
        exclude=tuple(arrival.exclude or ()),
        settle_seconds=arrival.settle,
        cleanup=cleanup_of(cleaning.cleanup, after=cleaning.cleanup_after, target=cleaning.cleanup_to),
        schema=format_.schema,
        partitions=format_.partitions,
        transform=format_.transform,
        state=state,
        provenance=not format_.no_provenance,
        register=format_.register,
        catalog=format_.catalog,
        evolve=format_.evolve,
        on_change=format_.on_change,
        merge=_merge(format_),
        partition_by=_columns("--partition-by", format_.partition_by) if format_.partition_by is not None else (),
        settings=_settings(arrival, limits),
    )


def _settings(arrival: ArrivalOptions, limits: LimitOptions) -> Settings:
    return load_settings(
        ledger=arrival.ledger,
        one_host=arrival.one_host,
        spark_master=limits.master,
        spark_session=limits.spark_session,
        objects_max_batch_objects=limits.max_objects,
        objects_max_attempts=limits.max_attempts,
        objects_max_quarantine_ratio=limits.max_quarantine_ratio,
        worker_stop_timeout=limits.stop_timeout,
        metrics_address=limits.metrics,
    )


def print_report(report: "IngestReport", *, options: str = "") -> None:
    """Print the report of an ingest. ``options`` select the table in the commands of hints."""
    if report.objects_replayed:
        print(_done(report))
    elif report.objects_found and report.objects_skipped == report.objects_found:
        known = worded(report.objects_found, "the only object is", "all {} objects are")
        if report.replaced_objects or report.grown_objects:  # by a batch that was committed and not published
            print(f"An interrupted run is finished: {known} in the table.")
        else:
            print(f"Nothing new: {known} in the table already. 0 rows added.")
    elif not report.objects_found:
        empty = "the source holds no objects" if report.queue is None else f"the queue {report.queue} announced nothing"
        print(printable(f"Nothing to do: {empty}. 0 rows added."))
    else:
        print(_done(report))
    version = "no version yet" if report.table_version is None else f"version {report.table_version}"
    print(f"Table: {printable(report.table)} ({version})")
    for line in _remarks(report, options):
        print(printable(line))


def _done(report: "IngestReport") -> str:
    return (
        f"{counted(report.objects_processed, 'object')} processed, {report.objects_skipped:,} skipped (already in "
        f"the table), {counted(report.rows_written, 'row')} written in "
        f"{counted(report.batches, 'batch', 'batches')}, {report.seconds:.1f} s."
    )


def _merge(given: FormatOptions) -> "Merge | None":
    """Return the merge of the options. Raises `UsageError` for options that do not go together."""
    from penstock.pipeline.merging.declaration import Merge

    if given.merge_key is None:
        others = {"--order-by": given.order_by, "--delete-when": given.delete_when, "--merge-drop": given.merge_drop}
        alone = [flag for flag, value in others.items() if value is not None]
        if alone:
            raise UsageError(f"{alone[0]} is for --merge-key, which names the columns that identify a row.")
        return None
    if given.order_by is None:
        raise UsageError("--merge-key needs --order-by, which says which row of a key is the last one.")
    return Merge(
        key=_columns("--merge-key", given.merge_key),
        order_by=_columns("--order-by", given.order_by),
        delete_when=given.delete_when,
        drop=() if given.merge_drop is None else _columns("--merge-drop", given.merge_drop),
    )


def _columns(flag: str, text: str) -> tuple[str, ...]:
    names = tuple(split(text))
    if not all(names):
        raise UsageError(f"{flag} {text!r} has an empty column name; write column names separated by commas.")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"{flag} {text!r} names {twice[0]} more than once.")
    return names


def _remarks(report: "IngestReport", options: str) -> list[str]:
    remarks: list[str] = []
    if report.objects_changed:
        remarks.append(
            worded(
                report.objects_changed,
                "{} file had changed: all its lines were added, and the rows of its earlier version stay.",
                "{} files had changed: all their lines were added, and the rows of their earlier versions stay.",
            )
        )
    remarks += [*merged(report), *grown(report), *replaced(report), *losses(report, options), *replayed(report)]
    if report.objects_superseded:
        changed = worded(
            report.objects_superseded,
            "{} object, changed before it was read; run the command again for it",
            "{} objects, changed before they were read; run the command again for them",
        )
        remarks.append(f"Superseded: {changed}.")
    if report.objects_retracted:
        retracted = worded(
            report.objects_retracted,
            "{} object, not read; `penstock objects retry` reads it again",
            "{} objects, not read; `penstock objects retry` reads them again",
        )
        remarks.append(f"Retracted: {retracted}.")
    if report.objects_kept:
        kept = worded(
            report.objects_kept,
            "{} object to be read again is gone or has changed; its earlier rows stay",
            "{} objects to be read again are gone or have changed; their earlier rows stay",
        )
        remarks.append(f"Kept: {kept}.")
    if report.objects_unfinished:
        left = counted(report.objects_unfinished, "object")
        remarks.append(f"Stopped with {left} left; run the same command again to continue.")
    if report.files_ignored:
        kinds = [
            _tables(report.folders_excluded, Path.cwd())
            if reason == "excluded"
            else f"{number:,} {reason.replace('_', ' ')}"
            for reason, number in report.files_ignored.items()
        ]
        remarks.append(f"Left out: {', '.join(kinds)}.")
    remarks += [f"Could not be checked: {problem}" for problem in report.problems]
    return remarks + list(report.unregistered) + warning_of(report, options)


def _tables(folders: Sequence[str], here: Path) -> str:
    """Return excluded folders as a part of a sentence. They are named as seen from ``here``."""
    named = [folder.removeprefix(f"{str(here).rstrip('/')}/") for folder in folders[:NAMED_MAX]]
    more = [f"and {len(folders) - NAMED_MAX:,} more"] if len(folders) > NAMED_MAX else []
    return f"the files below {counted(len(folders), 'table')} ({', '.join(named + more)})"
