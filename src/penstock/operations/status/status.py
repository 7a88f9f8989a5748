"""Determine the status of a scope from its ledger, queues and tables, read-only.

Also count failed objects and dead letters, and those that need no person: replaced by a later version, or replayed
automatically.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.backends import SQLITE, has_workers_elsewhere
from penstock.app.jobs.reconcile import has_settled
from penstock.app.paths import TablePaths
from penstock.app.queues import AgeReader, QueueStatus, messages_in, standings, tiers
from penstock.app.registry import DRAINING, WorkerRecord
from penstock.app.scope import Scope, is_there
from penstock.config import Settings
from penstock.dead_letters.filters import DeadLetterFilter
from penstock.errors import PublishHalted
from penstock.events import Bus
from penstock.ledger.queries import ProcessedCount
from penstock.ledger.records import TERMINAL, ObjectState
from penstock.messaging.broker import conventional_source, listed_name, names_dead_letters, names_second_tier
from penstock.messaging.clock import Clock, SystemClock
from penstock.operations.dead_letters.letters import letters_of_queue
from penstock.operations.inspection import ScopeView, view
from penstock.operations.status.standing import LaggingQueue, PipelineStatus, Status

if TYPE_CHECKING:
    from penstock.app.tables import Tables
    from penstock.ledger.pipelines import Reconciliation


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadObjects:
    """The failed objects of a pipeline, and the ids of the messages that announced them."""

    replaced: int
    carriers_of_replaced: set[str]
    carriers_of_others: set[str]


def dead_objects(seen: ScopeView, pipeline: str) -> DeadObjects:
    """Inspect every failed object of a pipeline."""
    replaced, others, count = set[str](), set[str](), 0
    for one in seen.dead_objects(pipeline):
        count += one.replaced
        if one.row.carrier is not None:
            (replaced if one.replaced else others).add(one.row.carrier.message_id)
    return DeadObjects(replaced=count, carriers_of_replaced=replaced, carriers_of_others=others)


def letters_replaced(seen: ScopeView, dead: Iterable[DeadObjects]) -> int | None:
    """Return the number of dead letters whose objects were all replaced by a later version that was processed.

    None if there are such objects and the broker cannot list dead letters without receiving them.
    """
    carriers, others = set[str](), set[str]()
    for one in dead:
        carriers |= one.carriers_of_replaced
        others |= one.carriers_of_others
    if not (carriers := carriers - others):
        return 0
    if not seen.broker.capabilities.browsable:
        return None
    letters = (
        letter
        for queue in seen.broker.queue_names()
        if names_dead_letters(queue)
        for letter in letters_of_queue(seen.broker, queue, DeadLetterFilter())
    )
    return sum(letter.death is not None and letter.death.message_id in carriers for letter in letters)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The number of dead letters."""

    all: int
    set_aside: int  # in final DLQs
    replayed: int  # in DLQs that a replayer serves


def dead_letters(seen: ScopeView, every: Sequence[QueueStatus], records: Sequence[WorkerRecord]) -> DeadLetters:
    """Count the messages in DLQs; on a broker shared with other systems, only in the scope's.

    A shared DLQ counts once.
    """
    if seen.queues is None:
        names = {one.queue for one in every if names_dead_letters(one.queue)}
        second = {name for name in names if names_second_tier(name)}
    else:
        named = [(name,) * 2 if names_dead_letters(name) else tiers(seen.broker, name) for name in seen.queues]
        names = {name for pair in named for name in pair}
        second = {name for pair in named for name in pair[1:] if pair[0] != name or names_second_tier(name)}
    known = {one.queue: one.messages for one in every}
    counts = {name: known[name] if name in known else messages_in(seen.broker, name) for name in names}
    replayed = (names - second) & _replayed(seen, names, records)
    return DeadLetters(
        all=sum(counts.values()),
        set_aside=sum(counts[name] for name in second),
        replayed=sum(counts[name] for name in replayed),
    )


def _replayed(seen: ScopeView, names: Iterable[str], records: Sequence[WorkerRecord]) -> set[str]:
    """Return the queues that a living worker replays, or may replay on another host if the settings say so."""
    settings = seen.scope.settings
    replayed = {queue for record in records for queue in record.queues}
    if settings.replay and has_workers_elsewhere(settings):
        off = {queue for queue, how in settings.replay_queues.items() if how.off}
        replayed |= {name for name in names if conventional_source(name) not in off}
    return replayed


__all__ = ["PipelineStatus", "Status", "StatusReader", "late_queues", "standing"]

DETAILS_SECONDS = 30.0
UNNAMED = "no queue is named, so none was looked at: give --app, such as --app shop:app, or set queues"
UNSHOWN = (
    "objects were replaced by later versions, and their dead letters are counted all the same: this broker "
    "cannot list dead letters; `penstock dead purge --object` deletes those of an object"
)


def standing(scope: Scope) -> Status:
    """Return the status of the scope."""
    return StatusReader(scope).look()


