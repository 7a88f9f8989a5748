"""Order the versions of each object, for pipelines whose table shows one version of it (`OnChange`).

Versions are ordered by the batches that committed them, never by a clock. A commit of an object whose store was checked
before another version was committed is refused (`VersionsMoved`), so that the version committed last is one that the
store had after all others. It replaces their rows, and dismisses their bad lines. For a version that was processed and
then replaced see `penstock.ledger.superseded`.

Versions whose rows moved to the archive are found by their identities there. A replay of bad lines is no version: it
adds rows to its source's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    bindparam,
    case,
    exists,
    func,
    select,
    update,
)

from penstock.errors import VersionsMoved
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import (
    BatchOutcome,
    ObjectState,
    OnChange,
    QuarantineState,
    replaced_objects,
)
from penstock.ledger.schema import archived_objects, attempts, objects, quarantined, wanted
from penstock.ledger.sets import (
    by_attempt_and_uri,
    by_uri,
    in_state,
    is_in,
    is_wanted,
    of_pipeline,
    slices,
)

_version = objects.alias("version")
_archived_version = archived_objects.alias("archived_version")
_archived_seq = func.coalesce(_archived_version.c.batch_seq, 0)  # an unknown batch came before the known ones


def is_no_replay(version: FromClause) -> ColumnElement[bool]:
    """Match objects that are no replays of bad lines."""
    return ~exists().where(quarantined.c.replay_id == version.c.object_id, quarantined.c.pipeline == version.c.pipeline)


def _of_one_object(mine: FromClause, other: FromClause) -> ColumnElement[bool]:
    """Match two versions of an object. The archive identifies an object by the digest of its uri."""
    found = (
        (other.c.uri_digest == mine.c.uri_digest)
        & (other.c.pipeline == mine.c.pipeline)
        & (other.c.object_id != mine.c.object_id)
        & is_no_replay(other)
    )
    if "key" in mine.c and "key" in other.c:
        return found & (other.c.bucket == mine.c.bucket) & (other.c.key == mine.c.key)
    return found


def _among_wanted(statement: Select[Any]) -> Select[Any]:
    return statement.where(
        of_pipeline(archived_objects), is_in(archived_objects.c.object_id, of=select(wanted.c.object_id))
    )


_mine = select(objects.c.object_id).distinct().where(is_wanted(), is_no_replay(objects))
_CHANGED = (
    by_uri(_mine, _version).where(_of_one_object(objects, _version), _version.c.batch_seq.is_not(None)),
    _mine.where(_of_one_object(objects, _archived_version)),
)


def _superseded_in(processed: Select[Any], archived: Select[Any]) -> tuple[tuple[Select[Any], ...], ...]:
    """Return the statements that find superseded versions among processed objects, and among archived ones."""
    archived_seq = func.coalesce(archived_objects.c.batch_seq, 0)
    return (
        (
            by_uri(processed, _version).where(
                _of_one_object(objects, _version), _version.c.batch_seq > objects.c.batch_seq
            ),
            processed.where(_of_one_object(objects, _archived_version), _archived_seq > objects.c.batch_seq),
        ),
        (
            by_uri(archived, _version).where(
                _of_one_object(archived_objects, _version), _version.c.batch_seq > archived_seq
            ),
            archived.where(_of_one_object(archived_objects, _archived_version), _archived_seq > archived_seq),
        ),
    )


SUPERSEDED, SUPERSEDED_ARCHIVED = _superseded_in(
    _mine.where(in_state(ObjectState.PROCESSED)),
    _among_wanted(select(archived_objects.c.object_id).distinct()).where(is_no_replay(archived_objects)),
)


def _in_range(table: FromClause) -> Select[Any]:
    return (
        select(table.c.object_id)
        .distinct()
        .where(
            table.c.pipeline == bindparam("in_pipeline"),
            table.c.object_id.between(bindparam("first_id"), bindparam("last_id")),
            is_no_replay(table),
        )
    )


_SUPERSEDED_IN_RANGE = _superseded_in(
    _in_range(objects).where(objects.c.state == ObjectState.PROCESSED.value), _in_range(archived_objects)
)


_LEASE_LEFT = (attempts.c.lease_until - DatabaseNow()).label("lease_left")


def _beside_another(mine: FromClause) -> Select[Any]:
    """Return the statement that finds versions of which another one is being read, with the lease of its attempt."""
    return select(mine.c.object_id, _LEASE_LEFT).where(
        is_no_replay(mine),
        _of_one_object(mine, _version),
        _version.c.state == ObjectState.PROCESSING.value,
        attempts.c.id == _version.c.attempt_id,
    )


_BESIDE_ANOTHER = (
    by_uri(_beside_another(objects).where(is_wanted(), in_state(ObjectState.PROCESSED)), _version),
    by_uri(_among_wanted(_beside_another(archived_objects)), _version),
)


def changed_versions(connection: Connection, pipeline: str) -> set[bytes]:
    """Return those of ``wanted``, which have rows, of which another version is processed."""
    return found_by(connection, pipeline, _CHANGED)


def superseded_versions(connection: Connection, pipeline: str) -> set[bytes]:
    """Return those of ``wanted`` that are processed and of which another version was committed later."""
    return found_by(connection, pipeline, (*SUPERSEDED, *SUPERSEDED_ARCHIVED))


def contested_versions(connection: Connection, pipeline: str) -> Mapping[bytes, float]:
    """Return those of ``wanted`` that are processed, but may be replaced by what is being read, or just were.

    Each with the seconds until the lease of the other attempt ends. A message that names such a version must wait: if
    the other one is committed, the version counts as replaced, and the store may have it as its current one again.
    """
    binds = {"in_pipeline": pipeline}
    found: dict[bytes, float] = {}
    for statement in _BESIDE_ANOTHER:
        for row in connection.execute(statement, binds):
            found[row.object_id] = max(0.0, row.lease_left, found.get(row.object_id, 0.0))
    # Those first: a version that is committed between the two statements is found by the second.
    return dict.fromkeys(superseded_versions(connection, pipeline), 0.0) | found


def superseded_between(connection: Connection, pipeline: str, first_id: bytes, last_id: bytes) -> set[bytes]:
    """Return the superseded versions among all processed objects with ids in this range."""
    binds = {"in_pipeline": pipeline, "first_id": first_id, "last_id": last_id}
    statements = (statement for pair in _SUPERSEDED_IN_RANGE for statement in pair)
    return {object_id for statement in statements for object_id in connection.scalars(statement, binds)}


def found_by(connection: Connection, pipeline: str, statements: Sequence[Select[Any]]) -> set[bytes]:
    """Return the ids that these statements find, with the objects in ``wanted``."""
    binds = {"in_pipeline": pipeline}
    return {object_id for statement in statements for object_id in connection.scalars(statement, binds)}


_processed_now = (
    (objects.c.attempt_id == bindparam("ours"))
    & (objects.c.state == ObjectState.PROCESSED.value)
    & is_no_replay(objects)
)
_VERSIONS = (
    by_attempt_and_uri(
        select(
            objects.c.uri_digest,
            func.min(objects.c.uri).label("uri"),
            func.max(_version.c.batch_seq).label("last_seq"),
        ),
        _version,
    )
    .where(
        _processed_now,
        _of_one_object(objects, _version),
        _version.c.batch_seq <= bindparam("up_to_seq"),
    )
    .group_by(objects.c.uri_digest)
)
_ARCHIVED_VERSIONS = (
    by_attempt_and_uri(
        select(
            objects.c.uri_digest,
            func.min(objects.c.uri).label("uri"),
            func.max(_archived_seq).label("last_seq"),
        ),
        _archived_version,
        index="ix_archived_objects_uri",
    )
    .where(_processed_now, _of_one_object(objects, _archived_version))
    .group_by(objects.c.uri_digest)
)
_digests: BindParameter[bytes] = bindparam("digests", expanding=True)
_ROWS = select(objects.c.uri_digest, objects.c.batch_seq, objects.c.rows).where(
    objects.c.uri_digest.in_(_digests),
    objects.c.pipeline == bindparam("in_pipeline"),
    objects.c.batch_seq >= bindparam("from_seq"),
    objects.c.batch_seq < bindparam("before_seq"),
)
_archived_batch = func.coalesce(archived_objects.c.batch_seq, 0)
_ARCHIVED_ROWS = select(
    archived_objects.c.uri_digest, _archived_batch.label("batch_seq"), archived_objects.c.rows
).where(
    archived_objects.c.uri_digest.in_(_digests),
    archived_objects.c.pipeline == bindparam("in_pipeline"),
    _archived_batch >= bindparam("from_seq"),
    _archived_batch < bindparam("before_seq"),
)
_DISMISS_LINES = (
    update(quarantined)
    .values(
        state=case(
            (quarantined.c.state == QuarantineState.OPEN.value, QuarantineState.DISMISSED.value),
            else_=quarantined.c.state,
        ),
        ended_at=func.coalesce(quarantined.c.ended_at, DatabaseNow()),
        replaced_seq=bindparam("by_seq", type_=quarantined.c.replaced_seq.type),
    )
    .where(
        quarantined.c.uri_digest.in_(_digests),
        quarantined.c.pipeline == bindparam("in_pipeline"),
        quarantined.c.attempt_id != bindparam("ours"),
        quarantined.c.replaced_seq.is_(None),
    )
)
_READABLE = select(func.count()).where(
    quarantined.c.pipeline == bindparam("in_pipeline"),
    quarantined.c.replay_id.in_(bindparam("replays", expanding=True)),
    quarantined.c.replaced_seq.is_(None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierVersions:
    """The earlier versions of a batch's objects, by the digest of the object's address."""

    addresses: Mapping[bytes, str]
    last_seqs: Mapping[bytes, int]  # the batch that committed the latest one; 0: unknown

    @property
    def last_seq(self) -> int | None:
        return max(self.last_seqs.values(), default=None)

    def encoded(self, replaces: str) -> str:
        """Return the addresses, and those in ``replaces``, as `BatchRecord.replaces`."""
        addresses = {*self.addresses.values(), *replaced_objects(replaces)}
        return json.dumps(sorted(addresses), separators=(",", ":")) if addresses else ""


def replace_earlier(connection: Connection, outcome: BatchOutcome, *, seq: int) -> tuple[BatchOutcome, int | None]:
    """Replace the earlier versions of a batch's objects, inside its commit, after its objects are recorded.

    Returns the outcome with the addresses in its record, and the number of rows that the latest versions had; None if
    the pipeline adds versions. Raises `VersionsMoved` if one was committed since the claim.
    """
    if outcome.on_change is OnChange.ADD:
        return outcome, None
    if outcome.since_seq is None:
        raise ValueError(f"attempt {outcome.attempt_id}: a commit with on_change={outcome.on_change} needs since_seq")
    found = earlier_versions(connection, outcome.pipeline, outcome.attempt_id, up_to_seq=seq)
    since_seq = 0 if outcome.on_change is OnChange.REFUSE else outcome.since_seq
    if found.last_seq is not None and found.last_seq >= since_seq:
        moved = next(found.addresses[id] for id, last_seq in found.last_seqs.items() if last_seq >= since_seq)
        raise VersionsMoved(f"another version of {moved} was committed since the claim: claim it again")
    replaced_rows = supersede(connection, outcome.pipeline, outcome.attempt_id, found, seq=seq)
    _check_replays(connection, outcome)
    replaces = found.encoded(outcome.record.replaces)
    return replace(outcome, record=replace(outcome.record, replaces=replaces)), replaced_rows


def earlier_versions(connection: Connection, pipeline: str, attempt_id: str, *, up_to_seq: int) -> EarlierVersions:
    """Return the other versions of an attempt's processed objects that were committed up to this batch."""
    binds = {"in_pipeline": pipeline, "ours": attempt_id, "up_to_seq": up_to_seq}
    addresses: dict[bytes, str] = {}
    last_seqs: dict[bytes, int] = {}
    for statement in (_VERSIONS, _ARCHIVED_VERSIONS):
        for row in connection.execute(statement, binds):
            addresses[row.uri_digest] = row.uri
            last_seqs[row.uri_digest] = max(int(row.last_seq), last_seqs.get(row.uri_digest, 0))
    return EarlierVersions(addresses=addresses, last_seqs=last_seqs)


def supersede(connection: Connection, pipeline: str, attempt_id: str, found: EarlierVersions, *, seq: int) -> int:
    """Dismiss the bad lines of versions that this batch replaces; return the number of rows that leave the table."""
    rows = 0
    for digests in slices(sorted(found.addresses)):
        binds = {
            "in_pipeline": pipeline,
            "ours": attempt_id,
            "digests": list(digests),
            "from_seq": min(found.last_seqs[digest] for digest in digests),
            "before_seq": seq,
            "by_seq": seq,
        }
        for statement in (_ROWS, _ARCHIVED_ROWS):
            rows += sum(
                row.rows or 0
                for row in connection.execute(statement, binds)
                if row.batch_seq >= found.last_seqs[row.uri_digest]  # with those of its replays
            )
        connection.execute(_DISMISS_LINES, binds)
    return rows


def _check_replays(connection: Connection, outcome: BatchOutcome) -> None:
    for replays in slices(outcome.replays):
        binds = {"in_pipeline": outcome.pipeline, "replays": list(replays)}
        if connection.execute(_READABLE, binds).scalar_one() != len(replays):
            raise VersionsMoved("bad lines were read again of a version that was replaced meanwhile: claim them again")
