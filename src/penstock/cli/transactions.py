"""`penstock admin outbox` and `inbox`: send or list messages in an app's outboxes; delete old inbox records."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.loading import load_app
from penstock.app.relays import counts, forget_inbox, relay_once, waiting_rows
from penstock.app.telemetry import open_reports
from penstock.cli.apps import AppArgument, AppOption, required_app
from penstock.cli.exits import CHECK_FOUND_PROBLEMS, stoppable
from penstock.cli.options import duration
from penstock.cli.output import Json, print_json, print_table, talk
from penstock.errors import UsageError
from penstock.events import Bus, ignore
from penstock.messaging.wording import counted
from penstock.operations.relay import run_relays

if TYPE_CHECKING:
    from penstock.transactions.store import WaitingRow


outbox_app = typer.Typer(no_args_is_help=True)


@outbox_app.command()
def relay(
    app: AppArgument = None,
    app_option: AppOption = None,
    once: Annotated[bool, typer.Option("--once", help="Try every row once, and exit.")] = False,
    json_: Json = False,
) -> None:
    """Send the messages in the outboxes until SIGTERM or Ctrl-C, as every worker of the app does too.

    With --once every row is tried once, also refused ones. Exit code 3: rows are left.
    """
    app_name = required_app(app, app_option)
    if once:
        _once(app_name, json_=json_)
        return
    if json_:
        raise UsageError("--json is for the report of --once; without it, see the log.")
    with stoppable() as stop:
        run_relays(load_app(app_name), stop=stop)


@outbox_app.command("list")
def list_(
    app: AppArgument = None,
    app_option: AppOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Maximum number.")] = 100,
    json_: Json = False,
) -> None:
    """List the messages in the outboxes, oldest first, with the reason if the broker refused one."""
    with load_app(required_app(app, app_option)) as found:
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
    with load_app(app_name) as found:
        telemetry = open_reports(
            found.settings, worker=found.worker, process="relay", on_error=found.on_error, emit=ignore
        )
        with telemetry.running():
            relayed = relay_once(found, emit=Bus(*telemetry.listeners).emit)
        left, refused = counts(found)
    if json_:
        print_json({"sent": relayed.sent, "left": left, "refused": refused})
    else:
        rest = f", {left:,} left, {refused:,} of them refused: `penstock admin outbox list` says why" if left else ""
        print(f"{counted(relayed.sent, 'message')} sent{rest}.")
    if left:
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def _state(row: "WaitingRow") -> str:
    if row.sending:
        return "being sent"
    return f"again in {row.due_in_seconds:,.0f} s" if row.due_in_seconds else "waits"


inbox_app = typer.Typer(no_args_is_help=True)


@inbox_app.command()
def forget(
    app: AppArgument = None,
    app_option: AppOption = None,
    older_than: Annotated[str, typer.Option("--older-than", metavar="TIME", help="Minimum age, such as 14d.")] = "14d",
    json_: Json = False,
) -> None:
    """Delete old inbox records. A message that is delivered again after that takes effect again."""
    seconds = duration("--older-than", older_than)
    with load_app(required_app(app, app_option)) as found:
        count = forget_inbox(found, older_than_seconds=seconds)
    if json_:
        print_json({"forgotten": count})
    else:
        print(f"{counted(count, 'message')} forgotten.")
