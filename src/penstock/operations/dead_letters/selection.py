"""Select dead letters for the commands: the DLQs of a scope, the selected messages, and the queue of origin of each.

A message's death is an attribute that any sender can forge. So its queue of origin counts only if the broker confirms
that this queue's dead letters go to the DLQ that holds the message. Otherwise a sender could make a replay send it
anywhere.
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

from penstock.app.scope import scope_ledger
from penstock.app.system_health import dead_letter_queues
from penstock.dead_letters.filters import DeadLetterFilter, objects_of, origins_of
from penstock.dead_letters.groups import FailureGroup, Grouping
from penstock.dead_letters.operator import ProgressCallback, Stopped, matching
from penstock.dead_letters.reader import PAGE, DeadLetteredMessage, dead_letters_in
from penstock.errors import ConfigurationError, UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectRow
from penstock.messaging.broker import Broker, listed_name, names_dead_letters, names_final_dlq
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.replay import Replay, dead_letter_replay_id
from penstock.operations.inspection import ScopeView

ORIGINS_CACHE_MAX = 1_000  # cache size: messages may name any number of queues
FIRST, SECOND = "dlq", "dead"
Tier = Literal["dlq", "dead"]
FIRST_PAGE_SECONDS = 0.5  # partial groups are shown after this time while counting continues


class OriginQueues:
    """Find the queue of origin of dead letters on one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known = set(broker.queue_names()) if broker.capabilities.creates_queues else None
        self._is_origin = lru_cache(maxsize=ORIGINS_CACHE_MAX)(self._takes_dead_letters_of)

    def of(self, dead_letter: DeadLetteredMessage) -> str | None:
        """Return the first queue that the message names and the broker confirms; None if there is none."""
        return next((queue for queue in origins_of(dead_letter) if self._is_origin(queue, dead_letter.queue)), None)

    def _takes_dead_letters_of(self, queue: str, dead_letters: str) -> bool:
        if self._known is not None and queue not in self._known:
            return False
        try:
            return listed_name(dead_letters) in map(listed_name, dead_letter_queues(self._broker, queue))
        except ConfigurationError:  # no queue can have that name, or access is denied
            return False


def requested_queues(seen: ScopeView, queue: str | None) -> Mapping[str, str]:
    """Return the existing DLQs of this queue, or of the whole scope, each with its tier.

    Raises `UsageError` for a queue that the broker does not know.
    """
    broker = seen.broker
    if queue is None and seen.queues is not None:
        if not seen.queues:
            raise UsageError(
                "No queue is named, and the broker may have foreign queues: give --queue or --app, or set queues."
            )
        return _dlqs_of_all(broker, seen.queues)
    known = set(broker.queue_names())
    if queue is None:
        found = {name: _tier_by_name(name) for name in sorted(known) if names_dead_letters(name)}
        found |= {n: t for n, t in _dlqs_of_all(broker, sorted(known - found.keys())).items() if n not in found}
    else:
        named = listed_name(queue)
        dlqs = _dlqs_of_others(seen, named)
        found = {named: dlqs[named]} if named in dlqs else _dlqs_of_all(broker, [queue])
        if not known & {named, *map(listed_name, found)}:
            raise UsageError(f"There is no queue {named}; existing queues: {', '.join(sorted(known)) or 'none'}.")
    return {name: tier for name, tier in found.items() if listed_name(name) in known}


def is_dead_letter_queue(seen: ScopeView, queue: str) -> bool:
    """Return True if a queue is a DLQ, by its name or because a queue of the scope uses it as one."""
    named = listed_name(queue)
    return names_dead_letters(named) or named in _dlqs_of_others(seen, named)


def dead_letter_queue_for(seen: ScopeView, queue: str) -> str:
    """Return the queue itself if it is a DLQ, else its DLQ."""
    return queue if is_dead_letter_queue(seen, queue) else seen.broker.dead_letter_queue(queue)


def check_destination(seen: ScopeView, queue: str, *, option: str = "--to") -> None:
    """Raise `UsageError` for a destination that is a DLQ or does not exist.

    If the broker creates queues on use, a queue counts as existing once its DLQ exists: a misspelt name has none.
    """
    broker = seen.broker
    if is_dead_letter_queue(seen, queue):
        raise UsageError(
            f"{queue} holds dead letters and has no consumer: give {option} the queue that should process them."
        )
    known = broker.queue_names()
    if listed_name(queue) in known:
        return
    if not broker.capabilities.creates_queues or not set(known) & dlqs_of(broker, queue).keys():
        raise UsageError(f"There is no queue {queue} to send to; existing queues: {', '.join(known) or 'none'}.")


