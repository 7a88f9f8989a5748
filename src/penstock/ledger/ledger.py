"""The ledger as the other rooms see it: one object, one method a question or a change.

Any thread may call any method. Every method is one short transaction or two, by the database's clock. All of them
raise `TemporaryError` when the database is away, locked or full, and `ConfigurationError` when it cannot be a ledger.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from penstock.ledger.abandonments import Abandonments
from penstock.ledger.adoptions import Adoptions
from penstock.ledger.archive import Archives
from penstock.ledger.claims import Claims
from penstock.ledger.commits import Commits
from penstock.ledger.database import Database, parsed_url
from penstock.ledger.dead_letters import Audits, Replays
from penstock.ledger.dialects import dialect_for
from penstock.ledger.dialects.sqlite import is_in_memory
from penstock.ledger.known_ids import IDS_END, KnownIds
from penstock.ledger.migrate import migrate
from penstock.ledger.owners import Owners
from penstock.ledger.pipelines import Pipelines, ReconcileResult, Reconciliation, Reconciliations
from penstock.ledger.progress import PublishProgress, TaskProgress
from penstock.ledger.queries import LedgerAges, Queries
from penstock.ledger.records import (
    AttemptRow,
    BatchOutcome,
    BatchRow,
    Candidate,
    LedgerRepair,
    LedgerRepaired,
    ObjectAttempt,
    ObjectClaims,
    ObjectRow,
    ObjectState,
    PipelineRow,
    WorkEnding,
    WorkOwner,
    WorkRow,
    WorkStanding,
    WorkState,
)
from penstock.ledger.repairs import Repairs
from penstock.ledger.works import WorkQueries, Works
from penstock.messaging.handler import Extension
from penstock.messaging.steps import Probe, no_probe


class Ledger:
    """What we did, and who is at it."""

    def __init__(self, database: Database, probe: Probe = no_probe) -> None:
        self.database = database
        self._pipelines = Pipelines(database)
        self._abandonments = Abandonments(database, probe)
        self._claims = Claims(database, probe, self._abandonments)
        self._commits = Commits(database, probe)
        self._repairs = Repairs(database, probe)
        self._tellings = PublishProgress(database)
        self._progress = TaskProgress(database)
        self._queries = Queries(database)
        self._known_ids = KnownIds(database)
        self.archives = Archives(database, probe)  # rows that left `objects`
        self.adoptions = Adoptions(database)  # objects that somebody else processed
        self.replays = Replays(database)  # dead letters on their way back
        self.audits = Audits(database)  # what people did to queues
        self.ages = LedgerAges(database)  # how long objects and batches wait
        self._reconciliations = Reconciliations(database)
        self._works = Works(database)
        self.owners = Owners(database)  # which app a name belongs to
        self._work_queries = WorkQueries(database)

    @classmethod
    def open(cls, url: str | Path, *, probe: Probe = no_probe, now: Callable[[], float] | None = None) -> Self:
        """Open the ledger at a database URL, or in the SQLite file at a path, and bring its tables up to date.

        ``sqlite://`` is a ledger in memory, for tests. ``now`` stands in for the clock of a database that has none of
        its own. Raises `ConfigurationError` where that is no ledger, or one that a newer Penstock wrote.
        """
        parsed = parsed_url(url)
        dialect = dialect_for(parsed)
        database = Database(
            dialect.create_engine(parsed, now=now),
            dialect,
            hurried_engine=lambda seconds: dialect.hurried_engine(parsed, now=now, answer_seconds=seconds),
        )
        try:
            migrate(database)
        except BaseException:
            database.close()
            raise
        return cls(database, probe)

    def close(self) -> None:
        """Give back connections. Claims stay as they are."""
        self.database.close()

    def ping(self) -> None:
        """Raise `TemporaryError` while the ledger cannot be written to: it changes a row that is not there."""
        self._works.ping()

    # Pipelines

    def ensure_pipeline(self, pipeline: str) -> PipelineRow:
        """The pipeline's row, made when there is none. Needed once before anything is committed to it."""
        return self._pipelines.ensure(pipeline)

    def pipeline(self, pipeline: str) -> PipelineRow | None:
        """The pipeline's row."""
        return self._pipelines.one(pipeline)

    def pipelines(self) -> Sequence[PipelineRow]:
        """All of them, by id."""
        return self._pipelines.all()

    def remember_source_schema(self, pipeline: str, ddl: str) -> str:
        """Remember the schema of what is read; the first one named stays, and is answered."""
        return self._pipelines.remember_source_schema(pipeline, ddl)

    def declare_source_schema(self, pipeline: str, ddl: str) -> None:
        """Remember the schema of what is read, in the place of an earlier one."""
        self._pipelines.declare_source_schema(pipeline, ddl)

    # Claims

    def claim(
        self, pipeline: str, candidates: Sequence[Candidate], *, attempt_id: str, worker: str, lease_seconds: float
    ) -> ObjectClaims:
        """Take every candidate that is free, for an attempt id never used before.

        Charges an attempt to each object taken. First gives up attempts of the pipeline that are past their lease.
        Where several candidates name one object, the first is its carrier; a dead object comes back to life for the
        first that may revive it, with its attempts counted anew. An object without a version id that a later version
        of its key overtook ends as superseded. A claim that takes nothing leaves no attempt behind.

        Raises `TemporaryError` when the outcome is unknown: what this attempt took is given back (or runs out), so
        try with a fresh id.
        """
        return self._claims.claim(
            pipeline, candidates, attempt_id=attempt_id, worker=worker, lease_seconds=lease_seconds
        )

    def extend(self, attempt_id: str, *, lease_seconds: float) -> bool:
        """Let the lease end ``lease_seconds`` from now; False when the attempt is lost.

        An attempt past its lease that nobody took over yet is still open, so it can be extended: what fences is the
        state, never the time.
        """
        return not self._claims.extend([attempt_id], lease_seconds=lease_seconds).lost

    def extend_attempts(
        self, attempt_ids: Sequence[str], *, lease_seconds: float, answer_seconds: float | None = None
    ) -> Extension:
        """Extend several attempts in one transaction; returns which are lost, and which were locked and are still to be
        extended.

        ``answer_seconds`` bounds each wait for the database, on connections that no other call uses.
        """
        return self._claims.extend(attempt_ids, lease_seconds=lease_seconds, answer_seconds=answer_seconds)

    def abandon(self, attempt_id: str, *, reason: str, outcome: str, refund: bool, unattributed: bool) -> bool:
        """Give an open attempt up and free its objects, at once and durably; False when it is not open any more.

        ``outcome`` is one word for the timeline (given_back, failed). ``refund`` takes the charge off the objects;
        ``unattributed`` counts a failure with no object to blame on each of them.
        """
        return self._abandonments.one(
            attempt_id, reason=reason, outcome=outcome, refund=refund, unattributed=unattributed
        )

    def abandon_expired(self, pipeline: str) -> Sequence[str]:
        """Give up all attempts past their lease, charged; answers which."""
        return self._abandonments.expired(pipeline)

    def abandon_worker(self, pipeline: str, worker: str) -> Sequence[str]:
        """Give up all open attempts of a worker proven dead, charged; answers which."""
        return self._abandonments.of_worker(pipeline, worker)

    # Commits

    def commit(self, outcome: BatchOutcome) -> int | None:
        """End an attempt: record its batch, and how each of its objects left it. Answers the batch's sequence.

        The outcome names every object of the claim, as processed or failed. Where none was processed there is no
        batch: the answer is None, a new schema is not recorded, and the attempt counts as abandoned, so that gc may
        delete its files. An unknown outcome is looked into and resolved; calling again with the same outcome is safe
        and answers the same.

        Raises `ClaimLost` when the attempt is not ours any more, `SchemaMoved` when the run must be planned again,
        `TemporaryError` when the outcome stays unknown; nothing is changed by a commit that raises the first two.
        """
        return self._commits.commit(outcome)

    # Repair

    def repair(self, repair: LedgerRepair) -> LedgerRepaired:
        """Bring a ledger that was rolled back up to its table: all that the repair says, in one transaction, and every
        open attempt of the pipeline given up.

        Raises `TemporaryError` where a batch was committed since the repair was planned, and as every method does.
        """
        return self._repairs.apply(repair)

    # Telling

    def begin_telling(self, pipeline: str) -> int:
        """Keep account from now on of the batches that were told of; answers the last one told. Where nobody kept it
        before, those committed until now count as told."""
        return self._tellings.begin(pipeline)

    def told(self, pipeline: str) -> int | None:
        """The last batch told of; None where nobody keeps account."""
        return self._tellings.told(pipeline)

    def advance_told(self, pipeline: str, seq: int) -> None:
        """Every batch up to this one was told of; an account that is further stays so."""
        self._tellings.advance(pipeline, seq)

    # Upkeep, batch by batch

    def progress(self, pipeline: str, task: str) -> int:
        """The last batch with which a task of upkeep is done, as with every one before it; 0 where it never began."""
        return self._progress.done(pipeline, task)

    def advance_progress(self, pipeline: str, task: str, seq: int) -> None:
        """Every batch up to this one is done with; an account that is further stays so."""
        self._progress.advance(pipeline, task, seq)

    def ripe_batches(self, pipeline: str, *, after_seq: int, older_than_seconds: float) -> int:
        """The last batch of those after ``after_seq`` that, with all between, were committed so long ago by the
        database's clock; ``after_seq`` itself where there is none."""
        return self._progress.ripe(pipeline, after_seq=after_seq, older_than_seconds=older_than_seconds)

    def processed_objects(
        self, pipeline: str, seq: int, *, after: bytes = b"", limit: int = 1_000
    ) -> Sequence[ObjectRow]:
        """The objects whose rows a batch brought, by id; ``after``: the last id of the page before. Objects whose rows
        left the ledger for an archive are not among them."""
        return self._progress.processed_objects(pipeline, seq, after=after, limit=limit)

    # Reconciling

    def known_ids(
        self, pipeline: str, low: int = 0, high: int = IDS_END, *, seen_at: float = float("inf")
    ) -> Iterator[bytes]:
        """The ids of objects that need no message: processed or dead, under an attempt whose lease still runs, or
        archived. Objects that were found deleted or replaced are among them only if that was at ``seen_at`` (epoch
        seconds) or later: what existed then proves an earlier end wrong. From ``low`` on and below ``high``, as
        numbers; in pieces of many ids of 16 bytes each, in no order, and one may come twice."""
        return self._known_ids.between(pipeline, low, high, seen_at=seen_at)

    def known_among(self, pipeline: str, object_ids: Collection[bytes], *, seen_at: float) -> set[bytes]:
        """Return those of these ids that need no message: processed, dead, archived, or under an attempt whose lease
        still runs. Objects that were found deleted or replaced are among them only if that was at ``seen_at`` (epoch
        seconds) or later, for the ids are compared with what existed then."""
        return self._queries.known_among(pipeline, object_ids, seen_at=seen_at)

    @property
    def secret_url(self) -> str:
        """The database's URL with its password, for processes that open it themselves: never to be shown or logged."""
        return self.database.engine.url.render_as_string(hide_password=False)

    @property
    def is_of_this_host(self) -> bool:
        """Whether it is a file, which other hosts do not see."""
        return self.database.engine.dialect.name == "sqlite"

    @property
    def is_of_this_process(self) -> bool:
        """Whether it is in memory, which other processes do not see."""
        return self.is_of_this_host and is_in_memory(self.database.engine.url)

    def record_reconciliation(self, comparison: ReconcileResult) -> None:
        """Remember what a reconcile came to, in the place of the one before."""
        self._reconciliations.record(comparison)

    def reconciliation(self, pipeline: str) -> Reconciliation | None:
        """The latest one."""
        return self._reconciliations.one(pipeline)

    def reconciliations(self) -> Sequence[Reconciliation]:
        """The latest one of each pipeline, by pipeline."""
        return self._reconciliations.all()

    def seconds_since_reconciliation(self, pipeline: str) -> float | None:
        """By the database's clock, since the latest one ended; None where there is none."""
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
    ) -> WorkStanding:
        """Begin the work of a handler's key, for an attempt id never used before.

        ``owner`` is what `Owners.register` returned for the handler: part of the key's identity. The work is forgotten
        ``retention_seconds`` after its end; without one, see `forget_works`.

        Ours with `WorkBegun`; an attempt past its lease is taken over, and told as ``previous``. `WorkBusy` while
        another attempt holds it, `WorkDone` for good once one finished.

        Raises `TemporaryError` when the outcome is unknown: the key is given back, or runs out with the lease, or is
        ours after all when begun again with the same id.
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
        """Let the lease end ``lease_seconds`` from now; False when the attempt is lost. As with `extend`, what fences
        is the state, never the time."""
        return not self._works.extend([attempt_id], lease_seconds=lease_seconds).lost

    def extend_works(
        self, attempt_ids: Sequence[str], *, lease_seconds: float, answer_seconds: float | None = None
    ) -> Extension:
        """As `extend_attempts`, for attempts of works."""
        return self._works.extend(attempt_ids, lease_seconds=lease_seconds, answer_seconds=answer_seconds)

    def finish_work(self, attempt_id: str, *, outcome: str) -> bool:
        """Complete the work, with an outcome as JSON text for later duplicates; False when the attempt is lost.

        True exactly when this attempt's completion is the one on record; asked again, the first outcome stays. Raises
        `TemporaryError` when that stays unknown: ask again.
        """
        return self._works.finish(attempt_id, outcome=outcome)

    def end_work(self, attempt_id: str, *, outcome: WorkEnding, reason: str) -> bool:
        """Free the key without completing it, durably; False when the attempt is lost or finished."""
        return self._works.end(attempt_id, outcome=outcome, reason=reason)

    def abandon_worker_works(self, worker: str) -> int:
        """End all open attempts of a worker proven dead as expired, so that others begin at once; answers how many."""
        return self._works.abandon_worker(worker)

    def forget_works(self, *, limit: int, older_than_seconds: float | None = None, handler: str | None = None) -> int:
        """Forget at most ``limit`` works that have expired; return how many.

        A work expires ``retention_seconds`` after its end, as its `begin_work` said. One without that (an earlier
        version began it) expires ``older_than_seconds`` after its end, if that is given; with ``handler``, only works
        of that name do.
        A duplicate that arrives after its completion was forgotten is processed again.
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
        """Works by id; ``after`` is the last id of the page before. Letter case in ``key_contains`` is ignored."""
        return self._work_queries.works(handler, key_contains=key_contains, state=state, limit=limit, after=after)

    def work(self, handler: str, key: str, *, owner: WorkOwner | None = None) -> WorkRow | None:
        """Return one work, or None."""
        return self._work_queries.work(handler, key, owner)

    # Questions

    def batches(self, pipeline: str, *, after_seq: int = 0, limit: int = 100) -> Sequence[BatchRow]:
        """Batches in their order."""
        return self._queries.batches(pipeline, after_seq=after_seq, limit=limit)

    def batches_after(self, pipeline: str, after_seq: int) -> Iterator[BatchRow]:
        """Every batch after that sequence, in their order, looked up page by page."""
        return self._queries.batches_after(pipeline, after_seq)

    def batch(self, pipeline: str, seq: int) -> BatchRow | None:
        """One batch."""
        return self._queries.batch(pipeline, seq)

    def states(self, pipeline: str, object_ids: Collection[bytes]) -> Mapping[bytes, ObjectState]:
        """How these objects stand; an id never heard of is left out."""
        return self._queries.states(pipeline, object_ids)

    def unread(self, pipeline: str, object_ids: Collection[bytes]) -> Mapping[bytes, float]:
        """When these objects were found deleted or replaced before they were read; the others are left out."""
        return self._queries.unread(pipeline, object_ids)

    def live(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        """Those under an open attempt whose lease still runs."""
        return self._queries.live(pipeline, object_ids)

    def unattributed_failures(self, pipeline: str, object_ids: Collection[bytes]) -> Mapping[bytes, int]:
        """In how many runs each was that failed with no object to blame; 0 for an id never heard of."""
        return self._queries.unattributed_failures(pipeline, object_ids)

    def other_versions(self, pipeline: str, object_ids: Collection[bytes]) -> int:
        """How many of these objects the ledger knows in another version too: files that changed."""
        return self._queries.other_versions(pipeline, object_ids)

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
        """Objects by id; ``after`` is the last id of the page before. Letter case in ``uri_contains`` is ignored.
        ``older_than_seconds``: only those that ended, or were first seen, longer ago, by the database's clock."""
        return self._queries.objects(
            pipeline,
            state=state,
            uri_contains=uri_contains,
            older_than_seconds=older_than_seconds,
            limit=limit,
            after=after,
        )

    def find(self, uri: str) -> Sequence[tuple[str, ObjectRow]]:
        """Every version of the object at exactly this uri, in every pipeline."""
        return self._queries.find(uri)

    def counts(self, pipeline: str) -> Mapping[ObjectState, int]:
        """How many objects are in each state."""
        return self._queries.counts(pipeline)

    def written_to(self, pipeline: str, seq: int) -> tuple[int, int]:
        """Return how many rows and how many quarantined lines all batches up to this one wrote."""
        return self._queries.written_to(pipeline, seq)

    def attempts_of(self, pipeline: str, object_id: bytes) -> Sequence[ObjectAttempt]:
        """The object's timeline, oldest first."""
        return self._queries.attempts_of(pipeline, object_id)

    def attempts_before(
        self, pipeline: str, attempt_id: str, object_ids: Collection[bytes]
    ) -> Mapping[bytes, ObjectAttempt]:
        """Return the latest other attempt on each of these objects that had one."""
        return self._queries.attempts_before(pipeline, attempt_id, object_ids)

    def attempt(self, attempt_id: str) -> AttemptRow | None:
        """One attempt."""
        return self._queries.attempt(attempt_id)

    def open_attempts(self, pipeline: str) -> Sequence[AttemptRow]:
        """Attempts that hold objects now, oldest first."""
        return self._queries.open_attempts(pipeline)

    def abandoned_attempts(self, pipeline: str) -> Sequence[str]:
        """Attempts whose files gc may delete, oldest first; every one of them every time, for slow writers refill."""
        return self._queries.abandoned_attempts(pipeline)
