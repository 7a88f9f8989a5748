"""Command groups that import a command's module only when the command is used, or its own help is shown."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

MARKUP: Final = "markdown"  # of all help texts


@contextmanager
def no_collections() -> Iterator[None]:
    """Turn Python's garbage collector off in the block, for imports.

    Their objects stay, and the collector would visit them again and again, which takes a quarter of the time in which
    `penstock ingest` imports its 800 modules (measured).
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """A command that the help of its group lists without importing the command's module."""

    name: str
    help: str  # one line; a function's docstring begins with it
    target: str  # MODULE:ATTRIBUTE of a function that Typer can call, or of a `typer.Typer`
    panel: str | None = None  # of the group's help

    def load(self) -> Any:
        """Import the module and return the command, as Typer makes it."""
        module, _, attribute = self.target.partition(":")
        with no_collections():
            found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            found.rich_markup_mode = MARKUP
            command: Any = get_group(found)
            command.help = self.help
        else:
            single = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
            single.command(self.name)(found)
            command = get_command(single)
        command.name = self.name
        return command


class LazyGroup(TyperGroup):
    """A group of `LazyCommand`s. A subclass names them in ``lazy_commands``; Typer makes the group itself.

    ``moved`` maps a former command to its present one, for the error message. A command of two words is one that now
    would be a command with an argument.
    """

    lazy_commands: ClassVar[Sequence[LazyCommand]] = ()
    moved: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lazy = {name.name: name for name in self.lazy_commands}
        for name in self.lazy_commands:  # placeholders, which only the help of this group sees
            self.add_command(TyperCommand(name.name, help=name.help, rich_help_panel=name.panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for former in (" ".join(args[:2]), *args[:1]):
            if former in self.moved and former not in self.commands:
                ctx.fail(f"No such command '{former}'. Did you mean 'penstock {self.moved[former]}'?")
        name, _, rest = super().resolve_command(ctx, args)
        return name, self.load(str(name)), rest

    def load(self, name: str) -> Any:
        """Return a command of this group, ready to run."""
        return self._lazy[name].load() if name in self._lazy else self.commands[name]
