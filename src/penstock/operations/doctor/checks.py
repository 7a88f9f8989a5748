"""The checks of `penstock doctor`: this host, the settings, and the state of apps and tables."""

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.backends import has_ledger_apart, has_local_ledger, ledger_exists, require_shared_ledger
from penstock.app.brokers import capabilities_of
from penstock.app.jobs.expiry import UNUSED_ARCHIVE, is_archive_unused
from penstock.app.loading import load_app
from penstock.app.paths import tables_here
from penstock.app.scope import find_scope, scopes_here
from penstock.config import dotted, load_settings, shown, unknown_variables
from penstock.errors import PenstockError
from penstock.ledger.migrate import Revisions
from penstock.operations.doctor.aws import aws_checks, resources_of
from penstock.operations.doctor.findings import Finding, FindingLevel, guarded
from penstock.operations.doctor.redis import redis_checks
from penstock.operations.doctor.spark import run_trial_job
from penstock.operations.inspection import view
from penstock.operations.status.status import read_status
from penstock.pipeline.extra import packages_for, require_spark
from penstock.pipeline.spark.java import find_java
from penstock.sinks.registry import DEFAULT_SCHEME, SINKS, untested
from penstock.worker.settings import budget

if TYPE_CHECKING:
    from penstock.app.scope import Scope, ScopeRequest

PYTHON_MIN = (3, 11)
ONE_LEDGER = (
    "Idempotent handlers, object handlers and pipelines need a ledger that all hosts share (mysql://, postgresql://). "
    "If all workers run on this host, set one_host = true."
)
UNREACHABLE = "Start the server, or make it reachable from this host. The setting {setting} has its address."
WITHOUT_SPARK = "Only pipelines and `penstock ingest` need it. Give --app, and doctor checks whether that app does."
STARTING_SPARK = "Opening Spark for trial jobs: 10 to 15 s on most machines; a cluster may take longer."
FREE_BYTES_MIN = 2 * 1024**3


class SparkNeed(StrEnum):
    """The need for Spark: pipelines need it, and tables of `penstock ingest`."""

    NEEDED = "needed"
    UNKNOWN = "unknown"
    NONE = "none"


def spark_need(request: "ScopeRequest") -> SparkNeed:
    """Return the need of the named or current scope. An app that cannot be loaded is reported by the state checks."""
    if request.means_table:
        return SparkNeed.NEEDED
    if request.app is not None:
        try:
            return SparkNeed.NEEDED if load_app(request.app).pipelines else SparkNeed.NONE
        except PenstockError:
            return SparkNeed.UNKNOWN
    return SparkNeed.NEEDED if not request.means_app and tables_here(Path.cwd()) else SparkNeed.UNKNOWN


def table_formats(request: "ScopeRequest") -> Sequence[str]:
    """Return the formats of the tables of the named or current scope; the default if it cannot be opened."""
    try:
        return find_scope(request, here=Path.cwd()).table_formats
    except PenstockError:  # another check reports it
        return [DEFAULT_SCHEME]


def machine_checks(
    environ: Mapping[str, str],
    *,
    spark: SparkNeed = SparkNeed.UNKNOWN,
    formats: Sequence[str] = (DEFAULT_SCHEME,),
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Finding]:
    """Check Python, settings, disk, and Spark if it is needed. Skip the checks that depend on a failed one.

    ``formats``: those of the tables, see `penstock.sinks.registry`. ``say`` gets a note before a check that takes long.
    """
    yield _python()
    yield guarded("settings", _settings, hint="Correct the name, or unset the variable: it has no effect.")
    yield _disk(Path.cwd())
    if spark is not SparkNeed.NONE:
        for finding in _spark_checks(environ, formats, say):
            yield finding if spark is SparkNeed.NEEDED else _as_warning(finding, WITHOUT_SPARK)


def state_checks(request: "ScopeRequest", *, try_notification: bool = False) -> Iterator[Finding]:
    """Check the app or tables that are named or in the current folder; yield nothing if there are none.

    ``try_notification``: let S3 send a test event to each source's queue.
    """
    here = Path.cwd()
    try:
        scopes = [find_scope(request, here=here)] if request.means_app or request.means_table else scopes_here(here)
    except PenstockError as error:
        yield Finding(check="app" if request.means_app else "table", level=FindingLevel.FAILED, found=str(error))
        return
    for scope in scopes:
        failed: list[str] = []
        for finding in _scope_checks(scope, request.app, try_notification=try_notification):
            failed += [finding.check] if finding.level is FindingLevel.FAILED else []
            yield finding
        if not {"broker", "ledger"} & set(failed):
            subject = "app" if scope.table is None else "table"
            name = scope.name if scope.table is not None else request.app or "the state here"
            yield _status_check(subject, scope, name, failed=failed)


