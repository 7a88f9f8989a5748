"""`penstock status`: one screen that says whether anything is late, lost or dead."""

from pathlib import Path
from typing import Any

from penstock.cli.output import Json, StateFolder, Table, print_fields, print_json, printable
from penstock.ledger.records import ObjectState


def status(table: Table = None, state: StateFolder = None, json_: Json = False) -> None:
    """Is anything late, unpublished or dead? The first line says so."""
    from penstock.app.places import find_table
    from penstock.app.status import Standing, standing

    places = find_table(table, state, here=Path.cwd())
    found: Standing = standing(places)
    if json_:
        print_json(_document(found))
        return
    print(printable(found.verdict))
    print_fields(
        {
            "table": f"{found.table}, version {'none yet' if found.table_version is None else found.table_version}",
            "objects": ", ".join(f"{count:,} {name}" for name, count in found.objects.items() if count) or "none",
            "batches": f"{found.batches_committed:,} committed, {found.batches_unpublished:,} not yet published",
            "messages": f"{found.messages_visible:,} visible, {found.messages_in_flight:,} in flight, "
            f"{found.messages_delayed:,} delayed",
            "dead letters": f"{found.dead_letters:,}",
            "workers": ", ".join(found.workers) or "none running",
        }
    )


def _document(found: Any) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "table": found.table,
        "table_version": found.table_version,
        "objects": {state.value: found.objects.get(state, 0) for state in ObjectState},
        "batches_committed": found.batches_committed,
        "batches_unpublished": found.batches_unpublished,
        "messages": {
            "visible": found.messages_visible,
            "in_flight": found.messages_in_flight,
            "delayed": found.messages_delayed,
        },
        "dead_letters": found.dead_letters,
        "workers": list(found.workers),
    }
