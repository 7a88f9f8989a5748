"""`penstock dead replay` and `purge`: sending dead letters back, and deleting them.

What a replay or purge of dead letters would do, and what a replay did, in words and as JSON.

`penstock dead replay --move`: SQS's own way back for whole queues.
"""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.dead import options
from penstock.cli.dead.documents import plan_document, print_groups
from penstock.cli.dead.options import FilterOptions, Limit
from penstock.cli.exits import CHECK_FOUND_PROBLEMS, FAILED, TEMPORARY_FAILURE
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, print_table, printable, talk
from penstock.cli.where import ScopeOptions
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.scope import Scope
    from penstock.operations.dead_letters.acting import ReplayReport
    from penstock.operations.dead_letters.letters import DeadLetterPlan, DeadLetterSelection
    from penstock.operations.inspection import ScopeView


GROUPS_SHOWN = 10  # of a plan
HOMELESS = "left: nothing tells where they belong, or that queue is not there; give --to QUEUE"


def print_plan(planned: "DeadLetterPlan", *, json_: bool, goes: bool) -> None:
    """What would be done; ``goes``: and where to."""
    if json_:
        print_json(plan_document(planned))
        return
    columns = ("letters", "in", "to") if goes else ("letters", "in")
    print_table(
        columns,
        [(count, source, to or HOMELESS)[: len(columns)] for (source, to), count in _flows(planned)],
        empty="No such dead letters.",
    )
    if planned.letters:
        print()
        print_groups(planned.groups)


def tell_plan(planned: "DeadLetterPlan", *, goes: bool) -> None:
    """The same in brief, to who is about to be asked."""
    for (source, to), count in _flows(planned):
        way = f" -> {to or HOMELESS}" if goes else ""
        talk(printable(f"{count:>9,}  {source}{way}"))
    for group in planned.groups[:GROUPS_SHOWN]:
        talk(printable(f"{group.count:>9,}  {group.key}"))


def print_report(report: "ReplayReport", *, json_: bool) -> None:
    """What was done."""
    if json_:
        print_json(replay_document(report))
        return
    where = ", ".join(f"{queue} {count:,}" for queue, count in report.by_queue.items())
    print(printable(f"{options.letters_said(report.sent)} sent back{f' ({where})' if where else ''}."))
    if report.sent_before:
        before = options.letters_said(report.sent_before)
        print(f"{before} had been sent before, by a replay that was cut short: deleted.")
    if report.homeless:
        print(f"{options.letters_said(report.homeless)} {HOMELESS}.")
    if report.refused:
        print(printable(f"{options.letters_said(report.refused)} left: the queue refuses them: {report.refusal}"))


def replay_document(report: "ReplayReport") -> dict[str, Any]:
    """The same as a document."""
    return {
        "sent": report.sent,
        "sent_before": report.sent_before,
        "left_without_queue": report.homeless,
        "refused": report.refused,
        "by_queue": report.by_queue,
        "canaries": [{"verdict": fate.verdict, "told": fate.told} for fate in report.fates],
        "outcome": report.outcome,
    }


def _flows(planned: "DeadLetterPlan") -> list[tuple[tuple[str, str | None], int]]:
    return sorted(planned.by_queue.items(), key=lambda flow: -flow[1])


def move_all(
    scope: "Scope", asked: "DeadLetterSelection", *, to: str | None, rate: float | None, yes: bool, json_: bool
) -> None:
    """Ask, move, and report."""
    from penstock.cli.exits import stoppable, stopped_code
    from penstock.operations.dead_letters.acting import check_movable, move
    from penstock.operations.dead_letters.letters import letter_queues, opened_ledger
    from penstock.operations.inspection import view

    with view(scope) as seen:
        check_movable(seen, asked, to=to)
        if not yes:
            output.must_be_told("dead replay --move", options="--yes")
            queues = letter_queues(seen, asked)
            about = sum(seen.broker.stats(queue).visible for queue in queues)
            if not output.confirmed(f"Move all letters of {', '.join(queues)}, about {about:,}?"):
                raise output.declined("moved")
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            options.progress("moving", total=None) as told,
        ):
            moved = move(seen, asked, to=to, rate=rate, ledger=ledger, stopped=lambda: stop.requested, told=told)
    if json_:
        print_json({"moved": moved, "interrupted": stop.requested})
    else:
        print(f"{options.letters_said(moved)} moved.")
    if stop.requested:
        raise typer.Exit(stopped_code(stop))


CANARY_SECONDS = (
    300.0  # as in `penstock.operations.dead_letters.acting`; not imported from there, to keep `--help` quick
)


