"""The health model: the status of queues and pipelines, and the problems in it that need a person.

A problem is missing (lost unless a person acts), no consumer, failed, bad lines or lagging. `penstock status`, its live
view and `penstock doctor` show it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

from penstock.app.queues import QueueStatus
from penstock.app.registry import WorkerRecord
from penstock.app.system_health import PipelineHealth
from penstock.ledger.records import TERMINAL, ObjectState
from penstock.operations.status.sentences import Elapsed, Names, Sentence, sentence

FAILED_OBJECTS = "failed objects: {count}"


class ProblemKind(StrEnum):
    """The kinds of problems, the worst first."""

    MISSING = "missing"
    NO_CONSUMER = "no consumer"
    FAILED = "failed"
    BAD_LINES = "bad lines"
    LAGGING = "lagging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem that needs a person, with its extent."""

    kind: ProblemKind
    sentence: Sentence

    @property
    def text(self) -> str:
        """The sentence in English."""
        return self.sentence.text


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingQueue:
    """A queue whose oldest visible message has waited longer than allowed."""

    queue: str
    age_seconds: float
    after_seconds: float
    no_consumer: bool  # no known worker serves it, and no message is in flight

    @property
    def problem(self) -> Problem:
        form = "the oldest visible message of {queue} is {age} old, {over} over the limit"
        kind = ProblemKind.LAGGING
        if self.no_consumer:
            form += ", and no worker seems to receive from it"
            kind = ProblemKind.NO_CONSUMER
        age, over = Elapsed(self.age_seconds), Elapsed(self.age_seconds - self.after_seconds)
        return Problem(kind=kind, sentence=sentence(form, queue=self.queue, age=age, over=over))


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
    queues_silent: Mapping[str, float] = field(default_factory=dict)  # see `silent_queues`
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
        return "; ".join([self._summary, *(one.text for one in self.warnings), *self.notes])

    @property
    def lines(self) -> Sequence[str]:
        """Return the summary; if there are several problems, one line for each, and for each warning and note."""
        if len(self.problems) < 2:
            return [self.summary]
        problems = [_prefixed(problem.kind, [problem.text]) for problem in self.problems]
        return [*problems, *(one.text for one in (*self.elsewhere, *self.warnings)), *self.notes]

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
        found = {
            ProblemKind.MISSING: self._missing(),
            ProblemKind.NO_CONSUMER: self._without_consumer(),
            ProblemKind.FAILED: self._failed(),
            ProblemKind.BAD_LINES: self._bad_lines(),
            ProblemKind.LAGGING: self._lagging(),
        }
        return [Problem(kind=kind, sentence=one) for kind, sentences in found.items() for one in sentences]

    @property
    def problem_kinds(self) -> Sequence[str]:
        """Return the kinds of problems present, the worst first."""
        return list(dict.fromkeys(problem.kind.value for problem in self.problems))

    @property
    def warnings(self) -> Sequence[Sentence]:
        """Return conditions that may become problems but need no action yet."""
        waiting = self.dead_letters_replayed
        found = [sentence("dead letters that wait for their replay: {count}", count=waiting)] if waiting else []
        for pipeline in self.pipelines:
            if pipeline.replaced:
                last = pipeline.replaced[0]
                found.append(
                    sentence(
                        "version {version} of {table} ({operation} by {engine}) replaced a commit, whose batches were "
                        "published again; that writer needs a log store that commits on condition",
                        version=str(last.version),
                        table=last.table,
                        operation=last.operation,
                        engine=last.engine,
                    )
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
    def elsewhere(self) -> Sequence[Sentence]:
        """Return a sentence about messages that only workers of other hosts may process, if there are any."""
        if self.workers_elsewhere and not self.workers and self._messages:
            form = "messages waiting or in flight: {count}; workers of other hosts are invisible"
            return [sentence(form, count=self._messages)]
        return []

    @property
    def at_work(self) -> bool:
        """Return True if objects or batches are unfinished."""
        return bool(self.objects_left or self.batches_unpublished)

    @property
    def _summary(self) -> str:
        parts = [_prefixed(kind, [problem.text for problem in group]) for kind, group in _by_kind(self.problems)]
        parts += [one.text for one in self.elsewhere]
        if parts:
            return "; ".join(parts)
        return "at work" if self.at_work else "all well"

    def _missing(self) -> Iterator[Sentence]:
        for why in self.disagreements:
            yield sentence("table and ledger disagree: {why}", why=why)
        for pipeline in self.pipelines:
            for shortfall in pipeline.shortfalls:
                yield _as_it_is(shortfall)
        if self.objects_missing:
            yield sentence(
                "objects never processed, found by the latest reconcile: {count}", count=self.objects_missing
            )
        if self.objects_overdue:
            ages = [pipeline.oldest_unprocessed_age_seconds for pipeline in self.pipelines if pipeline.objects_overdue]
            oldest = max((age for age in ages if age is not None), default=None)
            if oldest is None:
                yield sentence("objects overdue: {count}", count=self.objects_overdue)
            else:
                form = "objects overdue: {count}, the oldest for {age}"
                yield sentence(form, count=self.objects_overdue, age=Elapsed(oldest))

    def _without_consumer(self) -> Iterator[Sentence]:
        if self._deserted and self.objects_left:
            yield _in_queues(
                "objects waiting with no worker running: {count}", self.objects_left, self._queues_of_objects_left
            )
        elif self._deserted and self._messages:
            waiting = [queue.queue for queue in self.queues if queue.messages]
            yield _waiting(self._messages, waiting, ", and no worker runs")
        for queue in self.queues:
            if queue.breaker is not None:
                yield sentence("{queue} is paused by its breaker: {error}", queue=queue.queue, error=queue.breaker)
            if queue.unserved is not None:
                yield sentence("{queue} is not consumed: {why}", queue=queue.queue, why=queue.unserved)
            if queue.unread is not None:
                yield _as_it_is(queue.unread)
        for name, seconds in self.queues_silent.items():
            form = "{queue} is not consumed: its workers have had no heartbeat for {age}"
            yield sentence(form, queue=name, age=Elapsed(seconds))
        if self.messages_unserved:
            yield _waiting(self.messages_unserved, self.queues_unserved, ", which no worker consumes")
        yield from self._sentences_of_lagging(ProblemKind.NO_CONSUMER)

    def _failed(self) -> Iterator[Sentence]:
        if failed := self.objects.get(ObjectState.DEAD, 0) - self.objects_replaced:
            yield sentence(FAILED_OBJECTS, count=failed)
        waiting = self.dead_letters - (self.dead_letters_replaced or 0) - self.dead_letters_replayed
        if waiting > 0 and (aside := self.dead_letters_set_aside):
            yield sentence("dead letters: {count}, {aside} of them in final DLQs", count=waiting, aside=aside)
        elif waiting > 0:
            yield sentence("dead letters: {count}", count=waiting)

    def _bad_lines(self) -> Iterator[Sentence]:
        if self.warned_objects:
            objects = "{objects} object" if self.warned_objects == 1 else "{objects} objects"
            yield sentence(
                f"{{lines}} in {objects}, over 5% of their lines; `penstock quarantine list` shows them",
                lines=self.warned_lines,
                objects=self.warned_objects,
            )

    def _lagging(self) -> Iterator[Sentence]:
        if self._deserted and self.batches_unpublished:
            yield sentence("batches committed and not yet published: {count}", count=self.batches_unpublished)
        yield from self._sentences_of_lagging(ProblemKind.LAGGING)

    def _sentences_of_lagging(self, kind: ProblemKind) -> Sequence[Sentence]:
        return [lagging.problem.sentence for lagging in self.lagging if lagging.problem.kind is kind]

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


def _left(objects: Mapping[ObjectState, int]) -> int:
    return sum(number for state, number in objects.items() if state not in TERMINAL)


def _waiting(messages: int, queues: Sequence[str], problem: str) -> Sentence:
    """Return the number of messages and their queues, as in "7 messages wait in invoices, mails and 5 more queues"."""
    return _in_queues("{count} message waits" if messages == 1 else "{count} messages wait", messages, queues, problem)


def _in_queues(form: str, count: int, queues: Sequence[str], end: str = "") -> Sentence:
    """Return the sentence with the names of the queues, if there are any."""
    if not queues:
        return sentence(form + end, count=count)
    return sentence(form + " in {queues}" + end, count=count, queues=Names(queues))


def _as_it_is(text: str) -> Sentence:
    return sentence("{text}", text=text)


def _by_kind(problems: Sequence[Problem]) -> Iterator[tuple[ProblemKind, Iterator[Problem]]]:
    return groupby(problems, key=lambda problem: problem.kind)


def _prefixed(kind: ProblemKind, texts: Sequence[str]) -> str:
    """Prefix the texts with their kind. Failed objects and dead letters need no prefix."""
    joined = "; ".join(texts)
    return joined if kind is ProblemKind.FAILED else f"{kind}: {joined}"
