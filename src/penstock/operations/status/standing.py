"""How everything in a scope stands, and what of it needs a person: is anything late, lost, dead or unconsumed?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING

from penstock.app.queues import QueueStatus
from penstock.app.registry import WorkerRecord
from penstock.ledger.records import TERMINAL, ObjectState

if TYPE_CHECKING:
    from penstock.ledger.pipelines import Reconciliation


class TroubleKind(StrEnum):
    """What a trouble comes to, the worst first."""

    LOST = "lost"
    UNCONSUMED = "unconsumed"
    DEAD = "dead"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that needs a person; ``text`` says what and how much."""

    word: TroubleKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingQueue:
    """A queue whose oldest visible message waits for longer than it may."""

    queue: str
    age_seconds: float
    after_seconds: float
    unconsumed: bool  # nobody who could be seen serves it, and nothing of it is in flight

    @property
    def trouble(self) -> Trouble:
        late = f"the oldest visible message of {self.queue} is {span(self.age_seconds)} old"
        allowed = f"{span(self.age_seconds - self.after_seconds)} more than it may be"
        if self.unconsumed:
            return Trouble(word=TroubleKind.UNCONSUMED, text=f"{late}, {allowed}, and nobody seems to receive from it")
        return Trouble(word=TroubleKind.LATE, text=f"{late}, {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """How one pipeline stands now. Whether batches are visible is known where the table's folder is."""

    pipeline: str
    objects: Mapping[ObjectState, int]
    objects_replaced: int  # dead ones of which a later version was processed since
    batches_committed: int
    batches_unpublished: int | None
    table: str | None
    table_version: int | None
    disagreement: str | None  # why table and ledger are not of one history
    shortfalls: Sequence[str] = ()  # rows that another writer removed from the tables
    reconciled: "Reconciliation | None" = None  # the latest one
    objects_missing: int = 0  # that it found, without those whose announcements have left the queue since
    objects_overdue: int = 0  # those that wait to be processed for longer than they may
    oldest_unprocessed_age_seconds: float | None = None  # None where no object waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How everything in a scope stands now, summed up. Messages are those of all queues but the dead letters'."""

    table: str | None  # None: an app's state
    table_version: int | None
    objects: Mapping[ObjectState, int]
    batches_committed: int
    batches_unpublished: int | None  # None: there is a pipeline whose table's folder is not known
    messages_visible: int
    messages_in_flight: int
    messages_delayed: int
    oldest_visible_message_age_seconds: float | None  # None where no message is visible
    dead_letters: int  # of both tiers, also those that wait for their replay
    workers: Sequence[str]
    objects_replaced: int = 0
    dead_letters_replaced: int | None = 0  # letters of those objects; None: not known, see `dead_counts`
    dead_letters_set_aside: int = 0  # those of the second tier, which nothing brings back by itself
    dead_letters_replayed: int = 0  # those of the first tier that come back by themselves, as somebody replays them
    messages_unserved: int = 0  # in queues that no living worker fetches from, while some are there
    workers_silent: bool = False  # some keep no record, and may receive from any queue
    workers_elsewhere: bool = False  # there may be some on other hosts, which cannot be seen from here
    notes: Sequence[str] = ()  # what was not looked at, and why; nobody need do anything, unless it is a slip
    disagreements: Sequence[str] = ()
    late: Sequence[LaggingQueue] = ()
    queues: Sequence[QueueStatus] = ()  # without those of dead letters
    pipelines: Sequence[PipelineStatus] = ()
    records: Sequence[WorkerRecord] = ()  # what the workers that can be seen say of themselves

    @property
    def verdict(self) -> str:
        """One line: what needs a person, the worst first, each led by its word; or that all is well."""
        return "; ".join([self._verdict, *self.warnings, *self.notes])

    @property
    def troubles(self) -> Sequence[str]:
        """What needs a person. Unfinished things are none while a worker is there to finish them, or may be on another
        host; the dead are none once a later version of the object was processed."""
        return [trouble.text for trouble in self.findings]

    @property
    def findings(self) -> Sequence[Trouble]:
        """The troubles with their words, the worst first."""
        words = {
            TroubleKind.LOST: self._lost(),
            TroubleKind.UNCONSUMED: self._unconsumed(),
            TroubleKind.DEAD: self._dead(),
            TroubleKind.LATE: self._late(),
        }
        return [Trouble(word=word, text=text) for word, texts in words.items() for text in texts]

    @property
    def words(self) -> Sequence[str]:
        """Which of late, lost, dead and unconsumed it is, the worst first; none where all is well."""
        return list(dict.fromkeys(trouble.word.value for trouble in self.findings))

    @property
    def warnings(self) -> Sequence[str]:
        """What may become a trouble, and needs nobody yet."""
        waiting = self.dead_letters_replayed
        return [f"dead letters that wait for their replay: {waiting:,}"] if waiting else []

    @property
    def workers_seen(self) -> bool:
        """Whether whoever may receive can be seen from here, with what it does."""
        return not (self.workers_silent or self.workers_elsewhere)

    @property
    def objects_missing(self) -> int:
        """Objects that exist, were never processed, and were not attended to since the latest reconcile."""
        return sum(one.objects_missing for one in self.pipelines)

    @property
    def objects_overdue(self) -> int:
        """Objects that wait to be processed for longer than they may."""
        return sum(one.objects_overdue for one in self.pipelines)

    @property
    def objects_left(self) -> int:
        """Objects that are not in a terminal state."""
        return sum(number for state, number in self.objects.items() if state not in TERMINAL)

    @property
    def _verdict(self) -> str:
        told = [_led(word, [trouble.text for trouble in group]) for word, group in _by_word(self.findings)]
        if self.workers_elsewhere and not self.workers and self._messages:
            told.append(
                f"messages waiting or in work: {self._messages:,}; workers of other hosts cannot be seen from here"
            )
        if told:
            return "; ".join(told)
        return "at work" if self.objects_left or self.batches_unpublished else "all well"

    def _lost(self) -> Iterator[str]:
        for why in self.disagreements:
            yield f"table and ledger disagree: {why}"
        for one in self.pipelines:
            yield from one.shortfalls
        if self.objects_missing:
            yield f"objects missing at the latest reconcile: {self.objects_missing:,}"
        if self.objects_overdue:
            ages = [one.oldest_unprocessed_age_seconds for one in self.pipelines if one.objects_overdue]
            oldest = max((age for age in ages if age is not None), default=None)
            since = "" if oldest is None else f", the oldest for {span(oldest)}"
            yield f"objects overdue: {self.objects_overdue:,}{since}"

    def _unconsumed(self) -> Iterator[str]:
        if self._deserted and self.objects_left:
            yield f"objects waiting with no worker running: {self.objects_left:,}"
        elif self._deserted and self._messages:
            yield f"messages waiting with no worker running: {self._messages:,}"
        for one in self.queues:
            if one.breaker is not None:
                yield f"{one.queue} is paused by its breaker: {one.breaker}"
            if one.unserved is not None:
                yield f"{one.queue} is not served: {one.unserved}"
            if one.unread is not None:
                yield one.unread
        if self.messages_unserved:
            yield f"messages in queues that no worker serves: {self.messages_unserved:,}"
        yield from self._texts_of_late(TroubleKind.UNCONSUMED)

    def _dead(self) -> Iterator[str]:
        if dead := self.objects.get(ObjectState.DEAD, 0) - self.objects_replaced:
            yield f"dead objects: {dead:,}"
        letters = self.dead_letters - (self.dead_letters_replaced or 0) - self.dead_letters_replayed
        if letters > 0:
            aside = self.dead_letters_set_aside
            yield f"dead letters: {letters:,}" + (f", {aside:,} of them set aside for people" if aside else "")

    def _late(self) -> Iterator[str]:
        if self._deserted and self.batches_unpublished:
            yield f"batches committed and not yet published: {self.batches_unpublished:,}"
        yield from self._texts_of_late(TroubleKind.LATE)

    def _texts_of_late(self, word: TroubleKind) -> Sequence[str]:
        return [one.trouble.text for one in self.late if one.trouble.word is word]

    @property
    def _deserted(self) -> bool:
        """Nobody is there to work, and nobody can be elsewhere."""
        return not self.workers and not self.workers_elsewhere

    @property
    def _messages(self) -> int:
        return self.messages_visible + self.messages_in_flight + self.messages_delayed


def _by_word(findings: Sequence[Trouble]) -> Iterator[tuple[TroubleKind, Iterator[Trouble]]]:
    return groupby(findings, key=lambda trouble: trouble.word)


def _led(word: TroubleKind, texts: Sequence[str]) -> str:
    """The word before what it is about, unless that begins with it."""
    told = "; ".join(texts)
    return told if told.startswith(f"{word} ") else f"{word}: {told}"


def span(seconds: float) -> str:
    """A span of time for people."""
    for unit, length_seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_seconds:
            return f"{seconds / length_seconds:,.0f} {unit}"
    return f"{seconds:,.0f} s"
