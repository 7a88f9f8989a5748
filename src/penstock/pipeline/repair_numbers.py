"""Which batch had which number: pure arithmetic over what two tables and a ledger say.

A commit to a table names its last batch, and holds the files of all since the commit before. Where several batches lie
in one commit their order does not matter to anybody, as long as the last is the one that is named and both tables agree
with it. What the ledger has beyond the agreement was committed after it was rolled back, or never shown.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from penstock.errors import TableError
from penstock.ledger.records import BatchRow
from penstock.pipeline.repair_tail import Shown, Tail
from penstock.sinks.manifest import attempt_token

EMPTY_MANIFESTS = frozenset({"", "[]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What a repair has to do, by number."""

    agrees_at: int  # up to here the ledger has what the tables show
    tip: int  # the last batch that a table shows
    imported: Mapping[int, str]  # attempts that the tables show and the ledger does not have
    blank: Sequence[int]  # numbers of which no table shows a file: a batch without any stood there
    unshown: Sequence[int]  # batches of the ledger that no table shows and that cannot keep their number


def numbers_of(tails: Sequence[Tail], batches: Sequence[BatchRow], *, named: Collection[str]) -> Numbers:
    """``batches`` are the ledger's, after the earliest agreement; ``named`` are attempts whose names are left
    somewhere, for a tip whose files the log does not tell of any more.

    Raises `TableError` where no numbering goes with all of it.
    """
    seq_of = {batch.attempt_id: batch.seq for batch in batches}
    spans = _spans(tails, {*seq_of, *named})
    known = {attempt_id: seq_of[attempt_id] for attempt_id in spans if attempt_id in seq_of}
    for attempt_id, seq in known.items():
        if seq not in range(spans[attempt_id][0], spans[attempt_id][1] + 1):
            raise _contradiction(tails, seq)
    agrees_at = max([tail.agrees_at for tail in tails] + list(known.values()))
    tip = max(tail.position.seq for tail in tails)
    wanted = {attempt_id: span for attempt_id, span in spans.items() if attempt_id not in known}
    held = {batch.seq for batch in batches if batch.seq <= agrees_at}
    empty = {batch.seq for batch in batches if batch.seq > agrees_at and _is_empty(batch)}
    free = [seq for seq in range(_first(tails) + 1, tip + 1) if seq not in held]
    imported = _assigned(wanted, [seq for seq in free if seq not in empty]) or _assigned(wanted, free)
    if imported is None:
        raise _contradiction(tails, tip)
    staying = {seq for seq in empty if seq <= tip and seq not in imported}
    return Numbers(
        agrees_at=agrees_at,
        tip=tip,
        imported=imported,
        blank=[seq for seq in range(agrees_at + 1, tip + 1) if seq not in imported and seq not in staying],
        unshown=[batch.seq for batch in batches if batch.seq > agrees_at and batch.seq not in staying],
    )


def _first(tails: Sequence[Tail]) -> int:
    """The position before everything that is shown beyond an agreement."""
    return min((tail.shown[0].after_seq for tail in tails if tail.shown), default=0)


def _spans(tails: Sequence[Tail], named: Collection[str]) -> Mapping[str, tuple[int, int]]:
    """By attempt, the least and the greatest number that it may have."""
    spans: dict[str, tuple[int, int]] = {}
    by_token = {attempt_token(attempt_id): attempt_id for attempt_id in named}
    for shown in (shown for tail in tails for shown in tail.shown):
        tip = next((attempt_id for attempt_id in shown.files if attempt_token(attempt_id) == shown.token), None)
        tip = tip or by_token.get(shown.token or -1)
        if tip is None:
            raise TableError(
                f"Nothing is left that says which batch has the number {shown.seq}: its files were compacted and the "
                f"log was cleaned up; bring back the ledger from a newer backup."
            )
        for attempt_id in {*shown.files, tip}:
            least, greatest = spans.get(attempt_id, (0, shown.seq))
            spans[attempt_id] = _narrowed(shown, least, greatest, is_tip=attempt_id == tip)
    return spans


def _narrowed(shown: Shown, least: int, greatest: int, *, is_tip: bool) -> tuple[int, int]:
    if is_tip:
        return max(least, shown.seq), min(greatest, shown.seq)
    return max(least, shown.after_seq + 1), min(greatest, shown.seq - 1)


def _assigned(wanted: Mapping[str, tuple[int, int]], free: Sequence[int]) -> Mapping[int, str] | None:
    """A number for each attempt, from those that are free: the most urgent first, which finds one if there is one."""
    found: dict[int, str] = {}
    waiting = sorted(((least, attempt_id) for attempt_id, (least, _) in wanted.items()), reverse=True)
    fitting: list[tuple[int, str]] = []  # a heap, by the greatest number that fits
    for seq in free:
        while waiting and waiting[-1][0] <= seq:
            attempt_id = waiting.pop()[1]
            heappush(fitting, (wanted[attempt_id][1], attempt_id))
        if fitting:
            greatest, attempt_id = heappop(fitting)
            if greatest < seq:
                return None
            found[seq] = attempt_id
    return None if waiting or fitting else found


def _is_empty(batch: BatchRow) -> bool:
    return batch.manifest in EMPTY_MANIFESTS and batch.quarantine_manifest in EMPTY_MANIFESTS


def _contradiction(tails: Sequence[Tail], seq: int) -> TableError:
    where = " and ".join(tail.uri for tail in tails)
    return TableError(
        f"{where} do not go together with one another, or with the ledger: no numbering of their batches up to {seq} "
        f"fits all of them. They were written to from two ledgers; bring back all three from one backup."
    )
