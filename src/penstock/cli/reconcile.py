"""`penstock reconcile`: find objects that are there and were never processed, and announce them anew."""

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exits import CHECK_FOUND_PROBLEMS
from penstock.cli.options import duration
from penstock.cli.output import Json, counted, moment, print_json, printable, talk
from penstock.cli.progress import ProgressPace
from penstock.cli.where import ScopeOptions, StateFolder
from penstock.errors import UsageError
from penstock.events import Event, ReconcileProgressed

if TYPE_CHECKING:
    from penstock.app.reconcile import ReconcileReport, ReconcileRequest
    from penstock.app.reconcile_target import ReconcileTarget
    from penstock.app.telemetry import Telemetry
    from penstock.config import Settings
    from penstock.worker.shutdown import StopSignal

    _Opened = tuple[ReconcileTarget, Settings, Telemetry]

PREFIXES_SHOWN = 5


def reconcile(
    app_name: Annotated[
        str | None, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.", show_default=False)
    ] = None,
    pipeline: Annotated[
        str | None, typer.Argument(metavar="PIPELINE", help="The name it was declared with.", show_default=False)
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="FOLDER", help="Instead of an app's: a table made by ingest.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="SOURCE", help="With --table: what it was ingested from.")
    ] = None,
    state: StateFolder = None,
    listing: Annotated[
        bool, typer.Option("--listing", help="List the source, in parallel by ranges of keys; the default.")
    ] = False,
    inventory: Annotated[
        str | None,
        typer.Option(
            "--inventory",
            metavar="URI",
            help="Read an S3 Inventory instead: its manifest.json, or the folder of its lists for the latest one.",
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Only objects that are older, as in 15m, the default."),
    ] = None,
    all_versions: Annotated[
        bool, typer.Option("--all-versions", help="Of a bucket that keeps versions: those that were overwritten, too.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--check", help="Send nothing; exit code 3 where something is missing.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Announce so many objects at most.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.1, help="Messages a second at most.")] = None,
    master: Annotated[
        str | None, typer.Option("--master", envvar="SPARK_MASTER", help="ScopeOptions Spark runs; default: local[*].")
    ] = None,
    json_: Json = False,
) -> None:
    """Compare what is in the source of a pipeline or object handler with what its ledger knows, and announce what is
    missing. Without Spark for an object handler, unless an inventory is read.

    It only sends messages, so it may be run at any time, beside workers too; with an empty ledger it is a backfill.
    Exit code 0: nothing is missing, or all of it was announced. 3: something is missing or could not be looked at.
    75 or 130: stopped.
    """
    if listing and inventory is not None:
        raise UsageError("Give --listing or --inventory, not both.")
    named = _named(app_name, pipeline, table, source, state=state, master=master)
    from penstock.app.reconcile import ReconcileRequest
    from penstock.cli.exits import stoppable, stopped_code

    with stoppable() as stop, named as (target, settings, heard):
        request = ReconcileRequest(
            inventory=inventory,
            older_than_seconds=_seconds(older_than, settings),
            all_versions=all_versions,
            dry_run=dry_run,
            limit=limit,
            rate=rate,
        )
        report = _run(target, request, settings, stop, heard)
    if json_:
        print_json(dataclasses.asdict(report))
    else:
        print_reconcile_report(report)
    if report.stopped:
        raise typer.Exit(stopped_code(stop))
    if report.sent < report.missing or report.problems:
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def print_reconcile_report(report: "ReconcileReport") -> None:
    """The sentence, and what else a person should know, a line each."""
    print(printable(sentence(report)))
    for line in _remarks(report):
        print(printable(line))


def sentence(report: "ReconcileReport") -> str:
    """How the comparison ended."""
    as_of = moment(report.as_of)
    listed = f"{counted(report.listed, 'object')} listed in {report.source}"
    if report.stopped:
        return f"Stopped before all was looked at and sent; {counted(report.sent, 'message')} sent. Run it again."
    if not report.missing:
        return f"Nothing missing as of {as_of}: {listed}."
    where = ", ".join(f"{prefix.uri} ({prefix.missing:,})" for prefix in report.prefixes[:PREFIXES_SHOWN])
    more = ", and elsewhere" if _shown(report) < report.missing else ""
    done = "announced none of them" if not report.sent else f"announced {report.sent:,} of them anew to {report.queue}"
    return f"Missing as of {as_of}: {report.missing:,} of {listed}; {done}. They are in {where}{more}."


def _shown(report: "ReconcileReport") -> int:
    return sum(prefix.missing for prefix in report.prefixes[:PREFIXES_SHOWN])


def _remarks(report: "ReconcileReport") -> Iterator[str]:
    if report.left_out:
        kinds = ", ".join(f"{number:,} {reason}" for reason, number in sorted(report.left_out.items()))
        yield f"Not counted as missing: {kinds}."
    if report.messages_waiting:
        among = "; what they announce may be among these, which does no harm" if report.missing else ""
        yield f"{counted(report.messages_waiting, 'message')} waited in {report.queue} before{among}."
    for problem in report.problems:
        yield f"Could not be looked at: {problem}"


def _named(
    app_name: str | None,
    pipeline: str | None,
    table: str | None,
    source: str | None,
    *,
    state: str | None,
    master: str | None,
) -> "AbstractContextManager[_Opened]":
    """What the command line names, to be opened. Raises `UsageError` where it is neither of the two."""
    if table is not None:
        if app_name is not None or source is None:
            raise UsageError("A table made by ingest is named by --table FOLDER --source SOURCE, and an app is not.")
        return _of_table(table, source, state=state, master=master)
    if app_name is None or pipeline is None or source is not None:
        raise UsageError(
            "Name an app and a pipeline, as in `penstock reconcile shop:app clicks`; or --table and --source."
        )
    return _of_app(app_name, pipeline, state=state, master=master)


@contextmanager
def _of_table(table: str, source: str, *, state: str | None, master: str | None) -> "Iterator[_Opened]":
    from penstock.app.naming import worker_id
    from penstock.app.reconcile_target import target_of_table
    from penstock.app.telemetry import is_logged, open_reports
    from penstock.config import load_settings

    scope = ScopeOptions(table=table, state=state).scope()
    here = load_settings(spark_master=master).model_copy(update={"state": scope.settings.state})
    heard = open_reports(here, worker=worker_id(), process="reconcile", tell=_Progress(silent=is_logged(here)))
    with heard.told(), target_of_table(scope, source) as target:
        yield target, here, heard


@contextmanager
def _of_app(app_name: str, pipeline: str, *, state: str | None, master: str | None) -> "Iterator[_Opened]":
    from penstock.app.loading import load_app
    from penstock.app.queues import check_shared
    from penstock.app.reconcile_target import target_in
    from penstock.app.telemetry import is_logged, open_reports
    from penstock.config import with_flags

    app = load_app(app_name)
    app.settings = with_flags(app.settings, spark_master=master, state=state)
    heard = open_reports(
        app.settings,
        worker=app.worker,
        process="reconcile",
        on_error=app.on_error,
        tell=_Progress(silent=is_logged(app.settings)),
    )
    with heard.told(), app:
        check_shared(app.settings)
        yield target_in(app, pipeline), app.settings, heard


def _run(
    target: "ReconcileTarget",
    request: "ReconcileRequest",
    settings: "Settings",
    stop: "StopSignal",
    heard: "Telemetry",
) -> "ReconcileReport":
    from penstock.app.backends import check_queues
    from penstock.app.context import PipelineTools
    from penstock.app.kill import killing_probe
    from penstock.app.naming import worker_id
    from penstock.app.reconcile import needs_spark
    from penstock.app.reconcile import reconcile as run_reconcile
    from penstock.events import Bus
    from penstock.messaging.clock import SystemClock

    clock, bus = SystemClock(), Bus(*heard.listeners_of(look=request.dry_run))
    if not request.dry_run:
        check_queues([target.queue], settings, clock=clock)
    tools = PipelineTools(stop=stop, clock=clock, bus=bus, probe=killing_probe(settings.kill_at))
    if not needs_spark(target, request):
        return run_reconcile(target, request, spark=None, tools=tools)
    from penstock.app.spark import app_spark
    from penstock.pipeline.extra import require_spark

    require_spark()
    own = app_spark(settings, worker=worker_id(), clock=clock, bus=bus, stop=stop)
    try:
        return run_reconcile(target, request, spark=own.session(), tools=tools)
    finally:
        own.close()


def _seconds(given: str | None, settings: "Settings") -> float:
    if given is None:
        return settings.reconcile_older_than_seconds
    return duration("--older-than", given, zero=True)


class _Progress:
    """A line on stderr now and then."""

    def __init__(self, *, silent: bool) -> None:
        """``silent``: the log goes to standard error instead."""
        self._silent = silent
        self._pace = ProgressPace(at_once=True)

    def __call__(self, event: Event) -> None:
        from penstock.cli.progress import told

        if self._silent:
            return
        lines = told(event)
        if isinstance(event, ReconcileProgressed) and self._pace.is_due():
            of_total = f" of {event.total:,}" if event.done < event.total else ""
            lines = [f"{event.done:,}{of_total} {event.what}"]
        for line in lines:
            talk(printable(line))
