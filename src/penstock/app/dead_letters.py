"""Dead letters of a scope, for the verbs: which queues hold them, and which letters a person means."""

import getpass
import os
import socket
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from penstock.app.dead_homes import Homes
from penstock.app.dead_places import FIRST, SECOND, check_destination, tiers_asked
from penstock.app.inspect import View
from penstock.app.scope import scope_ledger
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectRow
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.replays import Replay, letter_replay_id
from penstock.replay.filters import Wanted, objects_of
from penstock.replay.groups import Group, Grouping
from penstock.replay.letters import PAGE, Letter, letters_in
from penstock.replay.operator import Stopped, matching

Tier = Literal["dlq", "dead"]
FIRST_PAGE_SECONDS = 0.5  # of groups: what was counted until then is worth a look while the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which letters a command line means."""

    queue: str | None = None  # theirs before they died, or where they lie
    tier: Tier | None = None
    wanted: Wanted = field(default_factory=Wanted)
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
class LetterStory:
    """One letter, and what the ledger has of it."""

    letter: Letter
    replay: Replay | None  # its intent, or that it was sent and only its letter is left
    objects: tuple[tuple[str, str | None, ObjectRow | None], ...]  # announced: address, pipeline and row, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a verb would be done to."""

    letters: int
    by_queue: Mapping[tuple[str, str | None], int]  # where they lie, and where they would go: None if nothing tells
    groups: Sequence[Group]
    others: int  # letters of groups beyond those that are told apart
    ids_met: frozenset[str]  # of those that were asked for

    @property
    def homeless(self) -> int:
        """Letters of which nothing tells where they came from."""
        return sum(count for (_, to), count in self.by_queue.items() if to is None)


def letter_queues(seen: View, asked: Asked) -> Sequence[str]:
    """The queues to look into, first tiers before second ones.

    Raises `UsageError` for a queue that the broker does not know of.
    """
    tiers = tiers_asked(seen, asked.queue)
    return [
        name for tier in (FIRST, SECOND) for name, its in tiers.items() if its == tier and asked.tier in (None, its)
    ]


def letters(
    seen: View, asked: Asked, *, clock: Clock | None = None, stopped: Stopped = lambda: False
) -> Generator[Letter, None, None]:
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
    broker: Broker, queue: str, wanted: Wanted, *, clock: Clock | None = None, stopped: Stopped = lambda: False
) -> Generator[Letter, None, None]:
    """Those of one queue; to be closed."""
    if has_letters(broker, queue):
        with letters_in(broker, queue, clock=clock) as found:
            for page in matching(found, wanted, clock=clock or SystemClock(), stopped=stopped):
                yield from page


def has_letters(broker: Broker, queue: str) -> bool:
    """Whether it makes sense to look: on SQS a queue may not be there, and a look is a receive."""
    return broker.capabilities.browsable or broker.stats(queue).visible > 0


def grouped(
    seen: View,
    asked: Asked,
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


def story_of(seen: View, asked: Asked, id: str) -> LetterStory | None:
    """The letter of that id, and what the ledger knows of it; None where there is none."""
    meant = replace(asked, wanted=Wanted(ids=frozenset({id})))
    with closing(letters(seen, meant)) as found:
        letter = next(found, None)
    if letter is None:
        return None
    replay_id = letter_replay_id(letter.queue, letter.message)
    objects: list[tuple[str, str | None, ObjectRow | None]] = []
    for uri in sorted(objects_of(letter.message)):
        rows: Sequence[tuple[str | None, ObjectRow | None]] = seen.ledger.find(uri) or [(None, None)]
        objects += [(uri, pipeline, row) for pipeline, row in rows]
    return LetterStory(
        letter=letter, replay=seen.ledger.replays.find([replay_id]).get(replay_id), objects=tuple(objects)
    )


def opened_ledger(seen: View) -> Ledger:
    """The ledger, made if need be: what is done goes on record before it is done."""
    return scope_ledger(seen.scope)


def plan(seen: View, asked: Asked, *, to: str | None, clock: Clock | None = None) -> Plan:
    """Look at all that are meant, and count. Raises `UsageError` for a queue that nothing can be sent to."""
    if to is not None:
        check_destination(seen, to)
    grouping = Grouping()
    met: set[str] = set()
    homes = Homes(seen.broker)
    by_queue: Counter[tuple[str, str | None]] = Counter()
    with closing(letters(seen, asked, clock=clock)) as found:
        for letter in found:
            grouping.add([letter])
            met |= asked.wanted.ids_met(letter)
            by_queue[letter.queue, to or homes.of(letter)] += 1
    return Plan(
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
class Done:
    """What a verb did to one queue of letters."""

    queue: str
    messages: int = 0
    outcome: str | None = None  # None: done, or interrupted


@contextmanager
def audited(
    ledger: Ledger, action: str, *, queue: str, details: Mapping[str, object], stopped: Stopped
) -> Iterator[Done]:
    """On record before anything is done, and completed after; the caller counts."""
    entry = ledger.audits.begin(action, queue=queue, who=who(), details=details)
    done = Done(queue=queue)
    try:
        yield done
    except BaseException:
        with suppress(Exception):  # what went wrong is told, and not that it could not be written down
            ledger.audits.end(entry, messages=done.messages, outcome="failed")
        raise
    ended = "interrupted" if stopped() else "done"
    ledger.audits.end(entry, messages=done.messages, outcome=done.outcome or ended)
