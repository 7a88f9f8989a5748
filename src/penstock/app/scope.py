"""The scope of a command: the ledger, broker and data directory it uses, and the pipelines it covers.

A table made by `penstock ingest` has all of them below itself; an app has them where its settings say. Commands use a
`Scope` and need not know which of the two it is.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.app import App
from penstock.app.backends import file_ledger, ledger_exists, open_ledger
from penstock.app.brokers import broker_exists, file_broker
from penstock.app.loading import load_app
from penstock.app.naming import object_names
from penstock.app.object_service import ObjectService
from penstock.app.paths import LEDGER_FILE, TablePaths, declared_table_paths, find_table, table_paths, tables_here
from penstock.app.service import concurrency_of, needs_ledger, timeout_seconds_of
from penstock.app.state import QUEUE_FILE, check_owner
from penstock.config import Settings, load_settings, shown
from penstock.errors import ConfigurationError, UsageError
from penstock.messaging.steps import Probe, no_probe
from penstock.monitoring.errors.occurrences import ErrorHook
from penstock.sinks.registry import DEFAULT_SCHEME, split_address
from penstock.storage.address import LOCAL, S3, check_folder, is_s3
from penstock.storage.aws import Aws

if TYPE_CHECKING:
    from penstock.app.naming import ObjectNames
    from penstock.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRequest:
    """The scope options of a command line. A table takes precedence."""

    table: str | None = None
    state: str | None = None
    pipeline: str | None = None
    app: str | None = None

    @property
    def means_app(self) -> bool:
        return self.table is None and (self.pipeline is not None or self.app is not None)

    @property
    def means_table(self) -> bool:
        return not self.means_app and (self.table is not None or self.state is not None)

    @property
    def options(self) -> str:
        """The same options for another command in a hint: empty, or with a leading space."""
        given = {"--table": self.table, "--data-dir": self.state, "--pipeline": self.pipeline, "--app": self.app}
        return "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The resolved scope. ``settings`` hold its addresses: broker, ledger and data directory."""

    settings: Settings
    table: TablePaths | None = None  # the table of this data directory; None: an app's
    pipeline: str | None = None  # the chosen pipeline; None: all
    tables: Mapping[str, TablePaths] = field(default_factory=dict)  # the known tables, by pipeline
    tableless: frozenset[str] = frozenset()  # the known object handlers
    served: Mapping[str, str] = field(default_factory=dict)  # queue by handler or pipeline of the app, if known
    timeouts: Mapping[str, float] = field(default_factory=dict)  # of functions, in seconds by queue, if known
    concurrencies: Mapping[str, int] = field(default_factory=dict)  # of functions with a limit, by queue, if known
    names: "ObjectNames | None" = None  # the names in the ledger that a command may act on; None: unknown
    on_error: ErrorHook | None = None  # the app's hook, if known
    recorded: Sequence[str] = ()  # handlers and pipelines that use the ledger, if known
    options: str = ""  # options that select this scope: empty, or with a leading space

    @property
    def name(self) -> str:
        """The table's address, or that of the app's ledger."""
        return str(self.table.table) if self.table is not None else str(shown("ledger", self.settings.ledger))

    @property
    def title(self) -> str:
        """A heading, for output about several scopes."""
        return f"App (ledger {self.name})" if self.table is None else f"Table {self.name}"

    @property
    def aws(self) -> Aws:
        """The AWS settings."""
        return self.settings.aws if self.table is None else self.table.aws

    @property
    def queues(self) -> Sequence[str]:
        """The known queues of the scope: the app's, else those of the settings."""
        return sorted({*self.served.values()} or self.settings.worker_queues)

    @property
    def table_formats(self) -> Sequence[str]:
        """The formats of the known tables, as schemes of `penstock.sinks.registry`; without any the default."""
        return sorted({one.scheme for one in self.tables.values()}) or [DEFAULT_SCHEME]

    @property
    def tables_meant(self) -> Mapping[str, TablePaths]:
        """The tables of the chosen pipelines. Raises `UsageError` if no table is known."""
        if not self.tables and not self.tableless:
            raise UsageError(
                "The folders of an app's tables stand in its code: give --app, such as --app shop:app, or --table."
            )
        meant = {name: one for name, one in self.tables.items() if self.pipeline in (None, name)}
        if not meant:
            known = ", ".join(sorted(self.tables)) or "none"
            raise UsageError(f"The app has no pipeline {self.pipeline or 'with a table'}; its pipelines: {known}.")
        return meant


def scope_ledger(scope: Scope, *, probe: Probe = no_probe) -> "Ledger":
    """Open the ledger of a scope. Every command that acts on a scope opens its ledger here.

    Raises `ConfigurationError` if its table was moved, or if it holds objects of another app under a name of this one.
    """
    ledger = open_ledger(scope.settings, probe=probe)
    try:
        if scope.table is not None:
            check_owner(ledger, scope.table)
        if scope.names is not None:
            scope.names.check(ledger)
    except BaseException:
        ledger.close()
        raise
    return ledger


