"""`penstock dead`: what was given up on, and why."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import (
    AppName,
    Json,
    Pipeline,
    StateFolder,
    Table,
    counted,
    moment,
    print_json,
    printable,
    talk,
)
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.app.inspect import DeadObject, Letter, View

BODY_SHOWN = 120

app = typer.Typer(help="Dead letters: messages and objects that were given up on.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Dead letters: messages and objects that were given up on."""


@app.command("list")
def list_(
    table: Table = None,
    state: StateFolder = None,
    pipeline: Pipeline = None,
    app_name: AppName = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="Letters of this queue alone, and no objects.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="At most so many a queue, and a pipeline.")
    ] = 100,
    json_: Json = False,
) -> None:
    """List dead letters, oldest first, and dead objects, with the reason; --json has also traceback, group and
    attributes."""
    from penstock.app.inspect import view
    from penstock.app.scope import Asked, find_scope

    asked = Asked(table=table, state=state, pipeline=pipeline, app=app_name)
    scope = find_scope(asked, here=Path.cwd())
    with view(scope) as seen:
        letters, hidden = _letters(seen, queue, limit)
        pipelines = seen.pipelines() if queue is None else ()
        objects = [dead for one in pipelines for dead in islice(seen.dead_objects(one), limit)]
    if hidden is not None and (queue is not None or not (asked.means_app or objects)):
        raise hidden  # letters were all that could be shown
    if json_:
        print_json([*map(_letter_document, letters), *map(_object_document, objects)])
    else:
        _print(letters, objects, of_all=scope.table is None)
    if hidden is not None:
        talk(printable(str(hidden)))
    elif not json_ and not letters and not objects:
        talk("No dead letters.")


def _letters(seen: "View", queue: str | None, limit: int) -> tuple[list["Letter"], ConfigurationError | None]:
    """And why some could not be looked at, where the broker cannot show any."""
    letters: list[Letter] = []
    hidden: ConfigurationError | None = None
    for name in seen.dead_letter_queues(queue):
        try:
            letters += islice(seen.letters(name), limit)
        except ConfigurationError as error:
            if seen.broker.capabilities.browsable:
                raise
            hidden = hidden or error
    return letters, hidden


def _print(letters: Iterable["Letter"], objects: Iterable["DeadObject"], *, of_all: bool) -> None:
    for letter in letters:
        _print_letter(letter)
    for dead in objects:
        _print_object(dead, whose=f" of {dead.pipeline}" if of_all else "")


def _print_letter(letter: "Letter") -> None:
    message, death = letter.message, letter.death
    attempts = f", after {counted(death.attempts, 'attempt')} by {death.worker}" if death is not None else ""
    print(printable(f"{message.id}  dead since {moment(message.enqueued_at)} in {letter.queue}{attempts}"))
    if death is not None:
        failed = f", sent {moment(death.enqueued_at)}, last failed {moment(death.last_failed_at)}"
        print(f"    {printable(f'was {death.message_id} in {death.queue}{failed}')}")
    reason = death.reason if death is not None else "no reason was recorded"
    raised = (death.exception if death is not None else None) or ""
    for line in (reason, "" if raised in reason else raised, _shown(message.body)):
        if line:
            print(f"    {printable(line)}")


def _print_object(dead: "DeadObject", *, whose: str) -> None:
    attempts = counted(dead.row.attempts, "attempt")
    replaced = "; a later version of it was processed" if dead.replaced else ""
    print(printable(f"{dead.row.uri}  dead since {moment(dead.row.ended_at)}{whose}, after {attempts}{replaced}"))
    print(f"    {printable(dead.row.reason or 'no reason was recorded')}")


def _letter_document(letter: "Letter") -> dict[str, Any]:
    """Everything there is; what the log tells of is the message's original id."""
    from penstock.messaging.death import DEATH_ATTRIBUTE

    message, death = letter.message, letter.death
    return {
        "kind": "message",
        "message_id": message.id,
        "queue": letter.queue,
        "dead_at": message.enqueued_at,
        "reason": death.reason if death else None,
        "exception": death.exception if death else None,
        "attempts": death.attempts if death else None,
        "worker": death.worker if death else None,
        "original_message_id": death.message_id if death else None,
        "original_queue": death.queue if death else None,
        "enqueued_at": death.enqueued_at if death else None,
        "first_failed_at": death.first_failed_at if death else None,
        "last_failed_at": death.last_failed_at if death else None,
        "traceback": death.traceback if death else None,
        "group": message.group,
        "attributes": {
            name: _text(value)
            for name, value in message.attributes.items()
            if name != DEATH_ATTRIBUTE or death is None  # a readable one is told above
        },
        "body": _text(message.body),
    }


def _object_document(dead: "DeadObject") -> dict[str, Any]:
    return {
        "kind": "object",
        "object": dead.row.uri,
        "pipeline": dead.pipeline,
        "dead_at": dead.row.ended_at,
        "reason": dead.row.reason,
        "attempts": dead.row.attempts,
        "replaced": dead.replaced,
    }


def _shown(body: bytes) -> str:
    text = _text(body)
    return text if len(text) <= BODY_SHOWN else text[: BODY_SHOWN - 1] + "…"


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", errors="backslashreplace")
