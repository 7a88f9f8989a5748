"""What a replay or purge of dead letters would do, and what a replay did, in words and as JSON."""

from typing import TYPE_CHECKING, Any

from penstock.cli import dead_options
from penstock.cli.dead_documents import plan_document, print_groups
from penstock.cli.output import print_json, print_table, printable, talk

if TYPE_CHECKING:
    from penstock.app.dead_acting import ReplayReport
    from penstock.app.dead_letters import Plan

GROUPS_SHOWN = 10  # of a plan
HOMELESS = "left: nothing tells where they belong, or that queue is not there; give --to QUEUE"


def print_plan(planned: "Plan", *, json_: bool, goes: bool) -> None:
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


def tell_plan(planned: "Plan", *, goes: bool) -> None:
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
    print(printable(f"{dead_options.letters_said(report.sent)} sent back{f' ({where})' if where else ''}."))
    if report.sent_before:
        before = dead_options.letters_said(report.sent_before)
        print(f"{before} had been sent before, by a replay that was cut short: deleted.")
    if report.homeless:
        print(f"{dead_options.letters_said(report.homeless)} {HOMELESS}.")
    if report.refused:
        print(printable(f"{dead_options.letters_said(report.refused)} left: the queue refuses them: {report.refusal}"))


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


def _flows(planned: "Plan") -> list[tuple[tuple[str, str | None], int]]:
    return sorted(planned.by_queue.items(), key=lambda flow: -flow[1])
