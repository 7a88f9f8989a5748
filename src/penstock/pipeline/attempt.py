"""One batch through the protocol: open the parcels, group them, and for each group claim, run, commit.

The order is the promise: the ledger's commit comes before any acknowledgement, and every way out of a claim is either
that commit or an abandonment that is durable before anybody else may begin. What can go wrong in between is mapped to
one outcome an object, in one place.
"""

import random
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ulid import ULID

from penstock.errors import ClaimLost, PenstockError, SchemaMoved, TemporaryError, TransformError, UserError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.records import BatchOutcome, Claim, FailedObject, Failure
from penstock.messaging.delivery import Delivery
from penstock.messaging.failure import Failure as Raised
from penstock.messaging.handler import Answer
from penstock.messaging.settlement import Release, Settlement
from penstock.messaging.waits import Random, backoff_seconds
from penstock.pipeline.engine import (
    Engine,
    ReadFailure,
    RunBroken,
    RunCancelled,
    RunGivenBack,
    RunRequest,
    RunResult,
)
from penstock.pipeline.grouping import groups
from penstock.pipeline.hold import Hold
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
from penstock.pipeline.telling import Telling, Work
from penstock.pipeline.verdicts import ended_outcome, failure_outcome, sentence, suspicion, timed_out, verdict

