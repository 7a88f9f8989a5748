"""What the verbs of `penstock dead` have in common: filters, the question before anything is done, and progress."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.exits import FAILED, INTERRUPTED, TEMPORARY_FAILURE
from penstock.cli.output import counted, printable, talk
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.dead_letters import Asked
    from penstock.app.inspect import View
    from penstock.app.scope import Scope
    from penstock.replay.operator import Told
    from penstock.worker.shutdown import StopSignal

LINE_EVERY_SECONDS = 5.0
HIDDEN = (
    "SQS shows a dead letter only to who receives it: those looked at are hidden from the replayer and everybody else "
    "until this ends, and each look counts as a receive."
)

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
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def asked_of(
    *,
    queue: str | None,
    tier: Tier | None,
    handler: str | None,
    error: str | None,
    older_than: str | None,
    younger_than: str | None,
    attribute: Sequence[str] | None,
    object_: str | None,
    ids: Sequence[str] | None,
    limit: int | None = None,
) -> "Asked":
    """What the options mean. Raises `UsageError` for one that means nothing."""
    from penstock.app.dead_letters import Asked
    from penstock.replay.filters import Wanted

    pairs = [pair.partition("=") for pair in attribute or ()]
    if wrong := next(("".join(pair) for pair in pairs if not (pair[0] and pair[1])), None):
        raise UsageError(f"--attribute {wrong} is no NAME=VALUE.")
    given = {"--error": error, "--handler": handler, "--queue": queue, "--object": object_}
    must_say_something({**given, "--id": next((id for id in ids or () if not id), None)})
    wanted = Wanted(
        handler=handler,
        error=error,
        older_than_seconds=_seconds("--older-than", older_than),
        younger_than_seconds=_seconds("--younger-than", younger_than),
        attributes={name: value for name, _, value in pairs},
        object_uri=None if object_ is None else _address(object_),
        ids=frozenset(ids or ()),
    )
    return Asked(queue=queue, tier=tier, wanted=wanted, limit=limit)


def must_say_something(given: Mapping[str, str | None]) -> None:
    """Raise `UsageError` for an option that is empty: in a script, mostly a variable that is."""
    for option, text in given.items():
        if text == "":
            raise UsageError(f"{option} is empty: say what is meant, or leave the option out.")


def scope_of(
    table: str | None, state: str | None, pipeline: str | None, app_name: str | None, *, make: bool = False
) -> "Scope":
    """Where to look, as everywhere; what is to be made need not be there."""
    from penstock.app.scope import Asked, find_scope

    return find_scope(Asked(table=table, state=state, pipeline=pipeline, app=app_name), here=Path.cwd(), make=make)


def say_hidden(seen: "View", asked: "Asked") -> None:
    """What a look costs where there is no other way. Raises `UsageError` where nobody knows where to look."""
    from penstock.app.dead_letters import letter_queues

    if not seen.broker.capabilities.browsable and letter_queues(seen, asked):
        talk(HIDDEN)


def say_unmet(asked: "Asked", met: Set[str], *, count: int) -> bool:
    """Which of the ids that were named are of none of the letters, of which so many were met; answers whether all are
    so. Where the limit ended the search nobody knows."""
    unmet = sorted(asked.wanted.ids - met)
    if not unmet or (asked.limit is not None and count >= asked.limit):
        return False
    talk(printable(f"There is no such dead letter: {', '.join(unmet)}; `penstock dead list` shows those there are."))
    return not met


def must_be_told(verb: str) -> None:
    """Raise `UsageError` where nobody is there to say yes."""
    if not sys.stdin.isatty():
        raise UsageError(f"`penstock dead {verb}` asks first, and nobody is there to ask; give --yes, or --dry-run.")


def confirmed(question: str, *, typed: str = "") -> bool:
    """Asks; with ``typed`` only that text is a yes."""
    talk(printable(f"{question} [{f'type {typed}' if typed else 'y/N'}]"))
    answer = sys.stdin.readline().strip().lower().replace(",", "")
    return answer == typed if typed else answer in ("y", "yes")


def declined(what: str) -> typer.Exit:
    """The end of a verb that was not confirmed."""
    talk(f"Nothing was {what}.")
    return typer.Exit(FAILED)


def leave_interrupted(stop: "StopSignal") -> typer.Exit:
    """The end of a verb that a signal stopped."""
    import signal

    return typer.Exit(INTERRUPTED if stop.signal_number == signal.SIGINT else TEMPORARY_FAILURE)


@contextmanager
def progress(doing: str, *, total: int | None, bar: bool = True) -> "Iterator[Told]":
    """A bar on a terminal, else a line now and then."""
    if not (bar and sys.stderr.isatty()):
        yield _Lines(doing, total)
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


class _Lines:
    """How many are done, said every few seconds."""

    def __init__(self, doing: str, total: int | None) -> None:
        self._doing = doing
        self._of = "" if total is None else f" of {total:,}"
        self._done = 0
        self._said_at = time.monotonic()

    def __call__(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._said_at >= LINE_EVERY_SECONDS:
            self._said_at = now
            talk(f"{self._doing}: {self._done:,}{self._of} letters")


def letters_said(count: int) -> str:
    """1 dead letter, 2,000 dead letters."""
    return counted(count, "dead letter")


def _seconds(option: str, text: str | None) -> float | None:
    from penstock.handlers.durations import seconds_of

    return None if text is None else seconds_of(option, text)


def _address(uri: str) -> str:
    from penstock.objects.reference import LOCAL_BUCKET, uri_of

    return uri if "://" in uri else uri_of(LOCAL_BUCKET, str(Path(uri).resolve()))
