"""`penstock admin publish`, `gc` and `compact`: maintenance of tables."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.naming import worker_id
from penstock.app.telemetry import open_log, open_reports
from penstock.cli.apps import AppArgument, PipelineArgument
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.where import ScopeOptions
from penstock.config import load_settings
from penstock.errors import UsageError
from penstock.events import Bus, ignore
from penstock.handlers.durations import bytes_of
from penstock.messaging.wording import counted
from penstock.operations.inspection import view
from penstock.pipeline.extra import require_spark

if TYPE_CHECKING:
    from penstock.operations.tables.upkeep import MaintainedPipeline
    from penstock.pipeline.maintenance.compact import CompactionResult


DryRun = Annotated[bool, typer.Option("--dry-run", help="Report what would be done, change nothing.")]


@contextmanager
def pipelines(
    *, app: str | None, name: str | None, where: ScopeOptions, logs: bool = True
) -> Iterator[Mapping[str, "MaintainedPipeline"]]:
    """Open the pipelines that a command line selects. Their log goes to stderr, as a worker's does.

    Without ``logs``, it does only if the setting ``log.format`` asks for a log.
    """
    scope = where.with_names(app, name).scope()
    require_spark(*scope.table_formats)
    from penstock.operations.tables.upkeep import maintained_pipelines

    settings = load_settings()
    telemetry = open_reports(
        settings,
        worker=worker_id(),
        process="upkeep",
        on_error=scope.on_error,
        emit=open_log(settings, worker=None) if logs else ignore,
    )
    with telemetry.running(), maintained_pipelines(scope, bus=Bus(*telemetry.listeners)) as found:
        yield found


@grouped_options
def publish(
    where: ScopeOptions,
    app: AppArgument = None,
    name: PipelineArgument = None,
    json_: Json = False,
) -> None:
    """Make committed batches visible in their table.

    Workers do this after each batch, when they start, and when they are idle.
    """
    with pipelines(app=app, name=name, where=where) as found:
        done = {one: kept.publish() for one, kept in found.items()}
    if json_:
        print_json([{"pipeline": one, "batches": batches} for one, batches in done.items()])
        return
    for one, batches in done.items():
        result = f"{counted(batches, 'batch', 'batches')} published" if batches else "nothing to publish"
        print(printable(f"{one}: {result}."))


@grouped_options
def gc(
    where: ScopeOptions,
    app: AppArgument = None,
    name: PipelineArgument = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be deleted, delete nothing.")] = False,
    json_: Json = False,
) -> None:
    """Delete files that belong to no batch.

    Files that a table names are never deleted. For the pipelines of an app give --app: its code knows the addresses of
    their tables.
    """
    scope = where.with_names(app, name).scope()
    tables = scope.tables_meant
    require_spark(*{paths.scheme for paths in tables.values()})
    from penstock.app.tables import Tables

    telemetry = open_reports(
        load_settings(), worker=worker_id(), process="upkeep", on_error=scope.on_error, emit=ignore
    )
    with telemetry.running(), view(scope) as seen:
        collected = {
            name: Tables(paths, seen.ledger, partition_by=None, bus=Bus()).collect_garbage(dry_run=dry_run)
            for name, paths in tables.items()
        }
    unknown = [path for garbage in collected.values() for path in garbage.unknown]
    if json_:
        print_json(
            {
                "compactions": sum(garbage.compactions for garbage in collected.values()),
                "attempts": sum(garbage.attempts for garbage in collected.values()),
                "files": sum(garbage.files for garbage in collected.values()),
                "bytes": sum(garbage.bytes for garbage in collected.values()),
                "dry_run": dry_run,
                "unknown": [str(path) for path in unknown],
            }
        )
        return
    verb = "would be deleted" if dry_run else "deleted"
    for name, garbage in collected.items():
        prefix = f"{name}: " if scope.table is None else ""
        files, attempts = counted(garbage.files, "file"), counted(garbage.attempts, "attempt")
        if garbage.compactions:
            attempts += f" and {counted(garbage.compactions, 'compaction')}"
        print(printable(f"{prefix}{files} of {attempts} {verb}, {counted(garbage.bytes, 'byte')}."))
    for path in unknown:
        talk(printable(f"Left alone, since the ledger knows no such attempt: {path}"))


TARGET = "128 MiB"


@grouped_options
def compact(
    where: ScopeOptions,
    app: AppArgument = None,
    name: PipelineArgument = None,
    target_size: Annotated[
        str, typer.Option("--target-size", metavar="SIZE", help="Maximum size of merged files.")
    ] = TARGET,
    order_by: Annotated[
        str,
        typer.Option(
            "--order-by", metavar="COLUMNS", help="Also order rows by a column, or by several (a,b: Z-order)."
        ),
    ] = "",
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Then delete files that no version within the retention names.")
    ] = False,
    retention_hours: Annotated[
        int | None,
        typer.Option("--retention-hours", min=0, help="For --vacuum; default: the table's own, or a week."),
    ] = None,
    dry_run: DryRun = False,
    json_: Json = False,
) -> None:
    """Merge small files of a table.

    Also merges the files of the quarantine table, and may run while workers write. Merged files stay on disk for
    readers of older versions until a vacuum.
    """
    if retention_hours is not None and not vacuum:
        raise UsageError("--retention-hours is for --vacuum: without it nothing is deleted.")
    target_bytes = bytes_of("--target-size", target_size)
    columns = [name.strip() for name in order_by.split(",") if name.strip()]
    if len(set(columns)) < len(columns):
        raise UsageError(f"--order-by {order_by} names a column twice.")
    documents = []
    with pipelines(app=app, name=name, where=where) as found:
        for kept in found.values():
            done = kept.compact(target_bytes=target_bytes, order_by=columns, dry_run=dry_run, progress=_progress)
            deleted = kept.vacuum(retention_hours=retention_hours, dry_run=dry_run) if vacuum else {}
            documents += [
                {**dataclasses.asdict(compaction), "vacuumed": deleted.get(compaction.uri, 0)} for compaction in done
            ]
            if not json_:
                _print(done, deleted, dry_run=dry_run)
    if json_:
        print_json(documents)


def _print(found: Sequence["CompactionResult"], deleted: Mapping[str, int], *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for compaction in found:
        if compaction.merged:
            became = "would become" if dry_run else "became"
            files = f"{counted(compaction.files_before, 'file')} {became} {compaction.files_after:,}"
            size = "" if dry_run else f", {compaction.bytes_before:,} bytes became {compaction.bytes_after:,}"
            print(printable(f"{compaction.uri}: {files}{size} (version {compaction.table_version})."))
        else:
            print(printable(f"{compaction.uri}: {counted(compaction.files_before, 'file')}, nothing to merge."))
        if compaction.left and not dry_run:
            files = counted(compaction.left, "small file")
            talk(
                printable(
                    f"{files} left alone: their columns differ from the table's, or they were replaced meanwhile."
                )
            )
        if compaction.restated:
            files = counted(compaction.restated, "other file")
            print(printable(f"{compaction.uri}: {files} got minimum and maximum in the table's log."))
        if compaction.uri in deleted:
            print(printable(f"{compaction.uri}: {counted(deleted[compaction.uri], 'old file')} {would}deleted."))
    if not found:
        talk("There is no table yet.")


def _progress(done: int, wanted: int) -> None:
    """Print progress: on a terminal in one line, else a line each."""
    end = "\r" if sys.stderr.isatty() and done < wanted else "\n"
    sys.stderr.write(f"{done:,} of {counted(wanted, 'small file')} merged{end}")
    sys.stderr.flush()
