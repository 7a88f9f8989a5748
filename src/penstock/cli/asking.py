"""The question before what cannot be taken back."""

import sys
from typing import Annotated

import typer

from penstock.cli.exits import FAILED
from penstock.cli.output import printable, talk
from penstock.errors import UsageError

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
