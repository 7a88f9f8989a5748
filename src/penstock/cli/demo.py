"""`penstock demo`: both halves of Penstock, each with a SIGKILL in the middle and a count at the end."""

import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.scope import Scope, ScopeRequest, find_scope
from penstock.cli.exits import FAILED, leave_now
from penstock.cli.output import Json, print_json, talk
from penstock.cli.web import dashboard_server, require_web, until_stopped
from penstock.errors import ConfigurationError
from penstock.pipeline.extra import require_spark
from penstock.sinks.registry import DEFAULT_SCHEME

if TYPE_CHECKING:
    from penstock.operations.demo.files import FileProof
    from penstock.operations.demo.messages import MessageProof
    from penstock.web.server import WebServer

DEFAULT_FOLDER = "penstock-demo"
OPEN_SECONDS = 30.0  # for a person to open the page
MESSAGES, FILES = "messages", "files"  # folders of the two halves


class Half(StrEnum):
    """A half of the demo."""

    messages = MESSAGES
    files = FILES


def demo(
    folder: Annotated[
        Path, typer.Option("--dir", help="Where the demo writes its files and its table; must be empty or absent.")
    ] = Path(DEFAULT_FOLDER),
    only: Annotated[
        Half | None, typer.Option("--only", help="Run one half: messages (without Spark), or files.")
    ] = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve the dashboard of each half while it runs, and afterwards until Ctrl-C.")
    ] = False,
    json_: Json = False,
) -> None:
    """Kill a worker, then an ingest, and prove that nothing is lost or doubled.

    First 1,000 messages with three workers, one of which is killed: ten seconds, without Spark. Then 300 files into a
    table on Spark, killed halfway and run again: a minute or two. The demo uses only its own folder and ignores the
    settings.
    """
    from penstock.operations.demo.files import check_empty

    folder = folder.expanduser().resolve()
    check_empty(folder)
    if web:
        require_web()
    if only is not Half.messages:
        require_spark(DEFAULT_SCHEME)
    document: dict[str, object] = {}
    if only is not Half.files:
        ends_here = only is Half.messages
        document[MESSAGES] = dataclasses.asdict(
            messages := _messages(folder / MESSAGES, quiet=json_, web=web, stays=ends_here)
        )
        if not messages.holds:
            _end(document, json_=json_, holds=False)
    if only is not Half.messages:
        files, report = _files(folder / FILES, quiet=json_, web=web)
        document |= {"report": report, "proof": dataclasses.asdict(files)}
        if not files.holds:
            _end(document, json_=json_, holds=False)
    if not json_:
        _print_next(folder, with_files=only is not Half.messages)
    _end(document, json_=json_, holds=True)


def _end(document: dict[str, object], *, json_: bool, holds: bool) -> None:
    if json_:
        print_json({**document, "holds": holds})
    # A process that has read a table with deltalake sometimes aborts during Python's shutdown; everything is written.
    leave_now(0 if holds else FAILED)


def _messages(folder: Path, *, quiet: bool, web: bool, stays: bool) -> "MessageProof":
    from penstock.operations.demo.messages import run_messages, settings_in, write_app

    talk("Messages: a queue, three workers, and a SIGKILL. No Spark.")
    write_app(folder)
    with _dashboard(Scope(settings=settings_in(folder)), "the messages", web=web, stays=stays):
        proof = run_messages(folder, report=lambda line: talk(f"  {line}"))
        _print_messages(proof, quiet=quiet)
    return proof


def _print_messages(proof: "MessageProof", *, quiet: bool) -> None:
    if not quiet:
        _print_counts(
            "at the kill",
            [
                ("orders recorded", proof.at_kill.recorded, proof.at_end.recorded),
                ("rejected, in the dead-letter queue", proof.at_kill.dead_lettered, proof.at_end.dead_lettered),
                ("waiting or in flight", proof.at_kill.queued, proof.at_end.queued),
                ("started a second time", proof.at_kill.started_twice, proof.at_end.started_twice),
                ("lost", "", proof.lost),
            ],
        )
        print(
            _conclusion(proof.holds, f"{proof.sent:,} sent, none lost, none recorded twice ({proof.seconds:.0f} s)"),
            flush=True,
        )


