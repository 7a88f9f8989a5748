"""`penstock dead replay` and `purge`: sending dead letters back, and deleting them."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import asking, dead_options
from penstock.cli.dead_moving import move_all
from penstock.cli.dead_reports import print_plan, print_report, tell_plan
from penstock.cli.dead_which import Limit, Which
from penstock.cli.exits import CHECK_FOUND_PROBLEMS, FAILED, TEMPORARY_FAILURE
from penstock.cli.option_groups import grouped_options
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.where import Where
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.dead_letters import Asked, Plan
    from penstock.app.inspect import View

CANARY_SECONDS = 300.0  # as in `penstock.app.dead_acting`; not imported from there, to keep `--help` quick


@grouped_options
def replay(
    where: Where,
    which: Which,
    limit: Limit = None,
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
    yes: asking.Yes = False,
    json_: Json = False,
) -> None:
    """Send dead letters back to the queues they came from, of both tiers, with their automatic replays counted anew.

    Asks first. With --canary 1 one letter goes ahead, and the others only once it is settled and not dead again. Run
    twice it sends nothing twice. Exit code 1: of none it is known where it belongs; 3: a canary died; 75: it was not
    settled in time; 130: stopped, run it again to go on.
    """
    from penstock.app.dead_acting import HowToReplay, Replaying
    from penstock.app.dead_letters import opened_ledger
    from penstock.app.inspect import view
    from penstock.app.kill import killing_probe
    from penstock.cli.leaving import stoppable, stopped_code
    from penstock.config import load_settings

    asked = which.asked(limit=limit)
    dead_options.must_say_something({"--to": to})
    if not (yes or dry_run or move):
        asking.must_be_told("dead replay")
    scope = where.scope()
    if move:
        if canary or dry_run:
            raise UsageError("--move takes neither --canary nor --dry-run: SQS moves the whole queue at once.")
        move_all(scope, asked, to=to, rate=rate, yes=yes, json_=json_)
        return
    total: int | None = None
    with view(scope) as seen:
        dead_options.say_hidden(seen, asked)
        if not yes or dry_run:
            planned = _planned(seen, asked, to=to, goes=True, dry_run=dry_run, json_=json_)
            total = planned.letters - planned.homeless
            if total and not asking.confirmed(f"Send {dead_options.letters_said(total)} back?"):
                raise asking.declined("sent")
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
    if which.object_ is not None and report.found_none:
        talk("No dead letter announces that object; `penstock objects retry` announces dead objects anew.")
    if report.outcome == "interrupted":
        raise typer.Exit(stopped_code(stop))
    if report.outcome != "done":
        raise typer.Exit(CHECK_FOUND_PROBLEMS if report.outcome == "canary died" else TEMPORARY_FAILURE)
    if dead_options.say_unmet(asked, report.ids_met, count=report.sent):
        raise typer.Exit(UsageError.exit_code)
    if report.sent_none:
        raise typer.Exit(FAILED)


@grouped_options
def purge(
    where: Where,
    which: Which,
    limit: Limit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, delete nothing.")] = False,
    yes: asking.Yes = False,
    json_: Json = False,
) -> None:
    """Delete dead letters for good. Asks for their number first; without any filter --queue or --tier is needed.

    `penstock dead export --remove` keeps them in a file.
    """
    from penstock.app import dead_acting
    from penstock.app.dead_letters import opened_ledger
    from penstock.app.inspect import view
    from penstock.cli.leaving import stoppable, stopped_code

    asked = which.asked(limit=limit)
    if asked.wanted.asks_nothing and asked.queue is None and asked.tier is None:
        raise UsageError("That would delete every dead letter of every queue: say which, such as --queue or --error.")
    if not (yes or dry_run):
        asking.must_be_told("dead purge")
    total: int | None = None
    with view(where.scope()) as seen:
        dead_options.say_hidden(seen, asked)
        if not yes or dry_run:
            total = _planned(seen, asked, to=None, goes=False, dry_run=dry_run, json_=json_).letters
            question = f"Delete {dead_options.letters_said(total)} for good?"
            if total and not asking.confirmed(question, typed=str(total)):
                raise asking.declined("deleted")
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
        raise typer.Exit(stopped_code(stop))
    if dead_options.say_unmet(asked, purged.ids_met, count=purged.letters):
        raise typer.Exit(UsageError.exit_code)


def _planned(seen: "View", asked: "Asked", *, to: str | None, goes: bool, dry_run: bool, json_: bool) -> "Plan":
    """What would be done, told to who is about to be asked. Ends the verb where that was all that was wanted, and where
    ids are named and none of them is a letter's."""
    from penstock.app.dead_letters import plan

    planned = plan(seen, asked, to=to)
    if dead_options.say_unmet(asked, planned.ids_met, count=planned.letters):
        raise typer.Exit(UsageError.exit_code)
    if dry_run:
        print_plan(planned, json_=json_, goes=goes)
        raise typer.Exit
    tell_plan(planned, goes=goes)
    return planned
