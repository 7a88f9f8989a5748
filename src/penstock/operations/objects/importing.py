"""`penstock objects import`: adopt existing objects without processing them again."""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from penstock.app.backends import file_ledger, open_ledger
from penstock.app.loading import load_app
from penstock.app.naming import object_names
from penstock.app.object_service import ObjectService
from penstock.app.paths import LEDGER_FILE, TablePaths, check_format, find_table, record_format, table_paths
from penstock.app.pipelines.service import PipelineService
from penstock.app.state import check_owner
from penstock.config import Settings, load_settings
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import Candidate, ObjectState, OriginalMessage
from penstock.objects.processed_lists import ListedObject, read_list
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef
from penstock.objects.s3_facts import INVENTORY_REMEDY, LIST_REMEDY, require_no_versions
from penstock.pipeline.extra import require_archive
from penstock.pipeline.reconcile.manifest import find_inventory, inventory_refs
from penstock.storage.address import is_s3
from penstock.storage.aws import Aws

CHUNK_OBJECTS = 5_000  # per transaction
PROBLEMS_MAX = 20  # listed; further ones are only counted
STDIN = "-"
INVENTORY = "manifest.json"
_NO_SETTINGS = Aws()  # frozen, so it can be shared
_NO_MESSAGE = OriginalMessage(message_id="", enqueued_at=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTarget:
    """The pipeline or object handler that adopts the objects."""

    pipeline: str
    ledger: Ledger
    aws: Aws = _NO_SETTINGS  # for the buckets of the imported objects


@dataclass(slots=True, kw_only=True)
class ObjectImportReport:
    """The result of an import or dry run. Written by one thread."""

    pipeline: str
    source: str
    listed: int = 0
    new: int = 0
    known: int = 0
    busy: list[str] = field(default_factory=list)  # addresses of objects in process, which were skipped
    replaced: Counter[ObjectState] = field(default_factory=Counter)  # of the new ones: their previous states


class UnreadableError(UsageError):
    """Entries that name no object; ``problems`` lists the first of them."""

    def __init__(self, source: str, problems: list[str], count: int) -> None:
        which, them = ("entry that names", "it") if count == 1 else ("entries that name", "them")
        super().__init__(f"{source} has {count:,} {which} no object; nothing was imported: correct {them} first.")
        self.problems = problems


@contextmanager
def target_of(*, app: str | None, pipeline: str | None, table: str | None, state: str | None) -> Iterator[ImportTarget]:
    """Yield the target: a table, whose ledger is created if missing, or a pipeline or object handler of an app."""
    if (app is None) == (table is None) or (app is None) != (pipeline is None):
        raise UsageError("Name the pipeline of these objects: APP PIPELINE, as in shop:app clicks, or --table FOLDER.")
    settings = load_settings()
    if table is not None:
        where = _paths(table, state, settings)
        with closing(
            open_ledger(settings.model_copy(update={"ledger": file_ledger(where.state / LEDGER_FILE)}))
        ) as made:
            check_owner(made, where)
            record_format(where)
            yield ImportTarget(pipeline=where.pipeline, ledger=made, aws=settings.aws)
        return

    loaded = load_app(app or "")
    names = sorted(service.name for service in loaded.services if isinstance(service, PipelineService | ObjectService))
    if pipeline not in names:
        raise UsageError(
            f"The app {app} has no pipeline or object handler {pipeline}; it has {', '.join(names) or 'none'}."
        )
    with closing(open_ledger(loaded.settings)) as made:
        object_names(loaded, loaded.services, only=pipeline).check(made)
        yield ImportTarget(pipeline=pipeline or "", ledger=made, aws=loaded.settings.aws)


def import_processed(
    target: ImportTarget,
    file: str,
    *,
    dry_run: bool,
    report_progress: Callable[[ObjectImportReport], None] = lambda _: None,
) -> ObjectImportReport:
    """Import a list, ``-`` for standard input. The whole list is checked before anything changes.

    A repeated or interrupted import continues: known objects stay as they are. Raises `UnreadableError` if an entry
    names no object, and `ConfigurationError` for entries without version ids in a bucket that may keep versions.
    """
    with _listing(file) as (source, entries):
        done = ObjectImportReport(pipeline=target.pipeline, source=source)
        done.listed = _check(source, entries(), target.aws)
        if not dry_run:
            target.ledger.ensure_pipeline(target.pipeline)
        adoptions = target.ledger.adoptions
        refs = (entry.ref for entry in entries() if entry.ref is not None)
        while chunk := [_candidate(ref) for ref in islice(refs, CHUNK_OBJECTS)]:
            if dry_run:
                adopted = adoptions.preview(target.pipeline, chunk)
            else:
                adopted = adoptions.adopt(target.pipeline, chunk, source=source)
            uris = {candidate.object_id: candidate.uri for candidate in chunk}
            done.new += adopted.new
            done.known += adopted.known
            done.busy += [uris[id] for id in adopted.busy]
            done.replaced.update(dict(adopted.replaced))
            report_progress(done)
    return done


def _check(source: str, entries: Iterable[ListedObject], aws: Aws) -> int:
    """Check that every entry names an object and, in a versioned bucket, its version. Return the number of entries."""
    problems: list[str] = []
    count = bad = 0
    unversioned: set[str] = set()  # buckets with entries that do not state a version
    for entry in entries:
        count += 1
        if entry.ref is not None and not entry.has_version and entry.ref.bucket != LOCAL_BUCKET:
            unversioned.add(entry.ref.bucket)
        if entry.ref is None:
            bad += 1
            if bad <= PROBLEMS_MAX:
                problems.append(f"{source}, line {entry.line} {entry.problem}")
    if bad:
        raise UnreadableError(source, problems, bad)
    remedy = INVENTORY_REMEDY if source.endswith(INVENTORY) else LIST_REMEDY
    for bucket in sorted(unversioned):
        require_no_versions(bucket, aws, list_name=f"The list {source}", remedy=remedy)
    return count


@contextmanager
def _listing(file: str) -> Iterator[tuple[str, Callable[[], Iterator[ListedObject]]]]:
    """Yield the list's name, and a function that reads it from the start each time."""
    if file == STDIN:
        with tempfile.TemporaryFile() as kept:
            shutil.copyfileobj(sys.stdin.buffer, kept)
            yield "stdin", lambda: _from_beginning(kept)
        return
    if is_s3(file) or Path(file).name == INVENTORY:
        yield _inventory(file)
        return
    try:
        with Path(file).open("rb") as opened:
            yield Path(file).name, lambda: _from_beginning(opened)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        if error.filename != file:
            raise
        raise UsageError(f"The list {file} cannot be read: {error.strerror}.") from error


def _from_beginning(file: IO[bytes]) -> Iterator[ListedObject]:
    file.seek(0)
    return read_list(file)


def _inventory(file: str) -> tuple[str, Callable[[], Iterator[ListedObject]]]:

    require_archive()

    found = find_inventory(file if is_s3(file) else str(Path(file).resolve()), load_settings().aws)

    def entries() -> Iterator[ListedObject]:
        for number, one in enumerate(inventory_refs(found), start=1):
            if isinstance(one, ObjectRef):
                yield ListedObject(line=number, ref=one, has_version=found.manifest.has_versions)
            else:
                yield ListedObject(line=number, ref=None, problem=one)

    return found.uri, entries


def _paths(table: str, state: str | None, settings: Settings) -> TablePaths:
    """Return the paths of a table, possibly without a data directory yet, but not with one elsewhere."""
    where = table_paths(table, state, aws=settings.aws)
    if (where.state / LEDGER_FILE).is_file() or not where.state.exists():
        check_format(where)
        return where
    return find_table(table, state, here=Path.cwd(), aws=settings.aws)


def _candidate(ref: ObjectRef) -> Candidate:
    return Candidate(
        object_id=ref.object_id,
        bucket=ref.bucket,
        key=ref.key_bytes,
        size_bytes=ref.size_bytes,
        uri=ref.uri,
        original_message=_NO_MESSAGE,
        version_id=ref.version_id,
        etag=ref.etag,
    )


def replaced_text(replaced: Mapping[ObjectState, int]) -> str:
    """Return text such as "1 dead, 3 unprocessed"; empty if there are none."""
    return ", ".join(f"{count:,} {state}" for state, count in sorted(replaced.items()) if count)
