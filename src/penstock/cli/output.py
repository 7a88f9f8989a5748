"""What verbs print: data to stdout, talk to stderr; one JSON document with ``--json``, tables for people without.

The question before what cannot be taken back.

The commands that bring failed objects back, as they can be run.
"""

import json
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.exits import FAILED
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.scope import Scope


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
UNFOLDED_COLUMNS = 100_000  # wider than any table: what is read by a program has a row a line


def print_json(document: Any) -> None:
    """One document to stdout; unescaped Unicode where the stream can say it."""
    escape = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(document, ensure_ascii=escape, indent=2) + "\n")


def talk(text: str) -> None:
    """A line for the person at the terminal; not data. Where nobody listens any more it is no reason to fail."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table to stdout; the sentence ``empty`` to stderr where there is nothing to show. Columns that are empty in
    every row are left out on a terminal, where room is short."""
    shown = [[printable(str(cell)) for cell in row] for row in rows]
    if not shown:
        talk(empty)
        return
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    terminal = sys.stdout.isatty()
    kept = [place for place in range(len(columns)) if not terminal or any(row[place] for row in shown)]
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for place in kept:
        longest_word = max(map(len, columns[place].split()))
        table.add_column(columns[place], overflow="fold", min_width=longest_word)
    for row in shown:
        table.add_row(*(Text(row[place]) for place in kept))
    Console(width=None if terminal else UNFOLDED_COLUMNS).print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values, a line each, to stdout. Fields without a value are left out."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        if text := printable(str(value)):
            sys.stdout.write(f"{name:<{width}}  {text}\n")


def printable(text: str) -> str:
    """Text from outside on one line: control characters, terminal escapes among them, are shown and not obeyed."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun: 1 object, 2,000 objects."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def moment(epoch_seconds: float | None) -> str:
    """A time for people: UTC, to the second; empty for None. One that somebody forged may be in no calendar."""
    if epoch_seconds is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(epoch_seconds))
    except (OverflowError, ValueError, OSError):
        return f"{epoch_seconds:g} s"


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def must_be_told(verb: str, *, options: str = "--yes, or --dry-run") -> None:
    """Raise `UsageError` where nobody is there to say yes."""
    if not sys.stdin.isatty():
        raise UsageError(f"`penstock {verb}` asks first, and nobody is there to ask; give {options}.")


def confirmed(question: str, *, typed: str = "") -> bool:
    """Asks; with ``typed`` only that text is a yes."""
    talk(printable(f"{question} [{f'type {typed}' if typed else 'y/N'}]"))
    answer = sys.stdin.readline().strip().lower().replace(",", "")
    return answer == typed if typed else answer in ("y", "yes")


def declined(what: str) -> typer.Exit:
    """The end of a verb that was not confirmed."""
    talk(f"Nothing was {what}.")
    return typer.Exit(FAILED)


def advice_in(scope: "Scope", *, pipeline: str, uri: str | None = None) -> str:
    """Return what to do about the failed objects of a pipeline, or about one of them."""
    is_app = scope.table is None
    options = scope.options or (f" --pipeline {shlex.quote(pipeline)}" if is_app else "")
    return advice(options, uri=uri, handler=pipeline if is_app else None, retry=not is_app or bool(scope.served))


def advice(options: str, *, uri: str | None = None, handler: str | None = None, retry: bool = True) -> str:
    """Return a sentence with the commands. ``options`` lead to the table or app, ``handler`` leaves the dead letters of
    other handlers out, ``retry`` is for where the queue of new notifications is known."""
    whose = (
        f" --object {shlex.quote(uri)}" if uri is not None else f" --handler {shlex.quote(handler)}" if handler else ""
    )
    them, letters = ("it", "letter was") if uri is not None else ("them", "letters were")
    told = f"Once the cause is repaired, `penstock dead replay{options}{whose} --yes` tries {them} again"
    if not retry:
        return f"{told}."
    named = f" {shlex.quote(uri)}" if uri is not None else ""
    return f"{told}; if the dead {letters} deleted, `penstock objects retry{options}{named} --yes` does."
