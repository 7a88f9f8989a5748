"""Dead letters of a scope, for the verbs: which queues hold them, and which letters a person means.

Which queue a dead letter goes back to: the first of those it tells of whose dead letters do lie where it is.

What a letter says of its death is an attribute, and whoever sends messages can write those. So it is believed only
where the broker says the same: else a person who sends letters back would send them wherever a stranger likes.

Where dead letters lie: which queues of a scope hold them, and which they are that a name means.
"""

import getpass
import os
import socket
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Literal

from penstock.app.queues import tiers
from penstock.app.scope import scope_ledger
from penstock.dead_letters.filters import DeadLetterFilter, objects_of, origins_of
from penstock.dead_letters.groups import FailureGroup, Grouping
from penstock.dead_letters.letters import PAGE, DeadLetteredMessage, letters_in
from penstock.dead_letters.operator import Stopped, matching
from penstock.errors import ConfigurationError, UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectRow
from penstock.messaging.broker import Broker, listed_name, names_dead_letters, names_second_tier
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.replay import Replay, letter_replay_id
from penstock.operations.inspection import ScopeView

ANSWERS_MAX = 1_000  # that are remembered: letters may name any number of queues


class HomeQueues:
    """The queues of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known = set(broker.queue_names()) if broker.capabilities.creates_queues else None
        self._is_home = lru_cache(maxsize=ANSWERS_MAX)(self._lie_there)

    def of(self, letter: DeadLetteredMessage) -> str | None:
        """None where it tells of no such queue, or of none that is there."""
        return next((queue for queue in origins_of(letter) if self._is_home(queue, letter.queue)), None)

    def _lie_there(self, queue: str, letters: str) -> bool:
        if self._known is not None and queue not in self._known:
            return False
        try:
            return listed_name(letters) in map(listed_name, tiers(self._broker, queue))
        except ConfigurationError:  # no queue can have that name, or it is not ours to ask about
            return False


FIRST, SECOND = "dlq", "dead"


def tiers_asked(seen: ScopeView, queue: str | None) -> Mapping[str, str]:
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


def holds_letters(seen: ScopeView, queue: str) -> bool:
    """Whether it is for dead letters: by its name, or as a queue of the scope sends its own there."""
    named = listed_name(queue)
    return names_dead_letters(named) or named in _held(seen, named)


def place_of_letters(seen: ScopeView, queue: str) -> str:
    """Where letters of this queue lie: there, where it holds letters itself; else in its first tier."""
    return queue if holds_letters(seen, queue) else seen.broker.dead_letter_queue(queue)


def check_destination(seen: ScopeView, queue: str, *, option: str = "--to") -> None:
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


def _held(seen: ScopeView, named: str) -> Mapping[str, str]:
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


Tier = Literal["dlq", "dead"]
FIRST_PAGE_SECONDS = 0.5  # of groups: what was counted until then is worth a look while the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSelection:
    """Which letters a command line means."""

    queue: str | None = None  # theirs before they died, or where they lie
    tier: Tier | None = None
    wanted: DeadLetterFilter = field(default_factory=DeadLetterFilter)
    limit: int | None = None

    @property
    def details(self) -> Mapping[str, object]:
        """For the audit."""
        wanted = self.wanted
        given: Mapping[str, object] = {
            "queue": self.queue,
            "tier": self.tier,
            "handler": wanted.handler,
            "error": wanted.error,
            "older_than_seconds": wanted.older_than_seconds,
            "younger_than_seconds": wanted.younger_than_seconds,
            "attributes": dict(wanted.attributes),
            "object": wanted.object_uri,
            "ids": sorted(wanted.ids),
            "limit": self.limit,
        }
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterHistory:
    """One letter, and what the ledger has of it."""

    letter: DeadLetteredMessage
    replay: Replay | None  # its intent, or that it was sent and only its letter is left
    objects: tuple[tuple[str, str | None, ObjectRow | None], ...]  # announced: address, pipeline and row, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPlan:
    """What a verb would be done to."""

    letters: int
    by_queue: Mapping[tuple[str, str | None], int]  # where they lie, and where they would go: None if nothing tells
    groups: Sequence[FailureGroup]
    others: int  # letters of groups beyond those that are told apart
    ids_met: frozenset[str]  # of those that were asked for

    @property
    def homeless(self) -> int:
        """Letters of which nothing tells where they came from."""
        return sum(count for (_, to), count in self.by_queue.items() if to is None)


def letter_queues(seen: ScopeView, asked: DeadLetterSelection) -> Sequence[str]:
    """The queues to look into, first tiers before second ones.

    Raises `UsageError` for a queue that the broker does not know of.
    """
    tiers = tiers_asked(seen, asked.queue)
    return [
        name for tier in (FIRST, SECOND) for name, its in tiers.items() if its == tier and asked.tier in (None, its)
    ]


def letters(
    seen: ScopeView, asked: DeadLetterSelection, *, clock: Clock | None = None, stopped: Stopped = lambda: False
) -> Generator[DeadLetteredMessage, None, None]:
    """Those that are meant, queue by queue, at most as many as the limit says in all. To be closed: on SQS they are
    given back then."""
    left = asked.limit
    for queue in letter_queues(seen, asked):
        with closing(letters_of_queue(seen.broker, queue, asked.wanted, clock=clock, stopped=stopped)) as found:
            for letter in found:
                if left == 0:
                    return
                yield letter
                left = None if left is None else left - 1


def letters_of_queue(
    broker: Broker,
    queue: str,
    wanted: DeadLetterFilter,
    *,
    clock: Clock | None = None,
    stopped: Stopped = lambda: False,
) -> Generator[DeadLetteredMessage, None, None]:
    """Those of one queue; to be closed."""
    if has_letters(broker, queue):
        with letters_in(broker, queue, clock=clock) as found:
            for page in matching(found, wanted, clock=clock or SystemClock(), stopped=stopped):
                yield from page


def has_letters(broker: Broker, queue: str) -> bool:
    """Whether it makes sense to look: on SQS a queue may not be there, and a look is a receive."""
    return broker.capabilities.browsable or broker.stats(queue).visible > 0


def grouped(
    seen: ScopeView,
    asked: DeadLetterSelection,
    *,
    told: Callable[[int], None] = lambda _: None,
    first: Callable[[Grouping], None] = lambda _: None,
    clock: Clock | None = None,
) -> Grouping:
    """All that are meant, counted by what they died of. ``first`` is told what there is after `FIRST_PAGE_SECONDS`,
    where it takes longer."""
    clock = clock or SystemClock()
    grouping = Grouping()
    first_at: float | None = clock.monotonic() + FIRST_PAGE_SECONDS
    for queue in letter_queues(seen, asked):
        with closing(letters_of_queue(seen.broker, queue, asked.wanted, clock=clock)) as found:
            while chunk := list(islice(found, PAGE)):
                grouping.add(chunk)
                told(len(chunk))
                if first_at is not None and clock.monotonic() >= first_at:
                    first_at = None
                    first(grouping)
    return grouping


def story_of(seen: ScopeView, asked: DeadLetterSelection, id: str) -> DeadLetterHistory | None:
    """The letter of that id, and what the ledger knows of it; None where there is none."""
    meant = replace(asked, wanted=DeadLetterFilter(ids=frozenset({id})))
    with closing(letters(seen, meant)) as found:
        letter = next(found, None)
    if letter is None:
        return None
    replay_id = letter_replay_id(letter.queue, letter.message)
    objects: list[tuple[str, str | None, ObjectRow | None]] = []
    for uri in sorted(objects_of(letter.message)):
        rows: Sequence[tuple[str | None, ObjectRow | None]] = seen.ledger.find(uri) or [(None, None)]
        objects += [(uri, pipeline, row) for pipeline, row in rows]
    return DeadLetterHistory(
        letter=letter, replay=seen.ledger.replays.find([replay_id]).get(replay_id), objects=tuple(objects)
    )


def opened_ledger(seen: ScopeView) -> Ledger:
    """The ledger, made if need be: what is done goes on record before it is done."""
    return scope_ledger(seen.scope)


def plan(seen: ScopeView, asked: DeadLetterSelection, *, to: str | None, clock: Clock | None = None) -> DeadLetterPlan:
    """Look at all that are meant, and count. Raises `UsageError` for a queue that nothing can be sent to."""
    if to is not None:
        check_destination(seen, to)
    grouping = Grouping()
    met: set[str] = set()
    homes = HomeQueues(seen.broker)
    by_queue: Counter[tuple[str, str | None]] = Counter()
    with closing(letters(seen, asked, clock=clock)) as found:
        for letter in found:
            grouping.add([letter])
            met |= asked.wanted.ids_met(letter)
            by_queue[letter.queue, to or homes.of(letter)] += 1
    return DeadLetterPlan(
        letters=grouping.letters,
        by_queue=by_queue,
        groups=grouping.groups(),
        others=grouping.others,
        ids_met=frozenset(met),
    )


def who() -> str:
    """The person, for the audit: as the operating system knows them, and this host."""
    user = str(os.getuid())
    with suppress(KeyError, OSError):
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


@dataclass(slots=True, kw_only=True)
class QueueResult:
    """What a verb did to one queue of letters."""

    queue: str
    messages: int = 0
    outcome: str | None = None  # None: done, or interrupted


@contextmanager
def audited(
    ledger: Ledger, action: str, *, queue: str, details: Mapping[str, object], stopped: Stopped
) -> Iterator[QueueResult]:
    """On record before anything is done, and completed after; the caller counts."""
    entry = ledger.audits.begin(action, queue=queue, who=who(), details=details)
    done = QueueResult(queue=queue)
    try:
        yield done
    except BaseException:
        with suppress(Exception):  # what went wrong is told, and not that it could not be written down
            ledger.audits.end(entry, messages=done.messages, outcome="failed")
        raise
    ended = "interrupted" if stopped() else "done"
    ledger.audits.end(entry, messages=done.messages, outcome=done.outcome or ended)
