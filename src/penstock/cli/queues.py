"""`penstock queues`: how the queues stand; pause, resume and purge them."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exits import FAILED
from penstock.cli.output import Json, counted, print_fields, print_json, print_table, printable, talk
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.queues import QueueStanding

app = typer.Typer(
    help="The queues: how they stand, and who of this host works on them. Workers of other hosts cannot be seen.",
    no_args_is_help=True,
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]


@app.command("list")
def list_(json_: Json = False) -> None:
    """List the queues: depths, ages, dead letters, workers of this state folder on this host."""
    from penstock.app.queues import opened, standings
    from penstock.config import load_settings

    settings = load_settings()
    with opened(settings) as broker:
        found = standings(settings, broker)
        makes = broker.capabilities.creates_queues
    if json_:
        print_json([dataclasses.asdict(standing) for standing in found])
        return
    some_paused = any(map(_paused, found))
    state = ("state",) if some_paused else ()  # beside the name, where no narrow terminal cuts it off
    print_table(
        ("queue", *state, "visible", "in flight", "delayed", "oldest visible", "oldest", "dead letters", "workers"),
        [
            (
                standing.queue,
                *((_paused(standing),) if some_paused else ()),
                standing.visible,
                standing.in_flight,
                standing.delayed,
                _age(standing.oldest_visible_message_age_seconds),
                _oldest(standing),
                _letters(standing),
                len(standing.workers),
            )
            for standing in found
        ],
        empty="There are no queues yet: the first message that is sent to one makes it."
        if makes
        else "There are no queues here: create one, or look at the address of the broker.",
    )


@app.command()
def show(queue: Queue, json_: Json = False) -> None:
    """Show one queue, and the workers of this state folder on this host that serve it."""
    from penstock.app.queues import opened, standing_of
    from penstock.config import load_settings

    settings = load_settings()
    with opened(settings) as broker:
        standing = standing_of(settings, broker, queue)
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
            "visible": f"{standing.visible:,}",
            "in flight": f"{standing.in_flight:,}",
            "delayed": f"{standing.delayed:,}",
            "oldest visible": _age(standing.oldest_visible_message_age_seconds)
            or ("not known" if standing.visible else "nothing waits"),
            "oldest": _oldest(standing),
            "dead letters": _letters(standing),
            "workers": ", ".join(standing.workers) or "none of this state folder on this host",
        }
    )


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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json_: Json = False,
) -> None:
    """Delete every message of the queue, those that workers hold too. Asks first."""
    from penstock.app.queues import opened, standing_of
    from penstock.config import load_settings

    settings = load_settings()
    with opened(settings) as broker:
        standing = standing_of(settings, broker, queue)
        if not yes and not _confirmed(standing):
            talk("Nothing was deleted.")
            raise typer.Exit(FAILED)
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


def _confirmed(standing: "QueueStanding") -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"Purging {standing.queue} deletes its messages and nobody is there to ask; give --yes.")
    messages = counted(standing.visible + standing.in_flight + standing.delayed, "message")
    talk(printable(f"Delete all {messages} of {standing.queue}, {standing.in_flight:,} of them in flight? [y/N]"))
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _paused(standing: "QueueStanding") -> str:
    return "paused" if standing.paused else "breaker" if standing.breaker is not None else ""


def _letters(standing: "QueueStanding") -> str:
    aside = standing.dead_letters_set_aside
    return f"{standing.dead_letters:,}" + (f" ({aside:,} for people)" if aside else "")


def _oldest(standing: "QueueStanding") -> str:
    """Brokers call the age of no message 0; to people it is none."""
    there = standing.visible or standing.in_flight or standing.delayed
    return _age(standing.oldest_message_age_seconds) if there else ""


def _age(seconds: float | None) -> str:
    """An age for people: seconds, then minutes, hours, days."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"
