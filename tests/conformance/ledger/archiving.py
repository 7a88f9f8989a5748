"""Archive objects without files: no test of the ledger opens one."""

from collections.abc import Sequence

from tests.conformance.ledger.ledger_harness import PIPELINE, candidate, object_id_of

from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING, Adoption, ArchiveFile, RetiredObject, Retiring

FILE = "file:///archive/1.parquet"


def next_file(
    ledger: Ledger, *, up_to_seq: int = 1_000_000, objects_max: int = 1_000, pipeline: str = PIPELINE
) -> Retiring:
    retiring = ledger.archives.retiring(
        pipeline, after_seq=ledger.progress(pipeline, ARCHIVING), up_to_seq=up_to_seq, objects_max=objects_max
    )
    assert retiring is not None
    return retiring


def contents(ledger: Ledger, retiring: Retiring) -> list[RetiredObject]:
    return [one for page in ledger.archives.retired_objects(retiring) for one in page]


def archive(ledger: Ledger, id: str = "archive-1", *, up_to_seq: int = 1_000_000) -> bool:
    """Retire everything that may leave the ledger into one file."""
    retiring = next_file(ledger, up_to_seq=up_to_seq)
    file = ArchiveFile(uri=FILE, objects=len(contents(ledger, retiring)), bytes=100)
    return ledger.archives.retire(retiring, archive_id=id, file=file)


def adopt(ledger: Ledger, *names: str, source: str = "done.csv") -> Adoption:
    return ledger.adoptions.adopt(PIPELINE, [candidate(name) for name in names], source=source)


def ids_with_row(ledger: Ledger) -> set[bytes]:
    """Return the ids that have a row in the ledger."""
    return {row.object_id for row in ledger.objects(PIPELINE, limit=10_000)}


def ids(names: Sequence[str]) -> set[bytes]:
    return {object_id_of(name) for name in names}
