"""The committed batches that the next commit to a table makes visible: those after a position, in order."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.errors import PublishHalted
from penstock.ledger import Ledger
from penstock.ledger.records import BatchRow
from penstock.pipeline.merging.merger import MergeCounts
from penstock.pipeline.republish import FILES_MAX
from penstock.sinks.manifest import DataFile, attempt_token, decode
from penstock.sinks.sink import Position

PAGE_BATCHES = 100  # per query; at least 2, as pages overlap by one

START = Position(seq=0, attempt_token=None)  # before the first batch

ManifestOf = Callable[[BatchRow], str]
ReplacedBy = Callable[[BatchRow], Collection[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishChunk:
    """Batches that are published in one commit. The last of them has files, or replaces rows."""

    tip: BatchRow
    batches: int
    files: Sequence[DataFile]
    named: Collection[str]  # paths of these and of files that the table's log knows already
    replaced: Collection[str]  # addresses of objects: their rows in the snapshot leave the table
    replacing: int | None  # the batch that names them
    is_merged: bool = False  # the only batch of the chunk, whose rows are merged
    counts: MergeCounts | None = None  # the rows of its merge


class BatchLost(Exception):
    """The ledger no longer has a batch that this process has read from it: it was rolled back."""

    def __init__(self, lost: Position) -> None:
        super().__init__(lost)
        self.lost = lost


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatches:
    """The batches of a pipeline in the ledger, with the files and changes that each has for one table."""

    ledger: Ledger
    pipeline: str
    manifest_of: ManifestOf
    replaces: ReplacedBy
    merges: bool

    def next_chunk(
        self, start: Position, *, acted: Collection[str], is_new: bool
    ) -> tuple[PublishChunk | None, Position]:
        """Return the batches for the next commit, and the position of the last batch read.

        A commit must end at a batch that changes the table, so that position and files move together. Batches that
        change nothing are skipped and counted with the next batch that does. A batch that replaces rows begins a
        commit: the rows may be in files of the batch before it. If it has no files of its own, it also ends the commit,
        whose position then names it: a repair of the ledger finds no other trace of it in the table. A batch that is
        merged has a commit of its own, since it is compared with all earlier rows.

        ``acted``: files that the table's log knows already, since the commit of their batch was overwritten after
        another one had merged or removed them. They are left out. ``is_new``: there is no table, and so no row to
        replace. Raises as `after` does.
        """
        gathered = _Gathered()
        read_to = start
        for batch in self.after(start):
            named = decode(self.manifest_of(batch))
            if self.merges and batch.record.merge is not None:
                if gathered.tip is not None:
                    break
                read_to = position_of(batch)
                if named or batch.record.tombstones:
                    return _merged_chunk(batch, start), read_to
                continue
            replaces = () if is_new and gathered.tip is None else self.replaces(batch)
            if not gathered.has_room_for(named, replaces):
                break
            read_to = position_of(batch)
            gathered.add(batch, named, replaces, acted=acted)
        return gathered.chunk(start), read_to

    def after(self, start: Position) -> Iterator[BatchRow]:
        """Yield the batches after ``start``, read page by page.

        Each page begins with the last batch of the previous page, read in the same query. That proves that the ledger
        has not reused that number or an earlier one. Raises `BatchLost` if it has, and `PublishHalted` at a gap in the
        numbers: rows of the missing batches would never become visible.
        """
        last = start
        while True:
            page = self.ledger.batches(self.pipeline, after_seq=last.seq - 1 if last.seq else 0, limit=PAGE_BATCHES)
            if last.seq:
                if not page or not _is_at(page[0], last):
                    raise BatchLost(last)
                page = page[1:]
            if not page:
                return
            for batch in page:
                if batch.seq != last.seq + 1:
                    raise PublishHalted(
                        f"The ledger of {self.pipeline} has batch {batch.seq} but no batch {last.seq + 1}: it is "
                        f"damaged; restore it from a backup before publishing again."
                    )
                last = position_of(batch)
                yield batch


def position_of(batch: BatchRow) -> Position:
    """Return the batch as a `Position`."""
    return Position(seq=batch.seq, attempt_token=attempt_token(batch.attempt_id))


def _is_at(batch: BatchRow, position: Position) -> bool:
    return position_of(batch) == position


@dataclass(slots=True, kw_only=True)
class _Gathered:
    """The batches read so far for one chunk, and their changes. Used by one thread."""

    tip: BatchRow | None = None  # the last batch that changes something
    files: list[DataFile] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    replaced: Collection[str] = ()
    replacing: int | None = None

    def has_room_for(self, named: Sequence[DataFile], replaces: Collection[str]) -> bool:
        """Return True if a batch with these files and replaced objects can join the batches read so far."""
        if self.tip is None:
            return True
        only_replaces = bool(self.replaced) and not self.files
        return not (replaces or (only_replaces and named) or len(self.files) + len(named) > FILES_MAX)

    def add(
        self, batch: BatchRow, named: Sequence[DataFile], replaces: Collection[str], *, acted: Collection[str]
    ) -> None:
        """Add a batch, which may change nothing."""
        if replaces:
            self.replaced, self.replacing = replaces, batch.seq
        if named or replaces:
            self.files += [file for file in named if file.path not in acted]
            self.paths |= {file.path for file in named}
            self.tip = batch

    def chunk(self, start: Position) -> PublishChunk | None:
        """Return these batches, the first of which follows ``start``, or None if they change nothing."""
        if self.tip is None:
            return None
        return PublishChunk(
            tip=self.tip,
            batches=self.tip.seq - start.seq,
            files=self.files,
            named=self.paths,
            replaced=self.replaced,
            replacing=self.replacing,
        )


def _merged_chunk(batch: BatchRow, start: Position) -> PublishChunk:
    return PublishChunk(
        tip=batch,
        batches=batch.seq - start.seq,
        files=(),
        named=(),
        replaced=(),
        replacing=batch.seq,
        is_merged=True,
    )
