"""List dead letters page by page, and find single ones, in a bounded time however many there are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, islice
from typing import NamedTuple, TypeVar

from penstock.dead_letters.filters import DeadLetterFilter
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.messaging.broker import Broker, listed_name
from penstock.messaging.clock import Clock
from penstock.operations.dead_letters.selection import DeadLetterSelection, dlqs_of
from penstock.operations.dead_letters.survey import DeadLetterPosition, DeadLetterSurvey

SEARCH_SECONDS = 0.1  # time of one page that looks for rare matches; the next page continues
_SCAN = 100  # messages per call of the broker while searching
_SEARCH_CALLS_MAX = 10_000  # bounds a search for one message by id


class DeadLetterCursor(NamedTuple):
    """The last dead letter that a page has inspected."""

    queue: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage:
    """Some dead letters. ``following``: where the next page begins; None: there are no more."""

    dead_letters: Sequence[DeadLetteredMessage]
    inspected: int  # dead letters read for it
    following: DeadLetterCursor | None
    ended_early: bool = False  # the time was over before the page was full; the next page continues the search


def list_dead_letters(
    broker: Broker,
    survey: DeadLetterSurvey,
    selection: DeadLetterSelection,
    *,
    after: DeadLetterCursor | None,
    rows_max: int,
    clock: Clock,
    seconds: float = SEARCH_SECONDS,
) -> DeadLetterPage:
    """Return the next dead letters that match, without receiving any.

    A page may have fewer than ``rows_max`` although more follow, if matches are rare.
    """
    end_at = clock.monotonic() + seconds
    queues = queues_in(broker, survey, selection)
    found: list[DeadLetteredMessage] = []
    inspected = 0
    for dead_letter in _candidates(broker, survey, selection.wanted, queues, after):
        inspected += 1
        if selection.wanted.matches(dead_letter, now=clock.now()):
            found.append(dead_letter)
        if len(found) > rows_max:  # one more than shown proves that there is another page
            return DeadLetterPage(dead_letters=found[:-1], inspected=inspected, following=_cursor(found[-2]))
        if clock.monotonic() >= end_at:
            following = _cursor(dead_letter)
            return DeadLetterPage(dead_letters=found, inspected=inspected, following=following, ended_early=True)
    return DeadLetterPage(dead_letters=found, inspected=inspected, following=None)


def find_dead_letter(
    broker: Broker, survey: DeadLetterSurvey | None, queue: str, id: str
) -> DeadLetteredMessage | None:
    """Return the message with this id in this DLQ, without receiving it; None if it is not there.

    For a broker that cannot be browsed: if the survey kept it.
    """
    if not broker.capabilities.browsable:
        return None if survey is None or survey.kept is None else survey.kept.get((queue, id))
    guess = _id_before(id)
    if guess is not None and (found := _at(broker, DeadLetterPosition(queue=queue, id=id, after_id=guess))) is not None:
        return found
    after: str | None = None
    for _ in range(_SEARCH_CALLS_MAX):
        page = broker.browse(queue, messages_max=_SCAN, after_id=after)
        for message in page:
            if message.id == id:
                return DeadLetteredMessage(queue=queue, message=message)
        if len(page) < _SCAN:
            break
        after = page[-1].id
    return None


def queues_in(broker: Broker, survey: DeadLetterSurvey, selection: DeadLetterSelection) -> Sequence[str]:
    """Return the DLQs of a selection that the survey knows, final DLQs last."""
    meant = survey.queues
    if selection.queue is not None:
        named = listed_name(selection.queue)
        theirs = {named} if named in survey.tiers else set(map(listed_name, dlqs_of(broker, selection.queue)))
        meant = [queue for queue in meant if listed_name(queue) in theirs]
    return [queue for queue in meant if selection.tier in (None, survey.tiers[queue])]


def _candidates(
    broker: Broker,
    survey: DeadLetterSurvey,
    wanted: DeadLetterFilter,
    queues: Sequence[str],
    after: DeadLetterCursor | None,
) -> Iterator[DeadLetteredMessage]:
    """Yield the messages that may match, in order, beginning behind ``after``."""
    if survey.kept is not None:
        yield from _behind(after, [kept for kept in survey.kept.values() if kept.queue in queues])
        return
    if wanted.group is not None and survey.is_complete and survey.positions_known:
        known = [position for position in survey.positions.get(wanted.group, ()) if position.queue in queues]
        if after is None or any((position.queue, position.id) == after for position in known):
            for position in _behind(after, known):
                if (found := _at(broker, position)) is not None:
                    yield found
            return
    yield from _scan(broker, queues, after)


def _cursor(dead_letter: DeadLetteredMessage) -> DeadLetterCursor:
    return DeadLetterCursor(queue=dead_letter.queue, id=dead_letter.id)


Listed = TypeVar("Listed", DeadLetteredMessage, DeadLetterPosition)


def _behind(after: DeadLetterCursor | None, found: Sequence[Listed]) -> Iterator[Listed]:
    if after is None:
        return iter(found)
    return islice(dropwhile(lambda one: (one.queue, one.id) != after, found), 1, None)


def _scan(broker: Broker, queues: Sequence[str], after: DeadLetterCursor | None) -> Iterator[DeadLetteredMessage]:
    if after is not None and after.queue in queues:
        queues = queues[queues.index(after.queue) :]
    for queue in queues:
        after_id = after.id if after is not None and after.queue == queue else None
        while page := broker.browse(queue, messages_max=_SCAN, after_id=after_id):
            yield from (DeadLetteredMessage(queue=queue, message=message) for message in page)
            after_id = page[-1].id


def _at(broker: Broker, position: DeadLetterPosition) -> DeadLetteredMessage | None:
    """Return the message at a remembered place; None if it has left."""
    page = broker.browse(position.queue, messages_max=1, after_id=position.after_id)
    if not page or page[0].id != position.id:
        return None
    return DeadLetteredMessage(queue=position.queue, message=page[0])


def _id_before(id: str) -> str | None:
    """Return the id before this one if ids end in a number, as those of Penstock's own brokers do. Only a guess."""
    head, dash, tail = id.rpartition("-")
    if not (dash and tail.isascii() and tail.isdigit()) or len(tail) > 18 or int(tail) < 1:
        return None
    return f"{head}-{int(tail) - 1:0{len(tail)}d}"
