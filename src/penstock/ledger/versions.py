"""Order the versions of each object, for pipelines whose table shows one version of it (`OnChange`).

Versions are ordered by the batches that committed them, never by a clock. A commit of an object whose store was checked
before another version was committed is refused (`VersionsMoved`), so that the version committed last is one that the
store had after all others. It replaces their rows, and dismisses their bad lines. For a version that was processed and
then replaced see `penstock.ledger.superseded`.

Versions whose rows moved to the archive are found by their identities there. A replay of bad lines is no version: it
adds rows to its source's.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    bindparam,
    case,
    func,
    select,
    update,
)

from penstock.errors import VersionsMoved
from penstock.ledger.addresses import is_no_replay, withdrawn_addresses
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import (
    BatchOutcome,
    KnownBeginning,
    ObjectState,
    OnChange,
    QuarantineState,
    replaced_objects,
)
from penstock.ledger.rows import AnyRow
from penstock.ledger.schema import archived_objects, attempts, batches, objects, quarantined, reopenings, wanted
from penstock.ledger.sets import (
    by_attempt_and_uri,
    by_uri,
    filtered,
    grouped,
    in_state,
    is_in,
    is_wanted,
    of_pipeline,
    slices,
)
from penstock.ledger.tails import (
    StoredBeginning,
    addresses_of,
    grown_addresses,
    record_beginnings,
    stored_beginnings,
    usable_beginnings,
)

_version = objects.alias("version")
_archived_version = archived_objects.alias("archived_version")
_ARCHIVED_URI = "ix_archived_objects_uri"
_archived_seq = func.coalesce(_archived_version.c.batch_seq, 0)  # an unknown batch came before the known ones


def _of_one_object(mine: FromClause, other: FromClause) -> ColumnElement[bool]:
    """Match two versions of an object. The archive identifies an object by the digest of its uri."""
    found = (
        (other.c.uri_digest == mine.c.uri_digest)
        & (filtered(other.c.pipeline) == mine.c.pipeline)
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


def _by_archived_uri(statement: Select[Any]) -> Select[Any]:
    return by_uri(statement, _archived_version, index=_ARCHIVED_URI)


_mine = select(objects.c.object_id).distinct().where(is_wanted(), is_no_replay(objects))
_CHANGED = (
    by_uri(_mine, _version).where(_of_one_object(objects, _version), _version.c.batch_seq.is_not(None)),
    _by_archived_uri(_mine).where(_of_one_object(objects, _archived_version)),
)


_ANY_SEQ = 1 << 62
_before_seq: BindParameter[int] = bindparam("before_seq", value=_ANY_SEQ, type_=BigInteger)  # by default any batch


def _superseded_in(processed: Select[Any], archived: Select[Any]) -> tuple[tuple[Select[Any], ...], ...]:
    """Return the statements that find superseded versions among processed objects, and among archived ones."""
    archived_seq = func.coalesce(archived_objects.c.batch_seq, 0)
    later, later_archived = _version.c.batch_seq, _archived_seq
    return (
        (
            by_uri(processed, _version).where(
                _of_one_object(objects, _version), later > objects.c.batch_seq, later < _before_seq
            ),
            _by_archived_uri(processed).where(
                _of_one_object(objects, _archived_version),
                later_archived > objects.c.batch_seq,
                later_archived < _before_seq,
            ),
        ),
        (
            by_uri(archived, _version).where(
                _of_one_object(archived_objects, _version), later > archived_seq, later < _before_seq
            ),
            _by_archived_uri(archived).where(
                _of_one_object(archived_objects, _archived_version),
                later_archived > archived_seq,
                later_archived < _before_seq,
            ),
        ),
    )


SUPERSEDED, SUPERSEDED_ARCHIVED = _superseded_in(
    _mine.where(in_state(ObjectState.PROCESSED)),
    _among_wanted(select(archived_objects.c.object_id).distinct()).where(is_no_replay(archived_objects)),
)


_OVERTAKEN, _ = _superseded_in(
    _mine.where(in_state(ObjectState.PROCESSING)), _among_wanted(select(archived_objects.c.object_id).distinct())
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


def overtaken_readings(connection: Connection, pipeline: str) -> set[bytes]:
    """Return the objects in ``wanted`` that are read again, but that a version committed later has overtaken."""
    return found_by(connection, pipeline, _OVERTAKEN)


def superseded_versions(connection: Connection, pipeline: str, *, seen_at: float | None = None) -> set[bytes]:
    """Return those of ``wanted`` that are processed and of which another version was committed later.

    With ``seen_at`` (epoch seconds) only commits before it count: an object that existed then may have changed since.
    """
    binds = {} if seen_at is None else {"before_seq": _first_seq_since(connection, pipeline, seen_at)}
    return found_by(connection, pipeline, (*SUPERSEDED, *SUPERSEDED_ARCHIVED), **binds)


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


def superseded_between(
    connection: Connection, pipeline: str, first_id: bytes, last_id: bytes, *, seen_at: float
) -> set[bytes]:
    """Return the superseded versions among all processed objects with ids in this range. ``seen_at``: as above."""
    before_seq = _first_seq_since(connection, pipeline, seen_at)
    statements = [statement for pair in _SUPERSEDED_IN_RANGE for statement in pair]
    return found_by(connection, pipeline, statements, first_id=first_id, last_id=last_id, before_seq=before_seq)


def found_by(connection: Connection, pipeline: str, statements: Sequence[Select[Any]], **more: object) -> set[bytes]:
    """Return the ids that these statements find, with the objects in ``wanted`` and these parameters."""
    binds = {"in_pipeline": pipeline, **more}
    return {object_id for statement in statements for object_id in connection.scalars(statement, binds)}


_LAST_BEFORE = (
    select(batches.c.seq)
    .where(
        batches.c.pipeline == bindparam("in_pipeline"),
        batches.c.committed_at < bindparam("seen_at", type_=batches.c.committed_at.type),
    )
    .order_by(batches.c.seq.desc())
    .limit(1)
)


def _first_seq_since(connection: Connection, pipeline: str, seen_at: float) -> int:
    last = connection.execute(_LAST_BEFORE, {"in_pipeline": pipeline, "seen_at": seen_at}).scalar_one_or_none()
    return 0 if last is None else int(last) + 1


_replacing = (
    select(func.count())
    .select_from(batches)
    .where(
        batches.c.pipeline == _version.c.pipeline,
        batches.c.seq == _version.c.batch_seq,
        batches.c.replaced_rows.is_not(None),
    )
)
_REPLACED = by_uri(_mine.where(in_state(ObjectState.PROCESSED)), _version).where(
    _of_one_object(objects, _version),
    _version.c.batch_seq > objects.c.batch_seq,
    _replacing.scalar_subquery() == 1,
)


def replaced_versions(connection: Connection, pipeline: str) -> set[bytes]:
    """Return those of ``wanted`` that are processed, and whose rows a later version's batch took out of the table."""
    return found_by(connection, pipeline, (_REPLACED,))


