"""The details of one batch, from the ledger and from the logs of the tables that show it."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from urllib.parse import urlsplit

from penstock.app.paths import TablePaths
from penstock.errors import UsageError
from penstock.ledger.records import AttemptRow, BatchRow, ObjectRow
from penstock.operations.inspection import ScopeView
from penstock.sinks.manifest import DataFile, decode
from penstock.sinks.registry import is_installed, open_sink
from penstock.storage.files import Files

COMMITS_MAX = 1_000  # searched in a table's log for the one that shows a batch
ROWS, QUARANTINE = "rows", "quarantine"
CONNECT_SECONDS = 1.0  # timeout of a connection attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInTable:
    """One table's files of the batch."""

    holds: str  # rows, quarantine
    uri: str  # empty if the table's location is unknown
    files: Sequence[DataFile]
    visible: bool | None  # None: unknown, as is the table's location
    version: int | None = None  # the version that added it; None: unknown
    shown_at: float | None = None  # epoch seconds, by the publisher's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDetails:
    """One batch. ``objects`` are the first few of ``batch.objects``."""

    batch: BatchRow
    attempt: AttemptRow | None
    objects: Sequence[ObjectRow]
    tables: Sequence[BatchInTable]  # rows, quarantine

    @property
    def seconds(self) -> float | None:
        """Seconds from the claim to the commit, by the ledger's clock."""
        if self.attempt is None or self.attempt.started_at > self.batch.committed_at:
            return None
        return self.batch.committed_at - self.attempt.started_at


def details_of(
    seen: ScopeView, seq: int, *, objects_max: int, pipeline: str | None = None, tables: bool = True
) -> BatchDetails:
    """Return a batch's details. Raises `UsageError` if it does not exist, or if the pipeline is ambiguous.

    Without ``tables``, the logs of the tables are not read, which takes long for big tables.
    """
    pipelines = [one for one in seen.pipelines() if pipeline in (None, one)]
    if len(pipelines) != 1:
        known = ", ".join(pipelines) or "none"
        raise UsageError(f"Batches are numbered by pipeline: name one with --pipeline. There are: {known}.")
    batch = seen.ledger.batch(pipelines[0], seq)
    if batch is None:
        row = seen.ledger.pipeline(pipelines[0])
        last = 0 if row is None else row.next_seq - 1
        raise UsageError(f"There is no batch {seq} of {pipelines[0]}; the last one is {last}.")
    paths = seen.scope.tables.get(batch.pipeline)
    return BatchDetails(
        batch=batch,
        attempt=seen.ledger.attempt(batch.attempt_id),
        objects=seen.ledger.processed_objects(batch.pipeline, seq, limit=objects_max),
        tables=_shown(batch, paths if tables else None),
    )


def is_reachable(url: str) -> bool:
    """Return True if the address accepts connections from this host now."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=CONNECT_SECONDS):
            return True
    except (OSError, UnicodeError):
        return False


def _shown(batch: BatchRow, paths: TablePaths | None) -> Sequence[BatchInTable]:
    rows, quarantine = decode(batch.record.manifest), decode(batch.record.quarantine_manifest)
    if paths is None or not is_installed(paths.scheme):
        named = ((ROWS, rows), (QUARANTINE, quarantine))
        return [BatchInTable(holds=holds, uri="", files=files, visible=None) for holds, files in named if files]
    found = []
    for holds, root, files in ((ROWS, paths.table, rows), (QUARANTINE, paths.quarantine, quarantine)):
        if files:
            found.append(_of_table(holds, root, paths.scheme, batch, files))
    return found


def _of_table(holds: str, root: Files, scheme: str, batch: BatchRow, files: Sequence[DataFile]) -> BatchInTable:
    sink = open_sink(root, scheme=scheme, pipeline=batch.pipeline, partition_by=None)
    table = sink.load()
    if table is None or table.position.seq < batch.seq:
        return BatchInTable(holds=holds, uri=sink.uri, files=files, visible=False)
    commits = () if sink.history is None else sink.history.commits()
    for commit in islice(commits, COMMITS_MAX):
        if _adds_all(commit.added, files):
            return BatchInTable(
                holds=holds,
                uri=sink.uri,
                files=files,
                visible=True,
                version=commit.version,
                shown_at=commit.committed_at,
            )
    return BatchInTable(holds=holds, uri=sink.uri, files=files, visible=True)


def _adds_all(added: Sequence[DataFile], files: Sequence[DataFile]) -> bool:
    """Return True if a commit added all these files."""
    return {file.path for file in files} <= {file.path for file in added}
