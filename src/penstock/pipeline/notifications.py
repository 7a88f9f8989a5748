"""Open deliveries of notifications, group their objects into runs, and turn the outcomes of objects into settlements.

Pure functions, except that `classify_broken_run` records the failure in its `FailureStreak`. There are two kinds of
failures. A failure that names its object counts only against that object. A failure that names none makes every object
of the run a suspect; then no object is dead-lettered for a run that it shared, or for an error that may be in the
user's code.

`groups` decides which suspects share a run: one culprit must not use up the attempts of the others. After k
unattributed failures an object shares a run only with objects of the same k, and only
``objects_max ** (1 - k / (attempts_max - 1))`` of them. With four attempts, a batch of 5,000 with one culprit shrinks
to 292, 17 and 1, so that an innocent object has its last attempt alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from penstock.errors import InvalidMessage, TransformError
from penstock.ledger.records import (
    AttemptFailure,
    ClaimedObject,
    EndedObject,
    FailedObject,
    ObjectState,
    OriginalMessage,
)
from penstock.messaging.delivery import Delivery
from penstock.messaging.replay import replay_id_in
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.objects.notification import Notification, NotificationKind
from penstock.objects.reference import ObjectRef
from penstock.pipeline.engine import ReadFailure, RunBroken
from penstock.pipeline.failures import FailureStreak, every_run_failed

Parse = Callable[[bytes], Notification]

# Time between two failed checks before a file counts as deleted: longer than it takes to replace a file by renaming.
DELETED_AFTER_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationDelivery:
    """A delivery with the objects that it names, or with some of them (see `split_suspects`)."""

    delivery: Delivery
    objects: Sequence[ObjectRef]
    problems: Sequence[str]  # records that could not be parsed; the valid ones are processed all the same
    failures: int = 0  # the highest number of unattributed failures among its objects

    @property
    def objects_count(self) -> int:
        return len(self.objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDone:
    """Nothing is left to do for the object: processed, deleted, superseded, or failed under another message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLater:
    """The object is busy elsewhere, or is to be tried again. ``uncounted``: do not count the delivery as an attempt."""

    delay_seconds: float
    uncounted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDead:
    """The object has failed for good. The message ``original_message_id`` is dead-lettered for it."""

    reason: str
    original_message_id: str
    exception: str | None = None  # type and message of the exception, if the user's function raised
    traceback: str | None = None
    lasting: bool = False  # rejected or unreadable: a retry cannot help


def open_delivery(
    delivery: Delivery, parse: Callable[[Delivery], Notification], *, handler: str
) -> NotificationDelivery | Settlement:
    """Parse the notification. Return a settlement if it names no object. ``handler`` names the pipeline or function."""
    try:
        notification = parse(delivery)
    except InvalidMessage as invalid:
        return DeadLetter(reason=str(invalid), poison=True, handler=handler)
    if not notification.objects and not notification.problems:
        return Ack(reason="test_event" if notification.kind is NotificationKind.TEST_EVENT else "no_objects")
    if not notification.objects:
        return settle_by(problems=notification.problems, outcomes=(), message_id=delivery.message.id, handler=handler)
    return NotificationDelivery(delivery=delivery, objects=notification.objects, problems=notification.problems)


ObjectOutcome = ObjectDone | ObjectLater | ObjectDead

DONE = ObjectDone()
# Not started, or interrupted by a stop: free for another worker.
AT_ONCE = ObjectLater(delay_seconds=0.0, uncounted=True)
_ACK = Ack()


def settle_delivery(
    notification: NotificationDelivery,
    outcomes: Mapping[bytes, ObjectOutcome],
    *,
    handler: str,
    names_objects: bool = True,
) -> Settlement:
    """Return the settlement of a delivery, which is settled as a whole. An object without an outcome is `AT_ONCE`.

    ``names_objects``: an ack names the objects, for the log.
    """
    found = [outcomes.get(ref.object_id, AT_ONCE) for ref in notification.objects]
    if not notification.problems and all(outcome is DONE for outcome in found):  # nearly always
        return Ack(objects=tuple(ref.uri for ref in notification.objects)) if names_objects else _ACK
    settlement = settle_by(
        problems=notification.problems,
        outcomes=found,
        message_id=notification.delivery.message.id,
        handler=handler,
    )
    return Ack(objects=tuple(ref.uri for ref in notification.objects)) if isinstance(settlement, Ack) else settlement


def settle_by(
    *, problems: Sequence[str], outcomes: Sequence[ObjectOutcome], message_id: str, handler: str
) -> Settlement:
    """Return the settlement: release if an object needs more work, else dead-letter for failed objects or bad records.

    Otherwise ack. The dead-lettered message is marked as poison if a record is bad, or if a retry can help none of its
    failed objects.
    """
    later = [outcome for outcome in outcomes if isinstance(outcome, ObjectLater)]
    if later:
        delay_seconds = max(outcome.delay_seconds for outcome in later)
        return Release(delay_seconds=delay_seconds, uncounted=all(outcome.uncounted for outcome in later))
    dead = [
        outcome for outcome in outcomes if isinstance(outcome, ObjectDead) and outcome.original_message_id == message_id
    ]
    if dead or problems:
        raised_one = next(
            (failed for failed in dead if failed.exception is not None), None
        )  # room for one exception only
        return DeadLetter(
            reason="; ".join([*problems, *(failed.reason for failed in dead)]),
            exception=raised_one.exception if raised_one else None,
            traceback=raised_one.traceback if raised_one else None,
            poison=bool(problems) or all(failed.lasting for failed in dead),
            handler=handler,
        )
    return Ack()


