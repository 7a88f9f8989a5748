"""Claim objects: exclusive, fenced, and by the database's clock.

The lease is stored on the attempt, so that one heartbeat covers thousands of objects. A claim takes one or two
transactions; most need only the first. The first inserts the objects that the ledger does not know, already claimed,
and ignores the others. It inserts in id order, so that overlapping claims wait for each other without forming a cycle.
The second takes those of the others that are free, with a compare-and-set, while the attempt is open. An older version
of a key is left to the second transaction if that may take a later version. A SELECT that locks, followed by an INSERT,
would deadlock when two claims overlap; this order cannot.

Rows of processed objects move to the archive at any time, in the transaction that stores their identity there. A
message that arrives later finds no row and inserts a new one. Inserted and taken objects are therefore looked up in the
archive afterwards, in the same transaction, by a statement that sees everything committed by then (READ COMMITTED, or
one writer at a time). The object ends as processed whenever the archive's transaction commits:

- before the insert: the identity was committed even earlier and is found; the new row is deleted before others see it.
- between insert and take: the insert ignored the old row, so there is none to take; the identity is found.
- between take and lookup: a processed row was not taken; the identity is found.
- between lookup and read-back: the row is missing and the identity was not seen, so the archive is queried again.
- after the read-back, or never: the row was there, processed.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Update, bindparam, case, delete, func, insert, literal_column, or_, select, update

from penstock.errors import PenstockError, TemporaryError
from penstock.ledger.abandonments import EXPIRED_ATTEMPTS, Abandonments
from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import (
    TERMINAL,
    UNREAD,
    AttemptState,
    Claimable,
    ClaimedObject,
    EndedObject,
    ObjectClaims,
    ObjectState,
    OnChange,
    OriginalMessage,
)
from penstock.ledger.reopenings import keep_unread, reopened_among_wanted
from penstock.ledger.revivals import record_original_messages, renumber, revive
from penstock.ledger.rows import AnyRow, Values, new_claimed_object, original_message_of, wanted_object
from penstock.ledger.rules import is_later, latest, storable
from penstock.ledger.schema import archived_objects, attempts, object_attempts, objects, pipelines, wanted
from penstock.ledger.sets import (
    ARCHIVED,
    among,
    by_attempt_and_uri,
    fill,
    in_state,
    insert_from,
    is_in,
    is_wanted,
    of_pipeline,
    slices,
)
from penstock.ledger.superseded import SupersededVersions
from penstock.ledger.versions import contested_versions
from penstock.messaging.handler import Extension
from penstock.messaging.steps import Probe, Step

_OURS = (objects.c.attempt_id == bindparam("fresh")) & (objects.c.state == ObjectState.PROCESSING.value)

_NEVER_DEAD = objects.c.dead_at.is_(None)  # `revivals` decides the original message of objects that failed before
_TAKE = (
    update(objects)
    .values(
        state=ObjectState.PROCESSING.value,
        attempt_id=bindparam("fresh"),
        charged=objects.c.charged + 1,
        carrier_message_id=case((_NEVER_DEAD, wanted.c.message_id), else_=objects.c.carrier_message_id),
        carrier_enqueued_at=case((_NEVER_DEAD, wanted.c.enqueued_at), else_=objects.c.carrier_enqueued_at),
        carrier_replay_id=case((_NEVER_DEAD, wanted.c.replay_id), else_=objects.c.carrier_replay_id),
    )
    .where(
        of_pipeline(objects),
        objects.c.object_id == wanted.c.object_id,
        among(objects.c.object_id, of=select(wanted.c.object_id)),
        in_state(ObjectState.UNPROCESSED),
    )
)
_OPEN = insert(attempts).values(
    id=bindparam("fresh"),
    pipeline=bindparam("in_pipeline"),
    state=AttemptState.OPEN.value,
    worker=bindparam("by_worker"),
    started_at=DatabaseNow(),
    lease_until=DatabaseNow() + bindparam("lease_seconds", type_=attempts.c.lease_until.type),
    heartbeat_seq=0,
)
_noted = select(objects.c.pipeline, objects.c.object_id, objects.c.attempt_id, objects.c.carrier_replay_id).where(_OURS)
_NOTE_COLUMNS = ["pipeline", "object_id", "attempt_id", "replay_id"]
_NOTE = insert(object_attempts).from_select(_NOTE_COLUMNS, _noted)
_NOTE_TAKEN = insert(object_attempts).from_select(
    _NOTE_COLUMNS, _noted.where(is_in(objects.c.object_id, of=select(wanted.c.object_id)))
)
_INSERTED = select(objects.c.object_id).where(objects.c.attempt_id == bindparam("fresh"))
_COUNT_INSERTED = _INSERTED.with_only_columns(func.count())
_ARCHIVED_OURS = select(archived_objects.c.object_id).where(
    of_pipeline(archived_objects), is_in(archived_objects.c.object_id, of=_INSERTED)
)
_READ_BACK = select(
    objects.c.object_id,
    objects.c.charged,
    objects.c.refunds,
    objects.c.unattributed_failures,
    (DatabaseNow() - objects.c.missed_at).label("missing_seconds"),
).where(_OURS)
_NOT_OURS = (
    select(
        objects.c.object_id,
        objects.c.state,
        objects.c.reason,
        objects.c.carrier_message_id,
        objects.c.carrier_enqueued_at,
        objects.c.carrier_replay_id,
        (attempts.c.lease_until - DatabaseNow()).label("lease_left"),
    )
    .outerjoin_from(objects, attempts, attempts.c.id == objects.c.attempt_id)
    .where(is_wanted(), or_(objects.c.attempt_id.is_(None), objects.c.attempt_id != bindparam("fresh")))
)
_other = objects.alias("other")
# a later version in one of these states was first
_BEFORE = frozenset({ObjectState.PROCESSING, ObjectState.PROCESSED, ObjectState.RETRACTED})
# a later version in one of these states is first if this claim takes it too
_PERHAPS = frozenset({ObjectState.UNPROCESSED, ObjectState.DEAD}) | UNREAD
_SAME_KEY = by_attempt_and_uri(
    select(
        objects.c.object_id,
        objects.c.sequencer,
        _other.c.sequencer.label("other_sequencer"),
        _other.c.state.label("other_state"),
    ),
    _other,
).where(
    _OURS,
    objects.c.version_id.is_(None),
    objects.c.sequencer.is_not(None),
    _other.c.uri_digest == objects.c.uri_digest,
    _other.c.pipeline == objects.c.pipeline,
    _other.c.bucket == objects.c.bucket,
    _other.c.key == objects.c.key,
    _other.c.object_id != objects.c.object_id,
    _other.c.sequencer.is_not(None),
    _other.c.state.in_(sorted(state.value for state in _BEFORE | _PERHAPS)),
)
_TAKE_OUT = (
    update(objects)
    .values(attempt_id=None, charged=objects.c.charged - 1)
    .where(
        objects.c.pipeline == bindparam("in_pipeline"),
        objects.c.object_id == bindparam("taken_out"),
        objects.c.attempt_id == bindparam("fresh"),
    )
)
_SUPERSEDE = _TAKE_OUT.values(
    state=ObjectState.SUPERSEDED.value,
    reason="a later version of this key came first",
    ended_at=DatabaseNow(),
    dead_at=None,
    missed_at=None,
    sought_at=None,  # superseded without a check of the store
)
_LEAVE = _TAKE_OUT.values(state=ObjectState.UNPROCESSED.value)
_DROP_ARCHIVED = delete(objects).where(
    objects.c.pipeline == bindparam("in_pipeline"),
    objects.c.object_id.in_(bindparam("of_objects", expanding=True)),
    objects.c.attempt_id == bindparam("fresh"),
    objects.c.state == ObjectState.PROCESSING.value,
)
_NEXT_SEQ = select(pipelines.c.next_seq).where(pipelines.c.id == bindparam("in_pipeline"))
_ARCHIVED_OBJECT = EndedObject(state=ObjectState.PROCESSED, reason=None, original_message=None)
_IS_OPEN = attempts.c.state == AttemptState.OPEN.value
_OPEN_AMONG = select(attempts.c.id).where(attempts.c.id.in_(bindparam("named", expanding=True)), _IS_OPEN)
# SKIP LOCKED: a heartbeat never waits for another transaction, such as the commit that ends the attempt.
_LOCKED_AMONG = _OPEN_AMONG.order_by(attempts.c.id).with_for_update(skip_locked=True)
_EXTEND_ALL = (
    update(attempts)
    .values(
        lease_until=DatabaseNow() + bindparam("lease_seconds", type_=attempts.c.lease_until.type),
        heartbeat_seq=attempts.c.heartbeat_seq + 1,
    )
    .where(attempts.c.id.in_(bindparam("named", expanding=True)), _IS_OPEN)
)
_EXTEND = (
    update(attempts)
    .values(
        lease_until=DatabaseNow() + bindparam("lease_seconds", type_=attempts.c.lease_until.type),
        heartbeat_seq=attempts.c.heartbeat_seq + 1,
    )
    .where(attempts.c.id == bindparam("extended"), attempts.c.state == AttemptState.OPEN.value)
)


class Claims:
    """Claim objects for an attempt and extend its lease. Thread-safe."""

    def __init__(self, database: Database, probe: Probe, abandonments: Abandonments) -> None:
        self._database = database
        self._probe = probe
        self._abandonments = abandonments
        self._superseded = SupersededVersions(database)
        self._insert = database.dialect.insert_or_ignore(objects).values(
            # Literals, because a bound constant is processed again for each of thousands of rows.
            state=literal_column(f"'{ObjectState.PROCESSING}'"),
            charged=literal_column("1"),
            refunds=literal_column("0"),
            unattributed_failures=literal_column("0"),
            first_seen_at=DatabaseNow(),
        )

    def claim(
        self,
        pipeline: str,
        candidates: Sequence[Claimable],
        *,
        attempt_id: str,
        worker: str,
        lease_seconds: float,
        on_change: OnChange,
    ) -> ObjectClaims:
        """Claim the free objects among the candidates; see `penstock.ledger.ledger.Ledger.claim`."""
        if not candidates:
            return ObjectClaims(attempt_id=attempt_id, claimed={}, busy={}, ended={})
        named = _named(candidates)
        opening = {
            "in_pipeline": pipeline,
            "fresh": attempt_id,
            "by_worker": storable(worker),
            "lease_seconds": lease_seconds,
        }
        try:
            found = self._insert_new(opening, named, on_change)
            self._probe(Step.OBJECTS_REGISTERED)
            if found.expired:
                self._abandonments.abandon_expired(pipeline, sparing=attempt_id)
            remaining = {id: messages for id, messages in named.items() if id not in found.ours}
            taken = self._take(opening, remaining, on_change, opened=bool(found.ours)) if remaining else _NOTHING
        except PenstockError:
            with suppress(PenstockError):  # if this fails too, the lease expires
                self._abandonments.abandon(
                    attempt_id, reason="claim not completed", outcome="given_back", uncounted=True, unattributed=False
                )
            raise
        new = {id: _new_object(id, named[id][0].original_message) for id in named if id in found.ours}
        claimed = {**new, **taken.claimed} if taken.claimed else new
        next_seq = taken.next_seq if remaining else found.next_seq
        claim = ObjectClaims(
            attempt_id=attempt_id, claimed=claimed, busy=taken.busy, ended=taken.ended, next_seq=next_seq
        )
        if claim.claimed:
            self._probe(Step.ATTEMPT_OPENED)
        return claim

    def extend(
        self, attempt_ids: Sequence[str], *, lease_seconds: float, response_seconds: float | None = None
    ) -> Extension:
        """Extend the leases of these attempts to ``lease_seconds`` from now, in one transaction."""
        named = sorted(set(attempt_ids))

        def extend(connection: Connection) -> Extension:
            is_open = set(connection.scalars(_OPEN_AMONG, {"named": named}))
            ours = list(connection.scalars(_LOCKED_AMONG, {"named": sorted(is_open)})) if is_open else []
            if ours:
                connection.execute(_EXTEND_ALL, {"named": ours, "lease_seconds": lease_seconds})
            return Extension(lost=set(named) - is_open, locked=is_open - set(ours))

        return self._database.for_heartbeats(response_seconds).transact(extend)

    def _insert_new(self, opening: Values, named: Mapping[bytes, Sequence[Claimable]], on_change: OnChange) -> "_Found":
        """Insert and claim the objects that the ledger does not know; ignore the others."""
        ordered = sorted(named)  # neighbours in the index together; the same order in overlapping claims
        sequenced = _may_be_superseded(named)

        def insert_new(connection: Connection) -> _Found:
            expired = connection.execute(EXPIRED_ATTEMPTS, opening).first() is not None
            insert_from(connection, self._insert, ordered, lambda object_id: _new_row(opening, named[object_id]))
            count = connection.execute(_COUNT_INSERTED, opening).scalar_one()
            if not count:
                return _Found(ours=frozenset(), expired=expired)
            ours = frozenset(named) if count == len(named) else frozenset(connection.scalars(_INSERTED, opening))
            archived = frozenset(connection.scalars(_ARCHIVED_OURS, opening))
            if archived:
                _drop_archived(connection, opening, sorted(archived))
            ours -= archived
            if sequenced:
                overtaken, perhaps = _overtaken(connection, opening, ours)
                _take_out(connection, opening, overtaken, _SUPERSEDE)
                # for the second transaction: it may take the later version as well
                _take_out(connection, opening, perhaps, _LEAVE)
                ours -= overtaken | perhaps
            if ours:
                connection.execute(_OPEN, opening)
                connection.execute(_NOTE, opening)
            return _Found(ours=ours, expired=expired, next_seq=_next_seq(connection, opening, on_change))

        return self._database.transact(insert_new)

    def _take(
        self,
        opening: Values,
        named: Mapping[bytes, Sequence[Claimable]],
        on_change: OnChange,
        *,
        opened: bool,
    ) -> ObjectClaims:
        """Take the free objects among those with rows. ``opened``: the attempt already holds objects."""
        first = [wanted_object(id, messages[0].original_message) for id, messages in named.items()]
        holding = {"extended": opening["fresh"], "lease_seconds": opening["lease_seconds"]}
        sequenced = _may_be_superseded(named)

        def take(connection: Connection) -> ObjectClaims:
            # The update locks the attempt: no other transaction can abandon it before this one ends.
            if opened and connection.execute(_EXTEND, holding).rowcount != 1:
                raise TemporaryError(f"attempt {opening['fresh']} was abandoned while it claimed: claim again")
            fill(connection, wanted, first)
            if on_change is OnChange.REPLACE:
                self._superseded.free(connection, opening["in_pipeline"], named)
            restored = revive(connection, opening["in_pipeline"], named)
            taken = connection.execute(_TAKE, opening).rowcount
            archived = set(connection.scalars(ARCHIVED, opening))
            if taken and archived:
                taken -= _drop_archived(connection, opening, sorted(archived))
            if taken:
                renumber(connection, opening, named)
            if taken and sequenced:
                overtaken, _ = _overtaken(connection, opening, named.keys())
                _take_out(connection, opening, overtaken, _SUPERSEDE)
                keep_unread(connection, opening["in_pipeline"], sorted(overtaken))
                taken -= len(overtaken)
            if taken and not opened:
                connection.execute(_OPEN, opening)
            original_messages = record_original_messages(connection, opening, named, restored) if taken else {}
            if taken:
                connection.execute(_NOTE_TAKEN, opening)
            chosen = {id: original_messages.get(id, messages[0].original_message) for id, messages in named.items()}
            found = _read_back(connection, opening, chosen, claimed=taken, archived=archived)
            if on_change is OnChange.REPLACE:
                found = _contested(connection, opening, found)
            reopened = reopened_among_wanted(connection, opening["in_pipeline"]) & found.claimed.keys() if taken else ()
            if reopened:
                found = replace(found, claimed={**found.claimed, **_read_again(found.claimed, reopened)})
                return replace(found, next_seq=_next_seq(connection, opening, OnChange.REPLACE))
            return replace(found, next_seq=_next_seq(connection, opening, on_change))

        return self._database.transact(take)


_NOTHING = ObjectClaims(attempt_id="", claimed={}, busy={}, ended={})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Result of a claim's first transaction."""

    ours: frozenset[bytes]  # new objects, now claimed
    expired: bool  # some attempt of the pipeline has an expired lease
    next_seq: int | None = None  # as in `ObjectClaims`


