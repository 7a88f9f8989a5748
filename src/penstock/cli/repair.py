"""`penstock repair`: bring a ledger that was rolled back up to its table."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import grouped_options
from penstock.cli.output import Json, Yes, confirmed, counted, declined, must_be_told, print_json, printable, talk
from penstock.cli.tables import App, DryRun, Name, pipelines
from penstock.cli.where import ScopeOptions

if TYPE_CHECKING:
    from penstock.pipeline.maintenance.repair import RepairFindings

SHOWN = 10  # addresses of objects that have to be announced again


@grouped_options
def repair(
    where: ScopeOptions,
    app: App = None,
    name: Name = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over a table with which the ledger has nothing in common.")
    ] = False,
    json_: Json = False,
) -> None:
    """Bring a ledger that lost batches (restored from a backup, or by an asynchronous failover) up to its table.

    What the table shows is imported, and every open attempt is given up: workers that still run can commit nothing more
    of what they began. Where ledger and table agree nothing is done."""
    documents = []
    refused: str | None = None
    with pipelines(app=app, name=name, where=where) as found:
        for kept in found.values():
            repairer = kept.repairer(adopt=adopt)
            findings = repairer.find()
            for line in told(findings):
                talk(printable(line))
            repaired = False
            if findings.repair is not None and not dry_run:
                if not yes:
                    must_be_told("repair")
                    if not confirmed("Repair the ledger?"):
                        refused = kept.pipeline
                        break
                repaired = repairer.apply(findings, kept.bus) is not None
                talk(printable(f"{kept.pipeline}: repaired; workers, or penstock publish, go on from here."))
            documents.append(document(findings, repaired=repaired))
    if refused is not None:  # out here: an answer is no failure that anybody is told of
        raise declined(f"changed for {printable(refused)}")
    if json_:
        print_json(documents)


def told(findings: "RepairFindings") -> list[str]:
    """What was found, for people."""
    whose, repair = findings.pipeline, findings.repair
    if repair is None:
        return [f"{whose}: ledger and table agree (batch {findings.shown_at}); there is nothing to repair."]
    shown, ledger, agrees = findings.shown_at, findings.ledger_at, findings.agrees_at
    batches, objects = counted(len(repair.imported), "batch", "batches"), counted(findings.objects_imported, "object")
    lines = [
        f"{whose}: the table shows batch {shown}, the ledger is at {ledger}, and both agree up to {agrees}.",
        f"To be imported: {batches} with {objects}.",
    ]
    if findings.open_attempts:
        lines.append(f"To be given up: {counted(len(findings.open_attempts), 'open attempt')}.")
    if repair.moved:
        moved = ", ".join(f"{old} becomes {new}" for old, new in repair.moved.items())
        lines.append(f"Committed since the ledger was set back, and to follow behind: batch {moved}.")
    if repair.withdrawn:
        numbers = ", ".join(map(str, repair.withdrawn))
        lines.append(
            f"Committed since, and withdrawn, as its objects are in the table already or its columns do not fit: batch "
            f"{numbers}. Its other objects are unprocessed again: announce them."
        )
    return lines + _warnings(findings)


def _warnings(findings: "RepairFindings") -> list[str]:
    lines = []
    if findings.unnamed:
        numbers = ", ".join(map(str, findings.unnamed))
        lines.append(
            f"Nobody knows the objects of batch {numbers}: there is no record of them beside the table. Before they "
            "are announced again, tell the ledger that they are done (docs/fix/repair.md), or their rows come twice."
        )
    if findings.unshown_rows:
        numbers = ", ".join(map(str, findings.unshown_rows))
        lines.append(f"Of batch {numbers} the table showed bad lines and no rows yet: its objects come again.")
    if not findings.log_is_whole:
        lines.append(
            "The table's log was cleaned up: batches whose files were compacted before that cannot be named, and what "
            "was committed and never shown cannot be told from them."
        )
    if findings.forgotten_objects:
        some = ", ".join(findings.forgotten_objects[:SHOWN])
        more = ", ..." if len(findings.forgotten_objects) > SHOWN else ""
        lines.append(
            f"Written and never shown, so to be announced and processed again: "
            f"{counted(len(findings.forgotten_objects), 'object')} ({some}{more})."
        )
    return lines


def document(findings: "RepairFindings", *, repaired: bool) -> dict[str, Any]:
    """The same for programs."""
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
