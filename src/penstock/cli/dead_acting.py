"""`penstock dead replay` and `purge`: sending dead letters back, and deleting them."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import dead_options
from penstock.cli.dead_moving import move_all
from penstock.cli.dead_reports import print_plan, print_report, tell_plan
from penstock.cli.exits import CHECK_FOUND_PROBLEMS, FAILED, TEMPORARY_FAILURE
from penstock.cli.output import (
    AppName,
    Json,
    Pipeline,
    StateFolder,
    Table,
    print_json,
    printable,
    talk,
)
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.dead_letters import Asked, Plan

CANARY_SECONDS = 300.0  # as in `penstock.app.dead_acting`; not imported from there, to keep `--help` quick


def replay(
    table: Table = None,
    state: StateFolder = None,
    pipeline: Pipeline = None,
    app_name: AppName = None,
    queue: dead_options.Queue = None,
    tier: dead_options.TierOption = None,
    handler: dead_options.Handler = None,
    error: dead_options.Error = None,
    older_than: dead_options.OlderThan = None,
    younger_than: dead_options.YoungerThan = None,
    attribute: dead_options.Attribute = None,
    object_: dead_options.Object = None,
    ids: dead_options.Ids = None,
    limit: dead_options.Limit = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="QUEUE", help="Send them here; default: where each came from.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", min=0.01, help="At most so many letters a second.")
    ] = None,
    canary: Annotated[
        int, typer.Option("--canary", metavar="N", min=0, max=100, help="Send so many ahead, and watch what happens.")
    ] = 0,
    canary_timeout: Annotated[
        float, typer.Option("--canary-timeout", metavar="SECONDS", min=1, help="How long a canary is watched.")
    ] = CANARY_SECONDS,
    move: Annotated[
        bool, typer.Option("--move", help="On SQS: let it move whole queues, unchanged; only with --queue.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go where, send nothing.")] = False,
    yes: dead_options.Yes = False,
    json_: Json = False,
) -> None:
    """Send dead letters back to the queues they came from, of both tiers, with their automatic replays counted anew.

    Asks first. With --canary 1 one letter goes ahead, and the others only once it is settled and not dead again. Run
    twice it sends nothing twice. Exit code 1: of none it is known where it belongs; 3: a canary died; 75: it was not
    settled in time; 130: stopped, run it again to go on.
    """
    from penstock.app.dead_acting import HowToReplay, Replaying
    from penstock.app.dead_letters import opened_ledger, plan
    from penstock.app.inspect import view
    from penstock.app.kill import killing_probe
    from penstock.cli.leaving import stoppable
    from penstock.config import load_settings

    asked = dead_options.asked_of(
        queue=queue,
        tier=tier,
        handler=handler,
        error=error,
        older_than=older_than,
        younger_than=younger_than,
        attribute=attribute,
        object_=object_,
        ids=ids,
        limit=limit,
    )
    dead_options.must_say_something({"--to": to})
    if not (yes or dry_run or move):
        dead_options.must_be_told("replay")
    scope = dead_options.scope_of(table, state, pipeline, app_name)
    if move:
        if canary or dry_run:
            raise UsageError("--move takes neither --canary nor --dry-run: SQS moves the whole queue at once.")
        move_all(scope, asked, to=to, rate=rate, yes=yes, json_=json_)
        return
    total: int | None = None
    with view(scope) as seen:
        dead_options.say_hidden(seen, asked)
        if not yes or dry_run:
            planned = plan(seen, asked, to=to)
            total = planned.letters - planned.homeless
            _must_meet(asked, planned)
            if dry_run:
                print_plan(planned, json_=json_)
                return
            if not _agreed(planned, total):
                raise dead_options.declined("sent")
        how = HowToReplay(to=to, rate=rate, canaries=canary, canary_seconds=canary_timeout)
        probe = killing_probe(load_settings().kill_at)
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            dead_options.progress("sending", total=total) as told,
        ):
            replaying = Replaying(
                seen, asked, how, ledger=ledger, stopped=lambda: stop.requested, told=told, probe=probe
            )
            report = replaying.run(say=lambda text: talk(printable(text)))
    print_report(report, json_=json_)
    if report.outcome == "interrupted":
        raise dead_options.leave_interrupted(stop)
    if report.outcome != "done":
        raise typer.Exit(CHECK_FOUND_PROBLEMS if report.outcome == "canary died" else TEMPORARY_FAILURE)
    if dead_options.say_unmet(asked, report.ids_met, count=report.sent):
        raise typer.Exit(UsageError.exit_code)
    if report.sent_none:
        raise typer.Exit(FAILED)


def purge(
    table: Table = None,
    state: StateFolder = None,
    pipeline: Pipeline = None,
    app_name: AppName = None,
    queue: dead_options.Queue = None,
    tier: dead_options.TierOption = None,
    handler: dead_options.Handler = None,
    error: dead_options.Error = None,
    older_than: dead_options.OlderThan = None,
    younger_than: dead_options.YoungerThan = None,
    attribute: dead_options.Attribute = None,
    object_: dead_options.Object = None,
    ids: dead_options.Ids = None,
    limit: dead_options.Limit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, delete nothing.")] = False,
    yes: dead_options.Yes = False,
    json_: Json = False,
) -> None:
    """Delete dead letters for good. Asks for their number first; without any filter --queue or --tier is needed.

    `penstock dead export --remove` keeps them in a file.
    """
    from penstock.app import dead_acting
    from penstock.app.dead_letters import opened_ledger, plan
    from penstock.app.inspect import view
    from penstock.cli.leaving import stoppable

    asked = dead_options.asked_of(
        queue=queue,
        tier=tier,
        handler=handler,
        error=error,
        older_than=older_than,
        younger_than=younger_than,
        attribute=attribute,
        object_=object_,
        ids=ids,
        limit=limit,
    )
    if asked.wanted.asks_nothing and queue is None and tier is None:
        raise UsageError("That would delete every dead letter of every queue: say which, such as --queue or --error.")
    if not (yes or dry_run):
        dead_options.must_be_told("purge")
    total: int | None = None
    with view(dead_options.scope_of(table, state, pipeline, app_name)) as seen:
        dead_options.say_hidden(seen, asked)
        if not yes or dry_run:
            planned = plan(seen, asked, to=None)
            total = planned.letters
            _must_meet(asked, planned)
            if dry_run:
                print_plan(planned, json_=json_, goes=False)
                return
            if not _agreed_to_delete(planned):
                raise dead_options.declined("deleted")
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            dead_options.progress("deleting", total=total) as told,
        ):
            purged = dead_acting.purge(seen, asked, ledger=ledger, stopped=lambda: stop.requested, told=told)
    if json_:
        print_json({"deleted": purged.letters, "interrupted": stop.requested})
    else:
        print(f"{dead_options.letters_said(purged.letters)} deleted.")
    if stop.requested:
        raise dead_options.leave_interrupted(stop)
    if dead_options.say_unmet(asked, purged.ids_met, count=purged.letters):
        raise typer.Exit(UsageError.exit_code)


def _must_meet(asked: "Asked", planned: "Plan") -> None:
    """Ends the verb where ids are named and none of them is a letter's."""
    if dead_options.say_unmet(asked, planned.ids_met, count=planned.letters):
        raise typer.Exit(UsageError.exit_code)


def _agreed(planned: "Plan", total: int) -> bool:
    """Where there is nothing to do nobody is asked."""
    tell_plan(planned, goes=True)
    return not total or dead_options.confirmed(f"Send {dead_options.letters_said(total)} back?")


def _agreed_to_delete(planned: "Plan") -> bool:
    tell_plan(planned, goes=False)
    return not planned.letters or dead_options.confirmed(
        f"Delete {dead_options.letters_said(planned.letters)} for good?", typed=str(planned.letters)
    )
