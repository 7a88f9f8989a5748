"""`penstock outbox`: send what an app's outboxes hold, and see what waits there.

`penstock inbox`: forget what was recorded long ago.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exits import CHECK_FOUND_PROBLEMS
from penstock.cli.options import duration
from penstock.cli.output import Json, counted, print_json, print_table, talk
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.transactions.store import WaitingRow


outbox_app = typer.Typer(
    help="The outboxes of an app: what its transactions are to send, in its own database.", no_args_is_help=True
)

App = Annotated[str, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.")]


@outbox_app.command()
def relay(
    app_name: App,
    once: Annotated[bool, typer.Option("--once", help="Send what is there now, and end.")] = False,
    json_: Json = False,
) -> None:
    """Send what the outboxes hold until SIGTERM or Ctrl-C, as every worker of the app does too.

    With --once every row that is there is tried, those that were refused before too. Exit code 3: rows are left.
    """
    if once:
        _once(app_name, json_=json_)
        return
    if json_:
        raise UsageError("--json is for the report of --once; without it there is none, and the log tells.")
    from penstock.app.loading import load_app
    from penstock.cli.exits import stoppable
    from penstock.operations.relay import run_relays

    with stoppable() as stop:
        run_relays(load_app(app_name), stop=stop)


@outbox_app.command("list")
def list_(
    app_name: App,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many.")] = 100,
    json_: Json = False,
) -> None:
    """List what waits in the outboxes, oldest first; of what the broker refused, the reason."""
    from penstock.app.loading import load_app
    from penstock.app.relays import waiting_rows

    with load_app(app_name) as found:
        rows = waiting_rows(found, limit=limit + 1)
    if len(rows) > limit:
        talk(f"There are more than {limit:,}; --limit shows more.")
    rows = rows[:limit]
    if json_:
        print_json([dataclasses.asdict(row) for row in rows])
        return
    print_table(
        ("outbox id", "queue", "group", "bytes", "age", "state", "refused", "reason"),
        [
            (
                row.outbox_id,
                row.queue,
                row.group or "",
                f"{row.body_bytes:,}",
                f"{row.age_seconds:,.0f} s",
                _state(row),
                row.tries or "",
                row.reason or "",
            )
            for row in rows
        ],
        empty="Nothing waits in the outbox.",
    )


def _once(app_name: str, *, json_: bool) -> None:
    from penstock.app.loading import load_app
    from penstock.app.relays import counts, relay_once
    from penstock.app.telemetry import open_reports
    from penstock.events import Bus, tell_nobody

    with load_app(app_name) as found:
        heard = open_reports(
            found.settings, worker=found.worker, process="relay", on_error=found.on_error, tell=tell_nobody
        )
        with heard.told():
            relayed = relay_once(found, tell=Bus(*heard.listeners).emit)
        left, refused = counts(found)
    if json_:
        print_json({"sent": relayed.sent, "left": left, "refused": refused})
    else:
        rest = f", {left:,} left, {refused:,} of them refused: `penstock outbox list` says why" if left else ""
        print(f"{counted(relayed.sent, 'message')} sent{rest}.")
    if left:
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def _state(row: "WaitingRow") -> str:
    if row.sending:
        return "being sent"
    return f"again in {row.due_in_seconds:,.0f} s" if row.due_in_seconds else "waits"


inbox_app = typer.Typer(
    help="The inboxes of an app: which messages took effect in its own database.", no_args_is_help=True
)


@inbox_app.callback()
def _root() -> None:
    """The inboxes of an app: which messages took effect in its own database."""


@inbox_app.command()
def forget(
    app_name: Annotated[str, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.")],
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Longer ago than this, such as 14d.")
    ] = "14d",
    json_: Json = False,
) -> None:
    """Delete what was recorded longer ago. A message that comes again after that takes effect again."""
    from penstock.app.loading import load_app
    from penstock.app.relays import forget_inbox

    seconds = duration("--older-than", older_than)
    with load_app(app_name) as found:
        count = forget_inbox(found, older_than_seconds=seconds)
    if json_:
        print_json({"forgotten": count})
    else:
        print(f"{counted(count, 'message')} forgotten.")
