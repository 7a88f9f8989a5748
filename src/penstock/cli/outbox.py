"""`penstock outbox`: send what an app's outboxes hold, and see what waits there."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exits import CHECK_FOUND_PROBLEMS
from penstock.cli.output import Json, counted, print_json, print_table, talk
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.transactions.store import Waiting

app = typer.Typer(
    help="The outboxes of an app: what its transactions are to send, in its own database.", no_args_is_help=True
)

App = Annotated[str, typer.Argument(metavar="APP", help="module:attribute, as in shop:app.")]


@app.command()
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
    from penstock.app.transactions_process import run_relays
    from penstock.cli.leaving import stoppable

    with stoppable() as stop:
        run_relays(load_app(app_name), stop=stop)


@app.command("list")
def list_(
    app_name: App,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many.")] = 100,
    json_: Json = False,
) -> None:
    """List what waits in the outboxes, oldest first; of what the broker refused, the reason."""
    from penstock.app.loading import load_app
    from penstock.app.transactions_running import waiting_rows

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
    from penstock.app.telemetry import open_reports
    from penstock.app.transactions_running import counts, relay_once
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


def _state(row: "Waiting") -> str:
    if row.sending:
        return "being sent"
    return f"again in {row.due_in_seconds:,.0f} s" if row.due_in_seconds else "waits"
