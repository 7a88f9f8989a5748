"""Division of keys into spans: every key is in exactly one, and large prefixes are divided."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.objects.s3_listing import Peek, Span, spans

PREFIX = "in/"
NAMES = st.text(st.sampled_from("ab/.%é\U0010ffff"), max_size=8)


def peek_into(keys: Sequence[str], probes: list[str] | None = None) -> Peek:
    """Return a `Peek` for a bucket with these keys. Appends each probed prefix to `probes`."""
    keys = sorted(keys)

    def peek(beginning: str, after: str) -> str | None:
        if probes is not None:
            probes.append(beginning)
        at = max(bisect_left(keys, beginning), bisect_right(keys, after))
        return keys[at] if at < len(keys) and keys[at].startswith(beginning) else None

    return peek


def sizes(found: Sequence[Span], keys: Sequence[str]) -> list[int]:
    return [sum(map(span.contains, keys)) for span in found]


@given(st.sets(NAMES), st.integers(1, 20), st.integers(0, 50))
def test_every_key_is_in_exactly_one_span(names: set[str], parts: int, probes_max: int) -> None:
    keys = [PREFIX + name for name in names]
    found = spans(peek_into(keys), PREFIX, parts=parts, probes_max=probes_max)
    assert all(sum(span.contains(key) for span in found) == 1 for key in keys)


@pytest.mark.parametrize(
    "keys",
    [
        [f"in/2024/{month:02}/{day:02}/{n:03}" for month in range(1, 13) for day in range(1, 29) for n in range(9)],
        [f"in/{number * 2654435761 % 2**32:08x}" for number in range(3_000)],
        [f"in/some/long/common/beginning/part-{number:010}" for number in range(3_000)],
    ],
    ids=["dated", "spread", "numbered"],
)
def test_large_prefixes_are_divided(keys: list[str]) -> None:
    probes: list[str] = []
    found = spans(peek_into(keys, probes), PREFIX, parts=32)
    assert 32 <= len(found) <= 64
    assert max(sizes(found, keys)) <= len(keys) / 2
    assert len(probes) <= 200


def test_one_key_or_none_is_one_span() -> None:
    assert spans(peek_into([]), PREFIX, parts=32) == [Span()]
    assert spans(peek_into(["in/a"]), PREFIX, parts=32) == [Span()]


def test_the_number_of_probes_is_bounded() -> None:
    probes: list[str] = []
    spans(peek_into([f"in/{number:05}" for number in range(2_000)], probes), PREFIX, parts=1_000, probes_max=25)
    assert len(probes) == 25
