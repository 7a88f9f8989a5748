"""Find objects whose ledger rows were archived, in the files of the archive."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from penstock.errors import ConfigurationError, PenstockError
from penstock.ledger import Ledger
from penstock.ledger.archive import PAGE_OBJECTS, ArchivedObject, ArchiveRow, RetiredObject
from penstock.ledger.rows import uri_digest
from penstock.ledger.rules import storable
from penstock.pipeline.extra import require_archive
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.roots import files_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedVersion:
    """One archived version of an object. If no file has it, ``retired`` is None and ``problem`` has the reason."""

    pipeline: str
    object_id: bytes
    archive: ArchiveRow
    retired: RetiredObject | None
    problem: str | None = None

    @property
    def imported(self) -> bool:
        """True if it was imported as processed and never was in an archive file."""
        return self.archive.uri is None


def find_archived(ledger: Ledger, uri: str, aws: Aws) -> Sequence[ArchivedVersion]:
    """Return every archived version of the object at exactly this URI, in every pipeline."""
    return [_version(archived, uri, aws) for archived in ledger.archives.find(uri)]


def archived_objects(
    ledger: Ledger, pipeline: str, aws: Aws, *, uri_contains: str | None = None
) -> Iterator[RetiredObject]:
    """Yield the archived objects of a pipeline that are in files, the oldest file first.

    Raises `ConfigurationError` if a file or the package that reads it is missing.
    """
    require_archive()
    from penstock.pipeline.maintenance.archive import read_file

    contained = None if uri_contains is None else storable(uri_contains)
    for archive in ledger.archives.all(pipeline):
        if archive.uri is None:
            continue
        files, path = _location(archive.uri, aws)
        try:
            found = read_file(files, path, uri_contains=contained)
            while page := list(islice(found, PAGE_OBJECTS)):
                archived = ledger.archives.still_archived(pipeline, [each.row.object_id for each in page])
                yield from (each for each in page if each.row.object_id in archived)
        except FileNotFoundError as error:
            raise ConfigurationError(_not_there(archive.uri)) from error


def _version(archived: ArchivedObject, uri: str, aws: Aws) -> ArchivedVersion:
    retired, problem = None, None
    if archived.archive.uri is None:
        problem = f"imported from {archived.archive.source}: nothing more is known about it"
    else:
        try:
            retired = _find_retired(archived, archived.archive.uri, uri, aws)
            if retired is None:
                problem = f"{archived.archive.uri} does not contain it: it is not the file that was written"
        except FileNotFoundError:
            problem = _not_there(archived.archive.uri)
        except PenstockError as error:
            problem = str(error)
    return ArchivedVersion(
        pipeline=archived.archive.pipeline,
        object_id=archived.object_id,
        archive=archived.archive,
        retired=retired,
        problem=problem,
    )


def _find_retired(archived: ArchivedObject, file: str, uri: str, aws: Aws) -> RetiredObject | None:
    require_archive()
    from penstock.pipeline.maintenance.archive import find_in_file

    files, path = _location(file, aws)
    found = find_in_file(files, path, uri_digest(storable(uri)))
    return next((each for each in found if each.row.object_id == archived.object_id), None)


def _location(uri: str, aws: Aws) -> tuple[Files, str]:
    folder, _, name = uri.rpartition("/")
    return files_at(folder, aws), name


def _not_there(uri: str) -> str:
    return f"the archive's file {uri} is missing: restore it, or run this on the host that has it"
