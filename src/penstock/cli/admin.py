"""`penstock admin`: the group of commands for maintenance and for operators."""

from collections.abc import Mapping
from typing import ClassVar

import typer

from penstock.cli.commands import ADMIN_COMMANDS
from penstock.cli.lazy import LazyGroup


class AdminGroup(LazyGroup):
    """`penstock admin`."""

    lazy_commands = ADMIN_COMMANDS
    moved: ClassVar[Mapping[str, str]] = {"demo": "demo"}


app = typer.Typer(cls=AdminGroup, no_args_is_help=True)