_processed_now = (
    (objects.c.attempt_id == bindparam("ours"))
    & (objects.c.state == bindparam("in_state", value=ObjectState.PROCESSED.value))
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
    .group_by(grouped(objects.c.uri_digest))
)
_ARCHIVED_VERSIONS = (
    by_attempt_and_uri(
        select(
            objects.c.uri_digest,
            func.min(objects.c.uri).label("uri"),
            func.max(_archived_seq).label("last_seq"),
        ),
        _archived_version,
        index=_ARCHIVED_URI,
    )
    .where(_processed_now, _of_one_object(objects, _archived_version), _archived_seq <= bindparam("up_to_seq"))
    .group_by(grouped(objects.c.uri_digest))
)
# The earlier readings of objects that the attempt has read again: such an object has only its new batch in its row.
_EARLIER_READINGS = (
    select(
        reopenings.c.uri_digest,
        reopenings.c.uri,
        reopenings.c.batch_seq.label("seq"),
        reopenings.c.rows,
        batches.c.replaced_rows.is_not(None).label("replaced"),
    )
    .outerjoin_from(
        reopenings, batches, (batches.c.pipeline == reopenings.c.pipeline) & (batches.c.seq == reopenings.c.batch_seq)
    )
    .where(
        reopenings.c.read_attempt_id == bindparam("ours"),
        reopenings.c.pipeline == bindparam("in_pipeline"),
        reopenings.c.batch_seq <= bindparam("up_to_seq"),
    )
)
_digests: BindParameter[bytes] = bindparam("digests", expanding=True)


def _rows_of(table: FromClause, seq: ColumnElement[int]) -> Select[Any]:
    """Return the statement for the rows of all versions and replays of these addresses, in a range of batches."""
    return (
        select(
            table.c.uri_digest,
            seq.label("seq"),
            table.c.rows,
            (batches.c.replaced_rows.is_not(None) & is_no_replay(table)).label("replaced"),
        )
        .outerjoin_from(table, batches, (batches.c.pipeline == table.c.pipeline) & (batches.c.seq == table.c.batch_seq))
        .where(
            table.c.uri_digest.in_(_digests),
            filtered(table.c.pipeline) == bindparam("in_pipeline"),
            seq >= bindparam("from_seq"),
            seq < bindparam("before_seq"),
        )
    )