def dlqs_of(broker: Broker, queue: str) -> dict[str, str]:
    """Return the DLQ and the final DLQ of a queue. A DLQ that is its own final DLQ appears once."""
    first, second = dead_letter_queues(broker, queue)
    return {first: FIRST} if second == first else {first: FIRST, second: SECOND}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSelection:
    """The selection of messages by a command line."""

    queue: str | None = None  # the queue of origin, or the DLQ
    tier: Tier | None = None
    wanted: DeadLetterFilter = field(default_factory=DeadLetterFilter)
    limit: int | None = None
    group_name: str | None = None  # of the group in ``wanted``, for the audit log

    @property
    def details(self) -> Mapping[str, object]:
        """The selection for the audit log."""
        wanted = self.wanted
        values: Mapping[str, object] = {
            "queue": self.queue,
            "tier": self.tier,
            "handler": wanted.handler,
            "error": wanted.error,
            "group": wanted.group,
            "group_name": self.group_name,
            "older_than_seconds": wanted.older_than_seconds,
            "younger_than_seconds": wanted.younger_than_seconds,
            "attributes": dict(wanted.attributes),
            "object": wanted.object_uri,
            "ids": sorted(wanted.ids),
            "limit": self.limit,
        }
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterHistory:
    """One message and its entries in the ledger."""

    dead_letter: DeadLetteredMessage
    replay: Replay | None  # recorded as intended, or as sent with only the dead letter left
    objects: tuple[tuple[str, str | None, ObjectRow | None], ...]  # announced: address, pipeline and row, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPlan:
    """The effect that a command would have."""

    dead_letters: int
    by_queue: Mapping[tuple[str, str | None], int]  # by DLQ and destination; None: unknown
    groups: Sequence[FailureGroup]
    others: int  # messages in groups that are not listed
    ids_met: frozenset[str]  # requested ids that were found

    @property
    def without_origin(self) -> int:
        """The number of messages without a known queue of origin."""
        return sum(count for (_, to), count in self.by_queue.items() if to is None)


def selected_queues(seen: ScopeView, selection: DeadLetterSelection) -> Sequence[str]:
    """Return the DLQs to inspect, final DLQs last.

    Raises `UsageError` for a queue that the broker does not know.
    """
    dlqs = requested_queues(seen, selection.queue)
    return [
        name for tier in (FIRST, SECOND) for name, its in dlqs.items() if its == tier and selection.tier in (None, its)
    ]


def select_dead_letters(
    seen: ScopeView, selection: DeadLetterSelection, *, clock: Clock | None = None, stopped: Stopped = lambda: False
) -> Generator[DeadLetteredMessage, None, None]:
    """Yield the selected messages, queue by queue, up to the limit in total.

    Close the generator: on SQS that releases the messages.
    """
    left = selection.limit
    for queue in selected_queues(seen, selection):
        with closing(select_in_queue(seen.broker, queue, selection.wanted, clock=clock, stopped=stopped)) as found:
            for dead_letter in found:
                if left == 0:
                    return
                yield dead_letter
                left = None if left is None else left - 1


def select_in_queue(
    broker: Broker,
    queue: str,
    wanted: DeadLetterFilter,
    *,
    clock: Clock | None = None,
    stopped: Stopped = lambda: False,
) -> Generator[DeadLetteredMessage, None, None]:
    """Yield the selected messages of one DLQ. Close the generator."""
    if is_worth_reading(broker, queue):
        with dead_letters_in(broker, queue, clock=clock) as found:
            for page in matching(found, wanted, clock=clock or SystemClock(), stopped=stopped):
                yield from page


def is_worth_reading(broker: Broker, queue: str) -> bool:
    """Return True if inspecting is useful: on SQS a queue may not exist, and an inspection is a receive."""
    return broker.capabilities.browsable or broker.stats(queue).visible > 0


def grouped(
    seen: ScopeView,
    selection: DeadLetterSelection,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
    first: Callable[[Grouping], None] = lambda _: None,
    clock: Clock | None = None,
) -> Grouping:
    """Group all selected messages by failure and count them.

    ``first`` receives the partial result after `FIRST_PAGE_SECONDS`, if it takes longer.
    """
    clock = clock or SystemClock()
    grouping = Grouping()
    first_at: float | None = clock.monotonic() + FIRST_PAGE_SECONDS
    for queue in selected_queues(seen, selection):
        with closing(select_in_queue(seen.broker, queue, selection.wanted, clock=clock)) as found:
            while chunk := list(islice(found, PAGE)):
                grouping.add(chunk)
                on_progress(len(chunk))
                if first_at is not None and clock.monotonic() >= first_at:
                    first_at = None
                    first(grouping)
    return grouping


