"""What verbs print: data to stdout, talk to stderr; one JSON document with ``--json``, tables for people without."""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
Table = Annotated[
    str | None, typer.Option("--table", help="The table's folder; by default the one here or the only one below here.")
]
StateFolder = Annotated[str | None, typer.Option("--state", help="The state folder, where it is not TABLE/_penstock.")]


def print_json(document: Any) -> None:
    """One document, unescaped Unicode, to stdout."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def talk(text: str) -> None:
    """A line for the person at the terminal; not data."""
    print(text, file=sys.stderr, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table to stdout; the sentence ``empty`` to stderr where there is nothing to show."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = [[Text(printable(str(cell))) for cell in row] for row in rows]
    if not shown:
        talk(empty)
        return
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in shown:
        table.add_row(*row)
    console = Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 400)
    console.print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values, a line each, to stdout."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        sys.stdout.write(f"{name:<{width}}  {printable(str(value))}\n")


def printable(text: str) -> str:
    """Text from outside on one line: control characters, terminal escapes among them, are shown and not obeyed."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def moment(epoch_seconds: float | None) -> str:
    """A time for people: UTC, to the second; empty for None."""
    if epoch_seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(epoch_seconds))
