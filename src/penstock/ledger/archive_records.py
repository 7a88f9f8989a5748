"""The values of the archive: processed objects whose rows left the table `objects`. Times are epoch seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.ledger.records import ObjectAttempt, ObjectRow, ObjectState

ARCHIVING = "archive"  # the task's name in `progress`
RETIRED = "retired"  # the source of an archive that the archiver wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredObject:
    """All that the ledger knows of a processed object, as it goes into a file."""

    row: ObjectRow
    uri_digest: bytes
    sequencer: str | None
    unattributed_failures: int
    timeline: Sequence[ObjectAttempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiringBatch:
    """One batch whose objects may leave: committed long enough ago."""

    seq: int
    attempt_id: str
    objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retiring:
    """What goes into one file: batches one after another, from where the archive has come to."""

    pipeline: str
    after_seq: int
    batches: Sequence[RetiringBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """A Parquet file that was written, and does not count yet."""

    uri: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRow:
    """Where some objects went. ``objects`` is how many identities point here."""

    id: str
    pipeline: str
    uri: str | None  # of the Parquet file; None where identities alone were imported
    objects: int
    bytes: int
    source: str  # "retired", or what was imported
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedObject:
    """An identity in the archive, and the archive that it is in."""

    object_id: bytes
    archive: ArchiveRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What an import of processed objects did with some of them, or would do: each is in exactly one of the three."""

    new: int  # identities that the ledger did not have as processed
    known: int  # processed or archived already
    busy: Sequence[bytes]  # ids of those at work just now, so left alone
    replaced: Mapping[ObjectState, int]  # of the new: how many stood in another state until now
