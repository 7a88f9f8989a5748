"""`penstock admin`: the group of commands for maintenance and for operators."""

import typer

from penstock.cli.commands import ADMIN_COMMANDS
from penstock.cli.lazy import LazyGroup


class AdminGroup(LazyGroup):
    """`penstock admin`."""

    lazy_commands = ADMIN_COMMANDS


app = typer.Typer(cls=AdminGroup, no_args_is_help=True)