def split_suspects(
    notification: NotificationDelivery, failures: Mapping[bytes, int], *, singly: bool = False
) -> list[NotificationDelivery]:
    """Split a delivery into units that may share a run: all unsuspected objects together, each suspect alone.

    ``failures`` counts unattributed failures by object id. The delivery stays whole for its settlement but not for its
    runs: otherwise the culprit in a message of several objects would never run alone, and so never be dead-lettered.
    With ``singly`` every object is a unit of its own.
    """
    if singly:
        return [
            replace(notification, objects=(ref,), failures=failures.get(ref.object_id, 0))
            for ref in notification.objects
        ]
    if not any(failures.get(ref.object_id) for ref in notification.objects):
        return [notification]
    clear = tuple(ref for ref in notification.objects if not failures.get(ref.object_id))
    suspects = [
        replace(notification, objects=(ref,), failures=failures[ref.object_id])
        for ref in notification.objects
        if failures.get(ref.object_id)
    ]
    return [replace(notification, objects=clear), *suspects] if clear else suspects


@dataclass(frozen=True, slots=True)
class NamedObject:
    """A `penstock.ledger.records.Claimable` of a batch. Its texts are made when the ledger reads them."""

    ref: ObjectRef
    original_message: OriginalMessage

    @property
    def object_id(self) -> bytes:
        return self.ref.object_id

    @property
    def bucket(self) -> str:
        return self.ref.bucket

    @property
    def key(self) -> bytes:
        return self.ref.key_bytes

    @property
    def size_bytes(self) -> int:
        return self.ref.size_bytes

    @property
    def uri(self) -> str:
        return self.ref.uri

    @property
    def version_id(self) -> str | None:
        return self.ref.version_id

    @property
    def etag(self) -> str | None:
        return self.ref.etag

    @property
    def sequencer(self) -> str | None:
        return self.ref.sequencer


def candidates(notifications: Sequence[NotificationDelivery]) -> list[NamedObject]:
    """Return the objects of a group, once for each message that names them. The ledger picks each object's message.

    It picks the first, or for a failed object the first message that may revive it.
    """
    return [
        NamedObject(ref, original_message)
        for notification in notifications
        for original_message in (original_message_of(notification.delivery),)
        for ref in notification.objects
    ]


def original_message_of(delivery: Delivery) -> OriginalMessage:
    """Return the part of the message that the ledger keeps, to recognise its redelivery if an object of it fails."""
    return OriginalMessage(
        message_id=delivery.message.id,
        enqueued_at=delivery.message.enqueued_at,
        replay_id=replay_id_in(delivery.message.attributes),
    )


def classify_failure(claimed: ClaimedObject, failure: ReadFailure, *, attempts_max: int) -> FailedObject:
    """Classify an object that was not processed.

    RETRY becomes DEAD after the last attempt. DELETED needs two checks, see `_missing`.
    """
    found = failure.failure
    if found is AttemptFailure.DELETED:
        return _missing(claimed, failure.reason)
    if found is AttemptFailure.RETRY and claimed.attempts >= attempts_max and not failure.uncounted:
        found = AttemptFailure.DEAD
    uncounted = failure.uncounted and found is AttemptFailure.RETRY
    return FailedObject(
        object_id=claimed.object_id,
        failure=found,
        reason=failure.reason,
        uncounted=uncounted,
        traceback=failure.raised.traceback if failure.raised is not None else None,
    )


def recheck_seconds(claimed: ClaimedObject) -> float:
    """Return the delay before the next check of a missing object, so that it is long enough after the first."""
    return max(0.0, DELETED_AFTER_SECONDS - (claimed.missing_seconds or 0.0))


def timed_out(
    claimed: Sequence[ClaimedObject], reason: str, *, attempts_max: int, first: bool
) -> Sequence[FailedObject]:
    """Classify the objects that were being processed when the batch timed out.

    Work that was not the ``first`` of the batch had only the rest of the time, and is not counted as an attempt. So
    each batch that times out has either finished some of its work or counted an attempt for some of it, and a batch
    that is too slow ends eventually.
    """
    if not first:
        return [
            FailedObject(object_id=suspect.object_id, failure=AttemptFailure.RETRY, reason=reason, uncounted=True)
            for suspect in claimed
        ]
    if len(claimed) == 1:
        failure = ReadFailure(failure=AttemptFailure.RETRY, reason=reason)
        return [classify_failure(claimed[0], failure, attempts_max=attempts_max)]
    broken = RunBroken(reason, fingerprint="timed out")
    return [classify_suspect(suspect, broken, AttemptFailure.RETRY, attempts_max=attempts_max) for suspect in claimed]


