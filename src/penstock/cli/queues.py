"""`penstock queues`: how the queues stand; pause, resume and purge them.

How a queue stands, in words: for the list, for the screen that refreshes, and for one look of the monitor.
"""

import dataclasses
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import (
    Json,
    Yes,
    confirmed,
    counted,
    declined,
    must_be_told,
    print_fields,
    print_json,
    print_table,
    printable,
    talk,
)

if TYPE_CHECKING:
    from penstock.app.queues import QueueStatus
    from penstock.operations.monitor.look import QueueSample


def state_of(one: "QueueStatus") -> str:
    """Whether it is handed over: empty where it is."""
    if one.paused:
        return "paused"
    return "breaker" if one.breaker is not None else "unserved" if one.unserved is not None else ""


def oldest_visible(one: "QueueStatus | QueueSample") -> str:
    """How long its oldest visible message has waited. An estimate says that it is one."""
    seconds = one.oldest_visible_message_age_seconds
    age = age_of(seconds if one.visible else seconds or None)
    return f"about {age}" if age and one.oldest_visible_message_age_source == "estimated" else age


def oldest(one: "QueueStatus | QueueSample") -> str:
    """How old its oldest message is. Brokers call the age of no message 0; to people it is none."""
    there = one.visible or one.in_flight or one.delayed
    return age_of(one.oldest_message_age_seconds) if there else ""


def age_of(seconds: float | None) -> str:
    """A span of time for people; empty where nobody can tell."""
    from penstock.operations.status.standing import span

    return "" if seconds is None else span(seconds)


app = typer.Typer(
    help="The queues: how they stand, and who of this host works on them. Workers of other hosts cannot be seen.",
    no_args_is_help=True,
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]


@app.command("list")
def list_(json_: Json = False) -> None:
    """List the queues: depths, ages, dead letters, workers of this state folder on this host."""
    from penstock.app.queues import ages_of, opened, standings
    from penstock.config import load_settings

    settings = load_settings()
    with opened(settings) as broker, closing(ages_of(settings, broker)) as ages:
        found = standings(settings, broker, ages=ages)
        makes = broker.capabilities.creates_queues
    if json_:
        print_json([dataclasses.asdict(standing) for standing in found])
        return
    some_paused = any(map(state_of, found))
    state = ("state",) if some_paused else ()  # beside the name, where no narrow terminal cuts it off
    print_table(
        ("queue", *state, "visible", "in flight", "delayed", "oldest visible", "oldest", "dead letters", "workers"),
        [
            (
                standing.queue,
                *((state_of(standing),) if some_paused else ()),
                standing.visible,
                standing.in_flight,
                standing.delayed,
                oldest_visible(standing),
                oldest(standing),
                _letters(standing),
                len(standing.workers),
            )
            for standing in found
        ],
        empty="There are no queues yet: the first message that is sent to one makes it."
        if makes
        else "There are no queues here: create one, or look at the address of the broker.",
    )
    for standing in found:
        if standing.unread is not None:
            talk(printable(f"Warning: {standing.unread}."))


@app.command()
def show(queue: Queue, json_: Json = False) -> None:
    """Show one queue, and the workers of this state folder on this host that serve it."""
    from penstock.app.queues import ages_of, opened, standing_of
    from penstock.config import load_settings

    settings = load_settings()
    with opened(settings) as broker, closing(ages_of(settings, broker)) as ages:
        standing = standing_of(settings, broker, queue, ages=ages)
    if json_:
        print_json(dataclasses.asdict(standing))
        return
    print_fields(
        {
            "queue": standing.queue,
            "paused": ("by its breaker: " + standing.breaker)
            if standing.breaker
            else "yes"
            if standing.paused
            else "no",
            **({} if standing.unserved is None else {"not served": standing.unserved}),
            "visible": f"{standing.visible:,}",
            "in flight": f"{standing.in_flight:,}",
            "delayed": f"{standing.delayed:,}",
            "oldest visible": oldest_visible(standing) or ("not known" if standing.visible else "nothing waits"),
            "oldest": oldest(standing),
            "dead letters": _letters(standing),
            "workers": ", ".join(standing.workers) or "none of this state folder on this host",
            **({} if standing.sender_key is None else {"sender key": standing.sender_key}),
        }
    )
    if standing.unread is not None:
        talk(printable(f"Warning: {standing.unread}."))


@app.command()
def pause(queue: Queue, json_: Json = False) -> None:
    """Hand nothing of the queue over, in any process, until it is resumed. Sending goes on, and work in flight."""
    _set_paused(queue, paused=True, json_=json_)


@app.command()
def resume(queue: Queue, json_: Json = False) -> None:
    """End a pause."""
    _set_paused(queue, paused=False, json_=json_)


@app.command()
def purge(
    queue: Queue,
    yes: Yes = False,
    json_: Json = False,
) -> None:
    """Delete every message of the queue, those that workers hold too. Asks first."""
    from penstock.app.queues import opened, standing_of
    from penstock.config import load_settings

    settings = load_settings()
    with opened(settings) as broker:
        standing = standing_of(settings, broker, queue)
        if not yes:
            must_be_told(f"queues purge {queue}", options="--yes")
            if not confirmed(_question(standing)):
                raise declined("deleted")
        deleted = broker.purge(queue)
    if json_:
        print_json({"queue": queue, "deleted": deleted})
    else:
        print(printable(f"{counted(deleted, 'message')} of {queue} deleted."))


def _set_paused(queue: str, *, paused: bool, json_: bool) -> None:
    from penstock.app.queues import opened
    from penstock.config import load_settings

    with opened(load_settings(), make=paused) as broker:
        known = not broker.capabilities.pausable or queue in broker.queue_names()
        if paused:  # a broker that cannot says so itself
            broker.pause(queue)
        else:
            broker.resume(queue)
    if not known:
        talk(printable(f"Nothing was ever sent to {queue}; is that its name?"))
    if json_:
        print_json({"queue": queue, "paused": paused})
    else:
        print(printable(f"{queue} is {'paused' if paused else 'handed over'}."))


def _question(standing: "QueueStatus") -> str:
    messages = counted(standing.messages, "message")
    return f"Delete all {messages} of {standing.queue}, {standing.in_flight:,} of them in flight?"


def _letters(standing: "QueueStatus") -> str:
    aside = standing.dead_letters_set_aside
    return f"{standing.dead_letters:,}" + (f" ({aside:,} for people)" if aside else "")
