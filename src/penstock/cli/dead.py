"""`penstock dead`: what was given up on, and why."""

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.output import Json, StateFolder, Table, counted, moment, print_json, printable, talk
from penstock.messaging.death import Death
from penstock.messaging.message import Message

BODY_SHOWN = 120

app = typer.Typer(help="Dead letters: messages and objects that were given up on.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Dead letters: messages and objects that were given up on."""


@app.command("list")
def list_(
    table: Table = None,
    state: StateFolder = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many a queue.")] = 100,
    json_: Json = False,
) -> None:
    """List dead letters, oldest first, with the reason."""
    from penstock.app.inspect import view
    from penstock.app.places import find_table
    from penstock.messaging.death import death_of

    places = find_table(table, state, here=Path.cwd())
    with view(places) as seen:
        letters = [
            (queue, message, death_of(message.attributes))
            for queue in seen.dead_letter_queues()
            for message in seen.broker.browse(queue, messages_max=limit)
        ]
    if json_:
        print_json([_document(queue, message, death) for queue, message, death in letters])
        return
    if not letters:
        talk("No dead letters.")
    for queue, message, death in letters:
        _print_letter(queue, message, death)


def _print_letter(queue: str, message: Message, death: Death | None) -> None:
    attempts = f", after {counted(death.attempts, 'attempt')} by {death.worker}" if death is not None else ""
    print(printable(f"{message.id}  dead since {moment(message.enqueued_at)} in {queue}{attempts}"))
    for line in (death.reason if death is not None else "no reason was recorded", _shown(message.body)):
        print(f"    {printable(line)}")


def _document(queue: str, message: Message, death: Death | None) -> dict[str, Any]:
    return {
        "message_id": message.id,
        "queue": queue,
        "dead_at": message.enqueued_at,
        "reason": death.reason if death else None,
        "exception": death.exception if death else None,
        "attempts": death.attempts if death else None,
        "worker": death.worker if death else None,
        "body": message.body.decode("utf-8", errors="backslashreplace"),
    }


def _shown(body: bytes) -> str:
    text = body.decode("utf-8", errors="backslashreplace")
    return text if len(text) <= BODY_SHOWN else text[: BODY_SHOWN - 1] + "…"
