"""`penstock queues`: list, show, pause, resume and purge queues; and the texts for a queue's status."""

import dataclasses
from contextlib import closing
from typing import Annotated, Any

import typer

from penstock.app.queues import QueueStatus, opened, queue_status, queue_statuses
from penstock.app.system_health import QueueHealth, ages_of
from penstock.cli.output import (
    Json,
    Yes,
    confirmed,
    declined,
    print_fields,
    print_json,
    print_table,
    printable,
    require_terminal,
    talk,
)
from penstock.config import load_settings
from penstock.messaging.wording import counted
from penstock.operations.status.sentences import span


def state_of(queue: QueueStatus) -> str:
    """Return why a queue is not delivered: paused, breaker or unserved; empty if it is."""
    if queue.paused:
        return "paused"
    return "breaker" if queue.breaker is not None else "unserved" if queue.unserved is not None else ""


def oldest_visible(queue: QueueHealth) -> str:
    """Return how long the oldest visible message has waited; an estimate is marked."""
    seconds = queue.oldest_visible_message_age_seconds
    age = age_of(seconds if queue.visible else seconds or None)
    return f"about {age}" if age and queue.oldest_visible_message_age_source == "estimated" else age


def oldest(queue: QueueHealth) -> str:
    """Return the age of the oldest message; empty without messages, for which brokers report 0."""
    return age_of(queue.oldest_message_age_seconds) if queue.messages else ""


def age_of(seconds: float | None) -> str:
    """Return a duration as text; empty if it is unknown."""
    return "" if seconds is None else span(seconds)


def queue_document(queue: QueueStatus) -> dict[str, Any]:
    """Return the status of a queue as a JSON document. Without an age, its source is null."""
    document = dataclasses.asdict(queue)
    for age in ("oldest_visible_message_age", "oldest_message_age"):
        if document[f"{age}_seconds"] is None:
            document[f"{age}_source"] = None
    return document


app = typer.Typer(no_args_is_help=True)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]


@app.command("list")
def list_(json_: Json = False) -> None:
    """List the queues with depth, age, dead letters, and the workers on this host."""
    settings = load_settings()
    with opened(settings) as broker, closing(ages_of(settings, broker)) as ages:
        found = queue_statuses(settings, broker, ages=ages)
        makes = broker.capabilities.creates_queues
    if json_:
        print_json([queue_document(status) for status in found])
        return
    some_paused = any(map(state_of, found))
    state = ("state",) if some_paused else ()  # beside the name, where no narrow terminal cuts it off
    print_table(
        ("queue", *state, "visible", "in flight", "delayed", "oldest visible", "oldest", "dead letters", "workers"),
        [
            (
                status.queue,
                *((state_of(status),) if some_paused else ()),
                status.visible,
                status.in_flight,
                status.delayed,
                oldest_visible(status),
                oldest(status),
                _dead_letters(status),
                len(status.workers),
            )
            for status in found
        ],
        empty="There are no queues yet: the first message that is sent to a queue creates it."
        if makes
        else "There are no queues here: create one, or check the address of the broker.",
    )
    for status in found:
        if status.unread is not None:
            talk(printable(f"Warning: {status.unread}."))


@app.command()
def show(queue: Queue, json_: Json = False) -> None:
    """Show one queue, and the workers on this host that serve it."""
    settings = load_settings()
    with opened(settings) as broker, closing(ages_of(settings, broker)) as ages:
        status = queue_status(settings, broker, queue, ages=ages)
    if json_:
        print_json(queue_document(status))
        return
    print_fields(
        {
            "queue": status.queue,
            "paused": ("by its breaker: " + status.breaker) if status.breaker else "yes" if status.paused else "no",
            **({} if status.unserved is None else {"not served": status.unserved}),
            "visible": f"{status.visible:,}",
            "in flight": f"{status.in_flight:,}",
            "delayed": f"{status.delayed:,}",
            "oldest visible": oldest_visible(status) or ("not known" if status.visible else "nothing waits"),
            "oldest": oldest(status),
            "dead letters": _dead_letters(status),
            "workers": ", ".join(status.workers) or "none with this data directory on this host",
            **({} if status.sender_key is None else {"sender key": status.sender_key}),
        }
    )
    if status.unread is not None:
        talk(printable(f"Warning: {status.unread}."))


@app.command()
def pause(queue: Queue, json_: Json = False) -> None:
    """Stop deliveries of a queue to all workers until it is resumed. Sending and work in flight continue."""
    _set_paused(queue, paused=True, json_=json_)


@app.command()
def resume(queue: Queue, json_: Json = False) -> None:
    """Resume deliveries of a paused queue."""
    _set_paused(queue, paused=False, json_=json_)


@app.command()
def purge(
    queue: Queue,
    yes: Yes = False,
    json_: Json = False,
) -> None:
    """Delete all messages of a queue, also those in flight. Asks first."""
    settings = load_settings()
    with opened(settings) as broker:
        status = queue_status(settings, broker, queue)
        if not yes:
            require_terminal(f"queues purge {queue}", options="--yes")
            if not confirmed(_question(status)):
                raise declined("deleted")
        deleted = broker.purge(queue)
    if json_:
        print_json({"queue": queue, "deleted": deleted})
    else:
        print(printable(f"{counted(deleted, 'message')} of {queue} deleted."))


def _set_paused(queue: str, *, paused: bool, json_: bool) -> None:
    from penstock.operations.pauses import set_paused  # loads the ledger

    done = set_paused(load_settings(), queue, paused=paused)
    if not done.known:
        talk(printable(f"No message was ever sent to {queue}; is the name correct?"))
    if done.unrecorded is not None:
        talk(printable(f"The audit log has no entry of this: {done.unrecorded}"))
    if json_:
        print_json({"queue": queue, "paused": paused})
    else:
        print(printable(f"{queue} is {'paused' if paused else 'resumed'}."))


def _question(status: QueueStatus) -> str:
    messages = counted(status.messages, "message")
    return f"Delete all {messages} of {status.queue}, {status.in_flight:,} of them in flight?"


def _dead_letters(status: QueueStatus) -> str:
    aside = status.dead_letters_set_aside
    return f"{status.dead_letters:,}" + (f" ({aside:,} for people)" if aside else "")