def _files(folder: Path, *, quiet: bool, web: bool) -> "tuple[FileProof, dict[str, object]]":
    from penstock.operations.demo.files import DUPLICATED, DemoPlaces, count, prepare, prove, run_ingest

    where = DemoPlaces.under(folder)
    data = prepare(where)
    talk("\nFiles: 300 access logs into a Delta table on Spark, and a SIGKILL. A minute or two.")
    talk(
        f"  {data.bad_lines} bad lines in them, one gzip file cut off, {DUPLICATED} files announced three times.\n"
        "  The first run is killed after Spark has written its second batch, before that batch is committed:"
    )
    with _dashboard(find_scope(ScopeRequest(table=str(where.tables.table)), here=folder), "the table", web=web):
        if run_ingest(where, killed=True) is not None:
            raise typer.Exit(FAILED)
        unfinished_line = "\n" if sys.stderr.isatty() else ""  # the progress bar of the killed process
        at_kill = count(where)
        talk(f"{unfinished_line}  Killed. The same command again:")
        report = run_ingest(where)
        if report is None:
            raise typer.Exit(FAILED)
        proof = prove(where, data, report, at_kill=at_kill)
        _print_files(proof, quiet=quiet)
    return proof, dict(report)


def _print_files(proof: "FileProof", *, quiet: bool) -> None:
    if not quiet:
        _print_counts(
            "at the kill",
            [
                ("Parquet files on disk", proof.at_kill.files, proof.at_end.files),
                ("named by the table", proof.at_kill.files_named, proof.at_end.files_named),
                ("rows visible", proof.at_kill.rows, proof.rows),
                ("rows twice", "", proof.rows_twice),
                ("bad lines in quarantine", "", proof.quarantined),
                ("failed files (the one cut off)", "", proof.dead),
            ],
        )
        print(_conclusion(proof.holds, f"{proof.rows_expected:,} good lines in the files, each once in the table"))


@contextmanager
def _dashboard(scope: Scope, title: str, *, web: bool, stays: bool = True) -> Iterator[None]:
    """Serve the dashboard of a half while the block runs, if it is wanted, and with ``stays`` until Ctrl-C.

    The block begins when a person has opened the page, or after a while.
    """
    if not web:
        yield
        return
    server = _opened_server(scope, title)
    try:
        talk(f"  Open {server.url} in a browser: this half begins then, or in {OPEN_SECONDS:.0f} seconds.")
        server.application.state.context.sampler.wait_for_viewer(OPEN_SECONDS)
        yield
        if stays:
            talk(f"The dashboard stays at {server.url} until Ctrl-C.")
            until_stopped()
    finally:
        server.close()


def _opened_server(scope: Scope, title: str) -> "WebServer":
    """Return a server at the usual port, or at any other if that is taken."""
    server = dashboard_server(scope, scope.settings.web_address, setting="web.address", title=title)
    try:
        server.open()
    except ConfigurationError:
        server = dashboard_server(scope, "127.0.0.1:0", setting="web.address", title=title)
        server.open()
    return server


def _conclusion(holds: bool, text: str) -> str:
    return f"Proved: {text}." if holds else "NOT as expected: please report this with the output above."


def _print_counts(first: str, rows: Sequence[tuple[str, int | str, int]]) -> None:
    """Print a table with a column of counts at the kill and one at the end."""
    print(f"\n  {'':<36}{first:>14}{'at the end':>14}")
    for name, before, after in rows:
        shown = f"{before:,}" if isinstance(before, int) else before
        print(f"  {name:<36}{shown:>14}{after:>14,}", flush=True)  # ahead of what is written to stderr next


def _print_next(folder: Path, *, with_files: bool) -> None:
    print("\nTry next:")
    print(f"  cd {_shown(folder / MESSAGES)} && {_program()} dead list     # the rejected orders, and why")
    if with_files:
        table = folder / FILES / "access_log"
        print(f"  {_program()} status --table {_shown(table)}    # the failed file, and what to do about it")
        print(f"  {_program()} web --table {_shown(table)}    # the same on a page: http://127.0.0.1:8321/")


def _program() -> str:
    """Return the command for a person to type; the demo may run in an environment that is not on PATH."""
    if shutil.which("penstock"):
        return "penstock"
    python = Path(sys.executable)
    script = python.with_name("penstock")
    return shlex.quote(str(script)) if script.exists() else f"{shlex.quote(str(python))} -m penstock"


def _shown(path: Path) -> str:
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
