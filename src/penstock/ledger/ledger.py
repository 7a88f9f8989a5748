"""The ledger's facade: one object with one method per query or change.

Any thread may call any method. Each method runs one or two short transactions and uses the database's clock. All of
them raise `TemporaryError` if the database is unreachable, locked or full, and `ConfigurationError` if it cannot serve
as a ledger.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from penstock.ledger.abandonments import Abandonments
from penstock.ledger.adoptions import Adoptions
from penstock.ledger.archive import Archives
from penstock.ledger.batch_lists import BatchLists
from penstock.ledger.claims import Claims
from penstock.ledger.commits import Commits
from penstock.ledger.database import Database, parsed_url
from penstock.ledger.dead_letters import Audits, Replays
from penstock.ledger.dialects import dialect_for
from penstock.ledger.dialects.sqlite import is_in_memory
from penstock.ledger.holders import ClaimHolders
from penstock.ledger.known_ids import IDS_END, KnownIds
from penstock.ledger.migrate import migrate
from penstock.ledger.object_lists import ObjectLists
from penstock.ledger.owners import Owners
from penstock.ledger.pipelines import Pipelines, ReconcileResult, Reconciliation, Reconciliations
from penstock.ledger.progress import PublishProgress, TaskProgress
from penstock.ledger.quarantine import Quarantines
from penstock.ledger.queries import LedgerAges, Queries
from penstock.ledger.records import (
    AttemptRow,
    BatchOutcome,
    BatchRow,
    Claimable,
    Committed,
    HolderOutcome,
    KnownBeginning,
    LedgerRepair,
    LedgerRepaired,
    ObjectAttempt,
    ObjectClaims,
    ObjectRow,
    ObjectState,
    OnChange,
    PipelineRow,
    WorkClaimResult,
    WorkOwner,
    WorkRow,
    WorkState,
)
from penstock.ledger.reopenings import Reopenings
from penstock.ledger.repairs import Repairs
from penstock.ledger.retractions import Retractions
from penstock.ledger.table_commits import TableCommits
from penstock.ledger.works import WorkQueries, Works
from penstock.messaging.handler import Extension
from penstock.messaging.steps import Probe, no_probe


class Ledger:
    """The record of claims, attempts, batches and handler keys in one database. Thread-safe."""

    def __init__(self, database: Database, probe: Probe = no_probe) -> None:
        self.database = database
        self._pipelines = Pipelines(database)
        self._abandonments = Abandonments(database, probe)
        self._claims = Claims(database, probe, self._abandonments)
        self._commits = Commits(database, probe)
        self._repairs = Repairs(database, probe)
        self._publish_progress = PublishProgress(database)
        self._progress = TaskProgress(database)
        self._queries = Queries(database)
        self._known_ids = KnownIds(database)
        self.archives = Archives(database, probe)  # rows that were moved out of `objects`
        self.adoptions = Adoptions(database)  # objects that another system processed
        self.retractions = Retractions(database, probe)  # objects whose rows leave the table
        self.reopenings = Reopenings(database, probe)  # processed objects that are read again
        self.replays = Replays(database)  # replays of dead-lettered messages
        self.audits = Audits(database)  # operators' actions on queues
        self.quarantines = Quarantines(database)  # the bad lines of objects, and what became of them
        self.lists = ObjectLists(database)  # objects for people, page by page
        self.batch_lists = BatchLists(database)  # batches for people, without their files
        self.ages = LedgerAges(database)  # waiting times of objects and batches
        self.table_commits = TableCommits(database)  # the last commits of the tables
        self._reconciliations = Reconciliations(database)
        self._works = Works(database)
        self.owners = Owners(database)  # which app uses a name
        self._work_queries = WorkQueries(database)
        self.holders = ClaimHolders(database)  # which worker holds what

    @classmethod
    def open(cls, url: str | Path, *, probe: Probe = no_probe, now: Callable[[], float] | None = None) -> Self:
        """Open the ledger at a database URL, or in the SQLite file at a path, and migrate its tables.

        Args:
            url: ``sqlite://`` opens a ledger in memory, for tests.
            probe: Called at each step, so that tests can inject faults.
            now: Replaces the clock for databases that have none of their own.

        Raises:
            ConfigurationError: The URL names no ledger, or a newer Penstock wrote it.
        """
        parsed = parsed_url(url)
        dialect = dialect_for(parsed)
        database = Database(
            dialect.create_engine(parsed, now=now),
            dialect,
            heartbeat_engine=lambda seconds: dialect.heartbeat_engine(parsed, now=now, response_seconds=seconds),
        )
        try:
            migrate(database)
        except BaseException:
            database.close()
            raise
        return cls(database, probe)

    def close(self) -> None:
        """Close the connections. Claims stay open."""
        self.database.close()

    def ping(self) -> None:
        """Raise `TemporaryError` if the ledger is not writable. Updates a row that does not exist."""
        self._works.ping()

    # Pipelines

    def ensure_pipeline(self, pipeline: str) -> PipelineRow:
        """Return the pipeline's row, creating it if needed. Call it once before the first commit to the pipeline."""
        return self._pipelines.ensure(pipeline)

    def pipeline(self, pipeline: str) -> PipelineRow | None:
        """Return the pipeline's row, or None."""
        return self._pipelines.one(pipeline)

    def pipelines(self) -> Sequence[PipelineRow]:
        """Return all pipelines by id."""
        return self._pipelines.all()

    def remember_source_schema(self, pipeline: str, ddl: str, options: str | None = None) -> PipelineRow:
        """Record the schema of the source, and how it is read, unless a schema is recorded; return what is recorded."""
        return self._pipelines.remember_source_schema(pipeline, ddl, options)

    def replace_source_schema(self, seen: PipelineRow, ddl: str, options: str | None) -> bool:
        """Replace the recorded schema of the source, and how it is read.

        Returns False, and changes nothing, if another process has changed them since the row ``seen`` was read.
        """
        return self._pipelines.replace_source_schema(seen, ddl, options)

    def replace_transform(self, seen: PipelineRow, name: str) -> bool:
        """Replace the recorded name of the pipeline's transform; empty: none.

        Returns False, and changes nothing, if another process has changed it since the row ``seen`` was read.
        """
        return self._pipelines.replace_transform(seen, name)

    # Claims

    def claim(
        self,
        pipeline: str,
        candidates: Sequence[Claimable],
        *,
        attempt_id: str,
        worker: str,
        lease_seconds: float,
        on_change: OnChange = OnChange.ADD,
    ) -> ObjectClaims:
        """Claim every candidate that is free, for an attempt id never used before.

        Counts one attempt for each claimed object. Abandons the pipeline's expired attempts, so that their objects can
        be claimed at once. If several candidates name one object, the first one is its original message. A failed
        object is revived for the first candidate that may revive it, and its attempts start from zero. An object
        without a version id ends as superseded if a later version of its key is known. A claim that takes nothing
        leaves no attempt behind.

        With ``on_change=REPLACE`` it also takes a processed object of which another version was committed later: the
        store may have it again, and its run finds out. Unless versions are added, the claim returns the number of the
        next batch, for the commit.

        Raises `TemporaryError` if the outcome is unknown. The objects that this attempt did claim are released or
        expire with the lease, so retry with a new id.
        """
        return self._claims.claim(
            pipeline,
            candidates,
            attempt_id=attempt_id,
            worker=worker,
            lease_seconds=lease_seconds,
            on_change=on_change,
        )

    def extend(self, attempt_id: str, *, lease_seconds: float) -> bool:
        """Extend the lease to ``lease_seconds`` from now; return False if the attempt is lost.

        An expired attempt that no worker took over is still open and can be extended: the state fences, not the time.
        """
        return not self._claims.extend([attempt_id], lease_seconds=lease_seconds).lost

    def extend_attempts(
        self, attempt_ids: Sequence[str], *, lease_seconds: float, response_seconds: float | None = None
    ) -> Extension:
        """Extend several attempts in one transaction; return the lost ones and the locked ones, which need another try.

        ``response_seconds`` bounds each wait for the database and uses connections that no other call uses.
        """
        return self._claims.extend(attempt_ids, lease_seconds=lease_seconds, response_seconds=response_seconds)

    def abandon(self, attempt_id: str, *, reason: str, outcome: str, uncounted: bool, unattributed: bool) -> bool:
        """Abandon an open attempt and free its objects, durably; return False if it is no longer open.

        ``outcome`` is one word for the timeline (given_back, failed). With ``uncounted`` the attempt is not counted for
        its objects. With ``unattributed`` each object counts a failure that no object could be blamed for.
        """
        return self._abandonments.abandon(
            attempt_id, reason=reason, outcome=outcome, uncounted=uncounted, unattributed=unattributed
        )

    def abandon_expired(self, pipeline: str) -> Sequence[str]:
        """Abandon all expired attempts and return their ids. The attempts count."""
        return self._abandonments.abandon_expired(pipeline)

    def abandon_worker(self, pipeline: str, worker: str) -> Sequence[str]:
        """Abandon all open attempts of a worker known to be dead and return their ids. The attempts count."""
        return self._abandonments.abandon_of_worker(pipeline, worker)

    # Commits

    def commit(self, outcome: BatchOutcome) -> Committed | None:
        """End an attempt: record its batch and the result of each of its objects.

        The outcome names every object of the claim, as processed or failed. If no object was processed there is no
        batch: the result is None, a new schema is not recorded, and the attempt counts as abandoned so that gc may
        delete its files. An unknown outcome is resolved by reading it back; calling again with the same outcome is safe
        and returns the same.

        With ``on_change=REPLACE`` the batch replaces the rows of all earlier versions of its objects, and dismisses
        their bad lines. With ``TAIL`` it does the same, except for objects of which it has only appended lines.

        Raises:
            ClaimLost: The attempt is no longer ours. Nothing is changed.
            SchemaMoved: The run must be planned again. Nothing is changed.
            VersionsMoved: Unless versions are added: another version of an object was committed since the claim, or is
                in the same batch, or the version whose bad lines a replay read was replaced, or the beginning of an
                object that grew is no longer the last version of it that the table has; or, with
                ``on_change=REFUSE``, another version is processed. Nothing is changed.
            UsageError: Another transform made the pipeline's rows. Nothing is changed.
            TemporaryError: The outcome stays unknown.
        """
        return self._commits.commit(outcome)

    # Repair

    def repair(self, repair: LedgerRepair) -> LedgerRepaired:
        """Bring a ledger that was rolled back up to date with its table.

        Applies the whole repair in one transaction and abandons every open attempt of the pipeline. Raises
        `TemporaryError` if a batch was committed after the repair was planned.
        """
        return self._repairs.apply(repair)

    # Publish notifications

    def begin_announcing(self, pipeline: str) -> int:
        """Start to record which batches were announced; return the last announced one.

        If there was no record before, all batches committed so far count as announced.
        """
        return self._publish_progress.begin(pipeline)

    def advance_announced(self, pipeline: str, seq: int) -> None:
        """Record that every batch up to this one was announced. Never moves backwards."""
        self._publish_progress.advance(pipeline, seq)

    # Background jobs that go batch by batch

    def progress(self, pipeline: str, task: str) -> int:
        """Return the last batch that a background job has finished, with all before it; 0 if it never ran."""
        return self._progress.done(pipeline, task)

    def advance_progress(self, pipeline: str, task: str, seq: int) -> None:
        """Record that a background job has finished every batch up to this one. Never moves backwards."""
        self._progress.advance(pipeline, task, seq)

    def last_batch_older_than(self, pipeline: str, *, after_seq: int, older_than_seconds: float) -> int:
        """Return the last batch of the unbroken run after ``after_seq`` that was committed longer ago than given.

        Uses the database's clock. Returns ``after_seq`` if there is none.
        """
        return self._progress.last_older_than(pipeline, after_seq=after_seq, older_than_seconds=older_than_seconds)

    def processed_objects(
        self, pipeline: str, seq: int, *, after: bytes = b"", limit: int = 1_000
    ) -> Sequence[ObjectRow]:
        """Return the processed objects of a batch by id; ``after`` is the last id of the previous page.

        Objects whose rows were moved to an archive are not included.
        """
        return self._progress.processed_objects(pipeline, seq, after=after, limit=limit)

    # Reconcile

    def known_ids(
        self,
        pipeline: str,
        low: int = 0,
        high: int = IDS_END,
        *,
        seen_at: float = float("inf"),
        on_change: OnChange = OnChange.ADD,
    ) -> Iterator[bytes]:
        """Yield the ids of objects that need no message.

        These are processed, failed and archived objects, and those under an attempt with an unexpired lease.
        Objects found deleted or replaced are included only if that was at ``seen_at`` (epoch seconds) or later: if the
        object existed afterwards, the earlier record is wrong. Covers ids from ``low`` up to but excluding ``high``, as
        numbers. ``on_change``: see `known_among`. Each item is a chunk of many 16-byte ids, unordered; an id may occur
        twice.
        """
        return self._known_ids.between(pipeline, low, high, seen_at=seen_at, on_change=on_change)

    def known_among(
        self,
        pipeline: str,
        object_ids: Collection[bytes],
        *,
        seen_at: float,
        on_change: OnChange = OnChange.ADD,
    ) -> set[bytes]:
        """Return the given ids that need no message: processed, failed, archived, or under an unexpired lease.

        Objects found deleted or replaced are included only if that was at ``seen_at`` (epoch seconds) or later, because
        the ids are compared with the objects that existed then. With ``on_change=REPLACE``, processed objects of which
        another version was committed later, and before ``seen_at``, are not included: that they existed then means that
        the object changed back.
        """
        return self._queries.known_among(pipeline, object_ids, seen_at=seen_at, on_change=on_change)

    @property
    def secret_url(self) -> str:
        """The database's URL with its password, for processes that open it themselves. Never show or log it.

        A file's path is absolute: the other process may work in another folder.
        """
        url = self.database.engine.url
        if self.is_local and not self.is_in_this_process:
            url = url.set(database=str(Path(url.database or "").absolute()))
        return url.render_as_string(hide_password=False)

    @property
    def driver(self) -> str:
        """The Python module that talks to the database's server, such as ``pymysql``."""
        return self.database.engine.dialect.driver

    @property
    def is_local(self) -> bool:
        """True if the ledger is a file, which other hosts cannot see."""
        return self.database.engine.dialect.name == "sqlite"

    @property
    def is_in_this_process(self) -> bool:
        """True if the ledger is in memory, which other processes cannot see."""
        return self.is_local and is_in_memory(self.database.engine.url)

    def record_reconciliation(self, comparison: ReconcileResult) -> None:
        """Record the result of a reconcile, replacing the previous one."""
        self._reconciliations.record(comparison)

    def reconciliation(self, pipeline: str) -> Reconciliation | None:
        """Return the pipeline's latest reconcile, or None."""
        return self._reconciliations.one(pipeline)

    def reconciliations(self) -> Sequence[Reconciliation]:
        """Return the latest reconcile of each pipeline, by pipeline."""
        return self._reconciliations.all()

    def seconds_since_reconciliation(self, pipeline: str) -> float | None:
        """Return the seconds since the latest reconcile ended, by the database's clock; None if there is none."""
        return self._reconciliations.seconds_since(pipeline)

    # Works

    def begin_work(
        self,
        handler: str,
        key: str,
        *,
        attempt_id: str,
        worker: str,
        lease_seconds: float,
        owner: WorkOwner | None = None,
        retention_seconds: float | None = None,
    ) -> WorkClaimResult:
        """Begin the work of a handler's key, for an attempt id never used before.

        Returns `WorkBegun` if the work is ours; an expired attempt is taken over and returned as ``previous``. Returns
        `WorkBusy` while another attempt holds it, and `WorkDone` forever after one has finished it.

        ``owner`` is the value that `Owners.register` returned for the handler and part of the key's identity. The work
        expires ``retention_seconds`` after its end; without that, see `forget_works`.

        Raises `TemporaryError` if the outcome is unknown. The key is then released, expires with the lease, or is ours
        when begun again with the same id.
        """
        return self._works.begin(
            handler,
            key,
            attempt_id=attempt_id,
            worker=worker,
            lease_seconds=lease_seconds,
            owner=owner,
            retention_seconds=retention_seconds,
        )

    def extend_work(self, attempt_id: str, *, lease_seconds: float) -> bool:
        """Extend the lease to ``lease_seconds`` from now; return False if the attempt is lost.

        As with `extend`, the state fences, not the time.
        """
        return not self._works.extend([attempt_id], lease_seconds=lease_seconds).lost

    def extend_works(
        self, attempt_ids: Sequence[str], *, lease_seconds: float, response_seconds: float | None = None
    ) -> Extension:
        """Extend several attempts of works; see `extend_attempts`."""
        return self._works.extend(attempt_ids, lease_seconds=lease_seconds, response_seconds=response_seconds)

    def finish_work(self, attempt_id: str, *, outcome: str) -> bool:
        """Complete the work, storing an outcome as JSON text for later duplicates; return False if the attempt is lost.

        Returns True if and only if this attempt's completion is the recorded one. Calling again keeps the first
        outcome. Raises `TemporaryError` if that stays unknown: call again.
        """
        return self._works.finish(attempt_id, outcome=outcome)

    def end_work(self, attempt_id: str, *, outcome: HolderOutcome, reason: str) -> bool:
        """Free the key without completing it, durably; return False if the attempt is lost or finished."""
        return self._works.end(attempt_id, outcome=outcome, reason=reason)

    def abandon_worker_works(self, worker: str) -> int:
        """End all open attempts of a dead worker as expired, so that others can begin; return their count."""
        return self._works.abandon_worker(worker)

    def forget_works(self, *, limit: int, older_than_seconds: float | None = None, handler: str | None = None) -> int:
        """Delete up to ``limit`` expired works; return their count.

        A work expires ``retention_seconds`` after its end, as passed to `begin_work`. A work without a retention (begun
        by an earlier version) expires ``older_than_seconds`` after its end, if given; with ``handler``, only works of
        that handler do. A duplicate that arrives after its work was deleted is processed again.
        """
        return self._works.forget(older_than_seconds=older_than_seconds, limit=limit, handler=handler)

    def works(
        self,
        handler: str | None = None,
        *,
        key_contains: str | None = None,
        state: WorkState | None = None,
        limit: int = 100,
        after: bytes | None = None,
    ) -> Sequence[WorkRow]:
        """Return works by id; ``after`` is the last id of the previous page. ``key_contains`` ignores case."""
        return self._work_queries.works(handler, key_contains=key_contains, state=state, limit=limit, after=after)

    def work(self, handler: str, key: str, *, owner: WorkOwner | None = None) -> WorkRow | None:
        """Return one work, or None."""
        return self._work_queries.work(handler, key, owner)

    # Queries

    def now(self) -> float:
        """Return the time by the database's clock, in epoch seconds."""
        return self._queries.now()

    def batches(self, pipeline: str, *, after_seq: int = 0, limit: int = 100) -> Sequence[BatchRow]:
        """Return batches in commit order."""
        return self._queries.batches(pipeline, after_seq=after_seq, limit=limit)

    def batches_after(self, pipeline: str, after_seq: int) -> Iterator[BatchRow]:
        """Yield every batch after that sequence number in commit order, reading page by page."""
        return self._queries.batches_after(pipeline, after_seq)

    def batch(self, pipeline: str, seq: int) -> BatchRow | None:
        """Return one batch, or None."""
        return self._queries.batch(pipeline, seq)

    def batch_of(self, attempt_id: str) -> BatchRow | None:
        """Return the batch that an attempt committed, or None."""
        return self._queries.batch_of(attempt_id)

    def states(self, pipeline: str, object_ids: Collection[bytes]) -> Mapping[bytes, ObjectState]:
        """Return the state of these objects; unknown ids are omitted."""
        return self._queries.states(pipeline, object_ids)

    def unread(self, pipeline: str, object_ids: Collection[bytes]) -> Mapping[bytes, float]:
        """Return when these objects were found deleted or replaced before they were read; others are omitted."""
        return self._queries.unread(pipeline, object_ids)

    def live(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        """Return the objects under an open attempt with an unexpired lease."""
        return self._queries.live(pipeline, object_ids)

    def unattributed_failures(self, pipeline: str, object_ids: Collection[bytes]) -> Mapping[bytes, int]:
        """Return for each object the number of failed runs that no object could be blamed for; 0 for an unknown id."""
        return self._queries.unattributed_failures(pipeline, object_ids)

    def other_versions(self, pipeline: str, object_ids: Collection[bytes]) -> int:
        """Count the given objects that the ledger also knows in another version, i.e. files that changed.

        Replays are no versions of their own.
        """
        return self._queries.other_versions(pipeline, object_ids)

    def changed(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        """Return those of the given objects, which the ledger knows, of which another version is processed.

        Replays are no versions of their own. Versions that were retracted do not count.
        """
        return self._queries.changed(pipeline, object_ids)

    def superseded(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        """Return those of the given objects that are processed, and of which another version was committed later.

        Replays are no versions of their own.
        """
        return self._queries.superseded(pipeline, object_ids)

    def overtaken(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        """Return the given objects, which are being read again, that a version processed later has overtaken."""
        return self._queries.overtaken(pipeline, object_ids)

    def beginnings(self, pipeline: str, attempt_id: str) -> Mapping[bytes, KnownBeginning]:
        """Return the beginnings that the table has of the objects that an attempt holds, by object id.

        A version that is longer and begins with the same bytes is appended to them; see `ObjectResult.appended_to`.
        """
        return self._queries.beginnings(pipeline, attempt_id)

    def replaced(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        """Return those of the given objects that are processed, and whose rows a later version took out of the table.

        Archived ones are left out.
        """
        return self._queries.replaced(pipeline, object_ids)

    def of_several_objects(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        """Return the given objects whose address is also that of a processed object with another key."""
        return self._queries.of_several_objects(pipeline, object_ids)

    def objects(
        self,
        pipeline: str,
        *,
        state: ObjectState | None = None,
        uri_contains: str | None = None,
        older_than_seconds: float | None = None,
        limit: int = 100,
        after: bytes | None = None,
    ) -> Sequence[ObjectRow]:
        """Return objects by id; ``after`` is the last id of the previous page. ``uri_contains`` ignores case.

        With ``older_than_seconds``, return only objects that ended, or were first seen, longer ago by the database's
        clock.
        """
        return self._queries.objects(
            pipeline,
            state=state,
            uri_contains=uri_contains,
            older_than_seconds=older_than_seconds,
            limit=limit,
            after=after,
        )

    def find(self, uri: str) -> Sequence[tuple[str, ObjectRow]]:
        """Return every version of the object at exactly this uri, in every pipeline."""
        return self._queries.find(uri)

    def counts(self, pipeline: str) -> Mapping[ObjectState, int]:
        """Return the number of objects in each state."""
        return self._queries.counts(pipeline)

    def has_replaced(self, pipeline: str, seq: int) -> bool:
        """Return True if a batch up to this one replaced rows of earlier batches."""
        return self._queries.has_replaced(pipeline, seq)

    def is_merged(self, pipeline: str, seq: int) -> bool:
        """Return True if the rows of a batch up to this one are merged by key."""
        return self._queries.is_merged(pipeline, seq)

    def deletes_before(self, pipeline: str, seq: int) -> Mapping[str, str]:
        """Return the manifests of deletes of the batches before this one, by attempt, in order of the batches."""
        return self._queries.deletes_before(pipeline, seq)

    def replaced_totals(self, pipeline: str, *, after_seq: int = 0) -> tuple[int, int]:
        """Return how often batches replaced an earlier version of an object, and the rows of these versions."""
        return self._queries.replaced_totals(pipeline, after_seq=after_seq)

    def grown_totals(self, pipeline: str, *, after_seq: int = 0) -> tuple[int, int]:
        """Return how often only lines appended to an object were read, and the rows of these lines.

        Batches without a row, which no commit to the table shows, are left out.
        """
        return self._queries.grown_totals(pipeline, after_seq=after_seq)

    def written_to(self, pipeline: str, seq: int) -> tuple[int, int]:
        """Return the number of rows and of quarantined lines that all batches up to this one wrote."""
        return self._queries.written_to(pipeline, seq)

    def attempts_of(self, pipeline: str, object_id: bytes) -> Sequence[ObjectAttempt]:
        """Return the object's timeline, oldest first."""
        return self._queries.attempts_of(pipeline, object_id)

    def attempts_before(
        self, pipeline: str, attempt_id: str, object_ids: Collection[bytes]
    ) -> Mapping[bytes, ObjectAttempt]:
        """Return the latest other attempt on each of these objects; objects without one are omitted."""
        return self._queries.attempts_before(pipeline, attempt_id, object_ids)

    def attempt(self, attempt_id: str) -> AttemptRow | None:
        """Return one attempt, or None."""
        return self._queries.attempt(attempt_id)

    def open_attempts(self, pipeline: str) -> Sequence[AttemptRow]:
        """Return the attempts that hold objects now, oldest first."""
        return self._queries.open_attempts(pipeline)

    def abandoned_attempts(self, pipeline: str) -> Sequence[str]:
        """Return all attempts whose files gc may delete, oldest first.

        Includes attempts that gc has already handled, because a slow writer may still add files.
        """
        return self._queries.abandoned_attempts(pipeline)
