"""Batch numbers recovered for an empty ledger agree with both tables, whatever was committed, published and expired."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.maintenance.repair import numbers_of
from penstock.pipeline.maintenance.table_history import TableTail, VisibleCommit
from penstock.sinks.manifest import DataFile, attempt_token
from penstock.sinks.sink import Position


class Table:
    """A stand-in for a table, with the attributes that a tail uses."""

    def __init__(self, seq: int, token: int | None) -> None:
        self.position = Position(seq=seq, attempt_token=token)


def tail(has_files: Sequence[bool], publishes: Sequence[int], forgotten_after: int) -> TableTail:
    """Return a table to which batches 1.. were published in these steps; batches with files name them."""
    shown: list[VisibleCommit] = []
    position, agrees_at = 0, 0
    for upto in sorted(set(publishes)):
        some = [seq for seq in range(position + 1, min(upto, len(has_files)) + 1) if has_files[seq - 1]]
        if not some:
            continue
        token = attempt_token(f"a{some[-1]}")
        files = {f"a{seq}": [DataFile(path=f"f{seq}", size_bytes=1, rows=1, modified_at=0.0)] for seq in some}
        if some[-1] <= forgotten_after:
            agrees_at = some[-1]
        else:
            shown.append(
                VisibleCommit(after_seq=position, seq=some[-1], token=token, version=0, committed_at=None, files=files)
            )
        position = some[-1]
    table = Table(position, attempt_token(f"a{position}") if position else None)
    return TableTail(uri="t", table=table, agrees_at=agrees_at, shown=shown)  # type: ignore[arg-type]  # a double


batches = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12)
steps = st.lists(st.integers(1, 12), min_size=1, max_size=12)


@given(batches, steps, steps)
def test_an_empty_ledger_gets_numbers_that_both_tables_agree_with(
    made: list[tuple[bool, bool]], rows_at: list[int], quarantine_at: list[int]
) -> None:
    tails = [tail([rows for rows, _ in made], rows_at, 0), tail([bad for _, bad in made], quarantine_at, 0)]
    if not any(one.shown for one in tails):
        return

    numbers = numbers_of(tails, [], named=())

    shown = {attempt_id for one in tails for commit in one.shown for attempt_id in commit.files}
    assert sorted(numbers.imported.values()) == sorted(shown), "each attempt has one number"
    assert sorted([*numbers.imported, *numbers.blank]) == list(range(1, numbers.tip + 1)), "there is no gap"
    place = {attempt_id: seq for seq, attempt_id in numbers.imported.items()}
    for commit in (commit for one in tails for commit in one.shown):
        assert all(commit.after_seq < place[attempt_id] <= commit.seq for attempt_id in commit.files)
        assert attempt_token(numbers.imported[commit.seq]) == commit.token