def _next_seq(connection: Connection, binds: Values, on_change: OnChange) -> int | None:
    if on_change is OnChange.ADD:
        return None
    return int(connection.execute(_NEXT_SEQ, binds).scalar_one_or_none() or 1)


def _named(candidates: Sequence[Claimable]) -> Mapping[bytes, Sequence[Claimable]]:
    """Group the messages by the object that they name, in the given order. Several messages may name one object."""
    singly = {candidate.object_id: (candidate,) for candidate in candidates}
    if len(singly) == len(candidates):  # nearly always; a list for each object would take more memory
        return singly
    named: dict[bytes, list[Claimable]] = {}
    for candidate in candidates:
        named.setdefault(candidate.object_id, []).append(candidate)
    return named


def _new_row(opening: Values, messages: Sequence[Claimable]) -> Values:
    row = new_claimed_object(opening, messages[0])
    if len(messages) > 1:
        sequencer = latest(message.sequencer for message in messages)
        row["sequencer"] = None if sequencer is None else storable(sequencer)
    return row


def _may_be_superseded(named: Mapping[bytes, Sequence[Claimable]]) -> bool:
    return any(
        message.version_id is None and message.sequencer is not None for some in named.values() for message in some
    )


def _drop_archived(connection: Connection, binds: Values, archived: Sequence[bytes]) -> int:
    """Remove archived objects from the claim and delete their new rows; return their count."""
    pages = slices(archived)
    return sum(connection.execute(_DROP_ARCHIVED, {**binds, "of_objects": page}).rowcount for page in pages)


