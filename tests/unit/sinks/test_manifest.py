"""Manifests as the ledger stores them."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.sinks.manifest import DataFile, attempt_token, decode, encode

BOUNDS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
FILES = st.lists(
    st.builds(
        DataFile,
        path=st.text(),
        size_bytes=st.integers(min_value=0),
        rows=st.integers(min_value=0),
        modified_at=st.floats(allow_nan=False, allow_infinity=False),
        partition_values=st.dictionaries(st.text(), st.none() | st.text()),
        statistics=st.dictionaries(
            st.sampled_from(["minValues", "maxValues", "nullCount"]), st.dictionaries(st.text(), BOUNDS)
        ),
    )
)


@given(FILES)
def test_a_manifest_survives_encoding_and_decoding(files: list[DataFile]) -> None:
    assert list(decode(encode(files))) == files


def test_an_empty_text_is_a_manifest_without_files() -> None:
    assert decode("") == ()
    assert decode(encode([])) == ()


@given(st.text(st.characters(codec="utf-8")))
def test_a_token_fits_into_a_signed_64_bit_integer(attempt_id: str) -> None:
    assert 0 <= attempt_token(attempt_id) < 2**63


def test_different_attempts_have_different_tokens() -> None:
    assert len({attempt_token(f"01K0{number:022d}") for number in range(10_000)}) == 10_000