def history_of(seen: ScopeView, selection: DeadLetterSelection, id: str) -> DeadLetterHistory | None:
    """Return the message with this id and its entries in the ledger, or None."""
    meant = replace(selection, wanted=DeadLetterFilter(ids=frozenset({id})))
    with closing(select_dead_letters(seen, meant)) as found:
        dead_letter = next(found, None)
    return None if dead_letter is None else history_for(seen, dead_letter)


def history_for(seen: ScopeView, dead_letter: DeadLetteredMessage) -> DeadLetterHistory:
    """Return the message with its entries in the ledger."""
    replay_id = dead_letter_replay_id(dead_letter.queue, dead_letter.message)
    objects: list[tuple[str, str | None, ObjectRow | None]] = []
    for uri in sorted(objects_of(dead_letter.message)):
        rows: Sequence[tuple[str | None, ObjectRow | None]] = seen.ledger.find(uri) or [(None, None)]
        objects += [(uri, pipeline, row) for pipeline, row in rows]
    return DeadLetterHistory(
        dead_letter=dead_letter, replay=seen.ledger.replays.find([replay_id]).get(replay_id), objects=tuple(objects)
    )


def opened_ledger(seen: ScopeView) -> Ledger:
    """Open the ledger, creating it if missing: actions are recorded before they are done."""
    return scope_ledger(seen.scope)


def plan(
    seen: ScopeView,
    selection: DeadLetterSelection,
    *,
    to: str | None,
    goes: bool = False,
    clock: Clock | None = None,
    stopped: Stopped = lambda: False,
    on_progress: ProgressCallback = lambda _: None,
) -> DeadLetterPlan:
    """Inspect and count all selected messages. Raises `UsageError` for an invalid destination.

    ``goes``: the messages would be sent, so those without a known queue do not count towards the limit, as in a replay.
    Once ``stopped`` returns True, the plan covers only the messages inspected by then.
    """
    if to is not None:
        check_destination(seen, to)
    grouping = Grouping()
    met: set[str] = set()
    origins = OriginQueues(seen.broker)
    by_queue: Counter[tuple[str, str | None]] = Counter()
    left = selection.limit if goes else None
    inspected = replace(selection, limit=None) if goes else selection
    with closing(select_dead_letters(seen, inspected, clock=clock, stopped=stopped)) as found:
        while left != 0 and (chunk := list(islice(found, PAGE if left is None else min(PAGE, left)))):
            grouping.add(chunk)
            for dead_letter in chunk:
                met |= selection.wanted.ids_met(dead_letter)
                destination = to or origins.of(dead_letter)
                by_queue[dead_letter.queue, destination] += 1
                left = None if left is None else left - (destination is not None)
            on_progress(len(chunk))
    return DeadLetterPlan(
        dead_letters=grouping.dead_letters,
        by_queue=by_queue,
        groups=grouping.groups(),
        others=grouping.others,
        ids_met=frozenset(met),
    )


def current_user() -> str:
    """Return the operating system's user and this host, for the audit log."""
    user = str(os.getuid())
    with suppress(KeyError, OSError):
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


@dataclass(slots=True, kw_only=True)
class QueueResult:
    """The result of a command for one DLQ."""

    queue: str
    messages: int = 0
    outcome: str | None = None  # None: done or interrupted


@contextmanager
def audited(
    ledger: Ledger,
    action: str,
    *,
    queue: str,
    details: Mapping[str, object],
    stopped: Stopped,
    who: str | None = None,
) -> Iterator[QueueResult]:
    """Record an action in the audit log before it is done, and its result afterwards; the caller counts messages.

    ``who`` acts; None: the user of this process.
    """
    entry = ledger.audits.begin(action, queue=queue, who=who or current_user(), details=details)
    done = QueueResult(queue=queue)
    try:
        yield done
    except BaseException:
        with suppress(Exception):  # report the original error, not the failed record
            ledger.audits.end(entry, messages=done.messages, outcome="failed")
        raise
    ended = "interrupted" if stopped() else "done"
    ledger.audits.end(entry, messages=done.messages, outcome=done.outcome or ended)


def _dlqs_of_others(seen: ScopeView, named: str) -> Mapping[str, str]:
    """Return the DLQs of the other queues; empty if the name alone identifies a DLQ."""
    if names_dead_letters(named):
        return {}
    others = sorted({*seen.broker.queue_names()} - {named}) if seen.queues is None else seen.queues
    return _dlqs_of_all(seen.broker, others)


def _dlqs_of_all(broker: Broker, queues: Sequence[str]) -> dict[str, str]:
    """Return the DLQs of these queues; a queue that is a DLQ is returned itself."""
    found: dict[str, str] = {}
    for queue in queues:
        found |= {queue: _tier_by_name(queue)} if names_dead_letters(listed_name(queue)) else dlqs_of(broker, queue)
    return found


def _tier_by_name(queue: str) -> str:
    return SECOND if names_final_dlq(queue) else FIRST
