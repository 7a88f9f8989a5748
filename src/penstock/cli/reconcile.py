"""`penstock reconcile`: find objects that were never processed and send their notifications again."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.brokers import check_queues
from penstock.app.context import PipelineTools
from penstock.app.kill import killing_probe
from penstock.app.loading import load_app
from penstock.app.naming import worker_id
from penstock.app.pipelines.declaration import option_rule
from penstock.app.queues import check_shared
from penstock.app.reconcile import ReconcileReport, ReconcileRequest, needs_spark
from penstock.app.reconcile import reconcile as run_reconcile
from penstock.app.reconcile_target import ReconcileTarget, target_in, target_of_table
from penstock.app.spark import app_spark
from penstock.app.telemetry import Telemetry, is_logged, open_reports
from penstock.cli.apps import AppArgument, AppOption, PipelineArgument, app_and_pipeline, app_if_any
from penstock.cli.exits import CHECK_FOUND_PROBLEMS, stoppable, stopped_code
from penstock.cli.options import Master, SparkSession, duration, grouped_options
from penstock.cli.output import Json, moment, print_json, printable, talk
from penstock.cli.progress import ProgressPace, event_lines
from penstock.cli.where import ScopeOptions, StateFolder
from penstock.config import Settings, load_settings, with_flags
from penstock.errors import UsageError
from penstock.events import Bus, Event, ReconcileProgressed
from penstock.messaging.clock import SystemClock
from penstock.messaging.wording import counted
from penstock.pipeline.extra import require_spark

if TYPE_CHECKING:
    from penstock.app.scope import Scope
    from penstock.pipeline.spark.runtime import GivenSpark
    from penstock.worker.shutdown import StopSignal

    _Opened = tuple[ReconcileTarget, Settings, Telemetry, GivenSpark | None]

PREFIXES_SHOWN = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IngestedTable:
    """A table made by ingest, and its source as the ingest was given it."""

    table: Annotated[
        str | None, typer.Option("--table", metavar="FOLDER", help="A table made by ingest, instead of an app.")
    ] = None
    source: Annotated[
        str | None, typer.Option("--source", metavar="SOURCE", help="With --table: the source it was ingested from.")
    ] = None
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="PATTERN", help="With --source: as given to ingest; repeatable."),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="PATTERN", help="With --source: as given to ingest; repeatable."),
    ] = None
    on_change: Annotated[
        str | None,
        typer.Option("--on-change", metavar="HOW", help="With --source: as given to ingest; default: replace."),
    ] = None

    def target(self, scope: "Scope") -> "AbstractContextManager[ReconcileTarget]":
        """Return a context that opens the target. ``scope``: that of the table."""
        return target_of_table(
            scope,
            self.source or "",
            include=self.include or (),
            exclude=self.exclude or (),
            on_change=option_rule(self.on_change),
        )


@grouped_options
def reconcile(
    ingested: IngestedTable,
    app: AppArgument = None,
    pipeline: PipelineArgument = None,
    app_option: AppOption = None,
    state: StateFolder = None,
    listing: Annotated[
        bool, typer.Option("--listing", help="List the source, in parallel by key ranges; the default.")
    ] = False,
    inventory: Annotated[
        str | None,
        typer.Option(
            "--inventory",
            metavar="URI",
            help="Read an S3 Inventory instead: a manifest.json, or the folder of its lists for the latest one.",
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Only objects older than this; default: 15m."),
    ] = None,
    all_versions: Annotated[
        bool, typer.Option("--all-versions", help="With versioning: also overwritten versions.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--check", help="Send nothing; exit code 3 if objects are missing.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of objects to send.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.1, help="Maximum number of messages per second.")
    ] = None,
    master: Master = None,
    spark_session: SparkSession = None,
    json_: Json = False,
) -> None:
    """Find objects that were never processed and send their notifications again.

    Compares the source of a pipeline or object handler with the ledger. Needs no Spark for an object handler, unless it
    reads an inventory. It only sends messages, so it may run at any time, also beside workers; with an empty ledger it
    is a backfill. Exit code 0: nothing is missing, or all of it was sent. 3: something is missing or could not be read.
    75 or 130: stopped.
    """
    if listing and inventory is not None:
        raise UsageError("Give --listing or --inventory, not both.")
    app, pipeline = app_and_pipeline(app, pipeline)
    app_name = app or app_option if ingested.table is not None else app_if_any(app, app_option)
    flags = {"spark_master": master, "spark_session": spark_session}
    if ingested.source is None and (ingested.include or ingested.exclude or ingested.on_change):
        raise UsageError(
            "--include, --exclude and --on-change are for --source; an app's pipeline has them in its ObjectSource."
        )
    named = _named(app_name, pipeline, ingested, state=state, flags=flags)
    with stoppable() as stop, named as (target, settings, telemetry, given):
        request = ReconcileRequest(
            inventory=inventory,
            older_than_seconds=_seconds(older_than, settings),
            all_versions=all_versions,
            dry_run=dry_run,
            limit=limit,
            rate=rate,
        )
        report = _run(target, request, settings, stop, telemetry, given)
    if json_:
        print_json(dataclasses.asdict(report))
    else:
        print_reconcile_report(report)
    if report.stopped:
        raise typer.Exit(stopped_code(stop))
    if report.sent < report.missing or report.problems:
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def print_reconcile_report(report: ReconcileReport) -> None:
    """Print the result, and a line for each remark."""
    print(printable(sentence(report)))
    for line in _remarks(report):
        print(printable(line))


def sentence(report: ReconcileReport) -> str:
    """Return the result of the comparison in a sentence."""
    as_of = moment(report.as_of)
    listed = f"{counted(report.listed, 'object')} listed in {report.source}"
    if report.stopped:
        return f"Stopped before everything was compared and sent; {counted(report.sent, 'message')} sent. Run it again."
    if not report.missing:
        return f"Nothing missing as of {as_of}: {listed}."
    where = ", ".join(f"{prefix.uri} ({prefix.missing:,})" for prefix in report.prefixes[:PREFIXES_SHOWN])
    more = ", and elsewhere" if _shown(report) < report.missing else ""
    done = "enqueued none of them" if not report.sent else f"enqueued {report.sent:,} of them in {report.queue}"
    return f"Missing as of {as_of}: {report.missing:,} of {listed}; {done}. They are in {where}{more}."


def _shown(report: ReconcileReport) -> int:
    return sum(prefix.missing for prefix in report.prefixes[:PREFIXES_SHOWN])


def _remarks(report: ReconcileReport) -> Iterator[str]:
    if report.left_out:
        kinds = ", ".join(f"{number:,} {reason}" for reason, number in sorted(report.left_out.items()))
        yield f"Not counted as missing: {kinds}."
    if report.messages_waiting:
        among = "; their objects may be among these, which does no harm" if report.missing else ""
        yield f"{counted(report.messages_waiting, 'message')} waited in {report.queue} before{among}."
    for problem in report.problems:
        yield f"Could not be checked: {problem}"


def _named(
    app_name: str | None,
    pipeline: str | None,
    ingested: IngestedTable,
    *,
    state: str | None,
    flags: Mapping[str, str | None],
) -> "AbstractContextManager[_Opened]":
    """Return a context that opens the app or the table of the command line. Raises `UsageError` if it names neither."""
    if ingested.table is not None:
        if app_name is not None or ingested.source is None:
            raise UsageError("A table made by ingest is named by --table FOLDER --source SOURCE, and an app is not.")
        return _of_table(ingested, state=state, flags=flags)
    if app_name is None or pipeline is None or ingested.source is not None:
        raise UsageError(
            "Name an app and a pipeline, as in `penstock reconcile shop:app clicks`; or --table and --source."
        )
    return _of_app(app_name, pipeline, state=state, flags=flags)


@contextmanager
def _of_table(ingested: IngestedTable, *, state: str | None, flags: Mapping[str, str | None]) -> "Iterator[_Opened]":
    scope = ScopeOptions(table=ingested.table, state=state).scope()
    here = load_settings(**flags).model_copy(update={"data_dir": scope.settings.data_dir})
    telemetry = open_reports(here, worker=worker_id(), process="reconcile", emit=_Progress(silent=is_logged(here)))
    with telemetry.running(), ingested.target(scope) as target:
        yield target, here, telemetry, None


@contextmanager
def _of_app(app_name: str, pipeline: str, *, state: str | None, flags: Mapping[str, str | None]) -> "Iterator[_Opened]":
    app = load_app(app_name)
    app.settings = with_flags(app.settings, **flags, data_dir=state)
    telemetry = open_reports(
        app.settings,
        worker=app.worker,
        process="reconcile",
        on_error=app.on_error,
        emit=_Progress(silent=is_logged(app.settings)),
    )
    with telemetry.running(), app:
        check_shared(app.settings)
        yield target_in(app, pipeline), app.settings, telemetry, app.spark


def _run(
    target: ReconcileTarget,
    request: ReconcileRequest,
    settings: Settings,
    stop: "StopSignal",
    telemetry: Telemetry,
    given: "GivenSpark | None",
) -> ReconcileReport:
    clock, bus = SystemClock(), Bus(*telemetry.listeners_of(read_only=request.dry_run))
    if not request.dry_run:
        check_queues([target.queue], settings, clock=clock)
    tools = PipelineTools(stop=stop, clock=clock, bus=bus, probe=killing_probe(settings.kill_at))
    if not needs_spark(target, request):
        return run_reconcile(target, request, spark=None, tools=tools)
    require_spark()
    own = app_spark(settings, worker=worker_id(), clock=clock, bus=bus, stop=stop, given=given)
    try:
        return run_reconcile(target, request, spark=own.session(), tools=tools)
    finally:
        own.close()


def _seconds(given: str | None, settings: Settings) -> float:
    if given is None:
        return settings.objects_reconcile_older_than
    return duration("--older-than", given, zero=True)


class _Progress:
    """The listener that prints progress lines on stderr."""

    def __init__(self, *, silent: bool) -> None:
        """``silent``: print nothing, because the log goes to standard error."""
        self._silent = silent
        self._pace = ProgressPace(at_once=True)

    def __call__(self, event: Event) -> None:
        if self._silent:
            return
        lines = event_lines(event)
        if isinstance(event, ReconcileProgressed) and self._pace.begin_if_due():
            of_total = f" of {event.total:,}" if event.done < event.total else ""
            lines = [f"{event.done:,}{of_total} {event.unit}"]
        for line in lines:
            talk(printable(line))
