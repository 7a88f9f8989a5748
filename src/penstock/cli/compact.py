"""`penstock compact`: merge small files of a table."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.option_groups import grouped_options
from penstock.cli.output import Json, counted, print_json, printable, talk
from penstock.cli.upkeep import App, DryRun, Name, pipelines
from penstock.cli.where import Where
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.pipeline.compact import Compacted

TARGET = "128 MiB"


@grouped_options
def compact(
    where: Where,
    app: App = None,
    name: Name = None,
    target_size: Annotated[
        str, typer.Option("--target-size", metavar="SIZE", help="How large merged files may become.")
    ] = TARGET,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Then delete files that no version within the retention names.")
    ] = False,
    retention_hours: Annotated[
        int | None,
        typer.Option("--retention-hours", min=0, help="Of --vacuum; default: the table's own, or a week."),
    ] = None,
    dry_run: DryRun = False,
    json_: Json = False,
) -> None:
    """Merge small files of a pipeline's tables, the quarantine too, while workers go on.

    Files that were merged stay on the disk for readers of older versions until a vacuum."""
    from penstock.handlers.durations import bytes_of

    if retention_hours is not None and not vacuum:
        raise UsageError("--retention-hours is for --vacuum: without it nothing is deleted.")
    target_bytes = bytes_of("--target-size", target_size)
    documents = []
    with pipelines(app=app, name=name, where=where) as found:
        for kept in found.values():
            done = kept.compact(target_bytes=target_bytes, dry_run=dry_run, progress=_progress)
            deleted = kept.vacuum(retention_hours=retention_hours, dry_run=dry_run) if vacuum else {}
            documents += [{**dataclasses.asdict(one), "vacuumed": deleted.get(one.uri, 0)} for one in done]
            if not json_:
                _print(done, deleted, dry_run=dry_run)
    if json_:
        print_json(documents)


def _print(found: Sequence["Compacted"], deleted: Mapping[str, int], *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for one in found:
        if one.merged:
            became = "would become" if dry_run else "became"
            files = f"{counted(one.files_before, 'file')} {became} {one.files_after:,}"
            size = "" if dry_run else f", {one.bytes_before:,} bytes became {one.bytes_after:,}"
            print(printable(f"{one.uri}: {files}{size} (version {one.table_version})."))
        else:
            print(printable(f"{one.uri}: {counted(one.files_before, 'file')}, nothing to merge."))
        if one.left and not dry_run:
            files = counted(one.left, "small file")
            talk(printable(f"{files} left alone: of other columns than the table's, or replaced meanwhile."))
        if one.uri in deleted:
            print(printable(f"{one.uri}: {counted(deleted[one.uri], 'old file')} {would}deleted."))
    if not found:
        talk("There is no table yet.")


def _progress(done: int, wanted: int) -> None:
    """A line on a terminal that is written over; a line each where nobody watches."""
    end = "\r" if sys.stderr.isatty() and done < wanted else "\n"
    sys.stderr.write(f"{done:,} of {counted(wanted, 'small file')} merged{end}")
    sys.stderr.flush()
