"""`penstock`: the root command, and the only place that turns an error into a sentence and an exit code.

The modules of commands are imported when they are used, so that `penstock --help` stays quick.
"""

import errno
import os
import sys
import tempfile
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from penstock.cli.commands import ADMIN_COMMANDS, COMMANDS
from penstock.cli.exits import FAILED, INTERRUPTED, TEMPORARY_FAILURE, ignore_handled_signals, leave
from penstock.cli.lazy import MARKUP, LazyGroup
from penstock.cli.output import printable, talk
from penstock.cli.streams import deliver, prepare_streams
from penstock.errors import PenstockError

PREFIX = "PENSTOCK_"  # of the settings in the environment
MAY_PASS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})


class RootGroup(LazyGroup):
    """`penstock`."""

    lazy_commands = COMMANDS
    moved = {command.name: f"admin {command.name}" for command in ADMIN_COMMANDS} | {
        "top": "status --watch",
        "worker run": "worker APP",
        "worker ps": "admin workers list",
        "worker drain": "admin workers drain",
        "worker stop": "admin workers stop",
    }


app = typer.Typer(
    name="penstock",
    cls=RootGroup,
    help="Run queue consumers, and load files into Delta or Iceberg tables exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"penstock {version('penstock')}")
        except PackageNotFoundError:
            print("penstock, run from its source without being installed")
        raise typer.Exit


def _print_script(wanted: bool) -> None:
    if wanted:
        print(Path(__file__).parents[1] / "__main__.py")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    _script: Annotated[
        bool,
        typer.Option(
            "--script",
            callback=_print_script,
            is_eager=True,
            help="Print the path of the file to give to spark-submit, and exit.",
        ),
    ] = False,
) -> None:
    """Run queue consumers, and load files into Delta or Iceberg tables exactly once."""
    _warn_of_unknown_variables()


def _warn_of_unknown_variables() -> None:
    """Warn of PENSTOCK_ variables that are not settings, mostly typing errors. Does not change the exit code."""
    is_child = "--lifeline" in sys.argv  # its supervisor has warned
    if is_child or not any(name.upper().startswith(PREFIX) for name in os.environ):
        return
    from penstock.config import unknown_variables  # slow to import

    for variable in unknown_variables():
        talk(printable(f"Warning: {variable}"))


def main() -> NoReturn:
    """Run the command line; never returns.

    Exit codes: 0 done, 1 failed, 2 usage, 3 a check found problems, 75 temporary failure, 78 bad configuration, 130
    interrupted.
    """
    prepare_streams()
    exit_code = _run()
    if (failure := deliver()) is not None and exit_code == 0:
        exit_code = FAILED if isinstance(failure, BrokenPipeError) else _system_error(failure)
    ignore_handled_signals()
    leave(exit_code)


def _run() -> int:
    try:
        app(prog_name="penstock")
    except SystemExit as end:  # Typer ends every command with one
        exit_code = end.code if isinstance(end.code, int) else FAILED
        if exit_code == INTERRUPTED:
            talk("penstock: interrupted; nothing is lost, run it again to continue")
        return exit_code
    except PenstockError as error:
        if not error.is_logged:
            talk(f"penstock: {printable(str(error))}")
        return error.exit_code
    except OSError as error:
        return _system_error(error)
    except Exception as defect:
        return _report_defect(defect)
    return 0


def _system_error(error: OSError) -> int:
    """Report an error of the operating system in its own words, without a traceback."""
    where = f"{error.filename}: " if error.filename is not None else ""
    talk(printable(f"penstock: {where}{error.strerror or error}; nothing is lost, fix that and run it again"))
    return TEMPORARY_FAILURE if error.errno in MAY_PASS else FAILED


def _report_defect(defect: Exception) -> int:
    """Report a defect of Penstock: a sentence at the terminal, and the traceback in a file."""
    with tempfile.NamedTemporaryFile("w", prefix="penstock-", suffix=".traceback", delete=False) as file:
        traceback.print_exception(defect, file=file)
    text = printable(f"{type(defect).__name__}: {defect}")
    talk(f"penstock: this is a bug in Penstock ({text}); please report it with the traceback in {file.name}")
    return FAILED
