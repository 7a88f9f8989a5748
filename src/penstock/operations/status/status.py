"""Determine the status of a scope from its ledger, queues and tables, read-only.

Also count failed objects and dead letters, and those that need no person: replaced by a later version, or replayed
automatically.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.app.brokers import broker_exists, broker_file, has_workers_elsewhere
from penstock.app.jobs.reconcile import has_settled
from penstock.app.paths import TablePaths
from penstock.app.queues import QueueStatus, messages_in, queue_statuses
from penstock.app.registry import DRAINING, WorkerRecord
from penstock.app.scope import Scope
from penstock.app.system_health import AgeReader, PipelineHealth, PipelineReader, Tier, tier_by_dlq
from penstock.config import Settings
from penstock.dead_letters.filters import DeadLetterFilter
from penstock.errors import PublishHalted
from penstock.events import Bus
from penstock.ledger.records import ObjectState
from penstock.messaging.broker import conventional_source, listed_name, names_dead_letters, names_final_dlq
from penstock.messaging.clock import Clock, SystemClock
from penstock.operations.dead_letters.selection import select_in_queue
from penstock.operations.inspection import ScopeView, view
from penstock.operations.status.model import ForeignCommitStatus, LaggingQueue, PipelineStatus, Status
from penstock.operations.workers.stuck import HEARTBEAT_SECONDS_MAX, is_silent
from penstock.pipeline.extra import require_spark

if TYPE_CHECKING:
    from penstock.app.tables import Tables
    from penstock.pipeline.maintenance.table_history import Shortfall


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadObjects:
    """The failed objects of a pipeline, and the ids of the messages that announced them."""

    replaced: int
    carriers_of_replaced: set[str]
    carriers_of_others: set[str]


def dead_objects(seen: ScopeView, pipeline: str) -> DeadObjects:
    """Inspect every failed object of a pipeline."""
    replaced, others, count = set[str](), set[str](), 0
    for one in seen.failed_objects(pipeline):
        count += one.replaced
        if one.row.original_message is not None:
            (replaced if one.replaced else others).add(one.row.original_message.message_id)
    return DeadObjects(replaced=count, carriers_of_replaced=replaced, carriers_of_others=others)


def dead_letters_replaced(seen: ScopeView, dead: Iterable[DeadObjects]) -> int | None:
    """Return the number of dead letters whose objects were all replaced by a later version that was processed.

    None if there are such objects and the broker cannot list dead letters without receiving them.
    """
    original_messages, others = set[str](), set[str]()
    for one in dead:
        original_messages |= one.carriers_of_replaced
        others |= one.carriers_of_others
    if not (original_messages := original_messages - others):
        return 0
    if not seen.broker.capabilities.browsable:
        return None
    dead_letters = (
        dead_letter
        for queue in seen.broker.queue_names()
        if names_dead_letters(queue)
        for dead_letter in select_in_queue(seen.broker, queue, DeadLetterFilter())
    )
    return sum(
        dead_letter.death is not None and dead_letter.death.message_id in original_messages
        for dead_letter in dead_letters
    )


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
    dlqs: dict[str, Tier] = {}
    for queue in [one.queue for one in every] if seen.queues is None else seen.queues:
        if names_dead_letters(queue):
            dlqs[queue] = "dead" if names_final_dlq(queue) else "dlq"
        elif seen.queues is not None:  # otherwise every DLQ is listed itself
            dlqs |= tier_by_dlq(seen.broker, queue)
    final = {name for name, tier in dlqs.items() if tier == "dead"}
    known = {one.queue: one.messages for one in every}
    counts = {name: known[name] if name in known else messages_in(seen.broker, name) for name in dlqs}
    replayed = (dlqs.keys() - final) & _replayed(seen, dlqs, records)
    return DeadLetters(
        all=sum(counts.values()),
        set_aside=sum(counts[name] for name in final),
        replayed=sum(counts[name] for name in replayed),
    )


def _replayed(seen: ScopeView, names: Iterable[str], records: Sequence[WorkerRecord]) -> set[str]:
    """Return the queues that a living worker replays, or may replay on another host if the settings say so."""
    settings = seen.scope.settings
    replayed = {queue for record in records for queue in record.queues}
    if settings.dead_letters_replay and has_workers_elsewhere(settings):
        off = {queue for queue, how in settings.dead_letters_replay_queues.items() if how.off}
        replayed |= {name for name in names if conventional_source(name) not in off}
    return replayed


DETAILS_SECONDS = 30.0
SCAN_REST_FACTOR = 100.0  # the time between two scans, as a multiple of the duration of one
SCAN_SECONDS_MAX = 3_600.0  # of that time, however long a scan took: it may have waited for a service
FOREIGN_COMMITS_MAX = 10  # shown per pipeline
UNNAMED = "no queue is named, so none was checked: give --app, such as --app shop:app, or set queues"
UNSHOWN = (
    "objects were replaced by later versions, and their dead letters are counted all the same: this broker "
    "cannot list dead letters; `penstock dead purge --object` deletes those of an object"
)


def read_status(scope: Scope) -> Status:
    """Return the status of the scope."""
    return StatusReader(scope).read()


class StatusReader:
    """Read the status of one scope repeatedly. For one thread.

    Slow details that rarely change are read every `DETAILS_SECONDS`: the versions of tables. What grows with a pipeline
    is scanned at most as often, and for at most a hundredth of the time: failed objects, the rows of all batches and
    files, and the count of processed objects, which is updated from new batches in between. Empty queues are remembered
    to estimate ages. Each call opens its own connections, so that a server that was unavailable is tried again.
    """

    def __init__(self, scope: Scope, *, clock: Clock | None = None) -> None:
        self._scope = scope
        self._clock = clock or SystemClock()
        self._details: _Details | None = None
        self._scans: _Scans | None = None
        self._ages: AgeReader | None = None
        self._pipelines = PipelineReader(overdue_after_seconds=scope.settings.objects_overdue_after, clock=self._clock)

    def read(self) -> Status:
        """Read the current status."""
        scope = self._scope
        with view(scope) as seen:
            details, scans = self._details_of(seen), self._scans_of(seen)
            silent = seen.workers.silent()  # they may serve any queue
            records = seen.workers.records()
            healths = self._pipelines.read(seen.ledger, seen.pipelines(), has_settled=partial(_has_settled, seen))
            self._ages = self._ages or AgeReader(seen.broker, clock=self._clock)
            every = queue_statuses(scope.settings, seen.broker, seen.queues, ages=self._ages)
            counts = dead_letters(seen, every, records)
            self._scans = scans = scans.limited(healths, dead_letters=counts.all)
            pipelines = [self._pipeline(seen, health, details, scans) for health in healths]
            queues = [one for one in every if not names_dead_letters(one.queue)]
            notes = [] if scope.table is not None else list(_notes(seen, queues))
            notes += [one.text for found in scans.shortfalls.values() for one in found if not one.is_explained]
            replaced = scans.dead_letters_replaced if counts.all else 0
            if replaced is None:
                notes.append(UNSHOWN)
        unserved = _unserved(queues, records)
        workers = sorted({*silent, *(record.worker for record in records)})
        elsewhere = has_workers_elsewhere(scope.settings)
        seen_all = not elsewhere or bool(silent)
        ages = [age for queue in queues if (age := queue.oldest_visible_message_age_seconds) is not None]
        return Status(
            table=None if scope.table is None else str(scope.table.table),
            table_version=None if scope.table is None else pipelines[0].table_version,
            table_format=None if scope.table is None else scope.table.scheme,
            objects={state: sum(pipeline.objects[state] for pipeline in pipelines) for state in ObjectState},
            batches_committed=sum(pipeline.batches_committed for pipeline in pipelines),
            batches_unpublished=_summed([pipeline.batches_unpublished for pipeline in pipelines]),
            messages_visible=sum(queue.visible for queue in queues),
            messages_in_flight=sum(queue.in_flight for queue in queues),
            messages_delayed=sum(queue.delayed for queue in queues),
            oldest_visible_message_age_seconds=max(ages, default=None),
            dead_letters=counts.all,
            workers=workers,
            objects_replaced=sum(pipeline.objects_replaced for pipeline in pipelines),
            replaced_objects=sum(pipeline.replaced_objects for pipeline in pipelines),
            replaced_rows=sum(pipeline.replaced_rows for pipeline in pipelines),
            dead_letters_replaced=replaced,
            dead_letters_set_aside=counts.set_aside,
            dead_letters_replayed=counts.replayed,
            messages_unserved=sum(unserved.values()) if workers and not silent and not elsewhere else 0,
            queues_unserved=list(unserved),
            queues_silent=silent_queues(queues, records, now=self._clock.now(), elsewhere=elsewhere),
            workers_silent=bool(silent),
            workers_elsewhere=elsewhere,
            notes=notes,
            disagreements=[pipeline.disagreement for pipeline in pipelines if pipeline.disagreement is not None],
            lagging=lagging_queues(queues, scope.settings, seen_all=seen_all) if scope.table is None else (),
            queues=queues,
            pipelines=pipelines,
            records=records,
        )

    def _details_of(self, seen: ScopeView) -> "_Details":
        now = self._clock.monotonic()
        if self._details is None or now - self._details.at >= DETAILS_SECONDS:
            self._details = _Details(at=now, tables={pipeline: _table(seen, pipeline) for pipeline in seen.pipelines()})
        return self._details

    def _scans_of(self, seen: ScopeView) -> "_Scans":
        began_at = self._clock.monotonic()
        if self._scans is None or began_at >= self._scans.due_at:
            self._pipelines.count_anew()
            dead = {pipeline: dead_objects(seen, pipeline) for pipeline in seen.pipelines()}
            scans = _Scans(
                replaced={pipeline: one.replaced for pipeline, one in dead.items()},
                dead_letters_replaced=dead_letters_replaced(seen, dead.values()),
                shortfalls={pipeline: _shortfalls(seen, pipeline) for pipeline in dead},
                replaced_rows={pipeline: seen.ledger.replaced_totals(pipeline) for pipeline in dead},
            )
            took_seconds = self._clock.monotonic() - began_at
            rest_seconds = min(max(SCAN_REST_FACTOR * took_seconds, DETAILS_SECONDS), SCAN_SECONDS_MAX)
            self._scans = replace(scans, due_at=began_at + took_seconds + rest_seconds)
        return self._scans

    def _pipeline(
        self, seen: ScopeView, health: PipelineHealth, details: "_Details", scans: "_Scans"
    ) -> PipelineStatus:
        pipeline = health.pipeline
        table = details.tables.get(pipeline) or _table(seen, pipeline)
        row = seen.ledger.pipeline(pipeline)
        replaced_objects, replaced_rows = scans.replaced_rows.get(pipeline) or seen.ledger.replaced_totals(pipeline)
        return PipelineStatus(
            pipeline=pipeline,
            objects=health.objects,
            objects_replaced=scans.replaced.get(pipeline, 0),
            batches_committed=health.batches_committed,
            batches_unpublished=table.unpublished,
            table=table.name,
            table_version=table.version,
            disagreement=table.disagreement,
            shortfalls=[one.text for one in scans.shortfalls.get(pipeline, ()) if one.is_explained],
            reconciled=health.reconciled,
            objects_missing=health.objects_missing,
            warned_objects=health.warned_objects,
            warned_lines=health.warned_lines,
            # An ingest works through its backlog, however long that takes, so its objects are never overdue.
            objects_overdue=health.objects_overdue if seen.scope.table is None else 0,
            oldest_unprocessed_age_seconds=health.oldest_unprocessed_age_seconds,
            queue=seen.scope.served.get(pipeline),
            foreign_commits=table.foreign_commits,
            transform=None if row is None else row.transform,
            replaced_objects=replaced_objects,
            replaced_rows=replaced_rows,
            table_format=table.scheme,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableStatus:
    """The status of a pipeline's table."""

    name: str | None
    scheme: str | None  # of its format
    version: int | None
    unpublished: int | None
    disagreement: str | None
    foreign_commits: Sequence[ForeignCommitStatus] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Details:
    """The slow details, as of a monotonic time."""

    at: float
    tables: Mapping[str, _TableStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scans:
    """The details that take longer the more objects, batches and files a pipeline has. Mappings are by pipeline."""

    replaced: Mapping[str, int]  # failed objects with a later version that was processed
    dead_letters_replaced: int | None  # None: unknown
    shortfalls: Mapping[str, Sequence["Shortfall"]]
    replaced_rows: Mapping[str, tuple[int, int]]  # see `Ledger.replaced_totals`
    due_at: float = 0.0  # when to scan again (monotonic)

    def limited(self, healths: Sequence[PipelineHealth], *, dead_letters: int) -> "_Scans":
        """Return the scans with no more replaced objects and dead letters than are left.

        Those that fail from now on are not among them, although the numbers may be equal again.
        """
        dead = {health.pipeline: health.objects[ObjectState.DEAD] for health in healths}
        letters = self.dead_letters_replaced
        return replace(
            self,
            replaced={name: min(count, dead.get(name, 0)) for name, count in self.replaced.items()},
            dead_letters_replaced=None if letters is None else min(letters, dead_letters),
        )


def _has_settled(seen: ScopeView, pipeline: str, seconds: float) -> bool:
    """Return True if the queues that may be the pipeline's have no message that was there ``seconds`` ago."""
    served = seen.scope.served.get(pipeline)
    known = seen.broker.queue_names() if seen.queues is None else seen.queues
    queues = [name for name in known if not names_dead_letters(name)] if served is None else [served]
    return all(has_settled(seen.broker, name, seconds=seconds) for name in queues)


def _table(seen: ScopeView, pipeline: str) -> _TableStatus:
    row = seen.ledger.pipeline(pipeline)
    committed = row.next_seq - 1 if row else 0
    where = seen.scope.tables.get(pipeline)
    if where is None:
        known = committed == 0 or pipeline in seen.scope.tableless
        return _TableStatus(name=None, scheme=None, version=None, unpublished=0 if known else None, disagreement=None)
    tables = _tables(seen, where)
    return _TableStatus(
        name=str(where.table),
        scheme=where.scheme,
        version=tables.version(),
        unpublished=tables.unpublished(),
        disagreement=_disagreement(seen, pipeline, tables, committed),
        foreign_commits=_foreign_commits(seen, pipeline, where),
    )


def _shortfalls(seen: ScopeView, pipeline: str) -> Sequence["Shortfall"]:
    """Return the rows that batches wrote and that the pipeline's tables lack; none if their place is unknown."""
    where = seen.scope.tables.get(pipeline)
    return () if where is None else _tables(seen, where).shortfalls()


def _foreign_commits(seen: ScopeView, pipeline: str, where: TablePaths) -> Sequence[ForeignCommitStatus]:
    """Return the last commits of other writers to both tables that a publish has seen, newest first."""
    found = [
        ForeignCommitStatus(
            table=uri,
            version=commit.version,
            operation=commit.operation,
            engine=commit.engine,
            committed_at=commit.committed_at,
            replaced_from=commit.lost_from,
            replaced_to=commit.lost_to,
        )
        for uri in (where.table.uri, where.quarantine.uri)
        for commit in reversed(seen.ledger.table_commits.seen(pipeline, uri))
        if commit.engine is not None
    ]
    replaced = [commit for commit in found if commit.replaced_from is not None][:FOREIGN_COMMITS_MAX]
    others = [commit for commit in found if commit.replaced_from is None][: FOREIGN_COMMITS_MAX - len(replaced)]
    return sorted([*replaced, *others], key=lambda commit: commit.version, reverse=True)


def _tables(seen: ScopeView, where: TablePaths) -> "Tables":
    """Return the tables. Raises `ConfigurationError` if the packages of the extra are missing."""
    require_spark(where.scheme)
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
            "nothing to it: either it belongs to another ledger (--data-dir), or it existed before the first batch"
        )
    return None


