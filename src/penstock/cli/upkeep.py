"""What the verbs of upkeep have in common: which pipelines they mean, and the log that hears of what they do."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.where import Where

if TYPE_CHECKING:
    from penstock.app.upkeep import Kept

App = Annotated[
    str | None, typer.Argument(metavar="[APP]", help="module:attribute, as in shop:app; the same as --app.")
]
Name = Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="The same as --pipeline; default: all.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")]


@contextmanager
def pipelines(*, app: str | None, name: str | None, where: Where) -> Iterator[Mapping[str, "Kept"]]:
    """The pipelines that a command line means. Their log goes to stderr, as a worker's does."""
    from penstock.pipeline.extra import require_spark

    scope = where.led_by(app, name).scope()
    require_spark()
    from penstock.app.identity import worker_id
    from penstock.app.telemetry import open_log, open_reports
    from penstock.app.upkeep import kept
    from penstock.config import load_settings
    from penstock.events import Bus

    settings = load_settings()
    heard = open_reports(
        settings,
        worker=worker_id(),
        process="upkeep",
        on_error=scope.on_error,
        tell=open_log(settings, worker=None),
    )
    with heard.told(), kept(scope, bus=Bus(*heard.listeners)) as found:
        yield found