def classify_broken_run(
    suspects: Sequence[ClaimedObject],
    broken: RunBroken,
    streak: FailureStreak,
    *,
    attempts_max: int,
    worked_before: Callable[[], bool],
) -> TransformError | AttemptFailure:
    """Classify a broken run: return the error to stop the pipeline with, or how the suspects leave the run.

    An object is dead-lettered only after its last attempt, in a run of its own, and in a pipeline that works: one that
    has committed a batch in this process, or earlier (``worked_before``) if the object was granted one more attempt.
    """
    stop_error = streak.add(broken, frozenset(suspect.object_id for suspect in suspects))
    if stop_error is not None:
        return stop_error
    if len(suspects) > 1 or suspects[0].attempts < attempts_max:
        return AttemptFailure.RETRY
    if streak.succeeded:
        return AttemptFailure.DEAD
    if streak.grant_last_attempt(suspects[0].object_id):
        return AttemptFailure.RETRY
    return AttemptFailure.DEAD if worked_before() else every_run_failed(broken)


def classify_suspect(
    suspect: ClaimedObject, broken: RunBroken, meaning: TransformError | AttemptFailure, *, attempts_max: int
) -> FailedObject:
    """Classify one suspect of a broken run. Unless it is dead, it keeps its last attempt for a run of its own."""
    dead = meaning is AttemptFailure.DEAD
    return FailedObject(
        object_id=suspect.object_id,
        failure=AttemptFailure.DEAD if dead else AttemptFailure.RETRY,
        reason=str(broken),
        uncounted=isinstance(meaning, TransformError) or (not dead and suspect.attempts >= attempts_max),
        unattributed=True,
        traceback=broken.raised.traceback if broken.raised is not None else None,
    )


def failure_outcome(
    failed: FailedObject, claimed: ClaimedObject, *, later: ObjectLater, cause: ReadFailure | None = None
) -> ObjectOutcome:
    """Return the outcome of a failure for the messages that name the object. ``later`` holds the time of the retry."""
    match failed.failure:
        case AttemptFailure.RETRY if cause is not None and cause.delay_seconds is not None:
            return replace(later, delay_seconds=cause.delay_seconds)
        case AttemptFailure.RETRY:
            return later
        case AttemptFailure.DEAD:
            raised = cause.raised if cause is not None else None
            return ObjectDead(
                reason=failed.reason,
                original_message_id=claimed.original_message.message_id,
                exception=raised.summary if raised is not None else None,
                traceback=raised.traceback if raised is not None else None,
                lasting=cause is not None and cause.failure is AttemptFailure.DEAD,
            )
        case AttemptFailure.DELETED | AttemptFailure.SUPERSEDED:
            return DONE


def ended_outcome(ended: EndedObject) -> ObjectOutcome:
    """Return the outcome of an object that had already ended. A failed one dead-letters its original message only."""
    if ended.state is ObjectState.DEAD and ended.original_message is not None:
        return ObjectDead(reason=ended.reason or "dead", original_message_id=ended.original_message.message_id)
    return DONE


class Suspect(Protocol):
    """The two properties of a delivery that `groups` needs."""

    @property
    def objects_count(self) -> int: ...

    @property
    def failures(self) -> int: ...


def group_objects_max(failures: int, *, objects_max: int, attempts_max: int) -> int:
    """Return how many objects with this number of unattributed failures may share a run; at least 1."""
    if failures <= 0:
        return objects_max
    if failures >= attempts_max - 1:
        return 1
    return max(1, int(objects_max ** (1.0 - failures / (attempts_max - 1))))


S = TypeVar("S", bound=Suspect)


def groups(suspects: Sequence[S], *, objects_max: int, attempts_max: int) -> list[list[S]]:
    """Split into runs, unsuspected ones first. A delivery stays whole, even if it exceeds the limit of a run."""
    split: list[list[S]] = []
    for failures in sorted({suspect.failures for suspect in suspects}):
        limit = group_objects_max(failures, objects_max=objects_max, attempts_max=attempts_max)
        group: list[S] = []
        objects_count = 0
        for suspect in suspects:
            if suspect.failures != failures:
                continue
            if group and objects_count + suspect.objects_count > limit:
                split.append(group)
                group, objects_count = [], 0
            group.append(suspect)
            objects_count += suspect.objects_count
        split.append(group)
    return split


def _missing(claimed: ClaimedObject, reason: str) -> FailedObject:
    """Classify an object that was not found: deleted only if a check long enough ago did not find it either."""
    is_deleted = claimed.missing_seconds is not None and claimed.missing_seconds >= DELETED_AFTER_SECONDS
    return FailedObject(
        object_id=claimed.object_id,
        failure=AttemptFailure.DELETED if is_deleted else AttemptFailure.RETRY,
        reason=reason,
        uncounted=not is_deleted,
        missing=True,
    )
