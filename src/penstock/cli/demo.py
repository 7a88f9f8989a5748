"""`penstock demo`: the main job in two minutes, with a SIGKILL in the middle."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Json, print_json, talk

DEFAULT_FOLDER = "penstock-demo"


def demo(
    folder: Annotated[
        Path, typer.Option("--dir", help="Where the demo puts its files and its table; must be empty or absent.")
    ] = Path(DEFAULT_FOLDER),
    json_: Json = False,
) -> None:
    """Make access logs, bring them into a table, die in the middle, go on, and prove that every line is there once."""
    from penstock.pipeline.extra import require_spark

    require_spark()
    from penstock.app.demo import DUPLICATED, KILL_AT, DemoPlaces, prepare, prove, run_ingest

    where = DemoPlaces.under(folder.expanduser().resolve())
    data = prepare(where)
    talk(
        f"{data.objects} access-log objects written to {where.logs}: some gzipped, {data.bad_lines} bad lines in them,"
    )
    talk(f"one gzip file cut off, and {DUPLICATED} of them announced three times over.\n")
    talk(f"First run, to be killed with SIGKILL in its second batch (at the step {KILL_AT.partition(':')[0]!r}):")
    if run_ingest(where, kill_at=KILL_AT) is not None:
        raise typer.Exit(1)
    talk("Killed. The files of that batch lie there, and nothing names them.\n\nThe same command again:")
    report = run_ingest(where)
    if report is None:
        raise typer.Exit(1)
    proof = prove(where, data, report)
    if json_:
        print_json({"report": dict(report), "proof": dataclasses.asdict(proof), "holds": proof.holds})
    else:
        print(f"\n{proof.rows:,} rows in the table, {proof.rows_expected:,} good lines in the files,", end=" ")
        print(f"{proof.rows_twice} rows twice.")
        print(f"{proof.quarantined} lines quarantined of {proof.quarantined_expected} bad ones,", end=" ")
        print(f"{proof.dead} object dead (the truncated one).")
        print("Proved." if proof.holds else "NOT as it should be: please report this.")
        _print_next(where.tables.table, where.tables.quarantine, where.logs, data.dead)
    if not proof.holds:
        raise typer.Exit(1)


def _print_next(table: Path, quarantine: Path, logs: Path, dead: Path) -> None:
    print(
        f"""
Try next:
  penstock objects list --table {table} --only dead
  penstock objects show --table {table} {dead}
  penstock batches list --table {table}
  penstock dead list --table {table}
  penstock ingest {logs} {table}          # nothing new, and it says so
  python -c "from deltalake import DeltaTable as T; print(T('{quarantine}').to_pandas())"
"""
    )
