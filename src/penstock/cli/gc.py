"""`penstock gc`: delete the files of abandoned attempts."""

from typing import Annotated

import typer

from penstock.cli.option_groups import grouped_options
from penstock.cli.output import Json, counted, print_json, printable, talk
from penstock.cli.where import Where


@grouped_options
def gc(
    where: Where,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, delete nothing.")] = False,
    json_: Json = False,
) -> None:
    """Delete what abandoned attempts left behind. Nothing that a table names is ever deleted.

    The pipelines of an app need --app: their tables' folders stand in its code."""
    from penstock.app.identity import worker_id
    from penstock.app.inspect import view
    from penstock.app.telemetry import open_reports
    from penstock.config import load_settings
    from penstock.events import Bus, tell_nobody
    from penstock.pipeline.extra import require_spark

    scope = where.scope()
    tables = scope.tables_meant
    require_spark()
    from penstock.app.tables import Tables

    heard = open_reports(
        load_settings(), worker=worker_id(), process="upkeep", on_error=scope.on_error, tell=tell_nobody
    )
    with heard.told(), view(scope) as seen:
        collected = {
            name: Tables(places, seen.ledger, partition_by=None, bus=Bus()).collect_garbage(dry_run=dry_run)
            for name, places in tables.items()
        }
    unknown = [path for one in collected.values() for path in one.unknown]
    if json_:
        print_json(
            {
                "compactions": sum(one.compactions for one in collected.values()),
                "attempts": sum(one.attempts for one in collected.values()),
                "files": sum(one.files for one in collected.values()),
                "bytes": sum(one.bytes for one in collected.values()),
                "dry_run": dry_run,
                "unknown": [str(path) for path in unknown],
            }
        )
        return
    verb = "would be deleted" if dry_run else "deleted"
    for name, one in collected.items():
        whose = f"{name}: " if scope.table is None else ""
        files, attempts = counted(one.files, "file"), counted(one.attempts, "attempt")
        if one.compactions:
            attempts += f" and {counted(one.compactions, 'compaction')}"
        print(printable(f"{whose}{files} of {attempts} {verb}, {counted(one.bytes, 'byte')}."))
    for path in unknown:
        talk(printable(f"Left alone, since the ledger knows no such attempt: {path}"))
