"""`penstock dead`: the group of commands for dead letters, with its lists."""

import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.queues import messages_in
from penstock.app.scope import Scope
from penstock.cli.dead import acting, files, options, show
from penstock.cli.dead.documents import (
    dead_letter_document,
    group_document,
    object_document,
    print_dead_letter,
    print_groups,
    print_object,
)
from penstock.cli.dead.options import FilterOptions, QueueArgument
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.where import ScopeOptions, print_each
from penstock.errors import UsageError
from penstock.operations.dead_letters.selection import DeadLetterSelection, grouped, select_in_queue, selected_queues
from penstock.operations.inspection import FailedObjectRow, ScopeView, view

if TYPE_CHECKING:
    from penstock.dead_letters.groups import Grouping
    from penstock.dead_letters.reader import DeadLetteredMessage

GROUPS_SHOWN = 100
FIRST_PAGE = 10  # groups that are shown while the rest is counted

app = typer.Typer(no_args_is_help=True)


@app.command("list")
@grouped_options
def list_(
    where: ScopeOptions,
    which: FilterOptions,
    queue_name: QueueArgument = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="Maximum number per queue and pipeline.")
    ] = 100,
    json_: Json = False,
) -> None:
    """List dead letters, oldest first, and failed objects, with the reason.

    With --json also traceback, group and attributes. With a filter: dead letters alone.
    """
    which = which.with_queue(queue_name)
    documents: list[dict[str, Any]] = []
    print_each(
        where.scopes(), lambda scope: documents.extend(_listed(scope, where, which, limit, quiet=json_)), quiet=json_
    )
    if json_:
        print_json(documents)


def _listed(
    scope: Scope, where: ScopeOptions, which: FilterOptions, limit: int, *, quiet: bool
) -> list[dict[str, Any]]:
    """Print the dead letters and failed objects of a scope, unless ``quiet``; return them as documents."""
    selection = which.to_selection()
    unfiltered = selection.wanted.is_empty and selection.queue is None and selection.tier is None
    with view(scope) as seen:
        cut: list[str] = []
        dead_letters, nowhere = _selected(seen, selection, limit, cut)
        objects = _objects(seen, limit, cut) if unfiltered else []
    if nowhere is not None and not (unfiltered and (where.pipeline or where.request.app or objects)):
        raise nowhere  # nothing but dead letters could have been shown
    if not quiet:
        _print(dead_letters, objects, of_all=scope.table is None)
    for more in cut:
        talk(printable(f"And {more}; --limit shows more."))
    if nowhere is not None:
        talk(printable(str(nowhere)))
    elif not quiet and not dead_letters and not objects:
        talk("No dead letters.")
    return [*map(dead_letter_document, dead_letters), *map(object_document, objects)]


@app.command()
@grouped_options
def groups(
    where: ScopeOptions,
    which: FilterOptions,
    queue_name: QueueArgument = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="Maximum number of groups.")] = GROUPS_SHOWN,
    json_: Json = False,
) -> None:
    """Group dead letters by their error, the most frequent first, with count, first time, queue and an example.

    The name of a group can be given to --error.
    """
    which = which.with_queue(queue_name)
    selection = which.to_selection()
    documents: list[dict[str, Any]] = []

    def show_of(scope: Scope) -> None:
        with view(scope) as seen:
            options.warn_of_hiding(seen, selection)
            with options.progress("grouping", total=None, bar=False) as on_progress:
                grouping = grouped(seen, selection, on_progress=on_progress, first=_print_first)
        found = grouping.groups()
        others = grouping.others + sum(group.count for group in found[limit:])
        shown = found[:limit]
        documents.append(
            {"dead_letters": grouping.dead_letters, "groups": [*map(group_document, shown)], "others": others}
        )
        if json_:
            return
        print_groups(shown, empty="No dead letters.")
        if others:
            talk(f"And {options.dead_letter_count(others)} of other errors; --limit shows more groups.")

    scopes = where.scopes()
    print_each(scopes, show_of, quiet=json_)
    if json_:
        print_json(
            documents[0]
            if len(documents) == 1
            else {
                "dead_letters": sum(group["dead_letters"] for group in documents),
                "groups": sorted(
                    (group for one in documents for group in one["groups"]), key=lambda group: -group["count"]
                ),
                "others": sum(group["others"] for group in documents),
            }
        )


app.command()(show.show)
app.command()(acting.replay)
app.command()(acting.purge)
app.command("export")(files.export)
app.command("import")(files.import_)


def _print_first(grouping: "Grouping") -> None:
    """Print the counts so far to a person who waits."""
    if not sys.stderr.isatty():
        return
    talk(f"After the first {options.dead_letter_count(grouping.dead_letters)}; counting on:")
    for group in grouping.groups()[:FIRST_PAGE]:
        talk(printable(f"{group.count:>9,}  {group.key}"))


def _selected(
    seen: ScopeView, selection: DeadLetterSelection, limit: int, cut: list[str]
) -> tuple[list["DeadLetteredMessage"], UsageError | None]:
    """Return the dead letters, and the error if no queue is known.

    Appends to ``cut`` for queues that hold more than the limit.
    """
    try:
        queues = selected_queues(seen, selection)
    except UsageError as error:
        if selection.queue is not None:
            raise
        return [], error
    dead_letters: list[DeadLetteredMessage] = []
    for name in queues:
        with closing(select_in_queue(seen.broker, name, selection.wanted)) as found:
            dead_letters += islice(found, limit)
            if next(found, None) is not None:
                cut.append(_more(seen, selection, name, limit))
    if dead_letters:
        options.warn_of_hiding(seen, selection)
    return dead_letters, None


def _more(seen: ScopeView, selection: DeadLetterSelection, queue: str, limit: int) -> str:
    """Return how many more there are, if the broker knows that without reading them."""
    left = 0
    if selection.wanted.is_empty and seen.broker.capabilities.exact_stats:
        left = messages_in(seen.broker, queue) - limit
    return f"{left:,} more in {queue}" if left > 0 else f"more in {queue}"


def _objects(seen: ScopeView, limit: int, cut: list[str]) -> list[FailedObjectRow]:
    objects: list[FailedObjectRow] = []
    for pipeline in seen.pipelines():
        found = seen.failed_objects(pipeline)
        objects += islice(found, limit)
        if next(found, None) is not None:
            cut.append(f"more failed objects of {pipeline}")
    return objects


def _print(dead_letters: "Sequence[DeadLetteredMessage]", objects: Sequence[FailedObjectRow], *, of_all: bool) -> None:
    for dead_letter in dead_letters:
        print_dead_letter(dead_letter)
    for dead in objects:
        print_object(dead, pipeline=f" of {dead.pipeline}" if of_all else "")