class StatusReader:
    """Read the status of one scope repeatedly. For one thread.

    Slow details that rarely change are read every `DETAILS_SECONDS`: replaced failed objects and the contents of
    tables. In between, the number of processed objects is updated from new batches, and empty queues are remembered to
    estimate ages. Each call opens its own connections, so that a server that was unavailable is tried again.
    """

    def __init__(self, scope: Scope, *, clock: Clock | None = None) -> None:
        self._scope = scope
        self._clock = clock or SystemClock()
        self._details: _Details | None = None
        self._ages: AgeReader | None = None
        self._tallies: dict[str, ProcessedCount] = {}

    def look(self) -> Status:
        """Return the current status."""
        scope = self._scope
        with view(scope) as seen:
            details = self._details_of(seen)
            silent = seen.workers.silent()  # they may serve any queue
            records = seen.workers.records()
            reconciled = {one.pipeline: one for one in seen.ledger.reconciliations()}
            pipelines = [
                self._pipeline(seen, pipeline, details, reconciled.get(pipeline)) for pipeline in seen.pipelines()
            ]
            self._ages = self._ages or AgeReader(seen.broker, clock=self._clock)
            every = standings(scope.settings, seen.broker, seen.queues, ages=self._ages)
            letters = dead_letters(seen, every, records)
            queues = [one for one in every if not names_dead_letters(one.queue)]
            notes = [] if scope.table is not None else list(_notes(seen, queues))
            notes += [note for table in details.tables.values() for note in table.notes]
            replaced = details.letters_replaced if letters.all else 0
            if replaced is None:
                notes.append(UNSHOWN)
        workers = sorted({*silent, *(record.worker for record in records)})
        elsewhere = has_workers_elsewhere(scope.settings)
        seen_all = not elsewhere or bool(silent)
        ages = [age for one in queues if (age := one.oldest_visible_message_age_seconds) is not None]
        return Status(
            table=None if scope.table is None else str(scope.table.table),
            table_version=None if scope.table is None else pipelines[0].table_version,
            objects={state: sum(one.objects[state] for one in pipelines) for state in ObjectState},
            batches_committed=sum(one.batches_committed for one in pipelines),
            batches_unpublished=_summed([one.batches_unpublished for one in pipelines]),
            messages_visible=sum(one.visible for one in queues),
            messages_in_flight=sum(one.in_flight for one in queues),
            messages_delayed=sum(one.delayed for one in queues),
            oldest_visible_message_age_seconds=max(ages, default=None),
            dead_letters=letters.all,
            workers=workers,
            objects_replaced=sum(one.objects_replaced for one in pipelines),
            dead_letters_replaced=None if replaced is None else min(replaced, letters.all),
            dead_letters_set_aside=letters.set_aside,
            dead_letters_replayed=letters.replayed,
            messages_unserved=_unserved(queues, records) if workers and not silent and not elsewhere else 0,
            workers_silent=bool(silent),
            workers_elsewhere=elsewhere,
            notes=notes,
            disagreements=[one.disagreement for one in pipelines if one.disagreement is not None],
            late=late_queues(queues, scope.settings, seen_all=seen_all) if scope.table is None else (),
            queues=queues,
            pipelines=pipelines,
            records=records,
        )

    def _details_of(self, seen: ScopeView) -> "_Details":
        now = self._clock.monotonic()
        if self._details is None or now - self._details.at >= DETAILS_SECONDS:
            self._tallies = {}
            dead = {pipeline: dead_objects(seen, pipeline) for pipeline in seen.pipelines()}
            self._details = _Details(
                at=now,
                replaced={pipeline: one.replaced for pipeline, one in dead.items()},
                letters_replaced=letters_replaced(seen, dead.values()),
                tables={pipeline: _table(seen, pipeline) for pipeline in dead},
            )
        return self._details

    def _pipeline(
        self, seen: ScopeView, pipeline: str, details: "_Details", reconciled: "Reconciliation | None"
    ) -> PipelineStatus:
        settings = seen.scope.settings
        waiting = seen.ledger.ages.waiting(pipeline, overdue_after_seconds=settings.overdue_after_seconds)
        tally = self._tallies.get(pipeline)
        tally = seen.ledger.ages.tally(pipeline) if tally is None else seen.ledger.ages.brought_up(pipeline, tally)
        self._tallies[pipeline] = tally
        objects = {**waiting.objects, ObjectState.PROCESSED: tally.processed}
        table = details.tables.get(pipeline) or _table(seen, pipeline)
        waits = any(number for state, number in objects.items() if state not in TERMINAL)
        return PipelineStatus(
            pipeline=pipeline,
            objects=objects,
            objects_replaced=min(details.replaced.get(pipeline, 0), objects[ObjectState.DEAD]),
            batches_committed=waiting.committed_seq,
            batches_unpublished=table.unpublished,
            table=table.name,
            table_version=table.version,
            disagreement=table.disagreement,
            shortfalls=table.shortfalls,
            reconciled=reconciled,
            objects_missing=0 if reconciled is None else _missing(seen, pipeline, reconciled),
            # An ingest works through its backlog, however long that takes, so its objects are never overdue.
            objects_overdue=waiting.overdue if seen.scope.table is None else 0,
            oldest_unprocessed_age_seconds=waiting.oldest_age_seconds if waits else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableStatus:
    """The status of a pipeline's table."""

    name: str | None
    version: int | None
    unpublished: int | None
    disagreement: str | None
    shortfalls: Sequence[str] = ()  # removed by another writer
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Details:
    """The slow details, as of a monotonic time."""

    at: float
    replaced: Mapping[str, int]  # failed objects with a later version that was processed, by pipeline
    letters_replaced: int | None  # None: unknown
    tables: Mapping[str, _TableStatus]


def _missing(seen: ScopeView, pipeline: str, last: "Reconciliation") -> int:
    """Return the objects that the latest reconcile found missing.

    Without those it sent, once their messages have left the queue: their result shows in their states.
    """
    seconds = seen.ledger.seconds_since_reconciliation(pipeline) if last.missing and last.sent else None
    if seconds is None:
        return last.missing
    served = seen.scope.served.get(pipeline)
    known = seen.broker.queue_names() if seen.queues is None else seen.queues
    queues = [name for name in known if not names_dead_letters(name)] if served is None else [served]
    settled = all(has_settled(seen.broker, name, seconds=seconds) for name in queues)
    return max(0, last.missing - last.sent) if settled else last.missing


def _table(seen: ScopeView, pipeline: str) -> _TableStatus:
    row = seen.ledger.pipeline(pipeline)
    committed = row.next_seq - 1 if row else 0
    where = seen.scope.tables.get(pipeline)
    if where is None:
        known = committed == 0 or pipeline in seen.scope.tableless
        return _TableStatus(name=None, version=None, unpublished=0 if known else None, disagreement=None)
    tables = _tables(seen, where)
    shortfalls = tables.shortfalls()
    return _TableStatus(
        name=str(where.table),
        version=tables.version(),
        unpublished=tables.unpublished(),
        disagreement=_disagreement(seen, pipeline, tables, committed),
        shortfalls=[one.text for one in shortfalls if one.is_explained],
        notes=[one.text for one in shortfalls if not one.is_explained],
    )


def _tables(seen: ScopeView, where: TablePaths) -> "Tables":
    """Return the tables. Raises `ConfigurationError` if the packages of the extra are missing."""
    from penstock.pipeline.extra import require_spark

    require_spark()
    from penstock.app.tables import Tables

    return Tables(where, seen.ledger, partition_by=None, bus=Bus())


def _disagreement(seen: ScopeView, pipeline: str, tables: "Tables", committed: int) -> str | None:
    """Return why the next publish would halt, or that the ledger does not know the table."""
    from penstock.pipeline.publish import check_tip

    try:
        for sink in (tables.rows, tables.quarantine):
            check_tip(seen.ledger, sink.load(), pipeline=pipeline, where=sink.uri)
    except PublishHalted as halted:
        return str(halted)
    if committed == 0 and (version := tables.version()) is not None:
        return (
            f"the table {tables.rows.uri} has version {version}, and its ledger committed "
            "nothing to it: either another ledger is its own (--state), or it was there before the first batch"
        )
    return None


def _notes(seen: ScopeView, queues: Sequence[QueueStatus]) -> Iterator[str]:
    """Yield notes on settings that may name the wrong place or queue, and so suggest an idle system."""
    settings = seen.scope.settings
    if seen.queues is not None and not seen.queues:
        yield UNNAMED
    elif not is_there(settings.broker):
        yield f"there is no queue in {Path(settings.broker.removeprefix(SQLITE)).absolute()} yet (setting broker)"
    elif unknown := sorted({*map(listed_name, settings.late_queues)} - {listed_name(one.queue) for one in queues}):
        yield f"late_queues names queues that were not looked at: {', '.join(unknown)}"


def late_queues(queues: Sequence[QueueStatus], settings: Settings, *, seen_all: bool) -> Sequence[LaggingQueue]:
    """Return the queues whose oldest visible message has waited longer than the settings allow.

    ``seen_all``: never report a missing consumer here. Either all workers are visible, and other checks report it,
    or some have no record and may serve any queue. Otherwise a queue has no consumer if it has no workers here and
    no messages in flight.
    """
    found: list[LaggingQueue] = []
    own_seconds = {listed_name(name): seconds for name, seconds in settings.late_queues.items()}
    for one in queues:
        after_seconds = own_seconds.get(listed_name(one.queue), settings.late_after_seconds)
        age_seconds = one.oldest_visible_message_age_seconds
        if age_seconds is not None and age_seconds > after_seconds:
            idle = not (seen_all or one.workers or one.in_flight)
            found.append(
                LaggingQueue(queue=one.queue, age_seconds=age_seconds, after_seconds=after_seconds, unconsumed=idle)
            )
    return found


def _unserved(queues: Sequence[QueueStatus], records: Sequence[WorkerRecord]) -> int:
    """Return the number of messages that no worker will fetch.

    A draining worker only finishes its messages in flight.
    """
    fetching = {record.worker for record in records if record.state != DRAINING}
    left = [one for one in queues if fetching.isdisjoint(one.workers)]
    return sum(one.visible + one.delayed if one.workers else one.messages for one in left)


def _summed(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(number for number in numbers if number is not None)
