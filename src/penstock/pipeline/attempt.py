"""One batch through the protocol: open the parcels, group them, and for each group claim, run, commit.

The order is the promise: the ledger's commit comes before any acknowledgement, and every way out of a claim is either
that commit or an abandonment that is durable before anybody else may begin. What can go wrong in between is mapped to
one outcome an object, in one place.
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ulid import ULID

from penstock.errors import ClaimLost, PenstockError, SchemaMoved, TemporaryError, TransformError, UserError
from penstock.events import AttemptAbandoned, BatchClaimed, BatchCommitted, Bus, ObjectFailed, RunFailed
from penstock.ledger import Ledger
from penstock.ledger.records import BatchOutcome, Claim, FailedObject
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Answer
from penstock.messaging.settlement import Settlement
from penstock.messaging.waits import Random, backoff_seconds
from penstock.objects.reference import ObjectRef
from penstock.pipeline.engine import Engine, RunBroken, RunCancelled, RunRequest, RunResult
from penstock.pipeline.grouping import groups
from penstock.pipeline.parcel import (
    Done,
    Later,
    ObjectOutcome,
    Parcel,
    Parse,
    candidates,
    open_parcel,
    parts,
    settle_parcel,
)
from penstock.pipeline.streak import FailureStreak
from penstock.pipeline.verdicts import ended_outcome, failure_outcome, sentence, suspicion, verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """How a pipeline treats its batches."""

    pipeline: str
    worker: str
    lease_seconds: float
    objects_max: int
    attempts_max: int
    backoff_base_seconds: float
    backoff_cap_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a batch needs from the rooms around it."""

    ledger: Ledger
    engine: Engine
    parse: Parse
    publish: Callable[[], object]  # both tables; raises TemporaryError or PublishHalted
    streak: FailureStreak
    bus: Bus
    random: Random = random.random
    new_attempt_id: Callable[[], str] = lambda: str(ULID())


