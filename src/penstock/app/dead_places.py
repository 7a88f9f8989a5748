"""Where dead letters lie: which queues of a scope hold them, and which they are that a name means."""

from collections.abc import Mapping, Sequence

from penstock.app.inspect import View
from penstock.app.queues import tiers
from penstock.errors import UsageError
from penstock.messaging.broker import Broker, listed_name, names_dead_letters, names_second_tier

FIRST, SECOND = "dlq", "dead"


def tiers_asked(seen: View, queue: str | None) -> Mapping[str, str]:
    """The queues that hold dead letters and are there, each with its tier: of this queue, or of all of the scope.

    Raises `UsageError` for a queue that the broker does not know of.
    """
    broker = seen.broker
    if queue is None and seen.queues is not None:
        if not seen.queues:
            raise UsageError(
                "No queue is named, and those here may be of others: give --queue QUEUE or --app APP, or set queues."
            )
        return _tiers_of_all(broker, seen.queues)
    known = set(broker.queue_names())
    if queue is None:
        found = {name: _tier_by_name(name) for name in sorted(known) if names_dead_letters(name)}
        found |= {n: t for n, t in _tiers_of_all(broker, sorted(known - found.keys())).items() if n not in found}
    else:
        named = listed_name(queue)
        held = _held(seen, named)
        found = {named: held[named]} if named in held else _tiers_of_all(broker, [queue])
        if not known & {named, *map(listed_name, found)}:
            raise UsageError(f"There is no queue {named}; queues there are: {', '.join(sorted(known)) or 'none'}.")
    return {name: tier for name, tier in found.items() if listed_name(name) in known}


def holds_letters(seen: View, queue: str) -> bool:
    """Whether it is for dead letters: by its name, or as a queue of the scope sends its own there."""
    named = listed_name(queue)
    return names_dead_letters(named) or named in _held(seen, named)


def place_of_letters(seen: View, queue: str) -> str:
    """Where letters of this queue lie: there, where it holds letters itself; else in its first tier."""
    return queue if holds_letters(seen, queue) else seen.broker.dead_letter_queue(queue)


def check_destination(seen: View, queue: str, *, option: str = "--to") -> None:
    """Raise `UsageError` for a queue that nothing can be sent back to: one that holds letters, or is not there.

    Where queues are made as they are named, one is there as soon as its dead letters are: what is misspelt has none.
    """
    broker = seen.broker
    if holds_letters(seen, queue):
        raise UsageError(
            f"{queue} holds dead letters, and nobody works on those: {option} takes the queue that is to work on them."
        )
    known = broker.queue_names()
    if listed_name(queue) in known:
        return
    if not broker.capabilities.creates_queues or not set(known) & tiers_of(broker, queue).keys():
        raise UsageError(f"There is no queue {queue} to send to; queues there are: {', '.join(known) or 'none'}.")


def tiers_of(broker: Broker, queue: str) -> dict[str, str]:
    """Both of a queue. One that is its own next has no second."""
    first, second = tiers(broker, queue)
    return {first: FIRST} if second == first else {first: FIRST, second: SECOND}


def _held(seen: View, named: str) -> Mapping[str, str]:
    """The tiers of the other queues; of no interest where the name tells already."""
    if names_dead_letters(named):
        return {}
    others = sorted({*seen.broker.queue_names()} - {named}) if seen.queues is None else seen.queues
    return _tiers_of_all(seen.broker, others)


def _tiers_of_all(broker: Broker, queues: Sequence[str]) -> dict[str, str]:
    """Where letters of these queues lie; one that holds letters itself is meant alone."""
    found: dict[str, str] = {}
    for queue in queues:
        found |= {queue: _tier_by_name(queue)} if names_dead_letters(listed_name(queue)) else tiers_of(broker, queue)
    return found


def _tier_by_name(queue: str) -> str:
    return SECOND if names_second_tier(queue) else FIRST
