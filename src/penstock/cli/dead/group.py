"""`penstock dead`: what was given up on, and why; and what to do with it."""

import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.dead import acting, files, options, show
from penstock.cli.dead.documents import (
    group_document,
    letter_document,
    object_document,
    print_groups,
    print_letter,
    print_object,
)
from penstock.cli.dead.options import FilterOptions
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.where import ScopeOptions, print_each
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.scope import Scope
    from penstock.dead_letters.groups import Grouping
    from penstock.dead_letters.letters import DeadLetteredMessage
    from penstock.operations.dead_letters.letters import DeadLetterSelection
    from penstock.operations.inspection import GivenUpObject, ScopeView

GROUPS_SHOWN = 100
FIRST_PAGE = 10  # groups, while the rest is counted

app = typer.Typer(help="Dead letters: messages and objects that were given up on.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Dead letters: messages and objects that were given up on."""


@app.command("list")
@grouped_options
def list_(
    where: ScopeOptions,
    which: FilterOptions,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="At most so many a queue, and a pipeline.")
    ] = 100,
    json_: Json = False,
) -> None:
    """List dead letters, oldest first, and dead objects, with the reason; --json has also traceback, group and
    attributes. With a filter: letters alone."""
    documents: list[dict[str, Any]] = []
    print_each(
        where.scopes(), lambda scope: documents.extend(_listed(scope, where, which, limit, quiet=json_)), quiet=json_
    )
    if json_:
        print_json(documents)


def _listed(
    scope: "Scope", where: ScopeOptions, which: FilterOptions, limit: int, *, quiet: bool
) -> list[dict[str, Any]]:
    """Print the dead of a scope, unless ``quiet``; return them as documents."""
    from penstock.operations.inspection import view

    asked = which.asked()
    unfiltered = asked.wanted.asks_nothing and asked.queue is None and asked.tier is None
    with view(scope) as seen:
        cut: list[str] = []
        letters, nowhere = _letters(seen, asked, limit, cut)
        objects = _objects(seen, limit, cut) if unfiltered else []
    if nowhere is not None and not (unfiltered and (where.pipeline or where.app_name or objects)):
        raise nowhere  # letters were all that could be shown
    if not quiet:
        _print(letters, objects, of_all=scope.table is None)
    for more in cut:
        talk(printable(f"And {more}; --limit shows more."))
    if nowhere is not None:
        talk(printable(str(nowhere)))
    elif not quiet and not letters and not objects:
        talk("No dead letters.")
    return [*map(letter_document, letters), *map(object_document, objects)]


@app.command()
@grouped_options
def groups(
    where: ScopeOptions,
    which: FilterOptions,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="At most so many groups.")] = GROUPS_SHOWN,
    json_: Json = False,
) -> None:
    """Group dead letters by what they died of, the most frequent first: how many, since when, where, and one of them.

    What a group is called is what --error finds its letters by.
    """
    from penstock.operations.dead_letters.letters import grouped
    from penstock.operations.inspection import view

    asked = which.asked()
    documents: list[dict[str, Any]] = []

    def show_of(scope: "Scope") -> None:
        with view(scope) as seen:
            options.say_hidden(seen, asked)
            with options.progress("grouping", total=None, bar=False) as told:
                grouping = grouped(seen, asked, told=told, first=_tell_first)
        found = grouping.groups()
        others = grouping.others + sum(group.count for group in found[limit:])
        shown = found[:limit]
        documents.append({"letters": grouping.letters, "groups": [*map(group_document, shown)], "others": others})
        if json_:
            return
        print_groups(shown, empty="No dead letters.")
        if others:
            talk(f"And {options.letters_said(others)} of other errors; --limit shows more groups.")

    scopes = where.scopes()
    print_each(scopes, show_of, quiet=json_)
    if json_:
        print_json(
            documents[0]
            if len(documents) == 1
            else {
                "letters": sum(one["letters"] for one in documents),
                "groups": sorted(
                    (group for one in documents for group in one["groups"]), key=lambda group: -group["count"]
                ),
                "others": sum(one["others"] for one in documents),
            }
        )


app.command()(show.show)
app.command()(acting.replay)
app.command()(acting.purge)
app.command("export")(files.export)
app.command("import")(files.import_)


def _tell_first(grouping: "Grouping") -> None:
    """To a person who waits, what was counted so far."""
    if not sys.stderr.isatty():
        return
    talk(f"After the first {options.letters_said(grouping.letters)}; counting on:")
    for group in grouping.groups()[:FIRST_PAGE]:
        talk(printable(f"{group.count:>9,}  {group.key}"))


def _letters(
    seen: "ScopeView", asked: "DeadLetterSelection", limit: int, cut: list[str]
) -> tuple[list["DeadLetteredMessage"], UsageError | None]:
    """And why none could be looked for, where nobody says in which queues; ``cut`` is told of more than are shown."""
    from penstock.operations.dead_letters.letters import letter_queues, letters_of_queue

    try:
        queues = letter_queues(seen, asked)
    except UsageError as error:
        if asked.queue is not None:
            raise
        return [], error
    letters: list[DeadLetteredMessage] = []
    for name in queues:
        with closing(letters_of_queue(seen.broker, name, asked.wanted)) as found:
            letters += islice(found, limit)
            if next(found, None) is not None:
                cut.append(_more(seen, asked, name, limit))
    if letters:
        options.say_hidden(seen, asked)
    return letters, None


def _more(seen: "ScopeView", asked: "DeadLetterSelection", queue: str, limit: int) -> str:
    """How many, where that costs no look at each."""
    from penstock.app.queues import messages_in

    left = 0
    if asked.wanted.asks_nothing and seen.broker.capabilities.exact_stats:
        left = messages_in(seen.broker, queue) - limit
    return f"{left:,} more in {queue}" if left > 0 else f"more in {queue}"


def _objects(seen: "ScopeView", limit: int, cut: list[str]) -> list["GivenUpObject"]:
    objects: list[GivenUpObject] = []
    for pipeline in seen.pipelines():
        found = seen.dead_objects(pipeline)
        objects += islice(found, limit)
        if next(found, None) is not None:
            cut.append(f"more dead objects of {pipeline}")
    return objects


def _print(letters: "Sequence[DeadLetteredMessage]", objects: "Sequence[GivenUpObject]", *, of_all: bool) -> None:
    for letter in letters:
        print_letter(letter)
    for dead in objects:
        print_object(dead, whose=f" of {dead.pipeline}" if of_all else "")
