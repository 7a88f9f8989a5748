"""The status of a scope, and the problems in it that need a person: lagging, missing, failed, or without a consumer."""

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
    """The kinds of problems, the worst first."""

    LOST = "lost"
    UNCONSUMED = "unconsumed"
    DEAD = "dead"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A problem that needs a person; ``text`` describes it and its extent."""

    word: TroubleKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingQueue:
    """A queue whose oldest visible message has waited longer than allowed."""

    queue: str
    age_seconds: float
    after_seconds: float
    unconsumed: bool  # no known worker serves it, and no message is in flight

    @property
    def trouble(self) -> Trouble:
        late = f"the oldest visible message of {self.queue} is {span(self.age_seconds)} old"
        allowed = f"{span(self.age_seconds - self.after_seconds)} more than it may be"
        if self.unconsumed:
            return Trouble(word=TroubleKind.UNCONSUMED, text=f"{late}, {allowed}, and nobody seems to receive from it")
        return Trouble(word=TroubleKind.LATE, text=f"{late}, {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """The status of one pipeline. Unpublished batches are known only if the table's location is."""

    pipeline: str
    objects: Mapping[ObjectState, int]
    objects_replaced: int  # failed objects with a later version that was processed
    batches_committed: int
    batches_unpublished: int | None
    table: str | None
    table_version: int | None
    disagreement: str | None  # why table and ledger do not belong together
    shortfalls: Sequence[str] = ()  # rows that another writer removed from the tables
    reconciled: "Reconciliation | None" = None  # the latest reconcile
    objects_missing: int = 0  # found by it, without those whose notifications have left the queue since
    objects_overdue: int = 0  # unprocessed for longer than allowed
    oldest_unprocessed_age_seconds: float | None = None  # None if no object waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a scope. Message counts cover all queues except DLQs."""

    table: str | None  # None: an app
    table_version: int | None
    objects: Mapping[ObjectState, int]
    batches_committed: int
    batches_unpublished: int | None  # None: the table's location of some pipeline is unknown
    messages_visible: int
    messages_in_flight: int
    messages_delayed: int
    oldest_visible_message_age_seconds: float | None  # None if no message is visible
    dead_letters: int  # in DLQs and final DLQs, including those that wait for their replay
    workers: Sequence[str]
    objects_replaced: int = 0
    dead_letters_replaced: int | None = 0  # dead letters of those objects; None: unknown
    dead_letters_set_aside: int = 0  # in final DLQs, which are not replayed automatically
    dead_letters_replayed: int = 0  # in DLQs that a running replayer serves
    messages_unserved: int = 0  # in queues that no living worker serves, while some workers run
    workers_silent: bool = False  # some have no record and may serve any queue
    workers_elsewhere: bool = False  # other hosts may have workers, which are invisible here
    notes: Sequence[str] = ()  # checks that were skipped, and why; needs no action, unless it is a mistake
    disagreements: Sequence[str] = ()
    late: Sequence[LaggingQueue] = ()
    queues: Sequence[QueueStatus] = ()  # without DLQs
    pipelines: Sequence[PipelineStatus] = ()
    records: Sequence[WorkerRecord] = ()  # the records of the visible workers

    @property
    def verdict(self) -> str:
        """The summary in one line: the problems, the worst first, each with its kind; or that all is well."""
        return "; ".join([self._verdict, *self.warnings, *self.notes])

    @property
    def troubles(self) -> Sequence[str]:
        """The problems that need a person, as text.

        Unfinished work is left out while a worker may finish it, here or on another host. Failed objects are left out
        once a later version was processed.
        """
        return [trouble.text for trouble in self.findings]

    @property
    def findings(self) -> Sequence[Trouble]:
        """The problems with their kinds, the worst first."""
        words = {
            TroubleKind.LOST: self._lost(),
            TroubleKind.UNCONSUMED: self._unconsumed(),
            TroubleKind.DEAD: self._dead(),
            TroubleKind.LATE: self._late(),
        }
        return [Trouble(word=word, text=text) for word, texts in words.items() for text in texts]

    @property
    def words(self) -> Sequence[str]:
        """The kinds of problems present, the worst first."""
        return list(dict.fromkeys(trouble.word.value for trouble in self.findings))

    @property
    def warnings(self) -> Sequence[str]:
        """Conditions that may become problems but need no action yet."""
        waiting = self.dead_letters_replayed
        return [f"dead letters that wait for their replay: {waiting:,}"] if waiting else []

    @property
    def workers_seen(self) -> bool:
        """True if every worker that may receive is visible here, with a record."""
        return not (self.workers_silent or self.workers_elsewhere)

    @property
    def objects_missing(self) -> int:
        """Objects that exist, were never processed, and were not handled since the latest reconcile."""
        return sum(one.objects_missing for one in self.pipelines)

    @property
    def objects_overdue(self) -> int:
        """Objects that are unprocessed for longer than allowed."""
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
        """True if no worker is running, here or possibly elsewhere."""
        return not self.workers and not self.workers_elsewhere

    @property
    def _messages(self) -> int:
        return self.messages_visible + self.messages_in_flight + self.messages_delayed


def _by_word(findings: Sequence[Trouble]) -> Iterator[tuple[TroubleKind, Iterator[Trouble]]]:
    return groupby(findings, key=lambda trouble: trouble.word)


def _led(word: TroubleKind, texts: Sequence[str]) -> str:
    """Prefix the text with the kind of problem, unless it starts with it."""
    told = "; ".join(texts)
    return told if told.startswith(f"{word} ") else f"{word}: {told}"


def span(seconds: float) -> str:
    """Return a duration for people."""
    for unit, length_seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_seconds:
            return f"{seconds / length_seconds:,.0f} {unit}"
    return f"{seconds:,.0f} s"