_ROWS = (
    _rows_of(objects, func.coalesce(objects.c.batch_seq, 0)),  # 0: freed, see `penstock.ledger.superseded`
    _rows_of(archived_objects, func.coalesce(archived_objects.c.batch_seq, 0)),
)
_REPLACING = select(batches.c.seq).where(
    batches.c.pipeline == bindparam("in_pipeline"),
    batches.c.seq.in_(bindparam("seqs", expanding=True)),
    batches.c.replaced_rows.is_not(None),
)
_later = select(func.count()).where(
    batches.c.attempt_id == quarantined.c.attempt_id, batches.c.seq >= bindparam("by_seq", type_=batches.c.seq.type)
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
        _later.scalar_subquery() == 0,  # only a repair finds some
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
    readings: Sequence[AnyRow] = ()  # of the batch's own objects that it has read again, like rows of `_ROWS`

    @property
    def last_seq(self) -> int | None:
        return max(self.last_seqs.values(), default=None)

    def encoded(self, replaces: str, more: Collection[str] = ()) -> str:
        """Return the addresses, ``more``, and those in ``replaces``, as `BatchRecord.replaces`."""
        addresses = {*self.addresses.values(), *more, *replaced_objects(replaces)}
        return json.dumps(sorted(addresses), separators=(",", ":")) if addresses else ""

    def only(self, digests: Collection[bytes]) -> "EarlierVersions":
        """Return the earlier versions of these objects."""
        return self.without(self.last_seqs.keys() - set(digests))

    def without(self, digests: Collection[bytes]) -> "EarlierVersions":
        """Return the earlier versions of the other objects."""
        return EarlierVersions(
            addresses={digest: uri for digest, uri in self.addresses.items() if digest not in digests},
            last_seqs={digest: seq for digest, seq in self.last_seqs.items() if digest not in digests},
            readings=[row for row in self.readings if row.uri_digest not in digests],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedRows:
    """The effect of a commit on the rows that the table has of earlier versions of the batch's objects."""

    replaced_objects: int = 0
    replaced_rows: int | None = None  # that leave the table; None: the pipeline adds versions
    kept_rows: int = 0  # of objects of which the batch has only appended lines


def replace_earlier(connection: Connection, outcome: BatchOutcome, *, seq: int) -> tuple[BatchOutcome, ReplacedRows]:
    """Replace the earlier versions of a batch's objects, inside its commit, after its objects are recorded.

    The rows of objects that grew stay. Returns the outcome with the replaced addresses in its record, and the number of
    rows. Raises `VersionsMoved` if a version was committed since the claim, or if a replay's lines left the table.
    """
    if outcome.on_change is OnChange.ADD:
        _check_replays(connection, outcome)
        return outcome, ReplacedRows()
    if outcome.since_seq is None:
        raise ValueError(f"attempt {outcome.attempt_id}: a commit with on_change={outcome.on_change} needs since_seq")
    found = earlier_versions(connection, outcome.pipeline, outcome.attempt_id, up_to_seq=seq)
    since_seq = 0 if outcome.on_change is OnChange.REFUSE else outcome.since_seq
    if found.last_seq is not None and found.last_seq >= since_seq:
        moved = next(found.addresses[id] for id, last_seq in found.last_seqs.items() if last_seq >= since_seq)
        raise VersionsMoved(f"another version of {moved} was committed since the claim: claim it again")
    bases = _bases(connection, outcome, found)
    kept = count_rows(connection, outcome.pipeline, found.only(bases), seq=seq)
    left = found.without(bases)
    replaced_rows = supersede(connection, outcome.pipeline, outcome.attempt_id, left, seq=seq)
    _check_replays(connection, outcome)  # their versions may be replaced by this very batch
    record_beginnings(connection, outcome.pipeline, outcome.attempt_id, outcome.processed, bases=bases, kept_rows=kept)
    withdrawn = withdrawn_addresses(connection, outcome) - {found.addresses[digest] for digest in bases}
    replaces = left.encoded(outcome.record.replaces, withdrawn)
    rows = ReplacedRows(
        replaced_objects=len(replaced_objects(replaces)), replaced_rows=replaced_rows, kept_rows=sum(kept.values())
    )
    return replace(outcome, record=replace(outcome.record, replaces=replaces)), rows


def _bases(connection: Connection, outcome: BatchOutcome, found: EarlierVersions) -> Mapping[bytes, StoredBeginning]:
    """Return the beginnings that the batch's objects were appended to, by the digest of the address.

    Raises `VersionsMoved` if the table has another version of one by now, which the batch's rows do not continue.
    """
    expected = grown_addresses(connection, outcome.attempt_id, outcome.processed)
    if not expected:
        return {}
    last_seqs = {digest: found.last_seqs[digest] for digest in expected if digest in found.last_seqs}
    bases = usable_beginnings(connection, outcome.pipeline, last_seqs)
    if any(digest not in bases or bases[digest].known.attempt_id != base for digest, base in expected.items()):
        raise VersionsMoved("the beginning of an object that grew left the table meanwhile: claim it again")
    return bases


def beginnings_for(connection: Connection, pipeline: str, attempt_id: str) -> Mapping[bytes, KnownBeginning]:
    """Return the beginnings that the table has of the objects that an attempt holds, by object id."""
    held = ObjectState.PROCESSING
    found = earlier_versions(connection, pipeline, attempt_id, up_to_seq=_ANY_SEQ, state=held)
    stored = usable_beginnings(connection, pipeline, found.last_seqs)
    if not stored:
        return {}
    addresses = addresses_of(connection, attempt_id, state=held)
    known = {id: stored[digest].known for id, digest in addresses.items() if digest in stored}
    return {id: one for id, one in known.items() if one.beginning.size_bytes}


def earlier_versions(
    connection: Connection,
    pipeline: str,
    attempt_id: str,
    *,
    up_to_seq: int,
    state: ObjectState = ObjectState.PROCESSED,
) -> EarlierVersions:
    """Return the other versions of an attempt's objects, in this state, that were committed up to this batch."""
    binds = {"in_pipeline": pipeline, "ours": attempt_id, "up_to_seq": up_to_seq, "in_state": state.value}
    addresses: dict[bytes, str] = {}
    last_seqs: dict[bytes, int] = {}
    for statement in (_VERSIONS, _ARCHIVED_VERSIONS):
        for row in connection.execute(statement, binds):
            addresses[row.uri_digest] = row.uri
            last_seqs[row.uri_digest] = max(int(row.last_seq), last_seqs.get(row.uri_digest, 0))
    readings = connection.execute(_EARLIER_READINGS, binds).all()
    for row in readings:
        addresses[row.uri_digest] = row.uri
        last_seqs[row.uri_digest] = max(int(row.seq), last_seqs.get(row.uri_digest, 0))
    return EarlierVersions(addresses=addresses, last_seqs=last_seqs, readings=readings)


def supersede(connection: Connection, pipeline: str, attempt_id: str, found: EarlierVersions, *, seq: int) -> int:
    """Dismiss the bad lines of versions that this batch replaces; return the number of rows that leave the table."""
    binds = {"in_pipeline": pipeline, "ours": attempt_id, "by_seq": seq}
    for digests in slices(sorted(found.addresses)):
        connection.execute(_DISMISS_LINES, {**binds, "digests": list(digests)})
    return sum(count_rows(connection, pipeline, found, seq=seq).values())


def count_rows(connection: Connection, pipeline: str, found: EarlierVersions, *, seq: int) -> Mapping[bytes, int]:
    """Return the number of rows that the table has of each of these objects before this batch.

    These are the rows of the last version that replaced those before it, of versions that were added to it, and of
    replays since then. It is nearly always the last version of all. The rows of one that was appended to others are
    recorded with its beginning.
    """
    if not found.last_seqs:
        return {}
    replacing: set[int] = set()
    for seqs in slices(sorted(set(found.last_seqs.values()))):
        replacing.update(connection.scalars(_REPLACING, {"in_pipeline": pipeline, "seqs": list(seqs)}))
    last = [digest for digest, last_seq in found.last_seqs.items() if last_seq in replacing]
    added = [digest for digest, last_seq in found.last_seqs.items() if last_seq not in replacing]
    rows: defaultdict[bytes, list[AnyRow]] = defaultdict(list)
    for reading in found.readings:
        rows[reading.uri_digest].append(reading)
    for of_objects, from_seq in ((last, lambda digest: found.last_seqs[digest]), (added, lambda _: 0)):
        for digests in slices(sorted(of_objects)):
            binds = {
                "in_pipeline": pipeline,
                "digests": list(digests),
                "from_seq": min(map(from_seq, digests)),
                "before_seq": seq,
            }
            for row in (row for statement in _ROWS for row in connection.execute(statement, binds)):
                rows[row.uri_digest].append(row)
    stored = stored_beginnings(connection, pipeline, found.last_seqs)
    return {digest: _count_shown(versions, stored.get(digest)) for digest, versions in rows.items()}


def _count_shown(versions: Sequence[AnyRow], beginning: StoredBeginning | None) -> int:
    """Return how many rows of one object the table has: a version that replaced those before it took theirs out."""
    if beginning is not None:
        return beginning.known.rows + sum(row.rows or 0 for row in versions if row.seq > beginning.seq)
    since_seq = max((row.seq for row in versions if row.replaced), default=0)
    return sum(row.rows or 0 for row in versions if row.seq >= since_seq)


def _check_replays(connection: Connection, outcome: BatchOutcome) -> None:
    for replays in slices(outcome.replays):
        binds = {"in_pipeline": outcome.pipeline, "replays": list(replays)}
        if connection.execute(_READABLE, binds).scalar_one() != len(replays):
            raise VersionsMoved(
                "bad lines were read again of a version whose rows left the table meanwhile: claim them again"
            )
