"""Emit the events of a batch and its objects, each after the ledger has recorded the fact.

Every started object gets one final event (finished, failed or interrupted), unless its worker dies. So a sudden death
appears in the log as a start without an end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import TemporaryError
from penstock.events import (
    AttemptAbandoned,
    BatchClaimed,
    BatchCommitted,
    BatchWritten,
    Bus,
    ColumnsAdded,
    FaultsRepeated,
    LinesQuarantined,
    MessageInvalid,
    ObjectCallRetrying,
    ObjectFailed,
    ObjectFinished,
    ObjectInterrupted,
    ObjectSkipped,
    ObjectStarted,
    ObjectTakenOver,
    RunFailed,
    UnknownFieldsFound,
    WrongTypesRescued,
)
from penstock.ledger.records import (
    TAKEN_OVER,
    Committed,
    FailedObject,
    ObjectAttempt,
    ObjectClaims,
    ObjectResult,
    ObjectState,
    UnknownCounts,
)
from penstock.messaging.delivery import Delivery
from penstock.messaging.failure import failure_of
from penstock.objects.reference import ObjectRef
from penstock.pipeline.engine import ReadFailure, RunBroken, RunResult
from penstock.pipeline.quarantined import replays

CLAIM_LOST = "the claim was lost: its lease expired, or another process ended it"

_SKIPPED = {
    ObjectState.PROCESSED: "already_processed",
    ObjectState.DEAD: "already_dead",
    ObjectState.DELETED: "gone",
    ObjectState.SUPERSEDED: "superseded",
    ObjectState.RETRACTED: "retracted",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClaimedWork:
    """The result of one successful claim, with the references of the claimed objects."""

    claim: ObjectClaims
    refs: Mapping[bytes, ObjectRef]  # of the claimed objects

    @property
    def attempt_id(self) -> str:
        return self.claim.attempt_id


class BatchEvents:
    """Emit the events of one batch of a pipeline or object handler. Owned by its execution. Thread-safe."""

    def __init__(self, pipeline: str, bus: Bus, *, batches: bool = True) -> None:
        """``batches`` turns on the events for batches, besides those for their objects."""
        self._pipeline = pipeline
        self._bus = bus
        self._batches = batches

    def emit_claimed(self, work: ClaimedWork, *, seconds: float) -> None:
        """Report an opened attempt and the start of its objects."""
        if self._batches:
            size_bytes = sum(ref.size_bytes for ref in work.refs.values())
            self._bus.emit(
                BatchClaimed(
                    pipeline=self._pipeline,
                    attempt_id=work.attempt_id,
                    objects=len(work.refs),
                    bytes=size_bytes,
                    seconds=seconds,
                )
            )
        if not self._bus.wants(ObjectStarted):
            return
        for object_id, ref in work.refs.items():
            self._bus.emit(
                ObjectStarted(
                    pipeline=self._pipeline,
                    object_uri=ref.uri,
                    attempt_id=work.attempt_id,
                    attempt=work.claim.claimed[object_id].attempts,
                )
            )

    def emit_taken_over(self, work: ClaimedWork, before: Mapping[bytes, ObjectAttempt]) -> None:
        """Report each object whose previous attempt ended with the death of its worker or the expiry of its lease."""
        for object_id, attempt in before.items():
            if attempt.outcome in TAKEN_OVER:
                self._bus.emit(
                    ObjectTakenOver(
                        pipeline=self._pipeline,
                        object_uri=work.refs[object_id].uri,
                        attempt_id=work.attempt_id,
                        attempt=work.claim.claimed[object_id].attempts,
                        from_worker=attempt.worker,
                        from_attempt_id=attempt.attempt_id,
                        reason=attempt.reason,
                    )
                )

    def emit_written(self, work: ClaimedWork, result: RunResult, *, seconds: float) -> None:
        """Report that the run has written its files."""
        if self._batches:
            self._bus.emit(
                BatchWritten(
                    pipeline=self._pipeline,
                    attempt_id=work.attempt_id,
                    rows=result.record.rows,
                    lines_quarantined=result.record.lines_quarantined,
                    seconds=seconds,
                )
            )

    def emit_faults_repeated(self, count: int, fault: TemporaryError) -> None:
        """Report ``count`` infrastructure faults in a row."""
        self._bus.emit(FaultsRepeated(pipeline=self._pipeline, count=count, error=str(fault)))

    def emit_skipped(self, claim: ObjectClaims, refs: Mapping[bytes, ObjectRef]) -> None:
        """Report the objects that the claim did not get: busy, or already ended."""
        for object_id in claim.busy:
            self._emit_skipped(refs[object_id], "in_progress")
        for object_id, ended in claim.ended.items():
            self._emit_skipped(refs[object_id], _SKIPPED[ended.state])

    def emit_committed(self, work: ClaimedWork, result: RunResult, committed: Committed, *, seconds: float) -> None:
        """Report a committed batch and its finished objects."""
        if self._batches:
            self._bus.emit(
                BatchCommitted(
                    pipeline=self._pipeline,
                    attempt_id=work.attempt_id,
                    seq=committed.seq,
                    objects=len(result.processed),
                    rows=result.record.rows,
                    lines_quarantined=result.record.lines_quarantined,
                    bytes=result.record.bytes,
                    seconds=seconds,
                    replays=len(replays(work.refs, result.processed)),
                    replaced_objects=committed.replaced_objects,
                    replaced_rows=committed.replaced_rows,
                    grown_objects=committed.grown_objects,
                    appended_rows=committed.appended_rows,
                )
            )
        if result.new_columns:
            self._bus.emit(ColumnsAdded(pipeline=self._pipeline, columns=result.new_columns))
        finished = self._bus.wants(ObjectFinished)
        for processed in result.processed:
            if finished:
                self._bus.emit(
                    ObjectFinished(
                        pipeline=self._pipeline,
                        object_uri=work.refs[processed.object_id].uri,
                        attempt_id=work.attempt_id,
                        rows=processed.rows,
                        lines_quarantined=processed.lines_quarantined,
                    )
                )
            if processed.unknown is not None:
                self._emit_unknown(work.refs[processed.object_id].uri, processed.unknown)
            if processed.lines_quarantined:
                self._emit_quarantined(work.refs[processed.object_id].uri, processed, result)

    def emit_failed(
        self, work: ClaimedWork, failed: Sequence[FailedObject], causes: Mapping[bytes, ReadFailure] | None = None
    ) -> None:
        """Report the failed objects of an attempt. ``causes`` holds the run's failures by object id."""
        for failure in failed:
            cause = causes.get(failure.object_id) if causes else None
            raised = cause.raised if cause else None
            self._bus.emit(
                ObjectFailed(
                    pipeline=self._pipeline,
                    object_uri=work.refs[failure.object_id].uri,
                    attempt_id=work.attempt_id,
                    outcome=failure.failure.value,
                    reason=failure.reason,
                    error_type=raised.error_type if raised else None,
                    traceback=raised.traceback if raised else None,
                    exception=cause.exception if cause else None,
                )
            )

    def emit_retrying(
        self, ref: ObjectRef, attempt_id: str, tries: int, delay_seconds: float, raised: BaseException
    ) -> None:
        """Report a call inside a user's function that failed and is retried there."""
        failure = failure_of(raised)
        self._bus.emit(
            ObjectCallRetrying(
                pipeline=self._pipeline,
                object_uri=ref.uri,
                attempt_id=attempt_id,
                tries=tries,
                delay_seconds=delay_seconds,
                error_type=failure.error_type,
                error=failure.error,
            )
        )

    def emit_broken(self, work: ClaimedWork, broken: RunBroken) -> None:
        """Report a failed run that no single object caused."""
        self._bus.emit(
            RunFailed(pipeline=self._pipeline, attempt_id=work.attempt_id, objects=len(work.refs), error=str(broken))
        )

    def emit_released(self, work: ClaimedWork, reason: str) -> None:
        """Report an attempt that was released through no fault of its objects."""
        self.emit_abandoned(work.attempt_id, reason)
        for ref in work.refs.values():
            self._bus.emit(
                ObjectInterrupted(
                    pipeline=self._pipeline, object_uri=ref.uri, attempt_id=work.attempt_id, reason=reason
                )
            )

    def emit_claim_lost(self, work: ClaimedWork) -> None:
        """Report an attempt that another process ended, or whose lease expired."""
        for ref in work.refs.values():
            self._bus.emit(
                ObjectFailed(
                    pipeline=self._pipeline,
                    object_uri=ref.uri,
                    attempt_id=work.attempt_id,
                    outcome="retry",
                    reason=CLAIM_LOST,
                )
            )

    def emit_abandoned(self, attempt_id: str, reason: str) -> None:
        """Report an abandoned attempt."""
        self._bus.emit(AttemptAbandoned(pipeline=self._pipeline, attempt_id=attempt_id, reason=reason))

    def emit_invalid(self, delivery: Delivery, reason: str) -> None:
        """Report a message that is dead-lettered because it, or a record in it, can never be processed."""
        self._bus.emit(
            MessageInvalid(
                queue=delivery.queue,
                handler=self._pipeline,
                message_id=delivery.message.id,
                attempt=delivery.attempt,
                reason=reason,
            )
        )

    def _emit_skipped(self, ref: ObjectRef, reason: str) -> None:
        self._bus.emit(ObjectSkipped(pipeline=self._pipeline, object_uri=ref.uri, reason=reason))

    def _emit_unknown(self, uri: str, unknown: UnknownCounts) -> None:
        if unknown.fields or unknown.others:
            self._bus.emit(
                UnknownFieldsFound(
                    pipeline=self._pipeline, object_uri=uri, fields=unknown.fields, others=unknown.others
                )
            )
        if unknown.wrong_type or unknown.wrong_type_others:
            self._bus.emit(
                WrongTypesRescued(
                    pipeline=self._pipeline,
                    object_uri=uri,
                    fields=unknown.wrong_type,
                    others=unknown.wrong_type_others,
                )
            )

    def _emit_quarantined(self, uri: str, processed: ObjectResult, result: RunResult) -> None:
        self._bus.emit(
            LinesQuarantined(
                pipeline=self._pipeline,
                object_uri=uri,
                count=processed.lines_quarantined,
                reasons=result.reasons.get(processed.object_id, {}),
                sample=tuple(result.samples.get(processed.object_id, ())),
            )
        )
