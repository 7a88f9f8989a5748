"""`penstock gc`: delete the files of abandoned attempts."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Json, StateFolder, Table, counted, print_json, printable, talk


def gc(
    table: Table = None,
    state: StateFolder = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, delete nothing.")] = False,
    json_: Json = False,
) -> None:
    """Delete what abandoned attempts left behind. Nothing that the table names is ever deleted."""
    from penstock.app.inspect import view
    from penstock.app.places import find_table
    from penstock.app.tables import Tables
    from penstock.events import Bus

    places = find_table(table, state, here=Path.cwd())
    with view(places) as seen:
        tables = Tables(places, seen.ledger, partition_by=None, bus=Bus())
        collected = tables.collect_garbage(dry_run=dry_run)
    if json_:
        print_json(
            {
                "attempts": collected.attempts,
                "files": collected.files,
                "bytes": collected.bytes,
                "dry_run": dry_run,
                "unknown": [str(path) for path in collected.unknown],
            }
        )
        return
    verb = "would be deleted" if dry_run else "deleted"
    files, attempts = counted(collected.files, "file"), counted(collected.attempts, "attempt")
    print(f"{files} of {attempts} {verb}, {counted(collected.bytes, 'byte')}.")
    for path in collected.unknown:
        talk(printable(f"Left alone, since the ledger knows no such attempt: {path}"))
