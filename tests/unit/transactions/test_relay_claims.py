"""Selection of the rows that a relay claims: oldest first, each stream without a gap, within bounds."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.transactions.store import DueRow, takeable, unbroken


def row(id: int, stream: str = "s", *, size: int = 1, claimed: bool = False) -> DueRow:
    return DueRow(id=id, stream_id=stream.encode(), body_bytes=size, claimed=claimed)


def ids(rows: list[DueRow], *, rows_max: int = 100, bytes_max: int = 100) -> list[int]:
    return [one.id for one in takeable(rows, rows_max=rows_max, bytes_max=bytes_max)]


def test_a_stream_is_skipped_from_the_first_row_that_another_relay_holds() -> None:
    assert ids([row(1), row(2, claimed=True), row(3), row(4, "t")]) == [1, 4]


def test_both_bounds_apply_and_a_first_row_of_any_size_is_claimed() -> None:
    assert ids([row(1), row(2), row(3)], rows_max=2) == [1, 2]
    assert ids([row(1, size=60), row(2, size=60), row(3, size=1)]) == [1], (
        "a smaller row does not overtake a larger one"
    )
    assert ids([row(1, size=1000), row(2)]) == [1]


def test_an_unclaimed_row_interrupts_only_its_own_stream() -> None:
    wanted = [row(1), row(2, "t"), row(3), row(4, "t"), row(5)]
    assert list(unbroken(wanted, {1, 2, 4, 5})) == [1, 2, 4]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 50)), max_size=30), st.integers(1, 10))
def test_no_row_is_claimed_before_an_earlier_one_of_its_stream(
    drawn: list[tuple[str, bool, int]], rows_max: int
) -> None:
    rows = [row(no, stream, claimed=claimed, size=size) for no, (stream, claimed, size) in enumerate(drawn)]
    taken = set(ids(rows, rows_max=rows_max))
    assert len(taken) <= rows_max
    for one in rows:
        if one.id in taken:
            assert all(each.id in taken for each in rows if each.id < one.id and each.stream_id == one.stream_id)
    if rows and not rows[0].claimed:
        assert rows[0].id in taken
