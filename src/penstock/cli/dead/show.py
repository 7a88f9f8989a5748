"""`penstock dead show`: print all facts about one dead letter."""

from typing import Annotated, Any

import typer

from penstock.app.scope import Scope
from penstock.cli.dead import options
from penstock.cli.dead.documents import dead_letter_document, text_of
from penstock.cli.dead.options import Queue, TierOption
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, moment, print_fields, print_json, printable
from penstock.cli.where import ScopeOptions, first_of
from penstock.errors import UsageError
from penstock.messaging.wording import counted
from penstock.operations.dead_letters.selection import DeadLetterHistory, DeadLetterSelection, history_of
from penstock.operations.inspection import view

BODY_LINES_SHOWN, BODY_CHARS_SHOWN = 40, 4_000


@grouped_options
def show(
    id_: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the dead letter, or one that the message had before.")
    ],
    where: ScopeOptions,
    queue: Queue = None,
    tier: TierOption = None,
    full: Annotated[bool, typer.Option("--full", help="Print the whole body.")] = False,
    json_: Json = False,
) -> None:
    """Show one dead letter: error, attempts, earlier deaths and replays, objects, attributes and body."""
    options.refuse_empty({"ID": id_, "--queue": queue})
    selection = DeadLetterSelection(queue=queue, tier=tier)

    def found_in(scope: Scope) -> DeadLetterHistory:
        with view(scope) as seen:
            options.warn_of_hiding(seen, selection)
            found = history_of(seen, selection, id_)
        if found is None:
            raise UsageError(f"There is no dead letter {id_}; `penstock dead list` lists all.")
        return found

    history = first_of(where.scopes(), found_in)
    if json_:
        print_json(_document(history))
    else:
        _print(history, full=full)


def _document(history: DeadLetterHistory) -> dict[str, Any]:
    replay = history.replay
    return {
        **dead_letter_document(history.dead_letter),
        "replay": None
        if replay is None
        else {"replay_id": replay.replay_id, "queue": replay.queue, "due_at": replay.due_at, "sent": replay.sent},
        "objects": [
            {"object": uri, "pipeline": row and pipeline, "state": row and row.state, "reason": row and row.reason}
            for uri, pipeline, row in history.objects
        ],
    }


def _print(history: DeadLetterHistory, *, full: bool) -> None:
    document = _document(history)
    print_fields(_facts(history, document))
    for title, lines in (
        ("attempts", [_try_line(attempt) for attempt in document["tries"]]),
        ("deaths before", [_death_line(death) for death in document["earlier_deaths"]]),
        ("objects", [_object_line(found) for found in document["objects"]]),
        ("attributes", [f"{name}: {value}" for name, value in document["attributes"].items()]),
        ("traceback", (document["traceback"] or "").splitlines()),
    ):
        _section(title, lines)
    _section("body", _body_lines(text_of(history.dead_letter.message.body), full=full))


def _facts(history: DeadLetterHistory, document: dict[str, Any]) -> dict[str, object]:
    replay = history.replay
    waits = "" if replay is None or replay.sent else f"intended for {moment(replay.due_at)}, to {replay.queue}"
    sent = f"sent to {replay.queue}; only the dead letter is left" if replay is not None and replay.sent else ""
    return {
        "letter": document["message_id"],
        "lies in": document["queue"],
        "dead since": moment(document["dead_at"]),
        "reason": document["reason"] or "no reason was recorded",
        "exception": document["exception"] or "",
        "set aside": document["set_aside"] or "",
        "poison": "yes: another attempt cannot help" if document["poison"] else "",
        "group": document["fingerprint"] or "",
        "handler": document["handler"] or "",
        "tenant": document["group"] or "",
        "was": document["original_message_id"] or "",
        "in queue": document["original_queue"] or "not known",
        "first seen": moment(_first_seen(document)),
        "sent": moment(document["enqueued_at"]),
        "first failed": moment(document["first_failed_at"]),
        "last failed": moment(document["last_failed_at"]),
        "attempts": "" if document["attempts"] is None else f"{document['attempts']:,}, last by {document['worker']}",
        "replays in a row": document["replays"] or "",
        "replay": waits or sent,
    }


def _first_seen(document: dict[str, Any]) -> float | None:
    """Return when the message was first sent, as far back as its history goes."""
    first: dict[str, float | None] = (document["earlier_deaths"] or [document])[0]
    return first["enqueued_at"]


def _try_line(attempt: dict[str, Any]) -> str:
    reason = f": {attempt['reason']}" if attempt["reason"] else ""
    seconds = max(0.0, attempt["ended_at"] - attempt["started_at"])
    return f"{moment(attempt['started_at'])}  {seconds:,.1f} s  {attempt['end']}  {attempt['worker']}{reason}"


def _death_line(death: dict[str, Any]) -> str:
    attempts = counted(death["attempts"], "attempt")
    where = f"as {death['message_id']} in {death['queue']}"
    return f"{moment(death['last_failed_at'])}  after {attempts} {where}: {death['reason']}"


def _object_line(found: dict[str, Any]) -> str:
    if found["state"] is None:
        return f"{found['object']}: not known to the ledger"
    reason = f": {found['reason']}" if found["reason"] else ""
    return f"{found['object']}: {found['state']} in {found['pipeline']}{reason}"


def _body_lines(text: str, *, full: bool) -> list[str]:
    shown = text if full else text[:BODY_CHARS_SHOWN]
    lines = shown.splitlines()
    kept = lines if full else lines[:BODY_LINES_SHOWN]
    cut = len(shown) < len(text) or len(kept) < len(lines)
    return [*kept, f"… of {counted(len(text), 'character')}; --full shows all"] if cut else kept


def _section(title: str, lines: list[str]) -> None:
    if lines:
        print(f"\n{title}")
        for line in lines:
            print(f"  {printable(line)}")
