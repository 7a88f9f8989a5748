"""`penstock status`: one screen that says whether anything is late, lost or dead."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.output import Json, StateFolder, Table, print_fields, print_json, printable
from penstock.ledger.records import ObjectState

if TYPE_CHECKING:
    from penstock.app.status import Standing


def status(table: Table = None, state: StateFolder = None, json_: Json = False) -> None:
    """Is anything late, unpublished or dead? The first line says so."""
    from penstock.app.places import find_table
    from penstock.app.status import standing

    places = find_table(table, state, here=Path.cwd())
    found = standing(places)
    if json_:
        print_json(_document(found))
        return
    print(printable(found.verdict))
    print_fields(
        {
            "table": f"{found.table} ({_version(found.table_version)})",
            "objects": ", ".join(f"{count:,} {name}" for name, count in found.objects.items() if count) or "none",
            "batches": f"{found.batches_committed:,} committed, {found.batches_unpublished:,} not yet published",
            "messages": _messages(found),
            "dead letters": f"{found.dead_letters:,}",
            "workers": ", ".join(found.workers) or "none running",
        }
    )


def _version(version: int | None) -> str:
    return "no version yet" if version is None else f"version {version}"


def _messages(found: "Standing") -> str:
    counts = {
        "visible": found.messages_visible,
        "in flight": found.messages_in_flight,
        "delayed": found.messages_delayed,
    }
    age_seconds = found.oldest_visible_message_age_seconds
    age = "" if age_seconds is None else f"; the oldest visible one is {age_seconds:,.0f} s old"
    return ", ".join(f"{number:,} {name}" for name, number in counts.items()) + age


def _document(found: "Standing") -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "troubles": list(found.troubles),
        "table": found.table,
        "table_version": found.table_version,
        "objects": {state.value: found.objects.get(state, 0) for state in ObjectState},
        "batches_committed": found.batches_committed,
        "batches_unpublished": found.batches_unpublished,
        "messages": {
            "visible": found.messages_visible,
            "in_flight": found.messages_in_flight,
            "delayed": found.messages_delayed,
            "oldest_visible_age_seconds": found.oldest_visible_message_age_seconds,
        },
        "dead_letters": found.dead_letters,
        "workers": list(found.workers),
    }