def _notes(seen: ScopeView, queues: Sequence[QueueStatus]) -> Iterator[str]:
    """Yield notes on settings that may name the wrong place or queue, and so suggest an idle system."""
    settings = seen.scope.settings
    if seen.queues is not None and not seen.queues:
        yield UNNAMED
    elif not broker_exists(settings):
        yield f"there is no queue in {broker_file(settings)} yet (setting broker)"
    elif unknown := sorted(
        {*map(listed_name, settings.alerts_lagging_queues)} - {listed_name(queue.queue) for queue in queues}
    ):
        yield f"alerts.lagging_queues names queues that were not checked: {', '.join(unknown)}"


def lagging_after(settings: Settings, queues: Sequence[str]) -> Mapping[str, float]:
    """Return the age of the oldest visible message in seconds beyond which each queue is lagging."""
    own_seconds = {listed_name(name): seconds for name, seconds in settings.alerts_lagging_queues.items()}
    return {queue: own_seconds.get(listed_name(queue), settings.alerts_lagging_after) for queue in queues}


def lagging_queues(queues: Sequence[QueueStatus], settings: Settings, *, seen_all: bool) -> Sequence[LaggingQueue]:
    """Return the queues whose oldest visible message has waited longer than the settings allow.

    ``seen_all``: never report a missing consumer here. Either all workers are visible, and other checks report it,
    or some have no record and may serve any queue. Otherwise a queue has no consumer if it has no workers here and
    no messages in flight.
    """
    found: list[LaggingQueue] = []
    limits_seconds = lagging_after(settings, [queue.queue for queue in queues])
    for queue in queues:
        after_seconds = limits_seconds[queue.queue]
        age_seconds = queue.oldest_visible_message_age_seconds
        if age_seconds is not None and age_seconds > after_seconds:
            idle = not (seen_all or queue.workers or queue.in_flight)
            found.append(
                LaggingQueue(queue=queue.queue, age_seconds=age_seconds, after_seconds=after_seconds, no_consumer=idle)
            )
    return found


