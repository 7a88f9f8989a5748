"""What the verbs of `penstock dead` have in common: what they refuse, what they say of ids and of looks, progress.

Which dead letters a verb means: the options that the verbs of `penstock dead` share.
"""

import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.options import duration_if
from penstock.cli.output import counted, printable, talk
from penstock.cli.progress import ProgressPace
from penstock.cli.where import object_uri
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.dead_letters.operator import Told
    from penstock.operations.dead_letters.letters import DeadLetterSelection
    from penstock.operations.inspection import ScopeView


HIDDEN = (
    "SQS shows a dead letter only to who receives it: those looked at are hidden from the replayer and everybody else "
    "until this ends, and each look counts as a receive."
)


def must_say_something(given: Mapping[str, str | None]) -> None:
    """Raise `UsageError` for an option that is empty: in a script, mostly a variable that is."""
    for option, text in given.items():
        if text == "":
            raise UsageError(f"{option} is empty: say what is meant, or leave the option out.")


def say_hidden(seen: "ScopeView", asked: "DeadLetterSelection") -> None:
    """What a look costs where there is no other way. Raises `UsageError` where nobody knows where to look."""
    from penstock.operations.dead_letters.letters import letter_queues

    if not seen.broker.capabilities.browsable and letter_queues(seen, asked):
        talk(HIDDEN)


def say_unmet(asked: "DeadLetterSelection", met: Set[str], *, count: int) -> bool:
    """Which of the ids that were named are of none of the letters, of which so many were met; answers whether all are
    so. Where the limit ended the search nobody knows."""
    unmet = sorted(asked.wanted.ids - met)
    if not unmet or (asked.limit is not None and count >= asked.limit):
        return False
    talk(printable(f"There is no such dead letter: {', '.join(unmet)}; `penstock dead list` shows those there are."))
    return not met


@contextmanager
def progress(doing: str, *, total: int | None, bar: bool = True, what: str = "letters") -> "Iterator[Told]":
    """A bar on a terminal, else a line now and then."""
    if not (bar and sys.stderr.isatty()):
        yield _ActProgress(doing, total, what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(doing, total=total)

        def told(count: int) -> None:
            with suppress(OSError):  # the terminal has gone
                shown.update(task, advance=count)

        yield told


class _ActProgress:
    """How many are done, said every few seconds."""

    def __init__(self, doing: str, total: int | None, what: str) -> None:
        self._doing = doing
        self._what = what
        self._of = "" if total is None else f" of {total:,}"
        self._done = 0
        self._pace = ProgressPace()

    def __call__(self, count: int) -> None:
        self._done += count
        if self._pace.is_due():
            talk(f"{self._doing}: {self._done:,}{self._of} {self._what}")


def letters_said(count: int) -> str:
    """1 dead letter, 2,000 dead letters."""
    return counted(count, "dead letter")


Tier = Literal["dlq", "dead"]
Queue = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="Letters of this queue alone: its name, or where they lie."),
]
TierOption = Annotated[
    Tier | None, typer.Option("--tier", help="dlq: those that are replayed by themselves; dead: those for people.")
]
Handler = Annotated[str | None, typer.Option("--handler", metavar="NAME", help="Given up on by this handler.")]
Error = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="TEXT", help="Text of the reason or exception, or a group as `dead groups` has it."
    ),
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="TIME", help="Dead for longer: seconds, or such as 2h, 3d.")
]
YoungerThan = Annotated[str | None, typer.Option("--younger-than", metavar="TIME", help="Dead for less.")]
Attribute = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="NAME=VALUE", help="With this attribute; may be given several times."),
]
Object = Annotated[
    str | None, typer.Option("--object", metavar="URI", help="Announcing this object: s3://BUCKET/KEY, or a path.")
]
Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="This one; may be given several times.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many letters.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """The filters."""

    queue: Queue = None
    tier: TierOption = None
    handler: Handler = None
    error: Error = None
    older_than: OlderThan = None
    younger_than: YoungerThan = None
    attribute: Attribute = None
    object_: Object = None
    ids: Ids = None

    def asked(self, *, limit: int | None = None) -> "DeadLetterSelection":
        """What the options mean. Raises `UsageError` for one that means nothing."""
        from penstock.dead_letters.filters import DeadLetterFilter
        from penstock.operations.dead_letters.letters import DeadLetterSelection

        pairs = [pair.partition("=") for pair in self.attribute or ()]
        if wrong := next(("".join(pair) for pair in pairs if not (pair[0] and pair[1])), None):
            raise UsageError(f"--attribute {wrong} is no NAME=VALUE.")
        given = {"--error": self.error, "--handler": self.handler, "--queue": self.queue, "--object": self.object_}
        must_say_something({**given, "--id": next((id for id in self.ids or () if not id), None)})
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