@grouped_options
def replay(
    where: ScopeOptions,
    which: FilterOptions,
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
    yes: output.Yes = False,
    json_: Json = False,
) -> None:
    """Send dead letters back to the queues they came from, of both tiers, with their automatic replays counted anew.

    Asks first. With --canary 1 one letter goes ahead, and the others only once it is settled and not dead again. Run
    twice it sends nothing twice. Exit code 1: of none it is known where it belongs; 3: a canary died; 75: it was not
    settled in time; 130: stopped, run it again to go on.
    """
    from penstock.app.kill import killing_probe
    from penstock.cli.exits import stoppable, stopped_code
    from penstock.config import load_settings
    from penstock.operations.dead_letters.acting import ReplayOperation, ReplayOptions
    from penstock.operations.dead_letters.letters import opened_ledger
    from penstock.operations.inspection import view

    asked = which.asked(limit=limit)
    options.must_say_something({"--to": to})
    if not (yes or dry_run or move):
        output.must_be_told("dead replay")
    scope = where.scope()
    if move:
        if canary or dry_run:
            raise UsageError("--move takes neither --canary nor --dry-run: SQS moves the whole queue at once.")
        move_all(scope, asked, to=to, rate=rate, yes=yes, json_=json_)
        return
    total: int | None = None
    with view(scope) as seen:
        options.say_hidden(seen, asked)
        if not yes or dry_run:
            planned = _planned(seen, asked, to=to, goes=True, dry_run=dry_run, json_=json_)
            total = planned.letters - planned.homeless
            if total and not output.confirmed(f"Send {options.letters_said(total)} back?"):
                raise output.declined("sent")
        how = ReplayOptions(to=to, rate=rate, canaries=canary, canary_seconds=canary_timeout)
        probe = killing_probe(load_settings().kill_at)
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            options.progress("sending", total=total) as told,
        ):
            replaying = ReplayOperation(
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
    if options.say_unmet(asked, report.ids_met, count=report.sent):
        raise typer.Exit(UsageError.exit_code)
    if report.sent_none:
        raise typer.Exit(FAILED)


@grouped_options
def purge(
    where: ScopeOptions,
    which: FilterOptions,
    limit: Limit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, delete nothing.")] = False,
    yes: output.Yes = False,
    json_: Json = False,
) -> None:
    """Delete dead letters for good. Asks for their number first; without any filter --queue or --tier is needed.

    `penstock dead export --remove` keeps them in a file.
    """
    from penstock.cli.exits import stoppable, stopped_code
    from penstock.operations.dead_letters import acting
    from penstock.operations.dead_letters.letters import opened_ledger
    from penstock.operations.inspection import view

    asked = which.asked(limit=limit)
    if asked.wanted.asks_nothing and asked.queue is None and asked.tier is None:
        raise UsageError("That would delete every dead letter of every queue: say which, such as --queue or --error.")
    if not (yes or dry_run):
        output.must_be_told("dead purge")
    total: int | None = None
    with view(where.scope()) as seen:
        options.say_hidden(seen, asked)
        if not yes or dry_run:
            total = _planned(seen, asked, to=None, goes=False, dry_run=dry_run, json_=json_).letters
            question = f"Delete {options.letters_said(total)} for good?"
            if total and not output.confirmed(question, typed=str(total)):
                raise output.declined("deleted")
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            options.progress("deleting", total=total) as told,
        ):
            purged = acting.purge(seen, asked, ledger=ledger, stopped=lambda: stop.requested, told=told)
    if json_:
        print_json({"deleted": purged.letters, "interrupted": stop.requested})
    else:
        print(f"{options.letters_said(purged.letters)} deleted.")
    if stop.requested:
        raise typer.Exit(stopped_code(stop))
    if options.say_unmet(asked, purged.ids_met, count=purged.letters):
        raise typer.Exit(UsageError.exit_code)


def _planned(
    seen: "ScopeView", asked: "DeadLetterSelection", *, to: str | None, goes: bool, dry_run: bool, json_: bool
) -> "DeadLetterPlan":
    """What would be done, told to who is about to be asked. Ends the verb where that was all that was wanted, and where
    ids are named and none of them is a letter's."""
    from penstock.operations.dead_letters.letters import plan

    planned = plan(seen, asked, to=to)
    if options.say_unmet(asked, planned.ids_met, count=planned.letters):
        raise typer.Exit(UsageError.exit_code)
    if dry_run:
        print_plan(planned, json_=json_, goes=goes)
        raise typer.Exit
    tell_plan(planned, goes=goes)
    return planned
