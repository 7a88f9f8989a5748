"""`penstock`: the root command, and the one place where an error becomes a sentence and an exit code.

Verbs import what they need when they run, so that `penstock --help` stays quick.
"""

import sys
from typing import NoReturn

import typer

from penstock.cli import batches, dead, demo, doctor, gc, ingest, objects, status
from penstock.errors import PenstockError

INTERRUPTED = 130
DEFECT = 1

app = typer.Typer(
    name="penstock",
    help="Reliable queue consumers, and objects into an exactly-once table on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ingest")(ingest.ingest)
app.command("demo")(demo.demo)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.command("gc")(gc.gc)
app.add_typer(objects.app, name="objects")
app.add_typer(batches.app, name="batches")
app.add_typer(dead.app, name="dead")


def main() -> NoReturn:
    """Run the command line; never returns. Exit codes: 0 done, 1 failed, 2 usage, 3 a check found problems,
    75 temporary failure, 78 bad configuration, 130 interrupted."""
    try:
        app()
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("penstock: interrupted; nothing is lost, run it again to go on", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.exit(DEFECT)  # whoever read our output has gone
    sys.exit(0)
