"""The checks of `penstock doctor`: this host, the settings, and the state of apps and tables."""

import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from penstock.app.backends import has_local_ledger
from penstock.config import load_settings, shown, unknown_variables
from penstock.errors import PenstockError
from penstock.operations.doctor.findings import Finding, FindingLevel, guarded

if TYPE_CHECKING:
    from penstock.app.scope import Scope, ScopeRequest

PYTHON_MIN = (3, 11)
ONE_LEDGER = (
    "For idempotent handlers, object handlers and pipelines name a ledger that hosts share (mysql://, postgresql://), "
    "or set one_host = true where all workers run on this host."
)
AWAY = "Start it, or let this host reach it. If it is another one, name that in the setting {setting}."
WITHOUT_SPARK = "Only pipelines and `penstock ingest` need it; with --app doctor knows whether the app does."
FREE_BYTES_MIN = 2 * 1024**3


class SparkNeed(StrEnum):
    """The need for Spark: pipelines need it, and tables of `penstock ingest`."""

    NEEDED = "needed"
    UNKNOWN = "unknown"
    NONE = "none"


def spark_need(asked: "ScopeRequest") -> SparkNeed:
    """Return the need of the named or current scope. An app that cannot be loaded is reported by the state checks."""
    from penstock.app.loading import load_app
    from penstock.app.paths import tables_here

    if asked.means_table:
        return SparkNeed.NEEDED
    if asked.app is not None:
        try:
            return SparkNeed.NEEDED if load_app(asked.app).pipelines else SparkNeed.NONE
        except PenstockError:
            return SparkNeed.UNKNOWN
    return SparkNeed.NEEDED if not asked.means_app and tables_here(Path.cwd()) else SparkNeed.UNKNOWN


def machine_checks(environ: Mapping[str, str], *, spark: SparkNeed = SparkNeed.UNKNOWN) -> Iterator[Finding]:
    """Check Python, settings, disk, and Spark if it is needed. Skip the checks that depend on a failed one."""
    yield _python()
    yield guarded("settings", _settings, hint="Mend the name, or unset the variable; nothing reads it.")
    yield _disk(Path.cwd())
    if spark is not SparkNeed.NONE:
        for finding in _spark_checks(environ):
            yield finding if spark is SparkNeed.NEEDED else _lived_with(finding, WITHOUT_SPARK)


