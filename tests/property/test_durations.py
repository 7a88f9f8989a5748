"""Durations: all units and formats, and refused texts."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.handlers.durations import UNITS, Duration, seconds_of

DAY = 86_400
NAMES = sorted(UNITS)
# Larger units first, one name of each size.
LADDERS = st.lists(st.sampled_from(NAMES), min_size=1, unique_by=lambda name: UNITS[name]).map(
    lambda names: sorted(names, key=UNITS.__getitem__, reverse=True)
)


def is_refused(given: Duration, *, zero: bool = False) -> bool:
    try:
        seconds_of("timeout", given, zero=zero)
    except UsageError:
        return True
    return False


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("1.5", 1.5),
        ("1e3", 1_000),
        ("+5 min", 300),
        (" 5  MIN ", 300),
        ("5 min", 300),
        ("5m", 300),
        ("1h30m", 5_400),
        ("1h 30m", 5_400),
        ("30 s", 30),
        ("90s", 90),
        ("250 ms", 0.25),
        (".5h", 1_800),
        ("2 days", 2 * DAY),
        ("3d", 3 * DAY),
        ("1 week", 7 * DAY),
        ("1 month", 30 * DAY),
        ("1 year", 365 * DAY),
        ("2 days, 5 min", 2 * DAY + 300),
        ("1 h / 5 s", 3_605),
        ("1:30", 90),
        (":30", 30),
        ("1:02:03", 3_723),
        ("1:02:03.5", 3_723.5),
        ("1:00:00:01", DAY + 1),
        ("1 day, 2:03:04", DAY + 7_384),
        ("PT5M", 300),
        ("P1DT2H", DAY + 7_200),
        ("p1w", 7 * DAY),
        ("PT0.25S", 0.25),
    ],
)
def test_each_spelling_is_read_in_seconds(text: str, seconds: float) -> None:
    assert seconds_of("timeout", text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "5 parsecs",
        "min",
        "-5",
        "- 5 min",
        "--5",
        "1.2.3 s",
        "5 min 5 min",  # a unit twice
        "5 min 1 h",  # a smaller unit first
        "2 days 12:30",  # hours and minutes, or minutes and seconds?
        "1 h 0:05:00",
        "1:2",
        "inf",
        "nan",
        "1e300",
        "10000000000 days",
        "P",
        "PT",
        "P5",
        "-PT5M",
        "PT-5M",
        "0.0000001",  # under a microsecond
    ],
)
def test_other_text_is_refused(text: str) -> None:
    assert is_refused(text)
    assert is_refused(text, zero=True) or text == "0.0000001"


@pytest.mark.parametrize("zero", [0, "0", "0 s", "0h0m", "0:00", "PT0S", timedelta()])
def test_zero_is_accepted_only_if_asked_for(zero: Duration) -> None:
    assert is_refused(zero)
    assert seconds_of("timeout", zero, zero=True) == 0


def test_the_error_names_option_and_text() -> None:
    with pytest.raises(UsageError, match=r"timeout='5 parsecs' is not a duration above 0: write seconds"):
        seconds_of("timeout", "5 parsecs")


def test_a_unit_that_does_not_exist_is_refused_with_zero_too() -> None:
    assert is_refused("0 moments", zero=True)


@given(names=LADDERS, data=st.data())
def test_units_add_up_with_any_separators(names: list[str], data: st.DataObject) -> None:
    counts = [data.draw(st.integers(min_value=1, max_value=5_000)) for _ in names]
    space, between = data.draw(st.sampled_from(["", " "])), data.draw(st.sampled_from(["", " ", ", ", ",", "/", " / "]))
    text = between.join(f"{count}{space}{name}" for count, name in zip(counts, names, strict=True))
    expected = sum(count * UNITS[name] for count, name in zip(counts, names, strict=True))
    assert seconds_of("timeout", text) == pytest.approx(expected, abs=1e-6)
    assert seconds_of("timeout", text.upper()) == seconds_of("timeout", text)


@given(names=LADDERS.filter(lambda names: len(names) > 1))
def test_a_smaller_unit_first_is_refused(names: list[str]) -> None:
    assert is_refused(" ".join(f"1 {name}" for name in reversed(names)))


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=400_000)))
def test_a_timedelta_and_its_text_are_equal(duration: timedelta) -> None:
    assert seconds_of("timeout", duration) == duration.total_seconds()
    assert seconds_of("timeout", str(duration)) == pytest.approx(duration.total_seconds(), abs=1e-6)


@given(st.text() | st.text(alphabet="0123456789 .:,/+-ymwdhsPT", max_size=12))
def test_any_text_is_read_in_seconds_or_refused(text: str) -> None:
    if not is_refused(text, zero=True):
        assert 0 <= seconds_of("timeout", text, zero=True) < float("inf")
