"""The pure rules that the brokers share."""

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.brokers import shared
from penstock.brokers.shared import ReceiptHandle, decode_attributes, decode_group, encode_attributes, encode_group

SEQS = st.integers(0, 10**15)


@given(SEQS, SEQS)
def test_receipts_and_ids_survive_a_round_trip(seq: int, number: int) -> None:
    handle = ReceiptHandle(seq=seq, number=number)
    assert shared.parse_receipt("store", shared.receipt("store", handle)) == handle
    assert shared.seq_of("store", shared.message_id("store", seq)) == seq
    assert shared.parse_receipt("other", shared.receipt("store", handle)) is None
    assert shared.seq_of("other", shared.message_id("store", seq)) is None


@given(SEQS, SEQS)
def test_ids_sort_as_their_messages_do(one: int, other: int) -> None:
    if max(one, other) < 10**12:
        assert (shared.message_id("s", one) < shared.message_id("s", other)) == (one < other)


@given(st.text())
def test_an_arbitrary_text_is_not_a_receipt(text: str) -> None:
    assert shared.parse_receipt("store", text) is None


@given(st.lists(st.lists(st.integers(), max_size=9), max_size=6), st.integers(0, 30))
def test_interleaving_takes_turns(lines: list[list[int]], count: int) -> None:
    taken = shared.interleave(enumerate(lines), count)
    assert len(taken) == min(count, sum(map(len, lines)))
    shares = [[seq for line, seq in taken if line == n] for n in range(len(lines))]
    assert shares == [line[: len(share)] for line, share in zip(lines, shares, strict=True)]
    for line, share in zip(lines, shares, strict=True):  # no line with messages left is a whole turn behind
        assert len(share) == len(line) or len(share) >= max(map(len, shares)) - 1


@given(st.dictionaries(st.text(), st.text() | st.binary()))
def test_attributes_survive_a_round_trip(attributes: dict[str, str | bytes]) -> None:
    assert dict(decode_attributes(encode_attributes(attributes))) == attributes


@given(st.text(min_size=1) | st.binary(min_size=1))
@example("no json")
@example("[]")
@example('{"a": 1}')
@example('{"a": []}')
@example('{"a": ["!"]}')
@example(b"\xff")
@example("[" * 100_000)
@example("9" * 10_000)
def test_malformed_attributes_decode_to_attributes_that_survive_a_round_trip(text: str | bytes) -> None:
    attributes = decode_attributes(text)
    assert all(isinstance(value, str | bytes) for value in attributes.values())
    assert dict(decode_attributes(encode_attributes(attributes))) == attributes


@given(st.none() | st.text())
def test_groups_survive_a_round_trip(group: str | None) -> None:
    assert decode_group(encode_group(group)) == group
