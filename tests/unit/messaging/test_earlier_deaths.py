"""Deaths of a message before the last one: short, bounded, and empty if unreadable."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.messaging.death import (
    DEATH_ATTRIBUTE,
    EARLIER_DEATHS_ATTRIBUTE,
    EARLIER_DEATHS_MAX,
    Death,
    earlier_deaths_of,
    encode_death,
    move_death_to_history,
    with_death,
)
from penstock.messaging.message import Attributes

DEATH = Death(
    reason="not an image",
    attempts=4,
    last_failed_at=1_700_000_000.5,
    worker="host-1",
    queue="q",
    message_id="m1",
    enqueued_at=0.5,
    traceback="Traceback ...",
)


def attributes_after(deaths: int) -> Attributes:
    """Return the attributes of a message dead-lettered that many times, each time with another reason."""
    attributes: Attributes = {"a": b"\xff"}
    for n in range(deaths):
        attributes = with_death(attributes, replace(DEATH, reason=f"reason {n}"))
    return attributes


def test_a_death_moved_to_the_history_is_an_earlier_death() -> None:
    attributes = move_death_to_history({"a": b"\xff", DEATH_ATTRIBUTE: encode_death(DEATH)})
    assert attributes.keys() == {"a", EARLIER_DEATHS_ATTRIBUTE}
    assert attributes["a"] == b"\xff"
    (earlier,) = earlier_deaths_of(attributes)
    assert (earlier.reason, earlier.queue, earlier.message_id, earlier.worker) == ("not an image", "q", "m1", "host-1")
    assert (earlier.attempts, earlier.enqueued_at, earlier.last_failed_at) == (4, 0.5, 1_700_000_000.5)


def test_a_message_without_a_death_is_unchanged() -> None:
    assert move_death_to_history({"a": "b"}) == {"a": "b"}
    assert earlier_deaths_of({"a": "b"}) == ()


@pytest.mark.parametrize("deaths", [2, EARLIER_DEATHS_MAX + 1, EARLIER_DEATHS_MAX + 2, 3 * EARLIER_DEATHS_MAX])
def test_the_first_death_and_the_last_ones_are_kept(deaths: int) -> None:
    reasons = [each.reason for each in earlier_deaths_of(attributes_after(deaths))]
    everything = [f"reason {n}" for n in range(deaths - 1)]
    assert reasons == (
        everything if deaths - 1 <= EARLIER_DEATHS_MAX else [everything[0], *everything[1 - EARLIER_DEATHS_MAX :]]
    )


@given(st.text(max_size=1_000), st.text(max_size=1_000))
def test_texts_are_truncated_once_and_then_unchanged(reason: str, worker: str) -> None:
    first = move_death_to_history({DEATH_ATTRIBUTE: encode_death(replace(DEATH, reason=reason, worker=worker))})
    (earlier,) = earlier_deaths_of(first)
    assert reason.startswith(earlier.reason)
    assert (len(earlier.reason), len(earlier.worker)) == (min(len(reason), 200), min(len(worker), 200))
    again = move_death_to_history({**first, DEATH_ATTRIBUTE: encode_death(DEATH)})
    assert earlier_deaths_of(again)[0] == earlier


@pytest.mark.parametrize(
    "value",
    [
        b"[]",
        "",
        "null",
        "{",
        "[1]",
        '{"reason": "x"}',
        "[" * 50_000,
        "x" * 70_000,
        json.dumps([{"reason": "x"}]),
        json.dumps([{**json.loads(encode_death(DEATH)), "attempts": True}]),
        json.dumps([{**json.loads(encode_death(DEATH)), "attempts": -1}]),
        json.dumps([{**json.loads(encode_death(DEATH)), "last_failed_at": float("nan")}]),
        json.dumps([{**json.loads(encode_death(DEATH)), "enqueued_at": 10**400}]),
        json.dumps([{**json.loads(encode_death(DEATH)), "queue": None}]),
    ],
)
def test_a_forged_history_is_empty(value: str | bytes) -> None:
    assert earlier_deaths_of({EARLIER_DEATHS_ATTRIBUTE: value}) == ()
    assert (
        len(
            earlier_deaths_of(
                move_death_to_history({EARLIER_DEATHS_ATTRIBUTE: value, DEATH_ATTRIBUTE: encode_death(DEATH)})
            )
        )
        == 1
    )


@pytest.mark.parametrize("value", [b"{}", "", "nonsense", "{}", "[" * 50_000])
def test_an_unreadable_death_adds_nothing_to_the_history(value: str | bytes) -> None:
    before = move_death_to_history({DEATH_ATTRIBUTE: encode_death(DEATH)})
    attributes = move_death_to_history({**before, DEATH_ATTRIBUTE: value})
    assert attributes == before


def test_a_history_that_is_too_long_is_read_up_to_its_maximum() -> None:
    entry = json.loads(encode_death(DEATH))
    value = json.dumps([{**entry, "reason": str(n), "traceback": None} for n in range(50)])
    assert [each.reason for each in earlier_deaths_of({EARLIER_DEATHS_ATTRIBUTE: value})] == [
        str(n) for n in range(EARLIER_DEATHS_MAX)
    ]
