"""Take one group of objects through the protocol: claim, run, commit.

The order carries the guarantee. The ledger's commit comes before any acknowledgement, and each claim ends either with
that commit or with an abandonment that is durable before another worker may claim the objects. `Attempts` maps every
failure in between to one outcome per object.

`ClaimGuard` holds the attempt of one execution. The run thread takes and commits it, a heartbeat extends it, and a
stop, a timeout or a lost claim may end it from another thread. The ledger decides which thread was first; the guard
decides which one emits the events of the end.
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace

from ulid import ULID

from penstock.errors import (
    ClaimLost,
    PartAway,
    SchemaMoved,
    TemporaryError,
    TransformError,
    UserError,
    VersionsMoved,
)
from penstock.events import Bus, ObjectTakenOver
from penstock.ledger import Ledger
from penstock.ledger.records import (
    AttemptFailure,
    BadLines,
    BatchOutcome,
    Committed,
    FailedObject,
    KnownBeginning,
    ObjectAttempt,
    ObjectClaims,
    OnChange,
)
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.failure import FailureDetails
from penstock.messaging.handler import Extension, HeldClaim, ServiceWatch, Unwatched
from penstock.messaging.tracing import NO_TRACING, Tracing
from penstock.objects.reference import ObjectRef
from penstock.pipeline.engine import (
    Engine,
    ReadFailure,
    RunBroken,
    RunCancelled,
    RunReleased,
    RunRequest,
    RunResult,
)
from penstock.pipeline.failures import FailureStreak
from penstock.pipeline.notifications import (
    AT_ONCE,
    DONE,
    NotificationDelivery,
    ObjectLater,
    ObjectOutcome,
    Parse,
    candidates,
    classify_broken_run,
    classify_failure,
    classify_suspect,
    ended_outcome,
    failure_outcome,
    recheck_seconds,
    timed_out,
)
from penstock.pipeline.quarantined import bad_lines, replays
from penstock.pipeline.refusals import ObjectRefusals, failed_reopened
from penstock.pipeline.reporting import BatchEvents, ClaimedWork

RELEASED = "the batch was released"
AGREEMENTS_MAX = 4  # with a schema that keeps changing, before the run is repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptClaimExtender:
    """A `penstock.messaging.handler.ClaimExtender` for the attempts of all pipelines."""

    ledger: Ledger

    def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
        return self.ledger.extend_attempts(ids, lease_seconds=lease_seconds, response_seconds=response_seconds)


class ClaimGuard:
    """The attempt that one execution holds, at most one at a time. The execution owns it; headings name the threads."""

    def __init__(self, ledger: Ledger, events: BatchEvents, *, lease_seconds: float) -> None:
        self._ledger = ledger
        self._events = events
        self._lease_seconds = lease_seconds
        self.lock = threading.Lock()  # all fields below are written under it
        self._work: ClaimedWork | None = None  # our open attempt, as far as we know
        self._ended: ClaimedWork | None = None  # the attempt that ended last, with its end already emitted
        self._taken = threading.Event()  # cleared while the run thread is claiming
        self._taken.set()
        self._committing = False  # the ledger decides from here on; heartbeat results are ignored
        self._stopped = False

    # -- called by the run thread ----------------------------------------------------------------------------------

    def take(
        self, claim: Callable[[], ObjectClaims | None], refs: Mapping[bytes, ObjectRef]
    ) -> tuple[ObjectClaims | None, ClaimedWork | None]:
        """Claim, and hold the claimed work. Raise `RunCancelled` if the execution was stopped."""
        with self.lock:
            if self._stopped:
                raise RunCancelled(RELEASED)
            self._taken.clear()
        try:
            return self._take(claim, refs)
        finally:
            self._taken.set()

    def _take(
        self, claim: Callable[[], ObjectClaims | None], refs: Mapping[bytes, ObjectRef]
    ) -> tuple[ObjectClaims | None, ClaimedWork | None]:
        claimed_batch = claim()  # without the lock: heartbeats and stops must not wait for the ledger
        if claimed_batch is None or not claimed_batch.claimed:
            return claimed_batch, None
        work = ClaimedWork(
            claim=claimed_batch, refs={id: ref for id, ref in refs.items() if id in claimed_batch.claimed}
        )
        with self.lock:
            stopped = self._stopped
            if not stopped:
                self._work, self._committing = work, False
        if stopped:  # stopped during the claim, when no claim was known yet
            with suppress(TemporaryError):  # the ledger is unreachable: the lease will expire
                self.release(work, reason=RELEASED, outcome="given_back")
            raise RunCancelled(RELEASED)
        return claimed_batch, work

    def commit(self, work: ClaimedWork, outcome: BatchOutcome) -> Committed | None:
        """End the attempt with a commit. The caller emits the events. Raises the same errors as `Ledger.commit`."""
        with self.lock:
            self._committing = True
        committed = self._ledger.commit(outcome)
        with self.lock:
            self._work, self._ended = None, work
        return committed

    def abandon(self, work: ClaimedWork, *, reason: str, outcome: str) -> None:
        """End the attempt without counting it. If the ledger is unreachable, leave it to the expiry of its lease."""
        with suppress(TemporaryError):
            self.release(work, reason=reason, outcome=outcome)
        with self.lock:
            self._work = None

    # -- called by any thread --------------------------------------------------------------------------------------

    def release(self, work: ClaimedWork, *, reason: str, outcome: str) -> None:
        """Abandon the attempt; if the ledger is unreachable, keep it and raise `TemporaryError`."""
        ours = self._ledger.abandon(work.attempt_id, reason=reason, outcome=outcome, uncounted=True, unattributed=False)
        if ours and self._end(work):
            self._events.emit_released(work, reason)

    def record_loss(self, work: ClaimedWork) -> None:
        """Record that the attempt was ended elsewhere. Emit the loss unless this execution already emitted an end."""
        if self._end(work):
            self._events.emit_claim_lost(work)

    def stop(self) -> ClaimedWork | None:
        """Forbid further claims. Return the attempt that is held, if any."""
        with self.lock:
            self._stopped = True
            return self._work

    def await_taken(self) -> None:
        """Wait until the run thread has released an attempt that it was claiming when `stop` was called.

        Returns early after `stop_waiting`, and after one lease at the latest.
        """
        self._taken.wait(self._lease_seconds)

    def stop_waiting(self) -> None:
        """End `await_taken` early. The run thread still releases anything that it claims later."""
        self._taken.set()

    def fail(self, work: ClaimedWork, outcome: BatchOutcome) -> bool:
        """End the attempt from outside the run; return True if the caller must emit the events.

        Raises the errors of `Ledger.commit`, except for `ClaimLost`.
        """
        try:
            self._ledger.commit(outcome)
        except ClaimLost:
            return False
        return self._end(work)

    def claim(self) -> HeldClaim | None:
        """Return the claim that the heartbeat must extend, or None."""
        with self.lock:
            work = None if self._committing else self._work
        return (
            None if work is None else HeldClaim(extender=AttemptClaimExtender(ledger=self._ledger), id=work.attempt_id)
        )

    def loses(self, claim: HeldClaim) -> bool:
        """Handle a claim that the ledger no longer knows as open. Return True, and emit the loss, if it was held."""
        with self.lock:
            work = self._work
            if self._committing or work is None or work.attempt_id != claim.id:
                return False  # normal: a commit ended the attempt before the heartbeat arrived
        self.record_loss(work)
        return True

    def _end(self, work: ClaimedWork) -> bool:
        """Mark the attempt as ended. Return True for the first caller, which must emit the end."""
        with self.lock:
            first, self._ended = self._ended is not work, work
        return first


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """Limits and delays for the batches of one pipeline or object handler."""

    pipeline: str
    worker: str
    lease_seconds: float
    objects_max: int
    attempts_max: int
    backoff_base_seconds: float
    backoff_cap_seconds: float
    timeout_seconds: float | None = None  # per batch; None: no limit
    busy_seconds_max: float | None = None  # longest delay before a busy object is retried; None: until its lease ends
    emits_batches: bool = True  # emit events for batches, besides those for their objects
    on_change: OnChange = OnChange.ADD  # see also `PipelineRuntime.change_rule`
    has_table: bool = True  # its rows go to a table, where those of an object that is read again have to be replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRuntime:
    """The collaborators that a batch needs from other packages."""

    ledger: Ledger
    engine: Engine
    parse: Parse
    publish: Callable[[], object]  # publishes to both tables; raises TemporaryError or PublishHalted
    streak: FailureStreak
    bus: Bus
    publish_jobs: Mapping[str, Callable[[], object]] | None = None  # the same per table; None: one job for both
    check_engine: Callable[[], object] | None = None  # called while idle; raises `RestartNeeded`
    change_rule: Callable[[], OnChange] | None = None  # read by each batch; None: as in the settings
    check_removal: Callable[[], None] | None = None  # raises `TableError` if no row may leave the table
    clock: Clock = field(default_factory=SystemClock)
    tracing: Tracing = NO_TRACING
    random: Random = random.random
    new_attempt_id: Callable[[], str] = lambda: str(ULID())
    ledger_watch: ServiceWatch = field(default_factory=Unwatched)
    store_watch: ServiceWatch = field(default_factory=Unwatched)  # passed to runs; the engine reports to it


class Attempts:
    """The attempts of one batch, one after another. Used by the run thread, except for `timed_out`."""

    def __init__(
        self, settings: AttemptSettings, runtime: PipelineRuntime, *, guard: ClaimGuard, events: BatchEvents
    ) -> None:
        self._settings = settings  # the run thread replaces it once, in `begin`
        self._runtime = runtime
        self._guard = guard
        self._events = events
        self._worked = False  # set by the run thread once a run has ended
        self._faults_known = runtime.streak.faults  # when the present work began; written by the run thread

    def begin(self) -> None:
        """Read the rule for changed objects, before the first group. Raises `TemporaryError`."""
        if self._runtime.change_rule is not None:
            self._settings = replace(self._settings, on_change=self._runtime.change_rule())

    def run_group(self, group: Sequence[NotificationDelivery]) -> Mapping[bytes, ObjectOutcome]:
        """Claim the free objects of the group, run and commit them, and return the outcome of each object.

        Raises `RunReleased` if the run released its work, `RunCancelled` if another thread ended it, and
        `UserError`, `TransformError` or `FaultPersists` if only a person can fix the cause.
        """
        refs = {ref.object_id: ref for notification in group for ref in notification.objects}
        self._faults_known = self._runtime.streak.faults
        began_at = self._runtime.clock.monotonic()
        claim, work = self._guard.take(lambda: self._claim(group), refs)
        seconds = self._runtime.clock.monotonic() - began_at
        if claim is None:
            return dict.fromkeys(refs, self._fault_later())
        self._events.emit_skipped(claim, refs)
        outcomes = self._unclaimed(claim)
        if work is not None:
            outcomes |= self._work(work, claim_seconds=seconds)
            self._worked = True
        return outcomes

    def timed_out(self, work: ClaimedWork, *, where: str) -> Mapping[bytes, ObjectOutcome]:
        """End the attempt from another thread because the batch timed out. ``where`` is the stack of its run."""
        reason = f"timed out after {self._settings.timeout_seconds or 0.0:g} s"
        failed = timed_out(
            list(work.claim.claimed.values()),
            reason,
            attempts_max=self._settings.attempts_max,
            first=not self._worked,
        )
        outcome = self._outcome(work, failed=failed)
        try:
            ours = self._guard.fail(work, outcome)
        except TemporaryError:  # the lease will expire
            return dict.fromkeys(work.refs, self._later(1))
        if not ours:  # the run ended just now, or was taken over: the next delivery will show which
            return {}
        raised = FailureDetails(error_type="TimedOut", error=reason, traceback=where)
        cause = ReadFailure(failure=AttemptFailure.RETRY, reason=reason, raised=raised)
        return self._report_failed(work, failed, dict.fromkeys(work.refs, cause))

    def add_fault(self, fault: TemporaryError) -> None:
        """Record an infrastructure fault, which does not count as an attempt of any object.

        Emits an event for the second fault in a row, and whenever the number has doubled. Raises `FaultPersists` after
        too many. Batches that overlap and fail in one outage count once.
        """
        count = self._runtime.streak.add_fault(fault, known=self._faults_known)
        if count >= 2 and count.bit_count() == 1:
            self._events.emit_faults_repeated(count, fault)

    def fault_seconds(self) -> float:
        """Return the delay before the next try after an infrastructure fault."""
        watches = (self._runtime.ledger_watch, self._runtime.store_watch)
        paused_seconds = max(watch.release_delay_seconds() for watch in watches)
        # An outage has its own growing delay; the streak's delay is for faults that do not pause a queue.
        return paused_seconds or self._later(max(1, self._runtime.streak.faults)).delay_seconds

    def _claim(self, group: Sequence[NotificationDelivery]) -> ObjectClaims | None:
        """Claim the free objects of the group. Return None if the ledger is unreachable: the outcome is uncertain."""
        attempt_id = self._runtime.new_attempt_id()
        try:
            with self._runtime.ledger_watch.watch_request():
                claim = self._runtime.ledger.claim(
                    self._settings.pipeline,
                    candidates(group),
                    attempt_id=attempt_id,
                    worker=self._settings.worker,
                    lease_seconds=self._settings.lease_seconds,
                    on_change=self._settings.on_change,
                )
        except TemporaryError as unknown:
            self._abandon_unknown(attempt_id, str(unknown))
            self.add_fault(unknown)
            return None
        if claim.claimed:  # an empty claim may not have written to the ledger, so it proves nothing
            self._runtime.ledger_watch.record_success()
        return claim

    def _abandon_unknown(self, attempt_id: str, reason: str) -> None:
        with suppress(TemporaryError):  # the ledger is still unreachable: the lease will expire
            self._runtime.ledger.abandon(
                attempt_id, reason=reason, outcome="failed", uncounted=True, unattributed=False
            )

    def _unclaimed(self, claim: ObjectClaims) -> dict[bytes, ObjectOutcome]:
        jitter_seconds = min(1.0, self._settings.lease_seconds / 10) * self._runtime.random()
        most = float("inf") if self._settings.busy_seconds_max is None else self._settings.busy_seconds_max
        busy: dict[bytes, ObjectOutcome] = {
            object_id: ObjectLater(delay_seconds=min(seconds, most) + jitter_seconds, uncounted=True)
            for object_id, seconds in claim.busy.items()
        }
        return busy | {object_id: ended_outcome(ended) for object_id, ended in claim.ended.items()}

    def _work(self, work: ClaimedWork, *, claim_seconds: float) -> dict[bytes, ObjectOutcome]:
        """Run and commit the claimed objects. Map every way this can end to one outcome per object."""
        try:
            self._events.emit_claimed(work, seconds=claim_seconds)
            self._events.emit_taken_over(work, self._attempts_before(work))
            return self._run_and_commit(work)
        except RunBroken as broken:
            return self._handle_broken(work, broken)
        except TemporaryError as fault:
            return self._handle_fault(work, fault)
        except (SchemaMoved, VersionsMoved) as moved:
            self._guard.abandon(work, reason=str(moved), outcome="given_back")
            return dict.fromkeys(work.refs, AT_ONCE)
        except RunReleased as stopped:
            self._guard.abandon(work, reason=str(stopped), outcome="given_back")
            raise
        except ClaimLost:
            return self._handle_lost(work)
        except UserError as mistake:
            self._guard.abandon(work, reason=str(mistake), outcome="given_back")
            raise
        except RunCancelled:
            raise  # the thread that interrupted us has released the claim
        except OSError as fault:  # the driver's local files: disk full, too many open files
            return self._handle_fault(work, TemporaryError(str(fault)))
        except Exception as defect:  # a bug in Penstock; counted like other unattributed failures, so that retries end
            text = f"{type(defect).__name__}: {defect}"
            return self._handle_broken(work, RunBroken(text, fingerprint=text))

    def _attempts_before(self, work: ClaimedWork) -> Mapping[bytes, ObjectAttempt]:
        """Return the previous attempt of each object. Used only for events."""
        again = [object_id for object_id, claimed in work.claim.claimed.items() if claimed.attempts > 1]
        if not again or not self._runtime.bus.wants(ObjectTakenOver):
            return {}
        try:
            return self._runtime.ledger.attempts_before(self._settings.pipeline, work.attempt_id, again)
        except TemporaryError:  # the commit will detect whether the ledger is unreachable
            return {}

    def _run_and_commit(self, work: ClaimedWork) -> dict[bytes, ObjectOutcome]:
        refusals = self._refusals()
        replaces_readings = refusals.replaces_readings(work.claim)
        refused = refusals.refused(work)
        causes = {failure.object_id: ReadFailure(failure=failure.failure, reason=failure.reason) for failure in refused}
        if len(refused) == len(work.refs):
            self._commit_failed(work, refused)
            return self._report_failed(work, refused, causes)
        request = RunRequest(
            attempt_id=work.attempt_id,
            objects=tuple(ref for object_id, ref in work.refs.items() if object_id not in causes),
            claimed=work.claim.claimed,
            current_only=self._settings.on_change is not OnChange.ADD or replaces_readings,
            beginnings=self._beginnings(work),
        )
        began_at = self._runtime.clock.monotonic()
        with self._stage("spark run", work):
            result = self._runtime.engine.run(request)
        self._events.emit_written(work, result, seconds=self._runtime.clock.monotonic() - began_at)
        if not result.has_addresses and replaces_readings:  # nothing of the run is committed
            unfit = failed_reopened(work.claim)
            self._commit_failed(work, unfit)
            return self._report_failed(work, unfit)
        failed = [
            classify_failure(work.claim.claimed[object_id], failure, attempts_max=self._settings.attempts_max)
            for object_id, failure in result.failed.items()
        ]
        failed += refused
        self._commit(work, result, failed)
        if result.works or any(done.rows for done in result.processed):  # without a row, success proves nothing
            self._runtime.streak.clear()
        done: dict[bytes, ObjectOutcome] = {processed.object_id: DONE for processed in result.processed}
        outcomes = done | self._report_failed(work, failed, {**result.failed, **causes})
        refusal = _all_refused(result)
        if refusal is not None:  # no attempt was counted, so count a fault: otherwise a one-off job would never end
            self.add_fault(refusal)
        return outcomes

    def _beginnings(self, work: ClaimedWork) -> Mapping[bytes, KnownBeginning]:
        """Return what the table has of objects that may have grown. The commit checks that it still has that."""
        if self._settings.on_change is not OnChange.TAIL:
            return {}
        with self._runtime.ledger_watch.watch_request():
            return self._runtime.ledger.beginnings(self._settings.pipeline, work.attempt_id)

    def _refusals(self) -> ObjectRefusals:
        return ObjectRefusals(
            pipeline=self._settings.pipeline,
            on_change=self._settings.on_change,
            has_table=self._settings.has_table,
            ledger=self._runtime.ledger,
            ledger_watch=self._runtime.ledger_watch,
            check_removal=self._runtime.check_removal,
        )

    def _commit_failed(self, work: ClaimedWork, failed: Sequence[FailedObject]) -> None:
        """End an attempt of which nothing is processed."""
        with self._stage("commit", work), self._runtime.ledger_watch.watch_request():
            self._guard.commit(work, self._outcome(work, failed=failed))

    def _outcome(self, work: ClaimedWork, *, failed: Sequence[FailedObject]) -> BatchOutcome:
        return BatchOutcome(pipeline=self._settings.pipeline, attempt_id=work.attempt_id, processed=(), failed=failed)

    def _commit(self, work: ClaimedWork, result: RunResult, failed: Sequence[FailedObject]) -> None:
        began_at = self._runtime.clock.monotonic()
        outcome = BatchOutcome(
            pipeline=self._settings.pipeline,
            attempt_id=work.attempt_id,
            processed=result.processed,
            failed=failed,
            record=result.record,
            schema_id=result.schema_id,
            new_schema=result.new_schema,
            bad=_bad_lines(work, result),
            replays=replays(work.refs, result.processed),
            added_columns=result.added_columns,
            on_change=self._rule_for(work, result),
            since_seq=work.claim.next_seq,
        )
        with self._stage("commit", work), self._runtime.ledger_watch.watch_request():
            committed = self._commit_as_agreed(work, outcome, result.agree_again)
        if committed is not None:
            self._events.emit_committed(work, result, committed, seconds=self._runtime.clock.monotonic() - began_at)

    def _commit_as_agreed(
        self, work: ClaimedWork, outcome: BatchOutcome, agree_again: Callable[[], tuple[int, str | None]] | None
    ) -> Committed | None:
        """Commit; if another batch changed the table's schema meanwhile, commit to that one if the columns fit it.

        Batches that ran at the same time on a new table would otherwise be repeated, all but one. Raises `SchemaMoved`
        if the schema keeps changing, and `TableError` if the columns no longer fit.
        """
        for _ in range(AGREEMENTS_MAX):
            try:
                return self._guard.commit(work, outcome)
            except SchemaMoved:
                if agree_again is None:
                    raise
                schema_id, new_schema = agree_again()
                outcome = replace(outcome, schema_id=schema_id, new_schema=new_schema)
        return self._guard.commit(work, outcome)

    def _rule_for(self, work: ClaimedWork, result: RunResult) -> OnChange:
        """Return the rule for changed objects. Rows that do not name their objects can only be added."""
        rule = self._settings.on_change
        if self._refusals().replaces_readings(work.claim):
            return rule if rule.replaces else OnChange.REPLACE
        return OnChange.ADD if rule.replaces and not result.has_addresses else rule

    def _stage(self, name: str, work: ClaimedWork) -> AbstractContextManager[None]:
        """Return a tracing span, or nothing if batches are not traced apart from their messages."""
        if not self._settings.emits_batches:
            return nullcontext()
        return self._runtime.tracing.stage(
            name, pipeline=self._settings.pipeline, attempt_id=work.attempt_id, objects=len(work.refs)
        )

    def _handle_broken(self, work: ClaimedWork, broken: RunBroken) -> dict[bytes, ObjectOutcome]:
        """Handle a run that failed without naming an object: make all its objects suspects.

        Only an object that ran alone may be dead-lettered.
        """
        self._events.emit_broken(work, broken)
        suspects = list(work.claim.claimed.values())
        attempts_max = self._settings.attempts_max
        meaning = classify_broken_run(
            suspects, broken, self._runtime.streak, attempts_max=attempts_max, worked_before=self._worked_before
        )
        failed = [classify_suspect(suspect, broken, meaning, attempts_max=attempts_max) for suspect in suspects]
        outcome = self._outcome(work, failed=failed)
        try:
            with self._runtime.ledger_watch.watch_request():
                self._guard.commit(work, outcome)
        except ClaimLost:
            return self._handle_lost(work)
        except TemporaryError:
            return dict.fromkeys(work.refs, self._fault_later())
        if isinstance(meaning, TransformError):
            self._events.emit_released(work, str(meaning))
            raise meaning
        cause = ReadFailure(failure=AttemptFailure.RETRY, reason=str(broken), raised=broken.raised)
        dead = {
            failure.object_id: cause for failure in failed if failure.failure is AttemptFailure.DEAD
        }  # at most one, from a run of its own
        return self._report_failed(work, failed, dead)

    def _worked_before(self) -> bool:
        row = self._runtime.ledger.ensure_pipeline(self._settings.pipeline)
        last = self._runtime.ledger.batch(self._settings.pipeline, row.next_seq - 1)
        return last is not None and last.record.rows > 0

    def _handle_fault(self, work: ClaimedWork, fault: TemporaryError) -> dict[bytes, ObjectOutcome]:
        """Handle an infrastructure failure without counting an attempt. Too many in a row raise `FaultPersists`."""
        self._guard.abandon(work, reason=str(fault), outcome="failed")
        self.add_fault(fault)
        if isinstance(fault, PartAway):  # other runs still succeed, which would reset the count of faults in a row
            tries = max(self._runtime.streak.add_uncounted(object_id) for object_id in work.refs)
            return dict.fromkeys(work.refs, replace(self._later(tries), uncounted=True))
        return dict.fromkeys(work.refs, self._fault_later())

    def _report_failed(
        self, work: ClaimedWork, failed: Sequence[FailedObject], causes: Mapping[bytes, ReadFailure] | None = None
    ) -> dict[bytes, ObjectOutcome]:
        self._events.emit_failed(work, failed, causes)
        outcomes: dict[bytes, ObjectOutcome] = {}
        for failure in failed:
            claimed = work.claim.claimed[failure.object_id]
            cause = causes.get(failure.object_id) if causes else None
            tries = self._tries(failure, claimed.attempts, cause)
            later = replace(self._later(tries), uncounted=failure.uncounted)
            if failure.missing:
                jitter_seconds = self._runtime.random()
                later = replace(later, delay_seconds=recheck_seconds(claimed) + jitter_seconds)
            outcomes[failure.object_id] = failure_outcome(failure, claimed, later=later, cause=cause)
        return outcomes

    def _tries(self, failure: FailedObject, attempts: int, cause: ReadFailure | None) -> int:
        """Return the number of failed tries, for the backoff.

        If a failure does not count as an attempt, this is the number of faults in a row or of the object's own
        uncounted failures, so that the delay grows even while other objects succeed.
        """
        if not failure.uncounted:
            return attempts
        uncounted = (
            self._runtime.streak.add_uncounted(failure.object_id) if cause is not None and cause.uncounted else 0
        )
        return max(attempts, self._runtime.streak.faults, uncounted)

    def _handle_lost(self, work: ClaimedWork) -> dict[bytes, ObjectOutcome]:
        self._guard.record_loss(work)
        return dict.fromkeys(work.refs, replace(self._later(1), uncounted=True))

    def _fault_later(self) -> ObjectLater:
        return ObjectLater(delay_seconds=self.fault_seconds(), uncounted=True)

    def _later(self, attempt: int) -> ObjectLater:
        return ObjectLater(
            delay_seconds=backoff_seconds(
                attempt=attempt,
                base_seconds=self._settings.backoff_base_seconds,
                cap_seconds=self._settings.backoff_cap_seconds,
                random=self._runtime.random,
            )
        )


def _bad_lines(work: ClaimedWork, result: RunResult) -> Sequence[BadLines]:
    if result.place is None:  # a user's function read the lines, and none of them is kept
        return ()
    return bad_lines(
        work.refs, result.processed, attempt_id=work.attempt_id, place=result.place, samples=result.samples
    )


def _all_refused(result: RunResult) -> TemporaryError | None:
    """Return an error if no object was read and no failure was caused by its object; see `pipeline.failures`."""
    if result.processed or not result.failed or not all(failure.uncounted for failure in result.failed.values()):
        return None
    return TemporaryError(next(iter(result.failed.values())).reason)
