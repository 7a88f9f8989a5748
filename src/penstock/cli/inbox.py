"""`penstock inbox`: forget what was recorded long ago."""

from typing import Annotated

import typer

from penstock.cli.durations import duration
from penstock.cli.output import Json, counted, print_json

app = typer.Typer(help="The inboxes of an app: which messages took effect in its own database.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """The inboxes of an app: which messages took effect in its own database."""


@app.command()
def forget(
    app_name: Annotated[str, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.")],
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Longer ago than this, such as 14d.")
    ] = "14d",
    json_: Json = False,
) -> None:
    """Delete what was recorded longer ago. A message that comes again after that takes effect again."""
    from penstock.app.loading import load_app
    from penstock.app.transactions_running import forget_inbox

    seconds = duration("--older-than", older_than)
    with load_app(app_name) as found:
        count = forget_inbox(found, older_than_seconds=seconds)
    if json_:
        print_json({"forgotten": count})
    else:
        print(f"{counted(count, 'message')} forgotten.")
