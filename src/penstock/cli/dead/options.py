"""Options, checks, warnings and progress that the commands of `penstock dead` share."""

import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.cli.options import duration_if, object_uri
from penstock.cli.output import printable, talk
from penstock.cli.progress import ProgressPace
from penstock.dead_letters.filters import DeadLetterFilter
from penstock.errors import UsageError
from penstock.messaging.wording import counted
from penstock.operations.dead_letters.selection import DeadLetterSelection, selected_queues

if TYPE_CHECKING:
    from penstock.dead_letters.operator import ProgressCallback
    from penstock.operations.inspection import ScopeView


HIDDEN = (
    "SQS can only read a message by receiving it: dead letters that are read are hidden from the replayer and other "
    "readers until this command ends, and each read counts as a receive."
)


def refuse_empty(given: Mapping[str, str | None]) -> None:
    """Raise `UsageError` for an option that is empty: in a script, mostly an unset variable."""
    for option, text in given.items():
        if text == "":
            raise UsageError(f"{option} is empty: give it a value, or leave the option out.")


def warn_of_hiding(seen: "ScopeView", selection: DeadLetterSelection) -> None:
    """Warn if reading dead letters hides them from others. Raises `UsageError` if no queue is known."""
    if not seen.broker.capabilities.browsable and selected_queues(seen, selection):
        talk(HIDDEN)


def report_unmatched(selection: DeadLetterSelection, met: Set[str], *, count: int) -> bool:
    """Report the named ids that no dead letter has; return True if that is all of them.

    ``count`` is the number of dead letters found. At the limit the search ended early, so nothing is reported.
    """
    unmet = sorted(selection.wanted.ids - met)
    if not unmet or (selection.limit is not None and count >= selection.limit):
        return False
    talk(printable(f"There is no such dead letter: {', '.join(unmet)}; `penstock dead list` lists all."))
    return not met


@contextmanager
def progress(
    doing: str, *, total: int | None, bar: bool = True, unit: str = "dead letters"
) -> "Iterator[ProgressCallback]":
    """Show progress: a bar on a terminal, else a line at intervals."""
    if not (bar and sys.stderr.isatty()):
        yield _CountProgress(doing, total, unit)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(doing, total=total)

        def on_progress(count: int) -> None:
            with suppress(OSError):  # the terminal is gone
                shown.update(task, advance=count)

        yield on_progress


class _CountProgress:
    """Print the count so far every few seconds."""

    def __init__(self, doing: str, total: int | None, unit: str) -> None:
        self._doing = doing
        self._unit = unit
        self._of = "" if total is None else f" of {total:,}"
        self._done = 0
        self._pace = ProgressPace()

    def __call__(self, count: int) -> None:
        self._done += count
        if self._pace.begin_if_due():
            talk(f"{self._doing}: {self._done:,}{self._of} {self._unit}")


def dead_letter_count(count: int) -> str:
    """Return the text 1 dead letter, 2,000 dead letters."""
    return counted(count, "dead letter")


Tier = Literal["dlq", "dead"]
Queue = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="The name of the queue, or of its DLQ; the same as QUEUE."),
]
QueueArgument = Annotated[
    str | None,
    typer.Argument(metavar="QUEUE", help="The name of the queue, or of its DLQ; default: all.", show_default=False),
]
TierOption = Annotated[
    Tier | None, typer.Option("--tier", help="dlq: replayed automatically; dead: waiting for a person.")
]
Handler = Annotated[str | None, typer.Option("--handler", metavar="NAME", help="The handler that failed.")]
Error = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="Text in reason or exception, or the name of a group."),
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="TIME", help="Dead for longer than this, such as 2h or 3d.")
]
YoungerThan = Annotated[str | None, typer.Option("--younger-than", metavar="TIME", help="Dead for less than this.")]
Attribute = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="NAME=VALUE", help="An attribute; may be repeated."),
]
Object = Annotated[
    str | None, typer.Option("--object", metavar="URI", help="The object that it names: s3://BUCKET/KEY, or a path.")
]
Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="The id of a message; may be repeated.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of dead letters.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """The filters for dead letters."""

    queue: Queue = None
    tier: TierOption = None
    handler: Handler = None
    error: Error = None
    older_than: OlderThan = None
    younger_than: YoungerThan = None
    attribute: Attribute = None
    object_: Object = None
    ids: Ids = None

    def with_queue(self, argument: str | None) -> "FilterOptions":
        """Return these filters with the positional argument QUEUE. Raises `UsageError` if --queue differs."""
        if argument and self.queue and argument != self.queue:
            raise UsageError(f"QUEUE is {argument} and --queue is {self.queue}: name one queue.")
        return replace(self, queue=self.queue if argument is None else argument)

    def to_selection(self, *, limit: int | None = None) -> DeadLetterSelection:
        """Return the selection of these options. Raises `UsageError` for an empty or malformed one."""
        pairs = [pair.partition("=") for pair in self.attribute or ()]
        if wrong := next(("".join(pair) for pair in pairs if not (pair[0] and pair[1])), None):
            raise UsageError(f"--attribute {wrong} is not of the form NAME=VALUE.")
        given = {"--error": self.error, "--handler": self.handler, "--queue": self.queue, "--object": self.object_}
        refuse_empty({**given, "--id": next((id for id in self.ids or () if not id), None)})
        wanted = DeadLetterFilter(
            handler=self.handler,
            error=self.error,
            older_than_seconds=duration_if("--older-than", self.older_than),
            younger_than_seconds=duration_if("--younger-than", self.younger_than),
            attributes={name: value for name, _, value in pairs},
            object_uri=None if self.object_ is None else object_uri(self.object_),
            ids=frozenset(self.ids or ()),
        )
        return DeadLetterSelection(queue=self.queue, tier=self.tier, wanted=wanted, limit=limit)
