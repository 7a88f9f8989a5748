"""Deaths as attributes: bounded, exact where they fit, and proof against forgery."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.messaging.death import (
    DEATH_ATTRIBUTE,
    DEATH_BYTES_MAX,
    EARLIER_DEATHS_ATTRIBUTE,
    SET_ASIDE_ATTRIBUTE,
    TRIES_MAX,
    AttemptRecord,
    Death,
    buried,
    death_of,
    decode_death,
    earlier_deaths_of,
    encode_death,
    set_aside_reason,
    with_death,
)
from penstock.messaging.settlement import DeadLetter

DEATH = Death(
    reason="not an image",
    exception="ValueError: ö",
    traceback="Traceback (most recent call last):\n  ...\nValueError: ö\n",
    attempts=4,
    first_failed_at=1.25,
    last_failed_at=1_700_000_000.123456,
    worker="host-1",
    queue="q",
    message_id="m1",
    enqueued_at=0.5,
)
TEXTS = st.text(max_size=100)
TIMES = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.builds(
        Death,
        reason=TEXTS,
        exception=st.none() | TEXTS,
        traceback=st.none() | TEXTS,
        attempts=st.integers(0, 1000),
        first_failed_at=st.none() | TIMES,
        last_failed_at=TIMES,
        worker=TEXTS,
        queue=TEXTS,
        message_id=TEXTS,
        enqueued_at=TIMES,
    )
)
def test_what_fits_comes_back_as_it_was(death: Death) -> None:
    assert decode_death(encode_death(death)) == death


def test_the_other_attributes_stay_and_an_older_death_becomes_the_past() -> None:
    attributes = with_death({"a": b"\x00", "b": "text"}, replace(DEATH, reason="older"))
    attributes = with_death(attributes, DEATH)
    assert {name: attributes[name] for name in ("a", "b")} == {"a": b"\x00", "b": "text"}
    assert death_of(attributes) == DEATH
    assert set(attributes) == {"a", "b", DEATH_ATTRIBUTE, EARLIER_DEATHS_ATTRIBUTE}
    assert [past.reason for past in earlier_deaths_of(attributes)] == ["older"]


@pytest.mark.parametrize("letter", ["x", "\n", "ö", "\U0001f600", "\x00", "\ud800"], ids=ascii)
def test_however_long_its_texts_a_death_fits_and_keeps_the_end_of_the_traceback(letter: str) -> None:
    long = letter * 300_000
    death = Death(**{**fields(), "reason": long, "exception": long, "worker": long, "traceback": long + "THE END"})
    text = encode_death(death)
    assert 0.9 * DEATH_BYTES_MAX < len(text.encode()) <= DEATH_BYTES_MAX
    back = decode_death(text)
    assert back is not None
    assert back.traceback is not None
    assert back.traceback.startswith("[... trimmed ...]")
    assert back.traceback.endswith("THE END")
    assert back.reason[:1] in (letter, "\\")


def test_lone_surrogates_do_not_come_through() -> None:
    death = decode_death(encode_death(replace(DEATH, reason="file \udcff", traceback="\ud83d")))
    assert death is not None
    assert (death.reason, death.traceback) == ("file \\udcff", "\\ud83d")
    forged = decode_death(json.dumps({**fields(), "reason": "\ud800"}))
    assert forged is not None
    assert forged.reason.encode() == b"\\ud800"


def fields() -> dict[str, Any]:
    return {name: getattr(DEATH, name) for name in Death.__dataclass_fields__}


FORGED = {
    "none": None,
    "bytes": b"{}",
    "number": 7,
    "empty": "",
    "not json": "{",
    "a list": "[]",
    "null": "null",
    "deep": "[" * 60_000,
    "deep object": '{"reason":' * 6_000,
    "digits": '{"attempts": ' + "9" * 5_000 + "}",
    "too long": json.dumps({**fields(), "reason": "x" * DEATH_BYTES_MAX}),
    "no reason": json.dumps({k: v for k, v in fields().items() if k != "reason"}),
    "reason a number": json.dumps({**fields(), "reason": 1}),
    "attempts negative": json.dumps({**fields(), "attempts": -1}),
    "attempts true": json.dumps({**fields(), "attempts": True}),
    "attempts huge": json.dumps({**fields(), "attempts": 2**31}),
    "attempts text": json.dumps({**fields(), "attempts": "4"}),
    "time nan": json.dumps({**fields(), "last_failed_at": float("nan")}),
    "time infinite": json.dumps({**fields(), "enqueued_at": float("inf")}),
    "time too large": json.dumps({**fields(), "enqueued_at": 10**400}),
    "time text": json.dumps({**fields(), "first_failed_at": "yesterday"}),
    "traceback a list": json.dumps({**fields(), "traceback": []}),
}


@pytest.mark.parametrize("value", FORGED.values(), ids=list(FORGED))
def test_a_forged_death_is_none(value: object) -> None:
    assert decode_death(value) is None


@given(st.text() | st.binary() | st.recursive(st.none() | st.integers(), st.lists).map(repr))
def test_garbage_never_raises(value: str | bytes) -> None:
    assert death_of({DEATH_ATTRIBUTE: value}) is None


# --- attempts, and letters that go on

TRY = AttemptRecord(started_at=1.5, ended_at=2.5, worker="w", end="failed", reason="no lock")


def test_attempts_come_back_and_of_many_the_last_ones() -> None:
    tries = tuple(replace(TRY, reason=f"{n}") for n in range(TRIES_MAX + 5))
    decoded = decode_death(encode_death(replace(DEATH, tries=tries)))
    assert decoded is not None
    assert decoded.tries == tries[-TRIES_MAX:]


def test_of_an_attempts_texts_the_beginning_is_kept() -> None:
    decoded = decode_death(encode_death(replace(DEATH, tries=(replace(TRY, worker="ö" * 900, reason="\ud800" * 900),))))
    assert decoded is not None
    (tried,) = decoded.tries
    assert tried.worker == "ö" * 200
    assert tried.reason == ("\\ud800" * 900)[:200]


@pytest.mark.parametrize(
    "tries",
    [
        {},
        "x",
        [1],
        [{}],
        [{**asdict(TRY), "ended_at": None}],
        [{**asdict(TRY), "worker": 1}],
        [{**asdict(TRY), "reason": 2}],
    ],
)
def test_a_death_with_forged_attempts_is_none(tries: object) -> None:
    assert decode_death(json.dumps({**json.loads(encode_death(DEATH)), "tries": tries})) is None


def test_a_death_of_an_older_program_tells_of_no_attempts() -> None:
    fields = json.loads(encode_death(DEATH))
    for name in ("tries", "poison", "fingerprint", "handler"):
        del fields[name]
    assert decode_death(json.dumps(fields)) == DEATH


def test_a_letter_goes_on_with_its_death_and_the_reason() -> None:
    letter = with_death({"a": b"\xff"}, DEATH)
    aside = buried(letter, DeadLetter(reason="r" * 9_000, set_aside=True), replace(DEATH, reason="not told"))
    assert {name: aside[name] for name in letter} == letter
    reason = set_aside_reason(aside)
    assert reason is not None
    assert "r" * 9_000 != reason == "r" * len(reason)
    assert set_aside_reason(letter) is None
    assert set_aside_reason({SET_ASIDE_ATTRIBUTE: b"bytes"}) is None


def test_a_message_that_dies_gets_a_death() -> None:
    assert buried({"a": "b"}, DeadLetter(reason="x"), DEATH) == with_death({"a": "b"}, DEATH)
