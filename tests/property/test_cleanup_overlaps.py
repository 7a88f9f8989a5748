"""Two addresses overlap exactly if one key can be below both, in any spelling."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.app.cleanup import overlap
from penstock.storage.address import s3_address

PARTS = st.lists(st.sampled_from(["a", "b", "A", "ab", "é", "e\u0301", "..", "."]), max_size=4)


@st.composite
def addresses(draw: st.DrawFn) -> str:
    slashes = draw(st.sampled_from(["/", "//"]))
    end = draw(st.sampled_from(["", "/"]))
    return f"s3://{draw(st.sampled_from(['one', 'two']))}/{slashes.join(draw(PARTS))}{end}"


@given(addresses(), addresses())
def test_overlap_is_symmetric(one: str, other: str) -> None:
    assert overlap(one, other) == overlap(other, one)


@given(addresses(), addresses(), PARTS)
def test_a_key_below_both_addresses_means_overlap(one: str, other: str, below: list[str]) -> None:
    first, second = s3_address(one), s3_address(other)
    key = f"{first.folder}{'/'.join(below)}"
    if first.contains(first.bucket, key) and second.contains(first.bucket, key):
        assert overlap(one, other)


@given(addresses(), PARTS)
def test_an_address_overlaps_with_the_addresses_below_it(address: str, below: list[str]) -> None:
    assert overlap(address, f"{address.rstrip('/')}/{'/'.join(below)}")


@given(st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=3), st.sampled_from(["-done", "x", ".d"]))
def test_a_sibling_with_the_same_prefix_does_not_overlap(parts: list[str], more: str) -> None:
    address = f"s3://one/{'/'.join(parts)}"
    assert not overlap(address, f"{address}{more}")
    assert not overlap(address, address.replace("s3://one", "s3://two"))
    assert not overlap(address, f"/{'/'.join(parts)}")
