"""`penstock admin ledger`: the tables of the ledger, their revision, and the archive of old rows."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from penstock.app.backends import ledger_exists
from penstock.cli.options import duration, grouped_options
from penstock.cli.output import Json, print_fields, print_json, printable
from penstock.cli.where import ScopeOptions
from penstock.errors import UsageError
from penstock.ledger.migrate import Revisions, TableRows, revision_names
from penstock.messaging.wording import counted
from penstock.pipeline.extra import require_archive

app = typer.Typer(no_args_is_help=True)

ToRevision = Annotated[str | None, typer.Argument(metavar="[REVISION]", help="Such as 0003; `base` drops all tables.")]


@app.command()
@grouped_options
def show(
    where: ScopeOptions,
    json_: Json = False,
) -> None:
    """Show the ledger's address, server, revision, rows per table, and archive."""
    with _revisions(where) as revisions:
        facts = revisions.facts()
    if json_:
        print_json(
            {
                "ledger": facts.address,
                "server": facts.server,
                "revision": facts.revision,
                "newest_revision": facts.newest,
                "tables": {
                    name: {"rows": rows.rows, "estimated": rows.estimated} for name, rows in facts.tables.items()
                },
                "archive_files": facts.archive_files,
                "archived_objects": facts.archived_objects,
                "archive_bytes": facts.archive_bytes,
            }
        )
        return
    behind = "" if facts.revision == facts.newest else f"; this Penstock works with {facts.newest}"
    print_fields(
        {
            "ledger": facts.address,
            "server": facts.server,
            "revision": f"{facts.revision or 'no tables yet'}{behind}",
            **{f"table {name}": _rows(rows) for name, rows in facts.tables.items()},
            "archive": f"{counted(facts.archived_objects, 'object')}, {counted(facts.archive_files, 'file')}, "
            f"{facts.archive_bytes:,} bytes",
        }
    )


@app.command()
@grouped_options
def upgrade(
    where: ScopeOptions,
    revision: ToRevision = None,
    json_: Json = False,
) -> None:
    """Create the ledger's tables, or upgrade them.

    Workers do this themselves if their user may change tables.
    """
    with _revisions(where) as revisions:
        before, after = revisions.upgrade(revision or "head")
    _print_change(before, after, json_=json_)


@app.command()
@grouped_options
def downgrade(
    where: ScopeOptions,
    revision: ToRevision = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm: data that only later revisions have is lost.")] = False,
    json_: Json = False,
) -> None:
    """Downgrade the ledger's tables to an earlier revision, for an earlier Penstock.

    Stop all workers first.
    """
    if revision is None:
        raise UsageError(f"REVISION is missing: the revision to downgrade to, one of {revision_names()}.")
    if not yes:
        raise UsageError(
            f"A downgrade to {revision} loses the data that only later revisions have (below 0006 the names of apps)"
            ", and needs all workers stopped: make a backup, and give --yes."
        )
    with _revisions(where) as revisions:
        before, after = revisions.downgrade(revision)
    _print_change(before, after, json_=json_)


@app.command()
@grouped_options
def archive(
    where: ScopeOptions,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Minimum age of batches; at least 15 days.")
    ] = "90 days",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be archived, change nothing.")] = False,
    json_: Json = False,
) -> None:
    """Move rows of objects that were processed long ago from the ledger to Parquet files.

    These objects stay known and are not processed again. The pipelines of an app need --app.
    """
    older_than_seconds = duration("--older-than", older_than)
    scope = where.scope()
    require_archive()
    from penstock.operations.tables.upkeep import archive_scope

    done = archive_scope(scope, app=where.request.app, older_than_seconds=older_than_seconds, dry_run=dry_run)
    if json_:
        print_json(
            [
                {
                    "pipeline": name,
                    "objects": one.objects,
                    "batches": one.batches,
                    "files": one.files,
                    "bytes": one.bytes,
                    "swept": one.swept,
                    "dry_run": dry_run,
                }
                for name, one in done.items()
            ]
        )
        return
    for name, one in done.items():
        prefix = f"{printable(name)}: " if len(done) > 1 else ""
        verb = "would be archived" if dry_run else "archived"
        files = counted(one.files, "file") + ("" if dry_run else f", {one.bytes:,} bytes")
        print(
            f"{prefix}{counted(one.objects, 'object')} of {counted(one.batches, 'batch', 'batches')} {verb}: {files}."
        )


@contextmanager
def _revisions(where: ScopeOptions) -> Iterator[Revisions]:
    scope = where.scope()
    if not ledger_exists(scope.settings):
        raise UsageError(f"There is no ledger {scope.name} yet: the first worker, or ingest, creates it.")
    with closing(Revisions.open(scope.settings.ledger)) as revisions:
        if scope.table is None and scope.pipeline is not None:
            known = {*scope.tables, *scope.tableless, *revisions.pipelines()}
            if scope.pipeline not in known:
                names = ", ".join(sorted(known)) or "none"
                raise UsageError(f"The ledger {scope.name} knows no pipeline {scope.pipeline}; its pipelines: {names}.")
        yield revisions


def _print_change(before: str | None, after: str | None, *, json_: bool) -> None:
    if json_:
        print_json({"before": before, "after": after})
        return
    if before == after:
        print(f"The ledger {'has no tables' if after is None else f'is at {after}'} already: nothing was changed.")
        return
    if before is None:
        print(f"The ledger's tables were created, at revision {after}.")
    elif after is None:
        print(f"The ledger's tables were at {before}, and are now deleted.")
    else:
        print(f"The ledger's tables were at {before} and are now at {after}.")


def _rows(rows: TableRows) -> str:
    about = "about " if rows.estimated else ""
    return f"{about}{counted(rows.rows, 'row')}"
