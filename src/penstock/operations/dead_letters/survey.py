"""Count all dead letters of a scope, and remember where those of each group are.

A survey reads every dead letter once, and is a picture of that time. With it, pages list the members of a small group
among a hundred thousand dead letters without reading the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.dead_letters.groups import FailureGroup, Grouping, group_id
from penstock.dead_letters.operator import Stopped
from penstock.dead_letters.reader import DeadLetteredMessage, dead_letters_in
from penstock.messaging.clock import Clock, SystemClock
from penstock.operations.dead_letters.selection import is_worth_reading, requested_queues
from penstock.operations.inspection import ScopeView

POSITIONS_MAX = 250_000  # remembered places of dead letters, some 100 bytes each
KEPT_MAX = 1_000  # messages kept whole if the broker cannot be browsed
KEPT_BYTES_MAX = 32 * 1024 * 1024
PARTIAL_SECONDS = 0.5  # partial results are published this often


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPositions:
    """The places of a group's members in one DLQ, in its order.

    Each was behind the message with the id in ``after_ids``, whatever its group; None: it was the first.
    """

    ids: list[str] = field(default_factory=list)
    after_ids: list[str | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSurvey:
    """The dead letters of a scope at one time."""

    taken_at: float  # epoch seconds at which it began
    took_seconds: float
    is_complete: bool  # False: it is still being taken
    tiers: Mapping[str, str]  # the tier of each DLQ that exists
    dead_letters: int
    groups: Sequence[FailureGroup]  # largest first
    others: int  # messages in groups that are not listed
    positions: Mapping[str, Mapping[str, GroupPositions]] = field(default_factory=dict)  # by id of the group, and DLQ
    positions_known: bool = True  # False: there are too many to remember
    kept: Mapping[tuple[str, str], DeadLetteredMessage] | None = None  # by queue and id; None: the broker can browse

    @property
    def queues(self) -> Sequence[str]:
        """The DLQs, final DLQs last: the order in which pages list dead letters."""
        return [name for tier in ("dlq", "dead") for name, its in self.tiers.items() if its == tier]


def take_survey(
    seen: ScopeView,
    *,
    clock: Clock | None = None,
    stopped: Stopped = lambda: False,
    after_page: Callable[[float], None] = lambda _: None,
    on_partial: Callable[[DeadLetterSurvey], None] = lambda _: None,
) -> DeadLetterSurvey:
    """Read all dead letters of the scope, and return the survey.

    On a broker that cannot be browsed this receives them, which hides them from other readers meanwhile.
    ``after_page`` is called with the seconds that reading a page took; ``on_partial`` receives results so far.

    Raises `UsageError` if no queue is known.
    """
    survey = _Survey(seen, clock=clock or SystemClock(), stopped=stopped)
    return survey.take(after_page=after_page, on_partial=on_partial)


class _Survey:
    """A survey while it is taken, by one thread."""

    def __init__(self, seen: ScopeView, *, clock: Clock, stopped: Stopped) -> None:
        self._broker = seen.broker
        self._clock = clock
        self._stopped = stopped
        self._tiers = requested_queues(seen, None)
        self._grouping = Grouping()
        self._positions: dict[str, dict[str, GroupPositions]] = {}
        self._left = POSITIONS_MAX
        self._before: str | None = None  # the id of the message before the next one, in the same queue
        self._kept: dict[tuple[str, str], DeadLetteredMessage] | None = {} if self._receives else None
        self._kept_bytes = 0
        self._began_at, self._began = clock.now(), clock.monotonic()

    @property
    def _receives(self) -> bool:
        return not self._broker.capabilities.browsable

    def take(
        self, *, after_page: Callable[[float], None], on_partial: Callable[[DeadLetterSurvey], None]
    ) -> DeadLetterSurvey:
        on_partial(self._result(is_complete=False))  # the queues are known
        partial_at = read_at = self._clock.monotonic()
        for page in self._pages():
            for dead_letter in page:
                self._add(dead_letter)
            after_page(self._clock.monotonic() - read_at)
            if self._clock.monotonic() >= partial_at + PARTIAL_SECONDS:
                on_partial(self._result(is_complete=False))
                partial_at = self._clock.monotonic()
            read_at = self._clock.monotonic()
        return self._result(is_complete=not self._stopped())

    def _pages(self) -> Iterator[Sequence[DeadLetteredMessage]]:
        for queue in self._result(is_complete=False).queues:
            if self._stopped() or not is_worth_reading(self._broker, queue):
                continue
            self._before = None
            with dead_letters_in(self._broker, queue, clock=self._clock) as dead_letters:
                for page in dead_letters.pages():
                    yield page
                    if self._stopped():
                        return

    def _add(self, dead_letter: DeadLetteredMessage) -> None:
        key = self._grouping.add_one(dead_letter)
        if key is not None and self._left > 0:
            in_queue = self._positions.setdefault(group_id(key), {}).setdefault(dead_letter.queue, GroupPositions())
            in_queue.ids.append(dead_letter.id)
            in_queue.after_ids.append(self._before)
        self._left -= 1
        self._before = dead_letter.id
        if self._kept is not None and len(self._kept) < KEPT_MAX and self._kept_bytes < KEPT_BYTES_MAX:
            self._kept[dead_letter.queue, dead_letter.id] = dead_letter
            self._kept_bytes += len(dead_letter.message.body) + sum(map(len, dead_letter.message.attributes.values()))

    def _result(self, *, is_complete: bool) -> DeadLetterSurvey:
        return DeadLetterSurvey(
            taken_at=self._began_at,
            took_seconds=self._clock.monotonic() - self._began,
            is_complete=is_complete,
            tiers=self._tiers,
            dead_letters=self._grouping.dead_letters,
            groups=self._grouping.groups(),
            others=self._grouping.others,
            positions=self._positions if is_complete else {},
            positions_known=self._left >= 0,
            kept=self._kept if self._kept is None else dict(self._kept),
        )
