"""`penstock`: the root command, and the one place where an error becomes a sentence and an exit code.

Verbs import what they need when they run, so that `penstock --help` stays quick.
"""

import errno
import sys
from typing import Annotated, NoReturn

import typer

from penstock.cli import (
    audit,
    batches,
    cleanup,
    config,
    demo,
    doctor,
    ingest,
    init,
    ledger,
    logs,
    monitor,
    objects,
    queues,
    reconcile,
    repair,
    replayer,
    run,
    send,
    status,
    tables,
    top,
    transactions,
    worker,
)
from penstock.cli.dead import group
from penstock.cli.exits import FAILED, INTERRUPTED, TEMPORARY_FAILURE
from penstock.cli.output import printable, talk
from penstock.cli.streams import deliver, prepare_streams
from penstock.errors import PenstockError

MAY_PASS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})

app = typer.Typer(
    name="penstock",
    help="Reliable queue consumers, and objects into an exactly-once table on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ingest")(ingest.ingest)
app.command("run")(run.run)
app.command("demo")(demo.demo)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.command("gc")(tables.gc)
app.command("reconcile")(reconcile.reconcile)
app.command("compact")(tables.compact)
app.command("publish")(tables.publish)
app.command("repair")(repair.repair)
app.command("replayer")(replayer.replayer)
app.command("monitor")(monitor.monitor)
app.command("cleanup")(cleanup.cleanup)
app.command("init")(init.init)
app.command("send")(send.send)
app.command("audit")(audit.audit)
app.add_typer(objects.app, name="objects")
app.add_typer(ledger.app, name="ledger")
app.add_typer(batches.app, name="batches")
app.add_typer(group.app, name="dead")
app.add_typer(worker.app, name="worker")
app.add_typer(queues.app, name="queues")
app.add_typer(transactions.outbox_app, name="outbox")
app.add_typer(transactions.inbox_app, name="inbox")
app.add_typer(config.app, name="config")
app.add_typer(logs.app, name="logs")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"penstock {version('penstock')}")
        except PackageNotFoundError:
            print("penstock, run from its source without being installed")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Reliable queue consumers, and objects into an exactly-once table on Spark."""


def main() -> NoReturn:
    """Run the command line; never returns. Exit codes: 0 done, 1 failed, 2 usage, 3 a check found problems,
    75 temporary failure, 78 bad configuration, 130 interrupted."""
    prepare_streams()
    exit_code = _run()
    if (failure := deliver()) is not None and exit_code == 0:
        exit_code = FAILED if isinstance(failure, BrokenPipeError) else _told_by_the_system(failure)
    sys.exit(exit_code)


def _run() -> int:
    try:
        app(prog_name="penstock")
    except SystemExit as end:  # Typer ends every verb with one
        exit_code = end.code if isinstance(end.code, int) else FAILED
        if exit_code == INTERRUPTED:
            talk("penstock: interrupted; nothing is lost, run it again to go on")
        return exit_code
    except PenstockError as error:
        talk(f"penstock: {printable(str(error))}")
        return error.exit_code
    except OSError as error:
        return _told_by_the_system(error)
    except Exception as defect:
        return _reported(defect)
    return 0


def _told_by_the_system(error: OSError) -> int:
    """What the operating system refused, in its words: it needs no traceback to be understood."""
    where = f"{error.filename}: " if error.filename is not None else ""
    talk(printable(f"penstock: {where}{error.strerror or error}; nothing is lost, run it again when that is mended"))
    return TEMPORARY_FAILURE if error.errno in MAY_PASS else FAILED


def _reported(defect: Exception) -> int:
    """A defect of ours: the sentence for the person at the terminal, the traceback for the report."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="penstock-", suffix=".traceback", delete=False) as file:
        traceback.print_exception(defect, file=file)
    words = printable(f"{type(defect).__name__}: {defect}")
    talk(f"penstock: this is a defect of Penstock ({words}); please report it with the traceback in {file.name}")
    return FAILED