_AT_ONCE = Later(delay_seconds=0.0, refund=True)  # not begun, or broken off by a stop: another worker may go on


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
    timeout_seconds: float | None = None  # of a batch; None: as long as it likes
    tells_batches: bool = True  # whether a batch is worth an event beside those of its objects


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
        self._telling = Telling(settings.pipeline, around.bus, batches=settings.tells_batches)
        self._hold = Hold(around.ledger, self._telling, lease_seconds=settings.lease_seconds)
        # The rest is written by the run thread: always as a whole, so that others read one state or the next.
        self._settled: Mapping[str, Settlement] = {}  # by receipt: messages without objects to work on
        self._parcels: Sequence[Parcel] = ()
        self._outcomes: Mapping[bytes, ObjectOutcome] = {}  # of objects that the batch is done with
        self._worked = False  # whether a run has come to its end
        self._thread_id: int | None = None

    # -- the run thread ------------------------------------------------------------------------------------------

    def run(self) -> Answer:
        self._thread_id = threading.get_ident()
        self._open()
        suspects = self._parts(self._parcels)
        for group in groups(suspects, objects_max=self._settings.objects_max, attempts_max=self._settings.attempts_max):
            try:
                self._outcomes = {**self._outcomes, **self._run_group(group)}
            except RunGivenBack:
                break  # what was not begun is not begun any more
        with suppress(PenstockError):  # upkeep publishes too, and says what is wrong
            self._around.publish()
        return self._answer(self._outcomes)

    def _answer(self, outcomes: Mapping[bytes, ObjectOutcome]) -> Answer:
        """Settlements of all deliveries; an object without an outcome was not worked on, and waits for who does."""
        unreached = {ref.object_id: _AT_ONCE for parcel in self._parcels for ref in parcel.objects}
        reached: Mapping[bytes, ObjectOutcome] = {**unreached, **outcomes}
        answer: dict[str, Settlement] = {one.receipt: Release(refund=True) for one in self._deliveries}
        answer |= self._settled
        return answer | {parcel.delivery.receipt: settle_parcel(parcel, reached) for parcel in self._parcels}

    def _open(self) -> None:
        settlements: dict[str, Settlement] = {}
        parcels: list[Parcel] = []
        for delivery in self._deliveries:
            opened = open_parcel(delivery, self._around.parse)
            if isinstance(opened, Parcel):
                parcels.append(opened)
            else:
                settlements[delivery.receipt] = opened
        self._settled, self._parcels = settlements, parcels

    def _parts(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """What is put into groups: a delivery's objects together, until some of them are suspects."""
        ids = {ref.object_id for parcel in parcels for ref in parcel.objects}
        failures = self._around.ledger.unattributed_failures(self._settings.pipeline, ids) if ids else {}
        singly = self._settings.objects_max == 1
        found = [part for parcel in parcels for part in parts(parcel, failures, singly=singly)]
        # Suspects come in another order each time: where only a few of them fail, the others must not wait behind them.
        return sorted(found, key=lambda part: self._around.random() if part.failures else 0.0)

    def _run_group(self, group: Sequence[Parcel]) -> Mapping[bytes, ObjectOutcome]:
        refs = {ref.object_id: ref for parcel in group for ref in parcel.objects}
        claim, work = self._hold.take(lambda: self._claim(group), refs)
        if claim is None:
            return dict.fromkeys(refs, self._later(1))
        self._telling.skipped(claim, refs)
        outcomes = self._unclaimed(claim)
        if work is not None:
            outcomes |= self._work(work)
            self._worked = True
        return outcomes

    def _claim(self, group: Sequence[Parcel]) -> Claim | None:
        """Claim what is free of the group; None when the ledger could not tell whether we did."""
        attempt_id = self._around.new_attempt_id()
        try:
            return self._around.ledger.claim(
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

    def _work(self, work: Work) -> dict[bytes, ObjectOutcome]:
        """Run and commit what is claimed; every way it can end is an outcome for each object."""
        try:
            return self._run_and_commit(work)
        except RunBroken as broken:
            return self._broken(work, broken)
        except TemporaryError as fault:
            return self._infrastructure(work, fault)
        except SchemaMoved as moved:
            self._hold.abandon(work, reason=str(moved), outcome="given_back")
            return dict.fromkeys(work.refs, _AT_ONCE)
        except RunGivenBack as stopped:
            self._hold.abandon(work, reason=str(stopped), outcome="given_back")
            raise
        except ClaimLost:
            return self._lost(work)
        except UserError as mistake:
            self._hold.abandon(work, reason=str(mistake), outcome="given_back")
            raise
        except RunCancelled:
            raise  # whoever interrupted us gave the claim back before
        except OSError as fault:  # the driver's own files: a full disk, too many open files
            return self._infrastructure(work, TemporaryError(str(fault)))
        except Exception as defect:  # ours; charged like any other cause that cannot be named, so that it ends
            text = f"{type(defect).__name__}: {defect}"
            return self._broken(work, RunBroken(text, fingerprint=text))

    def _run_and_commit(self, work: Work) -> dict[bytes, ObjectOutcome]:
        self._telling.claimed(work)
        request = RunRequest(attempt_id=work.attempt_id, objects=tuple(work.refs.values()), claimed=work.claim.claimed)
        result = self._around.engine.run(request)
        self._telling.written(work, result)
        failed = [
            verdict(work.claim.claimed[object_id], failure, attempts_max=self._settings.attempts_max)
            for object_id, failure in result.failed.items()
        ]
        self._commit(work, result, failed)
        if result.works or any(done.rows for done in result.processed):  # without a row a transform has shown nothing
            self._around.streak.clear()
        done: dict[bytes, ObjectOutcome] = {processed.object_id: Done() for processed in result.processed}
        return done | self._failed(work, failed, result.failed)

    def _commit(self, work: Work, result: RunResult, failed: Sequence[FailedObject]) -> None:
        seq = self._hold.commit(
            work,
            BatchOutcome(
                pipeline=self._settings.pipeline,
                attempt_id=work.attempt_id,
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
            ),
        )
        if seq is not None:
            self._telling.committed(work, result, seq)

    def _broken(self, work: Work, broken: RunBroken) -> dict[bytes, ObjectOutcome]:
        """Nobody could be blamed: everybody is a suspect, and nobody dies of it in company."""
        self._telling.broken(work, broken)
        suspects = list(work.claim.claimed.values())
        attempts_max = self._settings.attempts_max
        meaning = sentence(
            suspects, broken, self._around.streak, attempts_max=attempts_max, worked_before=self._worked_before
        )
        failed = [suspicion(suspect, broken, meaning, attempts_max=attempts_max) for suspect in suspects]
        outcome = BatchOutcome(
            pipeline=self._settings.pipeline, attempt_id=work.attempt_id, processed=(), failed=failed
        )
        try:
            self._hold.commit(work, outcome)
        except ClaimLost:
            return self._lost(work)
        except TemporaryError:
            return dict.fromkeys(work.refs, self._later(1))
        if isinstance(meaning, TransformError):
            self._telling.given_back(work, str(meaning))
            raise meaning
        return self._failed(work, failed)

    def _worked_before(self) -> bool:
        row = self._around.ledger.ensure_pipeline(self._settings.pipeline)
        last = self._around.ledger.batch(self._settings.pipeline, row.next_seq - 1)
        return last is not None and last.rows > 0

    def _infrastructure(self, work: Work, fault: TemporaryError) -> dict[bytes, ObjectOutcome]:
        """The machinery failed: nobody is charged, and when it goes on failing the worker hears of it."""
        self._hold.abandon(work, reason=str(fault), outcome="failed")
        self._around.streak.add_fault(fault)
        later = self._later(self._around.streak.faults)
        return dict.fromkeys(work.refs, replace(later, refund=True))

    def _failed(
        self, work: Work, failed: Sequence[FailedObject], causes: Mapping[bytes, ReadFailure] | None = None
    ) -> dict[bytes, ObjectOutcome]:
        self._telling.failed(work, failed, causes)
        outcomes: dict[bytes, ObjectOutcome] = {}
        for failure in failed:
            claimed = work.claim.claimed[failure.object_id]
            later = replace(self._later(claimed.attempts), refund=failure.refund)
            cause = causes.get(failure.object_id) if causes else None
            outcomes[failure.object_id] = failure_outcome(failure, claimed, later=later, cause=cause)
        return outcomes

    def _lost(self, work: Work) -> dict[bytes, ObjectOutcome]:
        self._hold.lost(work)
        return dict.fromkeys(work.refs, self._later(1))

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
        return self._hold.extend()

    def drain(self) -> None:
        """A run goes on until it is given back."""

    def time_out(self) -> Answer:
        work = self._hold.stop()
        return self._answer({**self._outcomes, **(self._timed_out(work) if work is not None else {})})

    def _timed_out(self, work: Work) -> Mapping[bytes, ObjectOutcome]:
        reason = f"timed out after {self._settings.timeout_seconds or 0.0:g} s"
        failed = timed_out(
            list(work.claim.claimed.values()),
            reason,
            attempts_max=self._settings.attempts_max,
            first=not self._worked,
        )
        outcome = BatchOutcome(
            pipeline=self._settings.pipeline, attempt_id=work.attempt_id, processed=(), failed=failed
        )
        try:
            ours = self._hold.fail(work, outcome)
        except TemporaryError:  # its lease ends by itself
            return dict.fromkeys(work.refs, self._later(1))
        if not ours:  # the run came to its end just now, or somebody took it over: the next delivery finds out
            return {}
        where = Raised(error_type="TimedOut", error=reason, traceback=self._where())
        cause = ReadFailure(failure=Failure.RETRY, reason=reason, raised=where)
        return self._failed(work, failed, dict.fromkeys(work.refs, cause))

    def _where(self) -> str:
        """What the run is doing now, as a stack without variables."""
        frame = sys._current_frames().get(self._thread_id or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def give_back(self) -> None:
        work = self._hold.stop()
        if work is not None:
            self._hold.give_up(work, reason="given back at shutdown", outcome="given_back")

    def interrupt(self) -> None:
        work = self._hold.stop()
        if work is not None:
            self._around.engine.cancel(work.attempt_id)