def find_scope(request: ScopeRequest, *, here: Path, make: bool = False) -> Scope:
    """Return the named scope; else the table here or the only one below, or the app of the settings.

    With ``make``, the app's data directory need not exist yet. Raises `UsageError` if there is neither a table nor an
    app, or both, and `ConfigurationError` for invalid settings unless a table is named: they may name an app's state.
    """
    if request.means_table:
        in_s3 = request.table is not None and is_s3(split_address(request.table)[1])
        aws = load_settings().aws if in_s3 else None
        return _of_table(find_table(request.table, request.state, here=here, aws=aws), request.options)
    if request.means_app:
        return _of_app(request, make=make)
    tables = tables_here(here)
    settings = load_settings()
    if _is_there(settings):
        if tables:
            names = ", ".join(str(path.relative_to(here)) for path in tables)
            raise UsageError(
                f"Both a table ({names}) and an app's state ({_addresses(settings)}) are here; give --table FOLDER for "
                "the one, --pipeline NAME or --app APP for the other."
            )
        return Scope(settings=settings)
    if not tables:
        if make:
            return Scope(settings=settings)
        raise UsageError(
            f"There is nothing to look at: no table with a data directory in {here} or below (--table names one), and "
            f"nothing where the settings let an app keep its state ({_addresses(settings)})."
        )
    return _of_table(find_table(None, None, here=here))


def find_scopes(request: ScopeRequest, *, here: Path, configured: bool = False) -> Sequence[Scope]:
    """Return the scopes of a read-only command: the named one; else the app here, then the tables here.

    ``configured`` says that the app was named by a setting and not by the command: then the tables here are returned
    too. Raises as `find_scope` does, except if an app and tables are in one folder.
    """
    if configured:
        tables = _table_scopes(tables_here(here), here=here)
        app = find_scope(request, here=here, make=bool(tables))
        return [app, *tables] if not tables or _is_there(app.settings) else tables
    if not (request.means_app or request.means_table):
        found = _scopes_in(here, load_settings())
        if len(found) > 1 and found[0].table is None:
            return found
    return [find_scope(request, here=here)]


def scopes_here(here: Path) -> Sequence[Scope]:
    """Return every scope that needs no name: the app here and one table; with an app, all tables.

    Invalid settings name no app.
    """
    return _scopes_in(here, _settings_here())


def _scopes_in(here: Path, settings: Settings | None) -> Sequence[Scope]:
    found = [Scope(settings=settings)] if settings is not None and _is_there(settings) else []
    tables = tables_here(here)
    return [*found, *_table_scopes(tables if found or len(tables) == 1 else (), here=here)]


def _table_scopes(tables: Iterable[Path], *, here: Path) -> Sequence[Scope]:
    found: list[Scope] = []
    for table in tables:
        with suppress(UsageError):  # a table whose data directory is elsewhere
            where = find_table(str(table), None, here=here)
            found.append(_of_table(where, options_for(str(where.table), here=here)))
    return found


def options_for(table: str, *, state: str | None = None, here: Path) -> str:
    """Return the options that select this table in another command; empty if it is the default here."""
    request = ScopeRequest(table=table, state=state)
    settings = _settings_here()
    if settings is not None and settings.app is not None:
        return request.options  # a command without options means that app
    try:
        where = find_scope(ScopeRequest(), here=here).table
    except (UsageError, ConfigurationError):
        return request.options
    is_default = state is None and where is not None and str(where.table) == str(table_paths(table).table)
    return "" if is_default else request.options


def _of_table(where: TablePaths, options: str = "") -> Scope:
    settings = Settings.model_construct(
        broker=file_broker(where.state / QUEUE_FILE),
        ledger=file_ledger(where.state / LEDGER_FILE),
        data_dir=str(where.state),
    )
    return Scope(
        settings=settings,
        table=where,
        pipeline=where.pipeline,
        tables={where.pipeline: where},
        options=options,
    )


def _of_app(request: ScopeRequest, *, make: bool) -> Scope:
    app = load_app(request.app) if request.app is not None else None
    settings = load_settings() if app is None else app.settings
    if request.state is not None:
        settings = settings.model_copy(update={"data_dir": check_folder("state", request.state)})
    if not make and not _is_there(settings):
        raise UsageError(
            f"The app has no state yet ({_addresses(settings)}): the first message that is sent, or the first worker, "
            "makes it."
        )
    if app is not None:
        return scope_of(app, settings=settings, pipeline=request.pipeline, options=request.options)
    name = request.pipeline or ""
    is_address = name.startswith((S3, LOCAL))  # `penstock ingest` names its pipelines by address
    tables = {name: table_paths(name, settings.data_dir, aws=settings.aws)} if is_address else {}
    return Scope(settings=settings, pipeline=request.pipeline, tables=tables, options=request.options)


def scope_of(app: App, *, settings: Settings | None = None, pipeline: str | None = None, options: str = "") -> Scope:
    """Return the scope of an app. ``settings`` replace its own, and ``options`` select it in another command."""
    settings = settings or app.settings
    services = app.services
    return Scope(
        settings=settings,
        pipeline=pipeline,
        tables={
            one.name: declared_table_paths(one.name, one.declaration.sink.address, settings) for one in app.pipelines
        },
        tableless=frozenset(one.name for one in services if isinstance(one, ObjectService)),
        served={one.name: one.queue_name for one in services},
        timeouts={one.queue_name: seconds for one in services if (seconds := timeout_seconds_of(one)) is not None},
        concurrencies={one.queue_name: calls for one in services if (calls := concurrency_of(one)) is not None},
        names=object_names(app, services, only=pipeline),
        on_error=app.on_error,
        recorded=[one.name for one in services if needs_ledger(one)],
        options=options,
    )


def _settings_here() -> Settings | None:
    """Return the settings; None if they are invalid."""
    try:
        return load_settings()
    except ConfigurationError:
        return None


def _is_there(settings: Settings) -> bool:
    return ledger_exists(settings) or broker_exists(settings)


def _addresses(settings: Settings) -> str:
    return f"ledger {shown('ledger', settings.ledger)}, broker {shown('broker', settings.broker)}"
