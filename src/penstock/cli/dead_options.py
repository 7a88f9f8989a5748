"""What the verbs of `penstock dead` have in common: what they refuse, what they say of ids and of looks, progress."""

import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.cli.output import counted, printable, talk
from penstock.cli.pace import Pace
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.dead_letters import Asked
    from penstock.app.inspect import View
    from penstock.replay.operator import Told

HIDDEN = (
    "SQS shows a dead letter only to who receives it: those looked at are hidden from the replayer and everybody else "
    "until this ends, and each look counts as a receive."
)


def must_say_something(given: Mapping[str, str | None]) -> None:
    """Raise `UsageError` for an option that is empty: in a script, mostly a variable that is."""
    for option, text in given.items():
        if text == "":
            raise UsageError(f"{option} is empty: say what is meant, or leave the option out.")


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


@contextmanager
def progress(doing: str, *, total: int | None, bar: bool = True, what: str = "letters") -> "Iterator[Told]":
    """A bar on a terminal, else a line now and then."""
    if not (bar and sys.stderr.isatty()):
        yield _Lines(doing, total, what)
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

    def __init__(self, doing: str, total: int | None, what: str) -> None:
        self._doing = doing
        self._what = what
        self._of = "" if total is None else f" of {total:,}"
        self._done = 0
        self._pace = Pace()

    def __call__(self, count: int) -> None:
        self._done += count
        if self._pace.is_due():
            talk(f"{self._doing}: {self._done:,}{self._of} {self._what}")


def letters_said(count: int) -> str:
    """1 dead letter, 2,000 dead letters."""
    return counted(count, "dead letter")
