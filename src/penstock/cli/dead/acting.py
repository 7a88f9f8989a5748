"""`penstock dead replay` and `purge`: send dead letters back, or delete them; their plans and reports.

`replay --move` lets SQS move whole queues.
"""

from contextlib import closing
from typing import Annotated, Any

import typer

from penstock.app.kill import killing_probe
from penstock.app.scope import Scope
from penstock.cli import output
from penstock.cli.dead import options
from penstock.cli.dead.documents import plan_document, print_groups
from penstock.cli.dead.options import FilterOptions, Limit, QueueArgument
from penstock.cli.exits import CHECK_FOUND_PROBLEMS, FAILED, TEMPORARY_FAILURE, stoppable, stopped_code
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, print_table, printable, talk
from penstock.cli.where import ScopeOptions
from penstock.config import load_settings
from penstock.errors import UsageError
from penstock.operations.dead_letters import actions
from penstock.operations.dead_letters.actions import (
    CANARY_SECONDS,
    ReplayOperation,
    ReplayOptions,
    ReplayReport,
    check_movable,
    move,
)
from penstock.operations.dead_letters.selection import (
    DeadLetterPlan,
    DeadLetterSelection,
    opened_ledger,
    plan,
    selected_queues,
)
from penstock.operations.inspection import ScopeView, view

GROUPS_SHOWN = 10  # of a plan
HOMELESS = "left: their queue of origin is unknown or does not exist; give --to QUEUE"


@grouped_options
def replay(
    where: ScopeOptions,
    which: FilterOptions,
    queue_name: QueueArgument = None,
    limit: Limit = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="QUEUE", help="The destination; default: the queue each came from.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", min=0.01, help="Maximum number of messages per second.")
    ] = None,
    canary: Annotated[
        int, typer.Option("--canary", metavar="N", min=0, max=100, help="Send this many ahead, and watch them.")
    ] = 0,
    canary_timeout: Annotated[
        float, typer.Option("--canary-timeout", metavar="SECONDS", min=1, help="How long to watch a canary.")
    ] = CANARY_SECONDS,
    move: Annotated[bool, typer.Option("--move", help="On SQS: let SQS move whole queues; only with --queue.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, send nothing.")] = False,
    yes: output.Yes = False,
    json_: Json = False,
) -> None:
    """Send dead letters from QUEUE-dlq and QUEUE-dead back to their queues.

    Their automatic replays are counted from zero. Asks first. With --canary 1, one message is sent ahead, and the
    others only if it is processed. Repeating the command sends nothing twice. Exit code 1: no message's origin is
    known; 3: a canary failed again; 75: a canary was not settled in time; 130: stopped, run it again to continue.
    """
    which = which.with_queue(queue_name)
    selection = which.to_selection(limit=limit)
    options.refuse_empty({"--to": to})
    if not (yes or dry_run or move):
        output.require_terminal("dead replay")
    scope = where.scope()
    if move:
        if canary or dry_run:
            raise UsageError("--move takes neither --canary nor --dry-run: SQS moves the whole queue at once.")
        move_all(scope, selection, to=to, rate=rate, yes=yes, json_=json_)
        return
    total: int | None = None
    with view(scope) as seen:
        options.warn_of_hiding(seen, selection)
        if not yes or dry_run:
            planned = _planned(seen, selection, to=to, goes=True, dry_run=dry_run, json_=json_)
            total = planned.dead_letters - planned.without_origin
            if total and not output.confirmed(f"Send {options.dead_letter_count(total)} back?"):
                raise output.declined("sent")
        how = ReplayOptions(to=to, rate=rate, canaries=canary, canary_seconds=canary_timeout)
        probe = killing_probe(load_settings().kill_at)
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            options.progress("sending", total=total) as on_progress,
        ):
            replaying = ReplayOperation(
                seen,
                selection,
                how,
                ledger=ledger,
                stopped=lambda: stop.requested,
                on_progress=on_progress,
                probe=probe,
            )
            report = replaying.run(say=lambda text: talk(printable(text)))
    print_report(report, json_=json_)
    if which.object_ is not None and report.found_none:
        talk("No dead letter names that object; `penstock objects retry` sends notifications for failed objects again.")
    if report.outcome == "interrupted":
        raise typer.Exit(stopped_code(stop))
    if report.outcome != "done":
        raise typer.Exit(CHECK_FOUND_PROBLEMS if report.outcome == "canary died" else TEMPORARY_FAILURE)
    if options.report_unmatched(selection, report.ids_met, count=report.sent):
        raise typer.Exit(UsageError.exit_code)
    if report.sent_none:
        raise typer.Exit(FAILED)


