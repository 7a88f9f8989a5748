"""How many dead objects and dead letters there are, and how many need nobody: as a later version replaced them, or as
they come back by themselves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.app.backends import has_workers_elsewhere
from penstock.app.dead_letters import letters_of_queue
from penstock.app.inspect import View
from penstock.app.queues import QueueStanding, messages_in, tiers
from penstock.app.registry import WorkerRecord
from penstock.messaging.broker import conventional_source, names_dead_letters, names_second_tier
from penstock.replay.filters import Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadObjects:
    """The dead objects of a pipeline, and the ids of the messages that named them."""

    replaced: int
    carriers_of_replaced: set[str]
    carriers_of_others: set[str]


def dead_objects(seen: View, pipeline: str) -> DeadObjects:
    """Looks at each of them."""
    replaced, others, count = set[str](), set[str](), 0
    for one in seen.dead_objects(pipeline):
        count += one.replaced
        if one.row.carrier is not None:
            (replaced if one.replaced else others).add(one.row.carrier.message_id)
    return DeadObjects(replaced=count, carriers_of_replaced=replaced, carriers_of_others=others)


def letters_replaced(seen: View, dead: Iterable[DeadObjects]) -> int | None:
    """How many letters are about nothing but objects of which a later version was processed.

    None where nobody can tell: objects are so, and the broker shows their letters only to who receives them.
    """
    carriers, others = set[str](), set[str]()
    for one in dead:
        carriers |= one.carriers_of_replaced
        others |= one.carriers_of_others
    if not (carriers := carriers - others):
        return 0
    if not seen.broker.capabilities.browsable:
        return None
    letters = (
        letter
        for queue in seen.broker.queue_names()
        if names_dead_letters(queue)
        for letter in letters_of_queue(seen.broker, queue, Wanted())
    )
    return sum(letter.death is not None and letter.death.message_id in carriers for letter in letters)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """How many dead letters there are."""

    all: int
    set_aside: int  # in the second tier
    replayed: int  # in the first tier of queues whose letters somebody sends back


def dead_letters(seen: View, every: Sequence[QueueStanding], records: Sequence[WorkerRecord]) -> DeadLetters:
    """Those in the queues that hold such; among the queues of strangers, in the scope's. A queue that several share
    counts once."""
    if seen.queues is None:
        names = {one.queue for one in every if names_dead_letters(one.queue)}
        second = {name for name in names if names_second_tier(name)}
    else:
        named = [(name,) * 2 if names_dead_letters(name) else tiers(seen.broker, name) for name in seen.queues]
        names = {name for pair in named for name in pair}
        second = {name for pair in named for name in pair[1:] if pair[0] != name or names_second_tier(name)}
    known = {one.queue: one.messages for one in every}
    counts = {name: known[name] if name in known else messages_in(seen.broker, name) for name in names}
    replayed = (names - second) & _replayed(seen, names, records)
    return DeadLetters(
        all=sum(counts.values()),
        set_aside=sum(counts[name] for name in second),
        replayed=sum(counts[name] for name in replayed),
    )


def _replayed(seen: View, names: Iterable[str], records: Sequence[WorkerRecord]) -> set[str]:
    """Those of the queues that a living worker replays; on other hosts there may be some, if the settings say so."""
    settings = seen.scope.settings
    replayed = {queue for record in records for queue in record.queues}
    if settings.replay and has_workers_elsewhere(settings):
        off = {queue for queue, how in settings.replay_queues.items() if how.off}
        replayed |= {name for name in names if conventional_source(name) not in off}
    return replayed
