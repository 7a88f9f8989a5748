"""What a table shows that its ledger may have forgotten: the end of its log, back to where both agree."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.pipeline.layout import attempt_of
from penstock.sinks.delta import ATTEMPT, DeltaTableSink, LoadedDelta
from penstock.sinks.delta_log import LogCommit, commits
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import Position

Knows = Callable[[int, int | None], bool]  # whether the ledger has a batch of that number, of the attempt of that token


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One commit that made batches visible: those after ``after_seq`` up to ``seq``, as files by attempt."""

    after_seq: int
    seq: int
    token: int | None  # of the attempt of batch ``seq``
    version: int
    committed_at: float | None  # epoch seconds
    files: Mapping[str, Sequence[DataFile]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """One table: how far it is, and what made it so since it last agreed with the ledger."""

    uri: str
    table: LoadedDelta | None
    agrees_at: int  # the last batch of which both say the same; 0: none
    shown: Sequence[Shown]  # oldest first
    whole: bool = True  # whether the log goes back to the agreement, or to the pipeline's first batch

    @property
    def position(self) -> Position:
        return self.table.position if self.table is not None else Position(seq=0, attempt_token=None)


def tail_of(sink: DeltaTableSink, knows: Knows) -> Tail:
    """Read the log backwards until ledger and table agree. Raises `TableError` where it cannot be read."""
    table = sink.load()
    if table is None or not table.position.seq:
        return Tail(uri=sink.uri, table=table, agrees_at=0, shown=())
    newer: list[Shown] = []
    oldest = table.version + 1
    for commit in commits(sink.root):
        oldest = commit.version
        seq, token = commit.transactions.get(sink.app), commit.transactions.get(sink.app + ATTEMPT)
        if seq is None:
            continue
        if knows(seq, token):
            return Tail(uri=sink.uri, table=table, agrees_at=seq, shown=_linked(newer, seq))
        newer.append(_shown(commit, seq, token))
    if oldest == 0:
        return Tail(uri=sink.uri, table=table, agrees_at=0, shown=_linked(newer, 0))
    return _from_snapshot(sink, table, newer, oldest, knows)


def _from_snapshot(sink: DeltaTableSink, table: LoadedDelta, newer: Sequence[Shown], oldest: int, knows: Knows) -> Tail:
    """The log was cleaned up: what its oldest version shows stands for all before it, as far as files still say whose
    they are."""
    snapshot = sink.load_version(oldest)
    position = snapshot.position
    newer = [shown for shown in newer if shown.version > oldest]
    if not position.seq or knows(position.seq, position.attempt_token):
        return Tail(uri=sink.uri, table=table, agrees_at=position.seq, shown=_linked(newer, position.seq))
    files = [
        DataFile(
            path=file.path,
            size_bytes=file.size_bytes,
            rows=0,
            modified_at=0.0,
            partition_values={name: None if v is None else str(v) for name, v in file.partition_values.items()},
        )
        for file in snapshot.files()
    ]
    first = Shown(
        after_seq=0,
        seq=position.seq,
        token=position.attempt_token,
        version=oldest,
        committed_at=None,
        files=_by_attempt(files),
    )
    shown = (first, *_linked(newer, position.seq))
    return Tail(uri=sink.uri, table=table, agrees_at=0, shown=shown, whole=False)


def _shown(commit: LogCommit, seq: int, token: int | None) -> Shown:
    return Shown(
        after_seq=0,  # until the commit before it is known
        seq=seq,
        token=token,
        version=commit.version,
        committed_at=commit.committed_at,
        files=_by_attempt(commit.added),
    )


def _by_attempt(files: Sequence[DataFile]) -> Mapping[str, Sequence[DataFile]]:
    found: defaultdict[str, list[DataFile]] = defaultdict(list)
    for file in files:
        if attempt_id := attempt_of(file.path):
            found[attempt_id].append(file)
    return dict(found)


def _linked(newest_first: Sequence[Shown], after_seq: int) -> Sequence[Shown]:
    """Oldest first, each beginning where the one before it ends."""
    linked = []
    for one in reversed(newest_first):
        linked.append(
            Shown(
                after_seq=after_seq,
                seq=one.seq,
                token=one.token,
                version=one.version,
                committed_at=one.committed_at,
                files=one.files,
            )
        )
        after_seq = one.seq
    return linked
