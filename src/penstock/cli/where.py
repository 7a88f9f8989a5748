"""What a command line names: where to look, and objects."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.output import printable, talk
from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.app.scope import Scope, ScopeRequest

Table = Annotated[
    str | None,
    typer.Option(
        "--table", metavar="FOLDER", help="The table's folder; by default the one here or the only one below here."
    ),
]
StateFolder = Annotated[
    str | None, typer.Option("--state", metavar="FOLDER", help="The state folder, where it is not TABLE/_penstock.")
]
Pipeline = Annotated[
    str | None, typer.Option("--pipeline", metavar="NAME", help="A pipeline, or object handler, of the app here.")
]
AppName = Annotated[
    str | None, typer.Option("--app", metavar="APP", help="module:attribute, as in shop:app; where its state is told.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeOptions:
    """Where to look: the options of every verb that looks somewhere."""

    table: Table = None
    state: StateFolder = None
    pipeline: Pipeline = None
    app_name: AppName = None

    @property
    def asked(self) -> "ScopeRequest":
        from penstock.app.scope import ScopeRequest

        return ScopeRequest(table=self.table, state=self.state, pipeline=self.pipeline, app=self.app_name)

    def led_by(self, app: str | None, pipeline: str | None = None) -> "ScopeOptions":
        """The same with what was named by arguments. Raises `UsageError` where both ways are taken."""
        if app and self.app_name:
            raise UsageError("Name the app once: APP, or --app.")
        if pipeline and self.pipeline:
            raise UsageError("Name the pipeline once: PIPELINE, or --pipeline.")
        return replace(self, app_name=app or self.app_name, pipeline=pipeline or self.pipeline)

    def scopes(self) -> "Sequence[Scope]":
        """What to look at, where nothing is changed: an app and tables that lie in one folder are all meant."""
        from penstock.app.scope import find_scopes

        return find_scopes(self.asked, here=Path.cwd())

    def scope(self, *, make: bool = False) -> "Scope":
        """What is to be made need not be there. Raises as `find_scope` does."""
        from penstock.app.scope import find_scope

        return find_scope(self.asked, here=Path.cwd(), make=make)


def print_each(scopes: "Sequence[Scope]", show: "Callable[[Scope], None]", *, quiet: bool = False) -> None:
    """Show one scope after another, each under its heading where there are several, unless ``quiet``.

    Raises `UsageError` where none of them has what was asked for.
    """
    missing: list[UsageError] = []
    for place, scope in enumerate(scopes):
        if len(scopes) > 1 and not quiet:
            print(f"{chr(10) if place else ''}{printable(scope.title)}:")
        try:
            show(scope)
        except UsageError as error:
            missing.append(error)
            if len(missing) == len(scopes):
                raise missing[0] from None
            talk(printable(str(error)))


T = TypeVar("T")


def first_of(scopes: "Sequence[Scope]", look: "Callable[[Scope], T]") -> T:
    """Return what the first of the scopes has that has it. Raises the first one's `UsageError` where none has."""
    missing: list[UsageError] = []
    for scope in scopes:
        try:
            return look(scope)
        except UsageError as error:
            missing.append(error)
    raise missing[0]


def object_uri(text: str) -> str:
    """An object's address, as ledger and log have it; a path is that of a local file."""
    from penstock.objects.reference import LOCAL_BUCKET, uri_of

    return text if "://" in text else uri_of(LOCAL_BUCKET, str(Path(text).resolve()))
