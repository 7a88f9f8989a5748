"""What the verbs of upkeep have in common: which pipelines they mean, and the log that hears of what they do."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.upkeep import Kept

App = Annotated[
    str | None, typer.Argument(metavar="[APP]", help="module:attribute, as in shop:app; the same as --app.")
]
Name = Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="The same as --pipeline; default: all.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")]


@contextmanager
def pipelines(
    *,
    app: str | None,
    name: str | None,
    table: str | None,
    state: str | None,
    pipeline: str | None,
    app_name: str | None,
) -> Iterator[Mapping[str, "Kept"]]:
    """The pipelines that a command line means. Their log goes to stderr, as a worker's does."""
    from penstock.app.scope import Asked, find_scope
    from penstock.pipeline.extra import require_spark

    if (app and app_name) or (name and pipeline):
        raise UsageError("Name the app and the pipeline once: APP PIPELINE, or --app and --pipeline.")
    asked = Asked(table=table, state=state, pipeline=name or pipeline, app=app or app_name)
    scope = find_scope(asked, here=Path.cwd())
    require_spark()
    from penstock.app.running import open_log
    from penstock.app.upkeep import kept
    from penstock.config import load_settings
    from penstock.events import Bus

    with kept(scope, bus=Bus(open_log(load_settings(), worker=None))) as found:
        yield found