def _spark_checks(environ: Mapping[str, str], formats: Sequence[str], say: Callable[[str], None]) -> Iterator[Finding]:
    """Check the extra, Java, and a Spark that runs a real job."""
    extra = guarded("spark extra", lambda: _extra(formats))
    yield extra
    java = guarded("java", lambda: _java(environ), hint="Set JAVA_HOME to the Java to use, or unset it.")
    yield java
    if FindingLevel.FAILED not in (extra.level, java.level):
        say(STARTING_SPARK)
        yield guarded("spark", run_trial_job)


def _as_warning(finding: Finding, hint: str) -> Finding:
    if finding.level is not FindingLevel.FAILED:
        return finding
    return replace(finding, level=FindingLevel.WARNING, hint=hint)


def _scope_checks(scope: "Scope", app: str | None, *, try_notification: bool) -> Iterator[Finding]:
    """Run all checks but the status, which comes last: it cannot be well if one of these failed."""
    if scope.table is None:
        if app is not None:
            yield from _unused_addresses(app)
        yield from _app_checks(scope)
    yield from _aws_checks(scope, app, try_notification=try_notification)


def _unused_addresses(app: str) -> Iterator[Finding]:
    """Warn if the environment or penstock.toml sets a broker or ledger that the app does not use.

    An app created with ``App()`` reads no settings.
    """
    try:
        settings, own = load_settings(), load_app(app).settings
    except PenstockError:  # another check reports it
        return
    for name in ("broker", "ledger"):
        given = getattr(settings, name)
        if name in settings.model_fields_set and name not in own.model_fields_set and given != getattr(own, name):
            yield Finding(
                check="app settings",
                level=FindingLevel.WARNING,
                found=f"the setting {name} is {shown(name, given)}, but the app {app} uses "
                f"{shown(name, getattr(own, name))}",
                hint="Create the app with App.from_config(), which reads the settings.",
            )


def _app_checks(scope: "Scope") -> Iterator[Finding]:
    """Check the app. Checks that need the broker or the ledger are skipped if it cannot be opened."""
    yield from _broker_checks(scope)
    ledger = guarded(
        "ledger", partial(_ledger, scope), hint=ONE_LEDGER, when_unreachable=UNREACHABLE.format(setting="ledger")
    )
    yield ledger
    if not has_local_ledger(scope.settings) and ledger.level is not FindingLevel.FAILED:
        yield guarded("ledger server", partial(_ledger_server, scope))
    yield guarded("stopping", partial(_stopping, scope))
    if is_archive_unused(scope.settings):
        yield Finding(
            check="dead letter archive",
            level=FindingLevel.WARNING,
            found=f"dead_letters.archive has no effect: {UNUSED_ARCHIVE}",
            hint="Set dead_letters.replay, or run a worker with --replay.",
        )


def _aws_checks(scope: "Scope", app: str | None, *, try_notification: bool) -> Iterator[Finding]:

    try:
        loaded = None if app is None or scope.table is not None else load_app(app)
        resources = resources_of(scope, loaded, try_notification=try_notification)
    except PenstockError:  # an invalid address: the broker's check reports it
        return
    yield from aws_checks(resources)


def _status_check(check: str, scope: "Scope", name: str, *, failed: Sequence[str]) -> Finding:

    hint = f"`penstock status{scope.options}` shows more"
    if not capabilities_of(scope.settings).browsable:  # dead letters cannot be listed
        return guarded(check, partial(_status, scope, name, failed), hint=f"{hint}.")
    hint = f"{hint}, `penstock dead list{scope.options}` the reasons."
    return guarded(check, partial(_status, scope, name, failed), hint=hint)


def _status(scope: "Scope", name: str, failed: Sequence[str]) -> tuple[FindingLevel, str]:

    found = read_status(scope)
    if found.problems:
        return FindingLevel.WARNING, f"{name}: {found.summary}"
    if failed:
        checks = ", ".join(dict.fromkeys(failed))
        return FindingLevel.WARNING, f"{name}: no problems yet, but these checks failed: {checks}"
    return FindingLevel.OK, f"{name}: {found.summary}"