def _spark_checks(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the extra, Java, and a Spark that runs a real job."""
    extra = guarded("spark extra", _extra)
    yield extra
    java = guarded("java", lambda: _java(environ), hint="Set JAVA_HOME to the Java in use, or unset it.")
    yield java
    if FindingLevel.FAILED not in (extra.verdict, java.verdict):
        yield guarded("spark", lambda: _spark(environ))


def _lived_with(finding: Finding, hint: str) -> Finding:
    if finding.verdict is not FindingLevel.FAILED:
        return finding
    return replace(finding, verdict=FindingLevel.WARNING, hint=hint)


def state_checks(asked: "ScopeRequest", *, try_notification: bool = False) -> Iterator[Finding]:
    """Check the app or tables that are named or in the current folder; yield nothing if there are none.

    ``try_notification``: let S3 send a test event to each source's queue.
    """
    from penstock.app.scope import find_scope, scopes_here

    here = Path.cwd()
    try:
        scopes = [find_scope(asked, here=here)] if asked.means_app or asked.means_table else scopes_here(here)
    except PenstockError as error:
        yield Finding(check="app" if asked.means_app else "table", verdict=FindingLevel.FAILED, found=str(error))
        return
    for scope in scopes:
        failed: list[str] = []
        for finding in _scope_checks(scope, asked.app, try_notification=try_notification):
            failed += [finding.check] if finding.verdict is FindingLevel.FAILED else []
            yield finding
        if not {"broker", "ledger"} & set(failed):
            what = "app" if scope.table is None else "table"
            name = scope.name if scope.table is not None else asked.app or "the state here"
            yield _standing_check(what, scope, name, failed=failed)


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
    from penstock.app.loading import load_app

    try:
        settings, own = load_settings(), load_app(app).settings
    except PenstockError:  # another check reports it
        return
    for name in ("broker", "ledger"):
        given = getattr(settings, name)
        if name in settings.model_fields_set and name not in own.model_fields_set and given != getattr(own, name):
            yield Finding(
                check="app settings",
                verdict=FindingLevel.WARNING,
                found=f"the setting {name} is {shown(name, given)}, but the app {app} uses "
                f"{shown(name, getattr(own, name))}",
                hint="Make the app by App.from_config(), which reads the settings.",
            )


def _app_checks(scope: "Scope") -> Iterator[Finding]:
    """Check the app. Checks that need the broker or the ledger are skipped if it cannot be opened."""
    yield from _broker_checks(scope)
    ledger = guarded("ledger", partial(_ledger, scope), hint=ONE_LEDGER, when_away=AWAY.format(setting="ledger"))
    yield ledger
    if not has_local_ledger(scope.settings) and ledger.verdict is not FindingLevel.FAILED:
        yield guarded("ledger server", partial(_ledger_server, scope))
    yield guarded("stopping", partial(_stopping, scope))


def _aws_checks(scope: "Scope", app: str | None, *, try_notification: bool) -> Iterator[Finding]:
    from penstock.app.loading import load_app
    from penstock.operations.doctor.aws import aws_checks, scene_of

    try:
        loaded = None if app is None or scope.table is not None else load_app(app)
        scene = scene_of(scope, loaded, try_notification=try_notification)
    except PenstockError:  # an invalid address: the broker's check reports it
        return
    yield from aws_checks(scene)


def _standing_check(check: str, scope: "Scope", name: str, *, failed: Sequence[str]) -> Finding:
    from penstock.app.backends import is_sqs

    hint = f"`penstock status{scope.options}` shows more"
    if is_sqs(scope.settings.broker):  # SQS: dead letters cannot be listed
        return guarded(check, partial(_standing, scope, name, failed), hint=f"{hint}.")
    hint = f"{hint}, `penstock dead list{scope.options}` the reasons."
    return guarded(check, partial(_standing, scope, name, failed), hint=hint)


def _standing(scope: "Scope", name: str, failed: Sequence[str]) -> tuple[FindingLevel, str]:
    from penstock.operations.status.status import standing

    found = standing(scope)
    if found.troubles:
        return FindingLevel.WARNING, f"{name}: {found.verdict}"
    if failed:
        checks = ", ".join(dict.fromkeys(failed))
        return FindingLevel.WARNING, f"{name}: nothing is late, lost or failed yet, but checks above failed: {checks}"
    return FindingLevel.OK, f"{name}: {found.verdict}"


def _broker_checks(scope: "Scope") -> Iterator[Finding]:
    from penstock.app.backends import is_redis

    broker = guarded("broker", partial(_broker, scope), when_away=AWAY.format(setting="broker"))
    yield broker
    if is_redis(scope.settings.broker) and broker.verdict is not FindingLevel.FAILED:
        from penstock.operations.doctor.redis import redis_checks

        yield from redis_checks(scope.settings)


def _broker(scope: "Scope") -> tuple[FindingLevel, str]:
    from penstock.app.backends import is_sqs
    from penstock.operations.inspection import view

    address = shown("broker", scope.settings.broker)
    with view(scope) as seen:
        broker = seen.broker
        if is_sqs(scope.settings.broker):  # listing queues may be denied; the app's own are checked one by one
            return FindingLevel.OK, f"{address}, of which more below"
        queues = len(broker.queue_names())
    return FindingLevel.OK, f"{address}; queues: {queues:,}"


def _ledger(scope: "Scope") -> tuple[FindingLevel, str]:
    from penstock.app.backends import has_ledger_apart, require_shared_ledger
    from penstock.app.scope import is_there
    from penstock.operations.inspection import view

    address = scope.settings.ledger
    with view(scope) as seen:
        found = f"{shown('ledger', address)}; pipelines: {len(seen.ledger.pipelines()):,}"
    if not has_ledger_apart(scope.settings):
        return FindingLevel.OK, found
    require_shared_ledger(scope.settings, recorded=scope.recorded)
    if is_there(address):
        return FindingLevel.WARNING, f"{found}; it is of this host alone, and hosts may share the broker"
    return FindingLevel.OK, found


def _ledger_server(scope: "Scope") -> tuple[FindingLevel, str]:
    from penstock.ledger.migrate import Revisions

    with closing(Revisions.open(scope.settings.ledger)) as revisions:
        revisions.server()  # connect first, so that the next call measures only the query
        asked_at = time.time()
        server, there = revisions.server()
        took_seconds = time.time() - asked_at
    apart_seconds = abs(there - asked_at - took_seconds / 2)
    clocks = f"its clock and this host's are {apart_seconds:.0f} s apart, which does no harm"
    return FindingLevel.OK, f"{server}, answers in {took_seconds * 1_000:.0f} ms; {clocks}"


def _stopping(scope: "Scope") -> tuple[FindingLevel, str]:
    from penstock.worker.settings import budget

    total_seconds = scope.settings.stop_timeout_seconds
    found = budget(stop_timeout_seconds=total_seconds, drain_seconds=scope.settings.drain_seconds)
    return (
        FindingLevel.OK,
        f"work in flight has {found.drain_seconds:g} of the {total_seconds:g} s that stopping may take",
    )


def _python() -> Finding:
    fits = sys.version_info >= PYTHON_MIN
    return Finding(
        check="python",
        verdict=FindingLevel.OK if fits else FindingLevel.FAILED,
        found=f"{platform.python_version()} ({sys.executable})",
        hint="" if fits else f"Install Python {'.'.join(map(str, PYTHON_MIN))} or newer, and Penstock with it.",
    )


def _settings() -> tuple[FindingLevel, str]:
    settings = load_settings()
    changed = sorted(settings.model_fields_set)
    found = f"set: {', '.join(changed)}" if changed else "all at their defaults"
    unknown = unknown_variables()
    if unknown:
        return FindingLevel.WARNING, f"{found}; variables that name no setting: {', '.join(unknown)}"
    return FindingLevel.OK, found


def _extra() -> tuple[FindingLevel, str]:
    from importlib.metadata import version

    from penstock.pipeline.extra import PACKAGES, require_spark, untested_deltalake

    require_spark()
    found = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    untested = untested_deltalake(version("deltalake"))
    if untested is not None:
        return (
            FindingLevel.WARNING,
            f"{found}; {untested}: install one of those, or try this one on a copy of a table first",
        )
    return FindingLevel.OK, found


def _java(environ: Mapping[str, str]) -> tuple[FindingLevel, str]:
    from penstock.pipeline.spark.java import find_java

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
        verdict=FindingLevel.OK if enough else FindingLevel.WARNING,
        found=f"{free_bytes / 1024**3:.1f} GiB free in {folder}",
        hint=""
        if enough
        else "Make room: Spark spills below the table's state folder, and runs write before they count.",
    )


def _spark(environ: Mapping[str, str]) -> tuple[FindingLevel, str]:
    """Start a session, send numbers through a Python worker, write Parquet."""
    from penstock.app.spark import session_settings
    from penstock.pipeline.spark.java import find_java
    from penstock.pipeline.spark.session import try_spark

    settings = load_settings()
    began_at = time.monotonic()
    with TemporaryDirectory(prefix="penstock-doctor-") as folder:
        scratch, log = Path(folder) / "scratch", Path(folder) / "spark.log"
        try_spark(session_settings(settings, find_java(environ), scratch=scratch, log=log))
    seconds = time.monotonic() - began_at
    return FindingLevel.OK, f"runs Python in a worker and writes Parquet on {settings.spark_master} ({seconds:.1f} s)"
