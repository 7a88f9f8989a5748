"""Deaths as attributes: bounded, exact if they fit, and safe against forgery."""

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
def test_a_death_that_fits_is_decoded_unchanged(death: Death) -> None:
    assert decode_death(encode_death(death)) == death


def test_other_attributes_stay_and_an_older_death_moves_to_the_history() -> None:
    attributes = with_death({"a": b"\x00", "b": "text"}, replace(DEATH, reason="older"))
    attributes = with_death(attributes, DEATH)
    assert {name: attributes[name] for name in ("a", "b")} == {"a": b"\x00", "b": "text"}
    assert death_of(attributes) == DEATH
    assert set(attributes) == {"a", "b", DEATH_ATTRIBUTE, EARLIER_DEATHS_ATTRIBUTE}
    assert [earlier.reason for earlier in earlier_deaths_of(attributes)] == ["older"]


@pytest.mark.parametrize("character", ["x", "\n", "ö", "\U0001f600", "\x00", "\ud800"], ids=ascii)
def test_a_death_with_long_texts_fits_and_keeps_the_end_of_the_traceback(character: str) -> None:
    long = character * 300_000
    death = Death(**{**fields(), "reason": long, "exception": long, "worker": long, "traceback": long + "THE END"})
    text = encode_death(death)
    assert 0.9 * DEATH_BYTES_MAX < len(text.encode()) <= DEATH_BYTES_MAX
    decoded = decode_death(text)
    assert decoded is not None
    assert decoded.traceback is not None
    assert decoded.traceback.startswith("[... trimmed ...]")
    assert decoded.traceback.endswith("THE END")
    assert decoded.reason[:1] in (character, "\\")


def test_lone_surrogates_are_escaped() -> None:
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
def test_a_forged_death_is_decoded_as_none(value: object) -> None:
    assert decode_death(value) is None


@given(st.text() | st.binary() | st.recursive(st.none() | st.integers(), st.lists).map(repr))
def test_garbage_never_raises(value: str | bytes) -> None:
    assert death_of({DEATH_ATTRIBUTE: value}) is None


# --- attempts, and dead letters moved to the final DLQ

TRY = AttemptRecord(started_at=1.5, ended_at=2.5, worker="w", end="failed", reason="no lock")


def test_the_last_attempts_of_a_death_are_decoded() -> None:
    tries = tuple(replace(TRY, reason=f"{n}") for n in range(TRIES_MAX + 5))
    decoded = decode_death(encode_death(replace(DEATH, tries=tries)))
    assert decoded is not None
    assert decoded.tries == tries[-TRIES_MAX:]


def test_texts_of_attempts_keep_their_beginning() -> None:
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
def test_a_death_with_forged_attempts_is_decoded_as_none(tries: object) -> None:
    assert decode_death(json.dumps({**json.loads(encode_death(DEATH)), "tries": tries})) is None


def test_a_death_written_by_an_older_version_has_no_attempts() -> None:
    fields = json.loads(encode_death(DEATH))
    for name in ("tries", "poison", "fingerprint", "handler"):
        del fields[name]
    assert decode_death(json.dumps(fields)) == DEATH


def test_a_dead_letter_set_aside_keeps_its_death_and_gets_the_reason() -> None:
    dead_letter = with_death({"a": b"\xff"}, DEATH)
    set_aside = buried(dead_letter, DeadLetter(reason="r" * 9_000, set_aside=True), replace(DEATH, reason="not used"))
    assert {name: set_aside[name] for name in dead_letter} == dead_letter
    reason = set_aside_reason(set_aside)
    assert reason is not None
    assert "r" * 9_000 != reason == "r" * len(reason)
    assert set_aside_reason(dead_letter) is None
    assert set_aside_reason({SET_ASIDE_ATTRIBUTE: b"bytes"}) is None


def test_a_dead_lettered_message_gets_a_death() -> None:
    assert buried({"a": "b"}, DeadLetter(reason="x"), DEATH) == with_death({"a": "b"}, DEATH)