def _broker_checks(scope: "Scope") -> Iterator[Finding]:

    broker = guarded("broker", partial(_broker, scope), when_unreachable=UNREACHABLE.format(setting="broker"))
    yield broker
    server_checks = {"redis": redis_checks}.get(capabilities_of(scope.settings).system)
    if server_checks is not None and broker.level is not FindingLevel.FAILED:
        yield from server_checks(scope.settings)


def _broker(scope: "Scope") -> tuple[FindingLevel, str]:

    address = shown("broker", scope.settings.broker)
    with view(scope) as seen:
        broker = seen.broker
        if not broker.capabilities.creates_queues:  # listing may be denied; the app's own are checked one by one
            return FindingLevel.OK, f"{address}; its queues are checked below"
        queues = len(broker.queue_names())
    return FindingLevel.OK, f"{address}; queues: {queues:,}"


def _ledger(scope: "Scope") -> tuple[FindingLevel, str]:

    address = scope.settings.ledger
    with view(scope) as seen:
        found = f"{shown('ledger', address)}; pipelines: {len(seen.ledger.pipelines()):,}"
    if not has_ledger_apart(scope.settings):
        return FindingLevel.OK, found
    require_shared_ledger(scope.settings, recorded=scope.recorded)
    if ledger_exists(scope.settings):
        return FindingLevel.WARNING, f"{found}; it is a file on this host, but other hosts may use the broker"
    return FindingLevel.OK, found


def _ledger_server(scope: "Scope") -> tuple[FindingLevel, str]:

    with closing(Revisions.open(scope.settings.ledger)) as revisions:
        revisions.server()  # connect first, so that the next call measures only the query
        sent_at = time.time()
        server, there = revisions.server()
        took_seconds = time.time() - sent_at
    apart_seconds = abs(there - sent_at - took_seconds / 2)
    clocks = f"its clock differs by {apart_seconds:.0f} s from this host's, which does no harm"
    return FindingLevel.OK, f"{server}, responds in {took_seconds * 1_000:.0f} ms; {clocks}"


def _stopping(scope: "Scope") -> tuple[FindingLevel, str]:

    total_seconds = scope.settings.worker_stop_timeout
    found = budget(stop_timeout_seconds=total_seconds, drain_seconds=scope.settings.worker_drain)
    return (
        FindingLevel.OK,
        f"messages in process have {found.drain_seconds:g} of the {total_seconds:g} s that a stop may take",
    )


def _python() -> Finding:
    fits = sys.version_info >= PYTHON_MIN
    return Finding(
        check="python",
        level=FindingLevel.OK if fits else FindingLevel.FAILED,
        found=f"{platform.python_version()} ({sys.executable})",
        hint="" if fits else f"Install Python {'.'.join(map(str, PYTHON_MIN))} or newer, and Penstock with it.",
    )


def _settings() -> tuple[FindingLevel, str]:
    settings = load_settings()
    changed = sorted(map(dotted, settings.model_fields_set))
    found = f"set: {', '.join(changed)}" if changed else "all at their defaults"
    unknown = unknown_variables()
    if unknown:
        return FindingLevel.WARNING, f"{found}. {' '.join(map(str, unknown))}"
    return FindingLevel.OK, found


def _extra(formats: Sequence[str]) -> tuple[FindingLevel, str]:
    require_spark(*formats)
    found = ", ".join(f"{name} {version(name)}" for name in packages_for(*formats))
    warnings = [untested(scheme, version(SINKS[scheme].requires)) for scheme in formats]
    if texts := [text for text in warnings if text is not None]:
        return (
            FindingLevel.WARNING,
            f"{found}; {'; '.join(texts)}: install one of those, or try this one on a copy of a table first",
        )
    return FindingLevel.OK, found


def _java(environ: Mapping[str, str]) -> tuple[FindingLevel, str]:
    java = find_java(environ)
    notes = "".join(f"; passed over: {note}" for note in java.notes)
    return (
        FindingLevel.WARNING if java.notes else FindingLevel.OK
    ), f"{java.version} from {java.source}, {java.home}{notes}"


def _disk(folder: Path) -> Finding:
    status = os.statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    enough = free_bytes >= FREE_BYTES_MIN
    return Finding(
        check="disk",
        level=FindingLevel.OK if enough else FindingLevel.WARNING,
        found=f"{free_bytes / 1024**3:.1f} GiB free in {folder}",
        hint=""
        if enough
        else "Free some space: Spark spills to the table's data directory, and runs write files before they commit.",
    )