class BatchExecution:
    """A `penstock.messaging.handler.Execution` over one batch of notifications."""

    def __init__(self, deliveries: Sequence[Delivery], settings: AttemptSettings, around: Surroundings) -> None:
        self._deliveries = deliveries
        self._settings = settings
        self._around = around
        # The three fields below are written under the lock, by the run thread and by whoever gives back or interrupts.
        self._lock = threading.Lock()
        self._attempt_id: str | None = None  # the attempt that is ours and open, as far as we know
        self._committing = False  # the ledger decides now; a heartbeat has nothing to say any more
        self._stopped = False

    # -- the run thread ------------------------------------------------------------------------------------------

    def run(self) -> Mapping[str, Settlement]:
        settlements, parcels = self._open()
        outcomes: dict[bytes, ObjectOutcome] = {}
        suspects = self._parts(parcels)
        for group in groups(suspects, objects_max=self._settings.objects_max, attempts_max=self._settings.attempts_max):
            outcomes |= self._run_group(group)
        with suppress(PenstockError):  # upkeep publishes too, and says what is wrong
            self._around.publish()
        return settlements | {parcel.delivery.receipt: settle_parcel(parcel, outcomes) for parcel in parcels}

    def _open(self) -> tuple[dict[str, Settlement], list[Parcel]]:
        settlements: dict[str, Settlement] = {}
        parcels: list[Parcel] = []
        for delivery in self._deliveries:
            opened = open_parcel(delivery, self._around.parse)
            if isinstance(opened, Parcel):
                parcels.append(opened)
            else:
                settlements[delivery.receipt] = opened
        return settlements, parcels

    def _parts(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """What is put into groups: a delivery's objects together, until some of them are suspects."""
        ids = {ref.object_id for parcel in parcels for ref in parcel.objects}
        failures = self._around.ledger.unattributed_failures(self._settings.pipeline, ids) if ids else {}
        found = [part for parcel in parcels for part in parts(parcel, failures)]
        # Suspects come in another order each time: where only a few of them fail, the others must not wait behind them.
        return sorted(found, key=lambda part: self._around.random() if part.failures else 0.0)

    def _run_group(self, group: Sequence[Parcel]) -> dict[bytes, ObjectOutcome]:
        claim = self._claim(group)
        if claim is None:
            return {ref.object_id: self._later(1) for parcel in group for ref in parcel.objects}
        outcomes = self._unclaimed(claim)
        if claim.claimed:
            refs = {ref.object_id: ref for parcel in group for ref in parcel.objects}
            work = _Work(claim=claim, refs={object_id: refs[object_id] for object_id in claim.claimed})
            outcomes |= self._work(work)
        return outcomes

    def _claim(self, group: Sequence[Parcel]) -> Claim | None:
        """Claim what is free of the group; None when the ledger could not tell whether we did."""
        attempt_id = self._around.new_attempt_id()
        with self._lock:  # so that giving back never misses a claim in the making
            if self._stopped:
                raise RunCancelled("the batch was given back")
            try:
                claim = self._around.ledger.claim(
                    self._settings.pipeline,
                    candidates(group),
                    attempt_id=attempt_id,
                    worker=self._settings.worker,
                    lease_seconds=self._settings.lease_seconds,
                )
            except TemporaryError as unknown:
                self._abandon_unknown(attempt_id, str(unknown))
                self._around.streak.add_fault(unknown)
                return None
            if claim.claimed:
                self._attempt_id = attempt_id
                self._committing = False
        return claim

    def _abandon_unknown(self, attempt_id: str, reason: str) -> None:
        with suppress(TemporaryError):  # where even this fails the attempt's lease ends by itself
            self._around.ledger.abandon(attempt_id, reason=reason, outcome="failed", refund=True, unattributed=False)

    def _unclaimed(self, claim: Claim) -> dict[bytes, ObjectOutcome]:
        jitter_seconds = min(1.0, self._settings.lease_seconds / 10)
        busy: dict[bytes, ObjectOutcome] = {
            object_id: Later(delay_seconds=seconds + jitter_seconds * self._around.random(), refund=True)
            for object_id, seconds in claim.busy.items()
        }
        return busy | {object_id: ended_outcome(ended) for object_id, ended in claim.ended.items()}

    def _work(self, work: "_Work") -> dict[bytes, ObjectOutcome]:
        """Run and commit what is claimed; every way it can end is an outcome for each object."""
        try:
            return self._run_and_commit(work)
        except RunBroken as broken:
            return self._broken(work, broken)
        except TemporaryError as fault:
            return self._infrastructure(work, fault)
        except SchemaMoved as moved:
            self._abandon(work, reason=str(moved), outcome="given_back", refund=True)
            return dict.fromkeys(work.refs, Later(delay_seconds=0.0, refund=True))
        except ClaimLost:
            return dict.fromkeys(work.refs, self._later(1))
        except UserError as mistake:
            self._abandon(work, reason=str(mistake), outcome="given_back", refund=True)
            raise
        except RunCancelled:
            raise  # whoever interrupted us gave the claim back before
        except OSError as fault:  # the driver's own files: a full disk, too many open files
            return self._infrastructure(work, TemporaryError(str(fault)))
        except Exception as defect:  # ours; charged like any other cause that cannot be named, so that it ends
            text = f"{type(defect).__name__}: {defect}"
            return self._broken(work, RunBroken(text, fingerprint=text))

    def _run_and_commit(self, work: "_Work") -> dict[bytes, ObjectOutcome]:
        request = RunRequest(attempt_id=work.claim.attempt_id, objects=tuple(work.refs.values()))
        self._around.bus.emit(
            BatchClaimed(
                pipeline=self._settings.pipeline,
                attempt_id=request.attempt_id,
                objects=len(request.objects),
                bytes=sum(ref.size_bytes for ref in request.objects),
            )
        )
        result = self._around.engine.run(request)
        failed = [
            verdict(work.claim.claimed[object_id], failure, attempts_max=self._settings.attempts_max)
            for object_id, failure in result.failed.items()
        ]
        self._commit(work, result, failed)
        if any(done.rows for done in result.processed):  # without a row the transform has shown nothing
            self._around.streak.clear()
        done: dict[bytes, ObjectOutcome] = {processed.object_id: Done() for processed in result.processed}
        return done | self._failed(work, failed)

    def _commit(self, work: "_Work", result: RunResult, failed: Sequence[FailedObject]) -> None:
        seq = self._commit_outcome(
            BatchOutcome(
                pipeline=self._settings.pipeline,
                attempt_id=work.claim.attempt_id,
                processed=result.processed,
                failed=failed,
                rows=result.rows,
                lines_quarantined=result.lines_quarantined,
                bytes=result.bytes,
                manifest=result.manifest,
                quarantine_manifest=result.quarantine_manifest,
                schema_id=result.schema_id,
                new_schema=result.new_schema,
                stage_seconds=result.stage_seconds,
            )
        )
        if seq is not None:
            self._around.bus.emit(
                BatchCommitted(
                    pipeline=self._settings.pipeline,
                    attempt_id=work.claim.attempt_id,
                    seq=seq,
                    objects=len(result.processed),
                    rows=result.rows,
                    lines_quarantined=result.lines_quarantined,
                )
            )

    def _commit_outcome(self, outcome: BatchOutcome) -> int | None:
        with self._lock:
            self._committing = True
        seq = self._around.ledger.commit(outcome)
        with self._lock:
            self._attempt_id = None
        return seq

    def _broken(self, work: "_Work", broken: RunBroken) -> dict[bytes, ObjectOutcome]:
        """Nobody could be blamed: everybody is a suspect, and nobody dies of it in company."""
        self._around.bus.emit(
            RunFailed(
                pipeline=self._settings.pipeline,
                attempt_id=work.claim.attempt_id,
                objects=len(work.refs),
                error=str(broken),
            )
        )
        suspects = list(work.claim.claimed.values())
        attempts_max = self._settings.attempts_max
        meaning = sentence(
            suspects, broken, self._around.streak, attempts_max=attempts_max, worked_before=self._worked_before
        )
        failed = [suspicion(suspect, broken, meaning, attempts_max=attempts_max) for suspect in suspects]
        outcome = BatchOutcome(
            pipeline=self._settings.pipeline, attempt_id=work.claim.attempt_id, processed=(), failed=failed
        )
        try:
            self._commit_outcome(outcome)
        except (ClaimLost, TemporaryError):
            return dict.fromkeys(work.refs, self._later(1))
        if isinstance(meaning, TransformError):
            raise meaning
        return self._failed(work, failed)

    def _worked_before(self) -> bool:
        row = self._around.ledger.ensure_pipeline(self._settings.pipeline)
        last = self._around.ledger.batch(self._settings.pipeline, row.next_seq - 1)
        return last is not None and last.rows > 0

    def _infrastructure(self, work: "_Work", fault: TemporaryError) -> dict[bytes, ObjectOutcome]:
        """The machinery failed: nobody is charged, and when it goes on failing the worker hears of it."""
        self._abandon(work, reason=str(fault), outcome="failed", refund=True)
        self._around.streak.add_fault(fault)
        later = self._later(self._around.streak.faults)
        return dict.fromkeys(work.refs, replace(later, refund=True))

    def _abandon(self, work: "_Work", *, reason: str, outcome: str, refund: bool) -> None:
        with suppress(TemporaryError):  # where the ledger is away too, the attempt's lease ends by itself
            if self._around.ledger.abandon(
                work.claim.attempt_id, reason=reason, outcome=outcome, refund=refund, unattributed=False
            ):
                self._emit_abandoned(work.claim.attempt_id, reason)
        with self._lock:
            self._attempt_id = None

    def _failed(self, work: "_Work", failed: Sequence[FailedObject]) -> dict[bytes, ObjectOutcome]:
        outcomes: dict[bytes, ObjectOutcome] = {}
        for failure in failed:
            self._around.bus.emit(
                ObjectFailed(
                    pipeline=self._settings.pipeline,
                    object_uri=work.refs[failure.object_id].uri,
                    outcome=failure.failure.value,
                    reason=failure.reason,
                )
            )
            claimed = work.claim.claimed[failure.object_id]
            outcomes[failure.object_id] = failure_outcome(failure, claimed, later=self._later(claimed.attempts))
        return outcomes

    def _later(self, attempt: int) -> Later:
        return Later(
            delay_seconds=backoff_seconds(
                attempt=attempt,
                base_seconds=self._settings.backoff_base_seconds,
                cap_seconds=self._settings.backoff_cap_seconds,
                random=self._around.random,
            )
        )

    # -- other threads -------------------------------------------------------------------------------------------

    def extend(self) -> bool:
        with self._lock:
            attempt_id = None if self._committing else self._attempt_id
        if attempt_id is None:
            return True
        if self._around.ledger.extend(attempt_id, lease_seconds=self._settings.lease_seconds):
            return True
        with self._lock:  # a commit that overtook us ended the attempt, and rightly so
            return self._committing or self._attempt_id != attempt_id

    def drain(self) -> None:
        """A run goes on until it is given back."""

    def time_out(self) -> Answer:
        """A pipeline has no timeout, so there is nothing to record."""
        return {}

    def give_back(self) -> None:
        with self._lock:
            self._stopped = True
            attempt_id = self._attempt_id
        if attempt_id is None:
            return
        reason = "given back at shutdown"
        if self._around.ledger.abandon(
            attempt_id, reason=reason, outcome="given_back", refund=True, unattributed=False
        ):
            self._emit_abandoned(attempt_id, reason)

    def interrupt(self) -> None:
        with self._lock:
            self._stopped = True
            attempt_id = self._attempt_id
        if attempt_id is not None:
            self._around.engine.cancel(attempt_id)

    def _emit_abandoned(self, attempt_id: str, reason: str) -> None:
        self._around.bus.emit(AttemptAbandoned(pipeline=self._settings.pipeline, attempt_id=attempt_id, reason=reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What one claim brought, and what of the group belongs to it."""

    claim: Claim
    refs: Mapping[bytes, ObjectRef]  # the claimed ones