def _unserved(queues: Sequence[QueueStatus], records: Sequence[WorkerRecord]) -> Mapping[str, int]:
    """Return the number of messages that no worker will fetch, for each queue that has any.

    A draining worker only finishes its messages in flight.
    """
    fetching = {record.worker for record in records if record.state != DRAINING}
    left = [queue for queue in queues if fetching.isdisjoint(queue.workers)]
    unserved = {queue.queue: queue.visible + queue.delayed if queue.workers else queue.messages for queue in left}
    return {queue: count for queue, count in unserved.items() if count}


def silent_queues(
    queues: Sequence[QueueStatus], records: Sequence[WorkerRecord], *, now: float, elsewhere: bool
) -> Mapping[str, float]:
    """Return the queues with messages whose workers all have no heartbeat, and for how many seconds.

    If workers may run ``elsewhere``, a queue that one of those may consume is left out.
    """
    beats = {record.worker: record.beat_at for record in records}
    silent = {record.worker for record in records if is_silent(record, now=now)}
    return {
        queue.queue: now - max(beats[worker] for worker in queue.workers)
        for queue in queues
        if queue.messages
        and queue.workers
        and silent.issuperset(queue.workers)
        and not (elsewhere and _may_be_consumed(queue))
    }


def _may_be_consumed(queue: QueueStatus) -> bool:
    """Return True if a worker may hold messages of the queue, or may not have had the time to receive one."""
    age_seconds = queue.oldest_visible_message_age_seconds
    is_young = age_seconds is not None and age_seconds <= HEARTBEAT_SECONDS_MAX
    return bool(queue.in_flight) or not queue.visible or is_young


def _summed(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(number for number in numbers if number is not None)
