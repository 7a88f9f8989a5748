"""Remember the beginnings of objects, so that of one that grew only what was appended is read (`OnChange.TAIL`).

There is one beginning per address: that of the version that a batch read last under this rule. It is of use as long as
no other version was committed since: it names its attempt, which has to be that of the object's last batch. So nothing
has to remove it when the object is retracted, or its versions are added or replaced under another rule; a repair that
withdraws the batch leaves one behind that no batch has any more.

A batch with only the appended bytes keeps the rows of the beginning: its object is not among those that it replaces,
and the bad lines of the beginning stay in quarantine.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, delete, insert, select

from penstock.ledger.records import Beginning, KnownBeginning, ObjectResult, ObjectState
from penstock.ledger.rules import storable
from penstock.ledger.schema import batches, beginnings, objects
from penstock.ledger.sets import insert_from, slices

_digests: BindParameter[Sequence[bytes]] = bindparam("digests", expanding=True)
_of_addresses = (beginnings.c.pipeline == bindparam("in_pipeline")) & beginnings.c.uri_digest.in_(_digests)
_KNOWN = select(beginnings, batches.c.seq).join_from(
    beginnings, batches, batches.c.attempt_id == beginnings.c.attempt_id
)
_KNOWN_OF = _KNOWN.where(_of_addresses)
_FORGET = delete(beginnings).where(_of_addresses)
_ADD = insert(beginnings)
_ADDRESSES = select(objects.c.object_id, objects.c.uri_digest).where(
    objects.c.attempt_id == bindparam("ours"), objects.c.state == bindparam("in_state")
)


# Of an object that grew and ends within a record: nothing can be appended to it, but the rows that the table has of it
# are those of several batches.
_NO_BEGINNING = Beginning(size_bytes=0, digest="", reading="")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBeginning:
    """A row of ``beginnings``, with the number of the batch that committed its version."""

    known: KnownBeginning
    seq: int
    whole_attempt_id: str


def stored_beginnings(
    connection: Connection, pipeline: str, last_seqs: Mapping[bytes, int]
) -> Mapping[bytes, StoredBeginning]:
    """Return the beginnings of use, by the digest of the address. ``last_seqs``: the last batch of each object."""
    found: dict[bytes, StoredBeginning] = {}
    for digests in slices(sorted(last_seqs)):
        for row in connection.execute(_KNOWN_OF, {"in_pipeline": pipeline, "digests": list(digests)}):
            if row.seq == last_seqs[row.uri_digest]:
                known = KnownBeginning(
                    beginning=Beginning(size_bytes=row.size_bytes, digest=row.digest, reading=row.reading),
                    attempt_id=row.attempt_id,
                    rows=row.rows,
                    lines_quarantined=row.lines_quarantined,
                )
                found[row.uri_digest] = StoredBeginning(
                    known=known, seq=int(row.seq), whole_attempt_id=row.whole_attempt_id
                )
    return found


def addresses_of(connection: Connection, attempt_id: str, *, state: ObjectState) -> Mapping[bytes, bytes]:
    """Return the digest of the address of each object that an attempt has in this state, by object id."""
    rows = connection.execute(_ADDRESSES, {"ours": attempt_id, "in_state": state.value})
    return {row.object_id: row.uri_digest for row in rows}


def grown_addresses(
    connection: Connection, attempt_id: str, processed: Collection[ObjectResult]
) -> Mapping[bytes, str]:
    """Return which beginning each processed object of an attempt was appended to, by the digest of the address."""
    grown = {one.object_id: one.appended_to for one in processed if one.appended_to is not None}
    if not grown:
        return {}
    addresses = addresses_of(connection, attempt_id, state=ObjectState.PROCESSED)
    return {addresses[id]: base for id, base in grown.items() if id in addresses}


def record_beginnings(
    connection: Connection,
    pipeline: str,
    attempt_id: str,
    processed: Collection[ObjectResult],
    *,
    bases: Mapping[bytes, StoredBeginning],
    kept_rows: Mapping[bytes, int],
) -> None:
    """Record the beginnings of a batch's objects inside its commit, in the place of those of their earlier versions.

    ``bases`` are those that objects were appended to, ``kept_rows`` the rows that the table has of these; both by the
    digest of the address.
    """
    recorded = [one for one in processed if one.beginning is not None or one.appended_to is not None]
    if not recorded:
        return
    addresses = addresses_of(connection, attempt_id, state=ObjectState.PROCESSED)
    found = {addresses[one.object_id]: one for one in recorded if one.object_id in addresses}
    rows = [
        _row(pipeline, attempt_id, digest, one, base=bases.get(digest), kept_rows=kept_rows.get(digest, 0))
        for digest, one in sorted(found.items())
        if one.appended_to is None or digest in bases
    ]
    for digests in slices(sorted(found)):
        connection.execute(_FORGET, {"in_pipeline": pipeline, "digests": list(digests)})
    insert_from(connection, _ADD, rows, lambda row: row)


def _row(
    pipeline: str,
    attempt_id: str,
    digest: bytes,
    one: ObjectResult,
    *,
    base: StoredBeginning | None,
    kept_rows: int,
) -> dict[str, Any]:
    beginning = one.beginning or _NO_BEGINNING
    grown = base if one.appended_to is not None else None
    return {
        "pipeline": pipeline,
        "uri_digest": digest,
        "attempt_id": attempt_id,
        "size_bytes": beginning.size_bytes,
        "digest": beginning.digest,
        "reading": storable(beginning.reading),
        "rows": one.rows + (kept_rows if grown is not None else 0),
        "lines_quarantined": one.lines_quarantined + (0 if grown is None else grown.known.lines_quarantined),
        "whole_attempt_id": attempt_id if grown is None else grown.whole_attempt_id,
    }