@grouped_options
def purge(
    where: ScopeOptions,
    which: FilterOptions,
    queue_name: QueueArgument = None,
    limit: Limit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, delete nothing.")] = False,
    yes: output.Yes = False,
    json_: Json = False,
) -> None:
    """Delete dead letters for good.

    Asks for their number first. Without a filter, --queue or --tier is required. `penstock dead export --remove` keeps
    them in a file.
    """
    which = which.with_queue(queue_name)
    selection = which.to_selection(limit=limit)
    if selection.wanted.is_empty and selection.queue is None and selection.tier is None:
        raise UsageError(
            "That would delete every dead letter of every queue: select some, with --queue or --error for example."
        )
    if not (yes or dry_run):
        output.require_terminal("dead purge")
    total: int | None = None
    with view(where.scope()) as seen:
        options.warn_of_hiding(seen, selection)
        if not yes or dry_run:
            total = _planned(seen, selection, to=None, goes=False, dry_run=dry_run, json_=json_).dead_letters
            question = f"Delete {options.dead_letter_count(total)} for good?"
            if total and not output.confirmed(question, typed=str(total)):
                raise output.declined("deleted")
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            options.progress("deleting", total=total) as on_progress,
        ):
            purged = actions.purge(
                seen, selection, ledger=ledger, stopped=lambda: stop.requested, on_progress=on_progress
            )
    if json_:
        print_json({"deleted": purged.dead_letters, "interrupted": stop.requested})
    else:
        print(f"{options.dead_letter_count(purged.dead_letters)} deleted.")
    if stop.requested:
        raise typer.Exit(stopped_code(stop))
    if options.report_unmatched(selection, purged.ids_met, count=purged.dead_letters):
        raise typer.Exit(UsageError.exit_code)


def print_plan(planned: DeadLetterPlan, *, json_: bool, goes: bool) -> None:
    """Print a plan, as a table or JSON. ``goes``: it has destinations."""
    if json_:
        print_json(plan_document(planned))
        return
    columns = ("dead letters", "in", "to") if goes else ("dead letters", "in")
    print_table(
        columns,
        [(count, source, to or HOMELESS)[: len(columns)] for (source, to), count in _flows(planned)],
        empty="No such dead letters.",
    )
    if planned.dead_letters:
        print()
        print_groups(planned.groups)


def print_plan_summary(planned: DeadLetterPlan, *, goes: bool) -> None:
    """Print a short plan to stderr, before the confirmation."""
    for (source, to), count in _flows(planned):
        way = f" -> {to or HOMELESS}" if goes else ""
        talk(printable(f"{count:>9,}  {source}{way}"))
    for group in planned.groups[:GROUPS_SHOWN]:
        talk(printable(f"{group.count:>9,}  {group.key}"))


def print_report(report: ReplayReport, *, json_: bool) -> None:
    """Print the report of a replay, as text or JSON."""
    if json_:
        print_json(replay_document(report))
        return
    where = ", ".join(f"{queue} {count:,}" for queue, count in report.by_queue.items())
    print(printable(f"{options.dead_letter_count(report.sent)} sent back{f' ({where})' if where else ''}."))
    if report.sent_before:
        before = options.dead_letter_count(report.sent_before)
        print(f"{before} had been sent before, by a replay that was cut short: deleted.")
    if report.without_origin:
        print(f"{options.dead_letter_count(report.without_origin)} {HOMELESS}.")
    if report.refused:
        print(printable(f"{options.dead_letter_count(report.refused)} left: the queue refuses them: {report.refusal}"))


def replay_document(report: ReplayReport) -> dict[str, Any]:
    """Return the report as a JSON document."""
    return {
        "sent": report.sent,
        "sent_before": report.sent_before,
        "left_without_queue": report.without_origin,
        "refused": report.refused,
        "by_queue": report.by_queue,
        "canaries": [{"status": result.status, "text": result.text} for result in report.canary_results],
        "outcome": report.outcome,
    }


def _flows(planned: DeadLetterPlan) -> list[tuple[tuple[str, str | None], int]]:
    return sorted(planned.by_queue.items(), key=lambda flow: -flow[1])


def move_all(
    scope: Scope, selection: DeadLetterSelection, *, to: str | None, rate: float | None, yes: bool, json_: bool
) -> None:
    """Ask for confirmation, let SQS move the queues, and print the report."""
    with view(scope) as seen:
        check_movable(seen, selection, to=to)
        if not yes:
            output.require_terminal("dead replay --move", options="--yes")
            queues = selected_queues(seen, selection)
            about = sum(seen.broker.stats(queue).visible for queue in queues)
            if not output.confirmed(f"Move all dead letters of {', '.join(queues)}, about {about:,}?"):
                raise output.declined("moved")
        with (
            stoppable() as stop,
            closing(opened_ledger(seen)) as ledger,
            options.progress("moving", total=None) as on_progress,
        ):
            moved = move(
                seen,
                selection,
                to=to,
                rate=rate,
                ledger=ledger,
                stopped=lambda: stop.requested,
                on_progress=on_progress,
            )
    if json_:
        print_json({"moved": moved, "interrupted": stop.requested})
    else:
        print(f"{options.dead_letter_count(moved)} moved.")
    if stop.requested:
        raise typer.Exit(stopped_code(stop))


def _planned(
    seen: ScopeView, selection: DeadLetterSelection, *, to: str | None, goes: bool, dry_run: bool, json_: bool
) -> DeadLetterPlan:
    """Print the plan for the confirmation and return it.

    Exits after a dry run, and if ids were named of which no dead letter exists.
    """
    planned = plan(seen, selection, to=to, goes=goes)
    if options.report_unmatched(selection, planned.ids_met, count=planned.dead_letters):
        raise typer.Exit(UsageError.exit_code)
    if dry_run:
        print_plan(planned, json_=json_, goes=goes)
        raise typer.Exit
    print_plan_summary(planned, goes=goes)
    return planned