def _overtaken(
    connection: Connection, binds: Values, among_ids: Collection[bytes]
) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """Return the objects superseded by a later version, and those that become so if the later version is taken too."""
    pairs = connection.execute(_SAME_KEY, binds).all()
    later = [row for row in pairs if row.object_id in among_ids and is_later(row.other_sequencer, than=row.sequencer)]
    overtaken = frozenset(row.object_id for row in later if row.other_state in _BEFORE)
    return overtaken, frozenset(row.object_id for row in later) - overtaken


def _take_out(connection: Connection, binds: Values, object_ids: Collection[bytes], how: Update) -> None:
    """Remove objects from the claim; the attempt is not counted."""
    for object_id in sorted(object_ids):
        connection.execute(how, {**binds, "taken_out": object_id})


def _read_back(
    connection: Connection,
    binds: Values,
    original_messages: Mapping[bytes, OriginalMessage],
    *,
    claimed: int,
    archived: set[bytes],
) -> ObjectClaims:
    """Read back from the database which objects this attempt holds, and the state of the others."""
    claimed_rows = connection.execute(_READ_BACK, binds).all() if claimed else []
    ours = [row for row in claimed_rows if row.object_id in original_messages]
    missing = len(original_messages) - len(ours) - len(archived)
    remaining = connection.execute(_NOT_OURS, binds).all() if missing else []
    if len(remaining) < missing:  # some rows moved to the archive after it was queried
        archived = set(connection.scalars(ARCHIVED, binds))
    remaining = [row for row in remaining if row.object_id not in archived]
    ended = {row.object_id: _ended_object(row) for row in remaining if row.state in TERMINAL}
    return ObjectClaims(
        attempt_id=binds["fresh"],
        claimed={row.object_id: _claimed_object(row, original_messages[row.object_id]) for row in ours},
        busy={row.object_id: max(0.0, row.lease_left or 0.0) for row in remaining if row.state not in TERMINAL},
        ended=ended | dict.fromkeys(archived, _ARCHIVED_OBJECT),
    )


