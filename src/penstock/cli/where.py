"""The table or app that a command line selects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from penstock.app.scope import Scope, ScopeRequest, find_scope, find_scopes
from penstock.cli.apps import AppOption, app_and_pipeline, configured_app
from penstock.cli.output import printable, talk
from penstock.errors import UsageError

Table = Annotated[
    str | None,
    typer.Option(
        "--table", metavar="FOLDER", help="The folder of the table; default: the one here, or the only one below."
    ),
]
StateFolder = Annotated[
    str | None, typer.Option("--data-dir", metavar="FOLDER", help="The data directory; default: TABLE/_penstock.")
]
Pipeline = Annotated[str | None, typer.Option("--pipeline", metavar="NAME", help="A pipeline or object handler.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeOptions:
    """The options that select the table or the app of a command."""

    table: Table = None
    state: StateFolder = None
    pipeline: Pipeline = None
    app_name: AppOption = None

    @property
    def request(self) -> ScopeRequest:
        """The selection. Without a table, the configured app is selected if no other is named."""
        app = self.app_name
        is_table = self.table is not None or (self.state is not None and app is None and self.pipeline is None)
        if app is None and not is_table and "://" not in (self.pipeline or ""):  # an address is a pipeline of ingest
            app = configured_app(strict=False)
        return ScopeRequest(table=self.table, state=self.state, pipeline=self.pipeline, app=app)

    def with_names(self, app: str | None, pipeline: str | None = None) -> "ScopeOptions":
        """Return these options with the positional arguments APP and PIPELINE.

        Raises `UsageError` if an argument and its option differ.
        """
        app, pipeline = app_and_pipeline(app, pipeline)
        if app and self.app_name and app != self.app_name:
            raise UsageError(f"APP is {app} and --app is {self.app_name}: name one app.")
        if pipeline and self.pipeline and pipeline != self.pipeline:
            raise UsageError(f"PIPELINE is {pipeline} and --pipeline is {self.pipeline}: name one pipeline.")
        return replace(self, app_name=app or self.app_name, pipeline=pipeline or self.pipeline)

    def scopes(self) -> Sequence[Scope]:
        """Return the scopes of a read-only command: without a selection, the app and the tables of this folder."""
        request = self.request
        return find_scopes(request, here=Path.cwd(), configured=self == ScopeOptions() and request.app is not None)

    def scope(self, *, make: bool = False) -> Scope:
        """Return the scope of a command. With ``make`` its data directory need not exist. Raises as `find_scope`."""
        return find_scope(self.request, here=Path.cwd(), make=make)


def print_each(scopes: Sequence[Scope], show: Callable[[Scope], None], *, quiet: bool = False) -> None:
    """Show one scope after another, with headings if there are several, unless ``quiet``.

    Raises `UsageError` if no scope has the requested items.
    """
    missing: list[UsageError] = []
    for index, scope in enumerate(scopes):
        if len(scopes) > 1 and not quiet:
            print(f"{chr(10) if index else ''}{printable(scope.title)}:")
        try:
            show(scope)
        except UsageError as error:
            missing.append(error)
            if len(missing) == len(scopes):
                raise missing[0] from None
            talk(printable(str(error)))


T = TypeVar("T")


def first_of(scopes: Sequence[Scope], find: "Callable[[Scope], T]") -> T:
    """Return the result of the first scope that has one. Raises the first scope's `UsageError` if none has."""
    missing: list[UsageError] = []
    for scope in scopes:
        try:
            return find(scope)
        except UsageError as error:
            missing.append(error)
    raise missing[0]
