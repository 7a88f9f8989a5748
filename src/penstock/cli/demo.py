"""`penstock demo`: the main job in two minutes, with a SIGKILL in the middle."""

import dataclasses
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.exits import FAILED, leave_now
from penstock.cli.output import Json, counted, print_json, talk

DEFAULT_FOLDER = "penstock-demo"


def demo(
    folder: Annotated[
        Path, typer.Option("--dir", help="Where the demo puts its files and its table; must be empty or absent.")
    ] = Path(DEFAULT_FOLDER),
    json_: Json = False,
) -> None:
    """Make access logs, bring them into a table, die in the middle, go on, and prove that every line is there once.

    All of it happens in its folder, whatever the settings broker and ledger say.
    """
    from penstock.pipeline.extra import require_spark

    require_spark()
    from penstock.operations.demo import DUPLICATED, KILL_AT, DemoPlaces, prepare, prove, run_ingest

    where = DemoPlaces.under(folder.expanduser().resolve())
    data = prepare(where)
    talk(
        f"{data.objects} access-log objects written to {where.logs}: some gzipped, {data.bad_lines} bad lines in them,"
    )
    talk(f"one gzip file cut off, and {DUPLICATED} of them announced three times over.\n")
    talk(f"First run, to be killed with SIGKILL in its second batch (at the step {KILL_AT.partition(':')[0]!r}):")
    if run_ingest(where, kill_at=KILL_AT) is not None:
        raise typer.Exit(FAILED)
    unfinished_line = "\n" if sys.stderr.isatty() else ""  # the bar of the process that was killed
    talk(f"{unfinished_line}Killed. The files of that batch lie there, and nothing names them.")
    talk("\nThe same command again:")
    report = run_ingest(where)
    if report is None:
        raise typer.Exit(FAILED)
    proof = prove(where, data, report)
    if json_:
        print_json({"report": dict(report), "proof": dataclasses.asdict(proof), "holds": proof.holds})
    else:
        print(f"\n{proof.rows:,} rows in the table, {proof.rows_expected:,} good lines in the files,", end=" ")
        print(f"{proof.rows_twice} rows twice.")
        print(f"{proof.quarantined} lines quarantined of {proof.quarantined_expected} bad ones,", end=" ")
        print(f"{counted(proof.dead, 'object')} dead (the truncated one).")
        print("Proved." if proof.holds else "NOT as it should be: please report this.")
        _print_next(Path(str(where.tables.table)), Path(str(where.tables.quarantine)), where.logs, data.dead)
    # A process that read a table with deltalake now and then aborts while Python is taken down; all is done and said.
    leave_now(0 if proof.holds else FAILED)


def _print_next(table: Path, quarantine: Path, logs: Path, dead: Path) -> None:
    named = f"--table {_shown(table)}"
    bad_lines = json.dumps(_relative(quarantine), ensure_ascii=False)
    look = f"from deltalake import DeltaTable as T; print(T({bad_lines}).to_pandas())"
    for line in (
        "",
        "Try next:",
        f"  {_program()} status {named}",
        f"  {_program()} objects list {named} --only dead",
        f"  {_program()} objects show {named} {_shown(dead)}",
        f"  {_program()} batches list {named}",
        f"  {_program()} dead list {named}",
        f"  {_program()} ingest {_shown(logs)} {_shown(table)}    # nothing new, and it says so",
        f"  {_shown(Path(sys.executable))} -c {shlex.quote(look)}",
    ):
        print(line)


def _program() -> str:
    """How a person types our name here: the demo may run in an environment that is not on PATH."""
    if shutil.which("penstock"):
        return "penstock"
    python = Path(sys.executable)
    script = python.with_name("penstock")
    return _shown(script) if script.exists() else f"{_shown(python)} -m penstock"


def _shown(path: Path) -> str:
    return shlex.quote(_relative(path))


def _relative(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