def _contested(connection: Connection, binds: Values, found: ObjectClaims) -> ObjectClaims:
    """Return the claim with processed versions as busy while another version of their object is being read."""
    processed = {id for id, ended in found.ended.items() if ended.state is ObjectState.PROCESSED}
    if not processed:
        return found
    contested = contested_versions(connection, binds["in_pipeline"])
    busy = {id: contested[id] for id in processed & contested.keys()}
    ended = {id: one for id, one in found.ended.items() if id not in busy}
    return replace(found, busy={**found.busy, **busy}, ended=ended)


def _new_object(object_id: bytes, original_message: OriginalMessage) -> ClaimedObject:
    return ClaimedObject(object_id=object_id, attempts=1, unattributed_failures=0, original_message=original_message)


def _read_again(claimed: Mapping[bytes, ClaimedObject], reopened: Collection[bytes]) -> Mapping[bytes, ClaimedObject]:
    return {object_id: replace(claimed[object_id], is_reopened=True) for object_id in reopened}


def _claimed_object(row: AnyRow, original_message: OriginalMessage) -> ClaimedObject:
    return ClaimedObject(
        object_id=row.object_id,
        attempts=row.charged - row.refunds,
        unattributed_failures=row.unattributed_failures,
        original_message=original_message,
        missing_seconds=None if row.missing_seconds is None else max(0.0, row.missing_seconds),
    )


def _ended_object(row: AnyRow) -> EndedObject:
    state = ObjectState(row.state)
    return EndedObject(
        state=state, reason=row.reason, original_message=original_message_of(row) if state is ObjectState.DEAD else None
    )
