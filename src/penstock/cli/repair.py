"""`penstock admin repair`: update a ledger that was restored from a backup to match its table."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.apps import AppArgument, PipelineArgument
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, Yes, confirmed, declined, print_json, printable, require_terminal, talk
from penstock.cli.tables import DryRun, pipelines
from penstock.cli.where import ScopeOptions
from penstock.messaging.wording import counted

if TYPE_CHECKING:
    from penstock.pipeline.maintenance.repair import RepairFindings

SHOWN = 10  # addresses of objects that have to be announced again


@grouped_options
def repair(
    where: ScopeOptions,
    app: AppArgument = None,
    name: PipelineArgument = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Adopt a table that has nothing in common with the ledger.")
    ] = False,
    json_: Json = False,
) -> None:
    """Update a ledger that was restored from a backup to match its table.

    Also for a ledger that lost batches in a failover. It imports the batches that the table shows, and abandons every
    open attempt: running workers cannot commit what they began before. If ledger and table agree, nothing changes.
    """
    documents = []
    refused: str | None = None
    with pipelines(app=app, name=name, where=where) as found:
        for kept in found.values():
            repairer = kept.repairer(adopt=adopt)
            findings = repairer.find()
            for line in finding_lines(findings):
                talk(printable(line))
            repaired = False
            if findings.repair is not None and not dry_run:
                if not yes:
                    require_terminal("repair")
                    if not confirmed("Repair the ledger?"):
                        refused = kept.pipeline
                        break
                repaired = repairer.apply(findings, kept.bus) is not None
                talk(printable(f"{kept.pipeline}: repaired; workers, or penstock admin publish, continue from here."))
            documents.append(document(findings, repaired=repaired))
    if refused is not None:  # outside the block: a refusal is no failure to report
        raise declined(f"changed for {printable(refused)}")
    if json_:
        print_json(documents)


def finding_lines(findings: "RepairFindings") -> list[str]:
    """Return the findings as lines."""
    pipeline, repair = findings.pipeline, findings.repair
    if repair is None:
        return [f"{pipeline}: ledger and table agree (batch {findings.shown_at}); there is nothing to repair."]
    shown, ledger, agrees = findings.shown_at, findings.ledger_at, findings.agrees_at
    batches, objects = counted(len(repair.imported), "batch", "batches"), counted(findings.objects_imported, "object")
    lines = [
        f"{pipeline}: the table shows batch {shown}, the ledger is at {ledger}, and both agree up to {agrees}.",
        f"To be imported: {batches} with {objects}.",
    ]
    if findings.open_attempts:
        lines.append(f"To be abandoned: {counted(len(findings.open_attempts), 'open attempt')}.")
    if repair.moved:
        moved = ", ".join(f"{old} becomes {new}" for old, new in repair.moved.items())
        lines.append(f"Committed since the ledger was rolled back, and to be renumbered after them: batch {moved}.")
    if repair.withdrawn:
        numbers = ", ".join(map(str, repair.withdrawn))
        lines.append(
            f"Committed since, and withdrawn, as its objects are in the table already or its columns do not fit: batch "
            f"{numbers}. Its other objects are unprocessed again: announce them."
        )
    return lines + _warnings(findings)


def document(findings: "RepairFindings", *, repaired: bool) -> dict[str, Any]:
    """Return the findings as a JSON document."""
    repair = findings.repair
    return {
        "pipeline": findings.pipeline,
        "agrees_at": findings.agrees_at,
        "ledger_at": findings.ledger_at,
        "shown_at": findings.shown_at,
        "needed": repair is not None,
        "repaired": repaired,
        "imported": [] if repair is None else sorted(batch.seq for batch in repair.imported),
        "objects_imported": findings.objects_imported,
        "unnamed": list(findings.unnamed),
        "moved": [] if repair is None else [{"batch": old, "becomes": new} for old, new in repair.moved.items()],
        "withdrawn": [] if repair is None else list(repair.withdrawn),
        "open_attempts": list(findings.open_attempts),
        "forgotten_objects": list(findings.forgotten_objects),
        "log_is_whole": findings.log_is_whole,
    }


def _warnings(findings: "RepairFindings") -> list[str]:
    lines = []
    if findings.unnamed:
        numbers = ", ".join(map(str, findings.unnamed))
        lines.append(
            f"The objects of batch {numbers} are unknown: no record of them lies beside the table. Before they are "
            "enqueued again, mark them as processed (docs/fix/repair.md); otherwise their rows are added twice."
        )
    if findings.unshown_rows:
        numbers = ", ".join(map(str, findings.unshown_rows))
        lines.append(f"Batch {numbers} has bad lines in its table and no rows yet: its objects are processed again.")
    if not findings.log_is_whole:
        lines.append(
            "The table's log was cleaned up: batches whose files were compacted before that cannot be named, nor "
            "distinguished from batches that were committed and never published."
        )
    if findings.forgotten_objects:
        some = ", ".join(findings.forgotten_objects[:SHOWN])
        more = ", ..." if len(findings.forgotten_objects) > SHOWN else ""
        lines.append(
            f"Written and never shown, so to be announced and processed again: "
            f"{counted(len(findings.forgotten_objects), 'object')} ({some}{more})."
        )
    return lines
