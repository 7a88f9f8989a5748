"""List dead letters page by page, and find single ones, in a bounded time however many there are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import NamedTuple

from penstock.dead_letters.filters import DeadLetterFilter
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.messaging.broker import Broker, listed_name
from penstock.messaging.clock import Clock
from penstock.messaging.message import Message
from penstock.operations.dead_letters.selection import DeadLetterSelection, dlqs_of
from penstock.operations.dead_letters.survey import DeadLetterSurvey, GroupPositions

SEARCH_SECONDS = 0.08  # time of one page that looks for rare matches; the next page continues
PLACES_SECONDS = 0.1  # the same for a page that reads at remembered places
_SCAN = 100  # messages per call of the broker while searching
_AHEAD_MAX = 16  # messages per call of the broker at remembered places


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
) -> DeadLetterPage:
    """Return the next dead letters that match, without receiving any.

    A page may have fewer than ``rows_max`` although more follow, if matches are rare.
    """
    queues = queues_in(broker, survey, selection)
    candidates, seconds = _candidates(broker, survey, selection.wanted, queues, after)
    end_at = clock.monotonic() + seconds
    found: list[DeadLetteredMessage] = []
    inspected = 0
    for batch in candidates:
        inspected += len(batch)
        found += [dead_letter for dead_letter in batch if selection.wanted.matches(dead_letter, now=clock.now())]
        if len(found) > rows_max:  # one more than shown proves that there is another page
            shown = found[:rows_max]
            return DeadLetterPage(dead_letters=shown, inspected=inspected, following=_cursor(shown[-1]))
        if clock.monotonic() >= end_at:
            following = _cursor(batch[-1])
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
    if guess is not None and (found := _at(broker, queue, id, guess)) is not None:
        return found
    queued = broker.find(queue, id)
    return None if queued is None else DeadLetteredMessage(queue=queue, message=queued.message)


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
) -> tuple[Iterator[Sequence[DeadLetteredMessage]], float]:
    """Return the messages that may match, in order, beginning behind ``after``; and the seconds to spend on them.

    They come in batches that are never empty, one for each call of the broker.
    """
    if survey.kept is not None:
        kept = [dead_letter for dead_letter in survey.kept.values() if dead_letter.queue in queues]
        behind = kept if after is None else list(dropwhile(lambda one: _cursor(one) != after, kept))[1:]
        return iter([behind] if behind else []), SEARCH_SECONDS
    places = _places(survey, wanted.group, queues, after)
    if places is not None:
        return _at_places(broker, places), PLACES_SECONDS
    return _scan(broker, queues, after), SEARCH_SECONDS


def _places(
    survey: DeadLetterSurvey, group: str | None, queues: Sequence[str], after: DeadLetterCursor | None
) -> Iterator[tuple[str, str, str | None]] | None:
    """Return queue, id and the id before it of the members of a group behind ``after``; None if that is unknown."""
    if group is None or not (survey.is_complete and survey.positions_known):
        return None
    by_queue = survey.positions.get(group, {})
    first = 0
    if after is not None:
        queues = queues[queues.index(after.queue) :] if after.queue in queues else ()
        if not queues or after.queue not in by_queue or after.id not in by_queue[after.queue].ids:
            return None  # listed from another survey
        first = by_queue[after.queue].ids.index(after.id) + 1
    return _behind(first, [(queue, by_queue[queue]) for queue in queues if queue in by_queue])


def _behind(first: int, by_queue: Sequence[tuple[str, GroupPositions]]) -> Iterator[tuple[str, str, str | None]]:
    """Yield the places, from the given one of the first queue on."""
    for queue, positions in by_queue:
        for at in range(first, len(positions.ids)):
            yield queue, positions.ids[at], positions.after_ids[at]
        first = 0


def _at_places(
    broker: Broker, places: Iterator[tuple[str, str, str | None]]
) -> Iterator[Sequence[DeadLetteredMessage]]:
    """Yield the messages at these places that are still there.

    A call reads more messages than the one it is for if the last call found the next places among them.
    """
    size = 1
    ahead: dict[tuple[str, str], Message] = {}  # what the last call returned, by queue and id
    batch: list[DeadLetteredMessage] = []
    for queue, id, after_id in places:
        if (queue, id) not in ahead:
            if batch:
                yield batch
            size = min(2 * size, _AHEAD_MAX) if len(batch) > 1 or not ahead else max(1, size // 2)
            page = broker.browse(queue, messages_max=size, after_id=after_id)
            ahead, batch = {(queue, message.id): message for message in page}, []
        if (message := ahead.get((queue, id))) is not None:
            batch.append(DeadLetteredMessage(queue=queue, message=message))
    if batch:
        yield batch


def _cursor(dead_letter: DeadLetteredMessage) -> DeadLetterCursor:
    return DeadLetterCursor(queue=dead_letter.queue, id=dead_letter.id)


def _scan(
    broker: Broker, queues: Sequence[str], after: DeadLetterCursor | None
) -> Iterator[Sequence[DeadLetteredMessage]]:
    if after is not None and after.queue in queues:
        queues = queues[queues.index(after.queue) :]
    for queue in queues:
        after_id = after.id if after is not None and after.queue == queue else None
        while page := broker.browse(queue, messages_max=_SCAN, after_id=after_id):
            yield [DeadLetteredMessage(queue=queue, message=message) for message in page]
            after_id = page[-1].id


def _at(broker: Broker, queue: str, id: str, after_id: str | None) -> DeadLetteredMessage | None:
    """Return the message at a remembered place; None if it has left."""
    page = broker.browse(queue, messages_max=1, after_id=after_id)
    return DeadLetteredMessage(queue=queue, message=page[0]) if page and page[0].id == id else None


def _id_before(id: str) -> str | None:
    """Return the id before this one if ids end in a number, as those of Penstock's own brokers do. Only a guess."""
    head, dash, tail = id.rpartition("-")
    if not (dash and tail.isascii() and tail.isdigit()) or len(tail) > 18 or int(tail) < 1:
        return None
    return f"{head}-{int(tail) - 1:0{len(tail)}d}"
