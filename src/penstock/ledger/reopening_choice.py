"""Choose which version of an object is read again, or find why there is none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, bindparam, select

from penstock.ledger.addresses import is_no_replay
from penstock.ledger.records import ObjectState
from penstock.ledger.rows import AnyRow, uri_digest
from penstock.ledger.rules import storable
from penstock.ledger.schema import archived_objects, batches, objects
from penstock.ledger.sets import filtered, slices


class LeftAlone(StrEnum):
    """Why an object is not reopened."""

    UNKNOWN = "unknown"
    BUSY = "busy"  # it, or another version or a replay of its bad lines, is being processed
    REPLAYING = "replaying"  # a replay of its bad lines waits in the queue
    VERSIONS = "versions"  # the table has rows of several versions of it
    ARCHIVED = "archived"  # its record is not at hand
    FAILED = "failed"  # it is reopened, and failed
    UNPROCESSED = "unprocessed"  # no version of it is processed


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSeen:
    """A version of an object, or a replay of its bad lines, as `choose` sees it."""

    object_id: bytes
    state: ObjectState
    batch_seq: int | None  # the batch with its rows in the table; 0: unknown
    is_replay: bool = False
    replaces: bool = False  # its batch took the rows of earlier versions out of the table
    is_archived: bool = False


def choose(versions: Sequence[VersionSeen], *, returning: Iterable[bytes] = ()) -> bytes | LeftAlone:
    """Return the version of an object to read again, or why there is none. ``returning``: archived ones at hand.

    It is the version that was committed last: its new rows replace all rows of the object, also of other versions.
    """
    if any(one.state is ObjectState.PROCESSING for one in versions):
        return LeftAlone.BUSY
    if any(one.is_replay and one.state is ObjectState.UNPROCESSED for one in versions):
        return LeftAlone.REPLAYING
    shown = sorted(
        (one for one in versions if one.batch_seq is not None and not one.is_replay), key=lambda one: one.batch_seq or 0
    )
    if not shown:
        return LeftAlone.UNPROCESSED if versions else LeftAlone.UNKNOWN
    last = shown[-1]
    if len(shown) > 1 and not last.replaces:
        return LeftAlone.VERSIONS
    if last.is_archived and last.object_id not in returning:
        return LeftAlone.ARCHIVED
    if last.state not in (ObjectState.PROCESSED, ObjectState.UNPROCESSED):
        return LeftAlone.FAILED
    return last.object_id


_VERSIONS = (
    select(
        objects.c.object_id,
        objects.c.uri,
        objects.c.uri_digest,
        objects.c.state,
        objects.c.batch_seq,
        is_no_replay(objects).label("is_version"),
        batches.c.replaced_rows.is_not(None).label("replaces"),
    )
    .outerjoin_from(
        objects, batches, (batches.c.pipeline == objects.c.pipeline) & (batches.c.seq == objects.c.batch_seq)
    )
    .where(
        objects.c.uri_digest.in_(bindparam("digests", expanding=True)),
        filtered(objects.c.pipeline) == bindparam("in_pipeline"),
    )
)
_ARCHIVED_VERSIONS = (
    select(
        archived_objects.c.object_id,
        archived_objects.c.uri_digest,
        archived_objects.c.batch_seq,
        is_no_replay(archived_objects).label("is_version"),
        batches.c.replaced_rows.is_not(None).label("replaces"),
    )
    .outerjoin_from(
        archived_objects,
        batches,
        (batches.c.pipeline == archived_objects.c.pipeline) & (batches.c.seq == archived_objects.c.batch_seq),
    )
    .where(
        archived_objects.c.uri_digest.in_(bindparam("digests", expanding=True)),
        filtered(archived_objects.c.pipeline) == bindparam("in_pipeline"),
    )
)


def versions_seen(
    connection: Connection, pipeline: str, addresses: Sequence[str]
) -> Mapping[str, Sequence[VersionSeen]]:
    """Return every version of these objects, by address."""
    stored = {uri_digest(storable(uri)): uri for uri in addresses}
    found: dict[str, list[VersionSeen]] = {uri: [] for uri in stored.values()}
    for digests in slices(sorted(stored)):
        binds = {"in_pipeline": pipeline, "digests": list(digests)}
        for row in connection.execute(_VERSIONS, binds):
            if row.uri == storable(stored[row.uri_digest]):
                found[stored[row.uri_digest]].append(_seen(row, ObjectState(row.state), row.batch_seq))
        for row in connection.execute(_ARCHIVED_VERSIONS, binds):
            of_archive = _seen(row, ObjectState.PROCESSED, row.batch_seq or 0, is_archived=True)
            found[stored[row.uri_digest]].append(of_archive)
    return found


def _seen(row: AnyRow, state: ObjectState, batch_seq: int | None, *, is_archived: bool = False) -> VersionSeen:
    return VersionSeen(
        object_id=row.object_id,
        state=state,
        batch_seq=batch_seq,
        is_replay=not row.is_version,
        replaces=bool(row.replaces),
        is_archived=is_archived,
    )
