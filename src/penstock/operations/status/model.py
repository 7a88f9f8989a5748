"""The health model: the status of queues and pipelines, and the problems in it that need a person.

A problem is missing (lost unless a person acts), no consumer, failed, bad lines or lagging. `penstock status`, its live
view and `penstock doctor` show it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from penstock.app.queues import QueueStatus
from penstock.app.registry import WorkerRecord
from penstock.app.system_health import PipelineHealth
from penstock.ledger.records import TERMINAL, ObjectState
from penstock.messaging.wording import worded

QUEUES_NAMED_MAX = 3


class ProblemKind(StrEnum):
    """The kinds of problems, the worst first."""

    MISSING = "missing"
    NO_CONSUMER = "no consumer"
    FAILED = "failed"
    BAD_LINES = "bad lines"
    LAGGING = "lagging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem that needs a person; ``text`` describes it and its extent."""

    kind: ProblemKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingQueue:
    """A queue whose oldest visible message has waited longer than allowed."""

    queue: str
    age_seconds: float
    after_seconds: float
    no_consumer: bool  # no known worker serves it, and no message is in flight

    @property
    def problem(self) -> Problem:
        age = f"the oldest visible message of {self.queue} is {span(self.age_seconds)} old"
        limit = f"{span(self.age_seconds - self.after_seconds)} over the limit"
        if self.no_consumer:
            return Problem(kind=ProblemKind.NO_CONSUMER, text=f"{age}, {limit}, and no worker seems to receive from it")
        return Problem(kind=ProblemKind.LAGGING, text=f"{age}, {limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCommitStatus:
    """A commit of another writer to one of a pipeline's tables, as the latest publish saw it."""

    table: str
    version: int
    operation: str
    engine: str
    committed_at: float | None  # epoch seconds by the writer's clock
    replaced_from: int | None  # the first and last batch whose commit it replaced
    replaced_to: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus(PipelineHealth):
    """The health of one pipeline and its table. Unpublished batches are known only if the table's location is."""

    objects_replaced: int  # failed objects with a later version that was processed
    batches_unpublished: int | None
    table: str | None
    table_version: int | None
    disagreement: str | None  # why table and ledger do not belong together
    shortfalls: Sequence[str] = ()  # rows that another writer removed from the tables
    queue: str | None = None  # None: unknown, without the app
    foreign_commits: Sequence[ForeignCommitStatus] = ()  # the last ones, newest first
    transform: str | None = None  # name of the transform that makes its rows; empty: none. None: unknown
    replaced_objects: int = 0  # how often batches replaced an earlier version of an object
    replaced_rows: int = 0  # the rows of these versions
    table_format: str | None = None  # such as "delta"; None if the table is

    @property
    def replaced(self) -> Sequence[ForeignCommitStatus]:
        """The commits of other writers that replaced one of Penstock's."""
        return [commit for commit in self.foreign_commits if commit.replaced_from is not None]


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
    table_format: str | None = None
    replaced_objects: int = 0  # this and the next one as in `PipelineStatus`
    replaced_rows: int = 0
    dead_letters_replaced: int | None = 0  # dead letters of those objects; None: unknown
    dead_letters_set_aside: int = 0  # in final DLQs, which are not replayed automatically
    dead_letters_replayed: int = 0  # in DLQs that a running replayer serves
    messages_unserved: int = 0  # in queues that no living worker serves, while some workers run
    queues_unserved: Sequence[str] = ()  # these queues
    workers_silent: bool = False  # some have no record and may serve any queue
    workers_elsewhere: bool = False  # other hosts may have workers, which are invisible here
    notes: Sequence[str] = ()  # checks that were skipped, and why; needs no action, unless it is a mistake
    disagreements: Sequence[str] = ()
    lagging: Sequence[LaggingQueue] = ()
    queues: Sequence[QueueStatus] = ()  # without DLQs
    pipelines: Sequence[PipelineStatus] = ()
    records: Sequence[WorkerRecord] = ()  # the records of the visible workers

    @property
    def summary(self) -> str:
        """Return one line: the problems, the worst first, each with its kind; or that all is well."""
        return "; ".join([self._summary, *self.warnings, *self.notes])

    @property
    def lines(self) -> Sequence[str]:
        """Return the summary; if there are several problems, one line for each, and for each warning and note."""
        if len(self.problems) < 2:
            return [self.summary]
        problems = [_prefixed(problem.kind, [problem.text]) for problem in self.problems]
        return [*problems, *self._elsewhere, *self.warnings, *self.notes]

    @property
    def problem_texts(self) -> Sequence[str]:
        """Return the problems that need a person, as text.

        Unfinished work is left out while a worker may finish it, here or on another host. Failed objects are left out
        once a later version was processed.
        """
        return [problem.text for problem in self.problems]

    @property
    def problems(self) -> Sequence[Problem]:
        """Return the problems with their kinds, the worst first."""
        texts_of_kind = {
            ProblemKind.MISSING: self._missing(),
            ProblemKind.NO_CONSUMER: self._without_consumer(),
            ProblemKind.FAILED: self._failed(),
            ProblemKind.BAD_LINES: self._bad_lines(),
            ProblemKind.LAGGING: self._lagging(),
        }
        return [Problem(kind=kind, text=text) for kind, texts in texts_of_kind.items() for text in texts]

    @property
    def problem_kinds(self) -> Sequence[str]:
        """Return the kinds of problems present, the worst first."""
        return list(dict.fromkeys(problem.kind.value for problem in self.problems))

    @property
    def warnings(self) -> Sequence[str]:
        """Return conditions that may become problems but need no action yet."""
        waiting = self.dead_letters_replayed
        found = [f"dead letters that wait for their replay: {waiting:,}"] if waiting else []
        for pipeline in self.pipelines:
            if pipeline.replaced:
                last = pipeline.replaced[0]
                found.append(
                    f"version {last.version} of {last.table} ({last.operation} by {last.engine}) replaced a commit, "
                    "whose batches were published again; that writer needs a log store that commits on condition"
                )
        return found

    @property
    def workers_seen(self) -> bool:
        """Return True if every worker that may receive is visible here, with a record."""
        return not (self.workers_silent or self.workers_elsewhere)

    @property
    def objects_missing(self) -> int:
        """Return the number of objects that the latest reconcile found missing and that were not handled since."""
        return sum(pipeline.objects_missing for pipeline in self.pipelines)

    @property
    def warned_objects(self) -> int:
        """Return the number of objects with too many bad lines, neither replayed nor dismissed."""
        return sum(pipeline.warned_objects for pipeline in self.pipelines)

    @property
    def warned_lines(self) -> int:
        """Return the number of bad lines of these objects."""
        return sum(pipeline.warned_lines for pipeline in self.pipelines)

    @property
    def objects_overdue(self) -> int:
        """Return the number of objects that are unprocessed for longer than allowed."""
        return sum(pipeline.objects_overdue for pipeline in self.pipelines)

    @property
    def objects_left(self) -> int:
        """Return the number of objects that are not in a terminal state."""
        return _left(self.objects)

    @property
    def _summary(self) -> str:
        parts = [_prefixed(kind, [problem.text for problem in group]) for kind, group in _by_kind(self.problems)]
        parts += self._elsewhere
        if parts:
            return "; ".join(parts)
        return "at work" if self.objects_left or self.batches_unpublished else "all well"

    @property
    def _elsewhere(self) -> Sequence[str]:
        if self.workers_elsewhere and not self.workers and self._messages:
            return [f"messages waiting or in flight: {self._messages:,}; workers of other hosts are invisible"]
        return []

    def _missing(self) -> Iterator[str]:
        for why in self.disagreements:
            yield f"table and ledger disagree: {why}"
        for pipeline in self.pipelines:
            yield from pipeline.shortfalls
        if self.objects_missing:
            yield f"objects never processed, found by the latest reconcile: {self.objects_missing:,}"
        if self.objects_overdue:
            ages = [pipeline.oldest_unprocessed_age_seconds for pipeline in self.pipelines if pipeline.objects_overdue]
            oldest = max((age for age in ages if age is not None), default=None)
            since = "" if oldest is None else f", the oldest for {span(oldest)}"
            yield f"objects overdue: {self.objects_overdue:,}{since}"

    def _without_consumer(self) -> Iterator[str]:
        if self._deserted and self.objects_left:
            yield f"objects waiting with no worker running: {self.objects_left:,}{_in(self._queues_of_objects_left)}"
        elif self._deserted and self._messages:
            waiting = [queue.queue for queue in self.queues if queue.messages]
            yield f"{_waiting(self._messages, waiting)}, and no worker runs"
        for queue in self.queues:
            if queue.breaker is not None:
                yield f"{queue.queue} is paused by its breaker: {queue.breaker}"
            if queue.unserved is not None:
                yield f"{queue.queue} is not consumed: {queue.unserved}"
            if queue.unread is not None:
                yield queue.unread
        if self.messages_unserved:
            yield f"{_waiting(self.messages_unserved, self.queues_unserved)}, which no worker consumes"
        yield from self._texts_of_lagging(ProblemKind.NO_CONSUMER)

    def _failed(self) -> Iterator[str]:
        if failed := self.objects.get(ObjectState.DEAD, 0) - self.objects_replaced:
            yield f"failed objects: {failed:,}"
        waiting = self.dead_letters - (self.dead_letters_replaced or 0) - self.dead_letters_replayed
        if waiting > 0:
            aside = self.dead_letters_set_aside
            yield f"dead letters: {waiting:,}" + (f", {aside:,} of them in final DLQs" if aside else "")

    def _bad_lines(self) -> Iterator[str]:
        if self.warned_objects:
            objects = worded(self.warned_objects, "{} object", "{} objects")
            yield f"{self.warned_lines:,} in {objects}, over 5% of their lines; `penstock quarantine list` shows them"

    def _lagging(self) -> Iterator[str]:
        if self._deserted and self.batches_unpublished:
            yield f"batches committed and not yet published: {self.batches_unpublished:,}"
        yield from self._texts_of_lagging(ProblemKind.LAGGING)

    def _texts_of_lagging(self, kind: ProblemKind) -> Sequence[str]:
        return [lagging.problem.text for lagging in self.lagging if lagging.problem.kind is kind]

    @property
    def _queues_of_objects_left(self) -> Sequence[str]:
        """Return the queues of the pipelines with objects left; if one of them is unknown, the queues with messages."""
        queues = [pipeline.queue for pipeline in self.pipelines if pipeline.objects_left]
        if None in queues:
            return [queue.queue for queue in self.queues if queue.messages]
        return [queue for queue in queues if queue is not None]

    @property
    def _deserted(self) -> bool:
        """Return True if no worker is running, here or possibly elsewhere."""
        return not self.workers and not self.workers_elsewhere

    @property
    def _messages(self) -> int:
        return self.messages_visible + self.messages_in_flight + self.messages_delayed


def span(seconds: float) -> str:
    """Return a duration for people."""
    for unit, length_seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_seconds:
            return f"{seconds / length_seconds:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def _left(objects: Mapping[ObjectState, int]) -> int:
    return sum(number for state, number in objects.items() if state not in TERMINAL)


def _waiting(messages: int, queues: Sequence[str]) -> str:
    """Return the number of messages and their queues, as in "7 messages wait in invoices, mails and 5 more queues"."""
    return worded(messages, "{} message waits", "{} messages wait") + _in(queues)


def _in(queues: Sequence[str]) -> str:
    """Return the names of the queues, as in " in invoices, mails and 5 more queues"; empty without any."""
    if not queues:
        return ""
    names = list(queues)
    if len(names) > QUEUES_NAMED_MAX:
        names = [*names[: QUEUES_NAMED_MAX - 1], f"{len(names) - QUEUES_NAMED_MAX + 1:,} more queues"]
    *first, last = names
    return f" in {', '.join(first)} and {last}" if first else f" in {last}"


def _by_kind(problems: Sequence[Problem]) -> Iterator[tuple[ProblemKind, Iterator[Problem]]]:
    return groupby(problems, key=lambda problem: problem.kind)


def _prefixed(kind: ProblemKind, texts: Sequence[str]) -> str:
    """Prefix the texts with their kind. Failed objects and dead letters need no prefix."""
    joined = "; ".join(texts)
    return joined if kind is ProblemKind.FAILED else f"{kind}: {joined}"
