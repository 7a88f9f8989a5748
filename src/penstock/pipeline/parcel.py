"""Deliveries of notifications, opened: which objects each one names, and how it is settled in the end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.errors import InvalidMessage
from penstock.ledger.records import Candidate, Carrier
from penstock.messaging.delivery import Delivery
from penstock.messaging.replays import replay_id_in
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.objects.notification import Kind, Notification
from penstock.objects.reference import ObjectRef

Parse = Callable[[bytes], Notification]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A delivery and the objects it names."""

    delivery: Delivery
    objects: Sequence[ObjectRef]
    problems: Sequence[str]  # records that could not be understood; the others take effect all the same
    failures: int = 0  # the most unattributed failures any of its objects has

    @property
    def objects_count(self) -> int:
        return len(self.objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Nothing is left to do for the object: processed, gone, superseded, or dead by another message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """The object is busy elsewhere or is to be tried again."""

    delay_seconds: float
    refund: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """The object is given up on, and the message with this id carried it."""

    reason: str
    carrier_message_id: str
    exception: str | None = None  # type and message, where a user's function raised
    traceback: str | None = None
    lasting: bool = False  # rejected or unreadable: another attempt cannot help


ObjectOutcome = Done | Later | Dead


def open_parcel(delivery: Delivery, parse: Parse, *, handler: str) -> Parcel | Settlement:
    """Read the notification; a message without objects is settled at once, by the pipeline or function ``handler``."""
    try:
        notification = parse(delivery.message.body)
    except InvalidMessage as invalid:
        return DeadLetter(reason=str(invalid), poison=True, handler=handler)
    if not notification.objects and not notification.problems:
        return Ack(reason="test_event" if notification.kind is Kind.TEST_EVENT else "no_objects")
    if not notification.objects:
        return settle_by(problems=notification.problems, outcomes=(), message_id=delivery.message.id, handler=handler)
    return Parcel(delivery=delivery, objects=notification.objects, problems=notification.problems)


def settle_parcel(parcel: Parcel, outcomes: Mapping[bytes, ObjectOutcome], *, handler: str) -> Settlement:
    """A delivery stays whole: how it ends follows from the outcomes of all its objects."""
    settlement = settle_by(
        problems=parcel.problems,
        outcomes=[outcomes[ref.object_id] for ref in parcel.objects],
        message_id=parcel.delivery.message.id,
        handler=handler,
    )
    return Ack(objects=tuple(ref.uri for ref in parcel.objects)) if isinstance(settlement, Ack) else settlement


def settle_by(
    *, problems: Sequence[str], outcomes: Sequence[ObjectOutcome], message_id: str, handler: str
) -> Settlement:
    """Anything left to do: release. Else anything dead that it carried, or a bad record: dead letter. Else ack.

    The letter is poison where a record is bad, or where nothing that it carried can be helped by another attempt.
    """
    later = [outcome for outcome in outcomes if isinstance(outcome, Later)]
    if later:
        delay_seconds = max(outcome.delay_seconds for outcome in later)
        return Release(delay_seconds=delay_seconds, refund=all(outcome.refund for outcome in later))
    dead = [o for o in outcomes if isinstance(o, Dead) and o.carrier_message_id == message_id]
    if dead or problems:
        told = next((o for o in dead if o.exception is not None), None)  # a letter has place for one
        return DeadLetter(
            reason="; ".join([*problems, *(o.reason for o in dead)]),
            exception=told.exception if told else None,
            traceback=told.traceback if told else None,
            poison=bool(problems) or all(o.lasting for o in dead),
            handler=handler,
        )
    return Ack()


def parts(parcel: Parcel, failures: Mapping[bytes, int], *, singly: bool = False) -> list[Parcel]:
    """What may share a run: the objects that nobody suspects together, each suspect by itself.

    ``failures`` are the unattributed ones, by object id. A delivery stays whole in its batch and is settled as a whole,
    but not in one run: the culprit in a message of several objects would never be alone in a run, and never die.
    ``singly``: each object by itself in any case.
    """
    if singly:
        return [replace(parcel, objects=(ref,), failures=failures.get(ref.object_id, 0)) for ref in parcel.objects]
    clear = tuple(ref for ref in parcel.objects if not failures.get(ref.object_id))
    suspects = [
        replace(parcel, objects=(ref,), failures=failures[ref.object_id])
        for ref in parcel.objects
        if failures.get(ref.object_id)
    ]
    return [replace(parcel, objects=clear), *suspects] if clear else suspects


def candidates(parcels: Sequence[Parcel]) -> list[Candidate]:
    """The objects of a group, once for each message that names them: the ledger says which of these carries an object.

    That is the first, or for a dead object the first that may revive it.
    """
    return [_candidate(ref, carrier_of(parcel.delivery)) for parcel in parcels for ref in parcel.objects]


def carrier_of(delivery: Delivery) -> Carrier:
    """What the ledger remembers of the message, should an object of it die."""
    return Carrier(
        message_id=delivery.message.id,
        enqueued_at=delivery.message.enqueued_at,
        replay_id=replay_id_in(delivery.message.attributes),
    )


def _candidate(ref: ObjectRef, carrier: Carrier) -> Candidate:
    return Candidate(
        object_id=ref.object_id,
        bucket=ref.bucket,
        key=ref.key_bytes,
        size_bytes=ref.size_bytes,
        uri=ref.uri,
        carrier=carrier,
        version_id=ref.version_id,
        etag=ref.etag,
        sequencer=ref.sequencer,
    )
