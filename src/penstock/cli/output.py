"""Output of commands: data to stdout, notes to stderr; one JSON document with ``--json``, otherwise tables.

Also confirmations.
"""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from penstock.cli.exits import FAILED
from penstock.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
UNFOLDED_COLUMNS = 100_000  # wider than any table: programs get one row per line
PADDED_MAX = 40  # of a column for programs: a longer cell pads no other


def print_json(document: Any) -> None:
    """Print one document to stdout, with non-ASCII characters if the encoding has them."""
    escape = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(document, ensure_ascii=escape, indent=2) + "\n")


def talk(text: str) -> None:
    """Print a note to stderr. A closed stderr is no failure."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table to stdout, or the sentence ``empty`` to stderr if there are no rows.

    On a terminal, columns that are empty in every row are omitted to save width.
    """
    shown = [[printable(str(cell)) for cell in row] for row in rows]
    if not shown:
        talk(empty)
        return
    if not sys.stdout.isatty():
        _print_unfolded([columns, *shown])
        return
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    kept = [index for index in range(len(columns)) if any(row[index] for row in shown)]
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for index in kept:
        longest_word = max(map(len, columns[index].split()))
        table.add_column(columns[index], overflow="fold", min_width=longest_word)
    for row in shown:
        table.add_row(*(Text(row[index]) for index in kept))
    Console().print(table)


def _print_unfolded(lines: Sequence[Sequence[str]]) -> None:
    """Print one row per line, each cell complete. Columns are aligned as far as their cells are short."""
    widths = [max(len(cell) for cell in cells if len(cell) <= PADDED_MAX) for cells in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def print_fields(fields: Mapping[str, object]) -> None:
    """Print names and values to stdout, one per line. Fields without a value are omitted."""
    shown = [(printable(name), printable(str(value))) for name, value in fields.items()]  # queues have foreign names
    width = max(len(name) for name, _ in shown)
    for name, text in shown:
        if text:
            sys.stdout.write(f"{name:<{width}}  {text}\n")


def printable(text: str) -> str:
    """Return foreign text on one line, with control characters and terminal escapes made visible."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def moment(epoch_seconds: float | None) -> str:
    """Return a time as UTC text, to the second; empty for None.

    A forged time outside the calendar is printed as a number.
    """
    if epoch_seconds is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(epoch_seconds))
    except (OverflowError, ValueError, OSError):
        return f"{epoch_seconds:g} s"


def transform_text(name: str | None) -> str:
    """Return the recorded name of a transform: none if it is empty, and nothing if it is unknown."""
    return "none" if name == "" else name or ""


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def require_terminal(verb: str, *, options: str = "--yes, or --dry-run") -> None:
    """Raise `UsageError` if there is no terminal for the confirmation."""
    if not sys.stdin.isatty():
        raise UsageError(f"`penstock {verb}` asks for confirmation, and there is no terminal; give {options}.")


def confirmed(question: str, *, typed: str = "") -> bool:
    """Ask, and return True if the answer is yes; with ``typed``, if it is that text."""
    talk(printable(f"{question} [{f'type {typed}' if typed else 'y/N'}]"))
    typed_text = sys.stdin.readline().strip().lower().replace(",", "")
    return typed_text == typed if typed else typed_text in ("y", "yes")


def declined(done: str) -> typer.Exit:
    """Return the exit of a command that was not confirmed."""
    talk(f"Nothing was {done}.")
    return typer.Exit(FAILED)
