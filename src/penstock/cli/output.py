"""What verbs print: data to stdout, talk to stderr; one JSON document with ``--json``, tables for people without."""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

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
