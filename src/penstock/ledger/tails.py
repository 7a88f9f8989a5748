"""Remember the beginnings of objects. If an object grew, only its appended lines are read (`OnChange.TAIL`).

An address has one beginning: the version that a batch under this rule read last. It is usable only if the attempt that
it names made the object's last batch. So nothing has to remove it if the object is retracted, if another rule adds or
replaces versions, or if a repair withdraws the batch.

A batch with only the appended bytes keeps the rows of the beginning: the batch does not name the object as replaced,
and bad lines of the beginning stay in quarantine.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, Select, bindparam, delete, insert, select

from penstock.ledger.records import Beginning, KnownBeginning, ObjectResult, ObjectState, ReopeningState
from penstock.ledger.rows import AnyRow
from penstock.ledger.rules import storable
from penstock.ledger.schema import batches, beginnings, objects, quarantined, reopenings
from penstock.ledger.sets import insert_from, slices

_digests: BindParameter[Sequence[bytes]] = bindparam("digests", expanding=True)
_of_addresses = (beginnings.c.pipeline == bindparam("in_pipeline")) & beginnings.c.uri_digest.in_(_digests)
_KNOWN = select(beginnings, batches.c.seq).join_from(
    beginnings, batches, batches.c.attempt_id == beginnings.c.attempt_id
)
_KNOWN_OF = _KNOWN.where(_of_addresses)
_awaited = select(reopenings.c.object_id).where(
    reopenings.c.pipeline == beginnings.c.pipeline,
    reopenings.c.uri_digest == beginnings.c.uri_digest,
    reopenings.c.state == ReopeningState.OPEN.value,
    reopenings.c.batch_seq >= batches.c.seq,
)
_USABLE_OF = _KNOWN_OF.where(~_awaited.exists())
_FORGET = delete(beginnings).where(_of_addresses)
_ADD = insert(beginnings)
_ADDRESSES = select(
    objects.c.object_id, objects.c.uri_digest, objects.c.size_bytes, objects.c.version_id, objects.c.etag
).where(objects.c.attempt_id == bindparam("ours"), objects.c.state == bindparam("in_state"))
_own, _last = batches.alias("own"), batches.alias("last")
_CONTINUED = (
    select(quarantined.c.replay_id, beginnings.c.object_bytes, beginnings.c.version_id, beginnings.c.etag)
    .join_from(
        quarantined,
        beginnings,
        (beginnings.c.pipeline == quarantined.c.pipeline) & (beginnings.c.uri_digest == quarantined.c.uri_digest),
    )
    .join(_own, _own.c.attempt_id == quarantined.c.attempt_id)
    .join(_last, _last.c.attempt_id == beginnings.c.attempt_id)
    .where(
        quarantined.c.replay_id.in_(bindparam("replays", expanding=True)),
        quarantined.c.pipeline == bindparam("in_pipeline"),
        quarantined.c.replaced_seq.is_(None),
        _own.c.seq < _last.c.seq,
    )
)
# Recorded for an object that grew and ends within a record: nothing can be appended to it, but its row tells how many
# rows the table has of the object from several batches.
_NO_BEGINNING = Beginning(size_bytes=0, digest="", reading="")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBeginning:
    """A row of ``beginnings``, with the number of the batch that committed its version."""

    known: KnownBeginning
    seq: int


def usable_beginnings(
    connection: Connection, pipeline: str, last_seqs: Mapping[bytes, int]
) -> Mapping[bytes, StoredBeginning]:
    """Return the beginnings that a longer version may be appended to, like `stored_beginnings`.

    Rows that are to be read again are none: the next version is read whole, and replaces them.
    """
    return _found(connection, _USABLE_OF, pipeline, last_seqs)


def stored_beginnings(
    connection: Connection, pipeline: str, last_seqs: Mapping[bytes, int]
) -> Mapping[bytes, StoredBeginning]:
    """Return the usable beginnings, by the digest of the address. ``last_seqs``: the last batch of each object."""
    return _found(connection, _KNOWN_OF, pipeline, last_seqs)


def _found(
    connection: Connection, statement: Select[Any], pipeline: str, last_seqs: Mapping[bytes, int]
) -> Mapping[bytes, StoredBeginning]:
    found: dict[bytes, StoredBeginning] = {}
    for digests in slices(sorted(last_seqs)):
        for row in connection.execute(statement, {"in_pipeline": pipeline, "digests": list(digests)}):
            if row.seq == last_seqs[row.uri_digest]:
                known = KnownBeginning(
                    beginning=Beginning(size_bytes=row.size_bytes, digest=row.digest, reading=row.reading),
                    attempt_id=row.attempt_id,
                    rows=row.rows,
                    lines_quarantined=row.lines_quarantined,
                )
                found[row.uri_digest] = StoredBeginning(known=known, seq=int(row.seq))
    return found


def addresses_of(connection: Connection, attempt_id: str, *, state: ObjectState) -> Mapping[bytes, bytes]:
    """Return the digest of the address of each object that an attempt has in this state, by object id."""
    return {row.object_id: row.uri_digest for row in _versions_of(connection, attempt_id, state=state)}


def _versions_of(connection: Connection, attempt_id: str, *, state: ObjectState) -> Sequence[AnyRow]:
    return connection.execute(_ADDRESSES, {"ours": attempt_id, "in_state": state.value}).all()


def grown_addresses(
    connection: Connection, attempt_id: str, processed: Collection[ObjectResult]
) -> Mapping[bytes, str]:
    """Return which beginning each processed object of an attempt was appended to, by the digest of the address."""
    grown = {one.object_id: one.appended_to for one in processed if one.appended_to is not None}
    if not grown:
        return {}
    addresses = addresses_of(connection, attempt_id, state=ObjectState.PROCESSED)
    return {addresses[id]: base for id, base in grown.items() if id in addresses}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedVersion:
    """The last version of an object that begins with an earlier one."""

    size_bytes: int
    version_id: str | None
    etag: str | None


def continued_versions(
    connection: Connection, pipeline: str, replay_ids: Sequence[bytes]
) -> Mapping[bytes, ContinuedVersion]:
    """Return the last version that begins with the one whose bad lines a replay reads, by the replay's id.

    The lines are in it at the same places: a version that does not begin with the one before it has replaced that one,
    and closed its lines. Versions that were not appended to are left out.
    """
    found: dict[bytes, ContinuedVersion] = {}
    for replays in slices(replay_ids):
        for row in connection.execute(_CONTINUED, {"in_pipeline": pipeline, "replays": list(replays)}):
            found[row.replay_id] = ContinuedVersion(
                size_bytes=row.object_bytes, version_id=row.version_id, etag=row.etag
            )
    return found


def record_beginnings(
    connection: Connection,
    pipeline: str,
    attempt_id: str,
    processed: Collection[ObjectResult],
    *,
    bases: Mapping[bytes, StoredBeginning],
    kept_rows: Mapping[bytes, int],
) -> None:
    """Record the beginnings of a batch's objects inside its commit, in place of those of earlier versions.

    ``bases`` are the beginnings that objects were appended to, and ``kept_rows`` their rows in the table, both by the
    digest of the address. A repair may not know the base of an imported batch, whose rows are in the table anyway.
    """
    recorded = [one for one in processed if one.beginning is not None or one.appended_to is not None]
    if not recorded:
        return
    versions = {row.object_id: row for row in _versions_of(connection, attempt_id, state=ObjectState.PROCESSED)}
    found = {row.uri_digest: (row, one) for one in recorded if (row := versions.get(one.object_id)) is not None}
    rows = [
        _row(pipeline, row, attempt_id, one, base=bases.get(digest), kept_rows=kept_rows.get(digest, 0))
        for digest, (row, one) in sorted(found.items())
    ]
    for digests in slices(sorted(found)):
        connection.execute(_FORGET, {"in_pipeline": pipeline, "digests": list(digests)})
    insert_from(connection, _ADD, rows, lambda row: row)


def _row(
    pipeline: str,
    version: AnyRow,
    attempt_id: str,
    one: ObjectResult,
    *,
    base: StoredBeginning | None,
    kept_rows: int,
) -> dict[str, Any]:
    beginning = one.beginning or _NO_BEGINNING
    grew = one.appended_to is not None
    return {
        "pipeline": pipeline,
        "uri_digest": version.uri_digest,
        "attempt_id": attempt_id,
        "size_bytes": beginning.size_bytes,
        "digest": beginning.digest,
        "reading": storable(beginning.reading),
        "rows": one.rows + (kept_rows if grew else 0),
        "lines_quarantined": one.lines_quarantined + (0 if base is None or not grew else base.known.lines_quarantined),
        "object_bytes": version.size_bytes,
        "version_id": version.version_id,
        "etag": version.etag,
    }
