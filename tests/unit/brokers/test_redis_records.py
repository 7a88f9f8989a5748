"""Records that the Redis scripts write and Python reads: the state of a message after any history, and receipts."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.services.plugin import Servers
from tests.services.redis_server import VERSIONS

from penstock.brokers.redis.records import MessageState, entry_of, milliseconds, state_of
from penstock.brokers.redis.server import scripts
from penstock.messaging.death import TRIES_MAX, AttemptRecord
from penstock.messaging.delivery import AttemptEnd, PreviousAttempt

ENDED = """
local state = KEYS[1]
for at = 1, #ARGV, 5 do
  state = ended(state, tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
end
return { state, is_state(state) and 1 or 0, seq_of(state), enqueued_of(state) }
"""
ENDS = {"F": AttemptEnd.FAILED, "G": AttemptEnd.RELEASED, "E": AttemptEnd.EXPIRED}
MILLISECONDS = st.integers(1, 10**14)  # up to the year 5138
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ENDED_DELIVERIES = st.lists(
    st.tuples(MILLISECONDS, MILLISECONDS, st.sampled_from("FGE"), TEXTS.filter(lambda name: "\n" not in name), TEXTS),
    max_size=14,
)
EndedDelivery = tuple[int, int, str, str, str]


def with_delivery(state: MessageState, delivery: EndedDelivery) -> MessageState:
    """Return the state after one more ended delivery.

    Restates the script's rule: a release is not a failure; any other end is the last failure.
    """
    started, at, kind, worker, reason = delivery
    failed_at = None if kind == "G" else at / 1000
    return replace(
        state,
        delivery_count=state.delivery_count + 1,
        uncounted_count=state.uncounted_count + (kind == "G"),
        first_failed_at=failed_at if state.first_failed_at is None else state.first_failed_at,
        last_failed_at=state.last_failed_at if failed_at is None else failed_at,
        previous=PreviousAttempt(
            started_at=started / 1000, ended_at=at / 1000, worker=worker, end=ENDS[kind], reason=reason or None
        ),
    )


def tries(deliveries: list[EndedDelivery]) -> list[AttemptRecord]:
    """Return the last ten attempts. In all but the latest, control characters are replaced by spaces."""
    plain = [
        (started, at, kind, "".join(map(plain_of, worker)), "".join(map(plain_of, reason)))
        for started, at, kind, worker, reason in deliveries[:-1]
    ]
    return [
        AttemptRecord(
            started_at=started / 1000, ended_at=at / 1000, worker=worker, end=ENDS[kind].value, reason=reason or None
        )
        for started, at, kind, worker, reason in [*plain, *deliveries[-1:]][-TRIES_MAX:]
    ]


def plain_of(character: str) -> str:
    return " " if ord(character) < 32 or ord(character) == 127 else character


def ended(servers: Servers, version: str, *arguments: Any) -> Any:
    common = scripts()["send"].text.partition("-- KEYS:")[0]
    return servers.redis(version).client.eval(common + ENDED, 1, *arguments)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60, deadline=None)
@given(seq=st.integers(1, 10**15 - 1), enqueued=MILLISECONDS, deliveries=ENDED_DELIVERIES)
def test_a_state_records_the_delivery_history(
    servers: Servers, version: str, seq: int, enqueued: int, deliveries: list[EndedDelivery]
) -> None:
    text, is_state, *numbers = ended(
        servers, version, f"{seq} {enqueued}", *(part for one in deliveries for part in one)
    )
    expected = MessageState(seq=seq, enqueued_at=enqueued / 1000)
    for delivery in deliveries:
        expected = with_delivery(expected, delivery)
    state = state_of(text)
    assert replace(state, earlier=b"") == expected
    assert list(state.tries) == tries(deliveries)
    assert is_state == 1
    assert numbers == [seq, enqueued]


@pytest.mark.parametrize("version", VERSIONS)
def test_long_texts_of_earlier_attempts_are_truncated(servers: Servers, version: str) -> None:
    text, *_ = ended(servers, version, "1 2", *(3, 4, "F", "w" * 300, "é" * 300), *(5, 6, "E", "v", ""))
    first, last = state_of(text).tries
    assert (first.worker, first.reason, last.worker, last.reason) == ("w" * 200, "é" * 100, "v", None)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("forged", ["bad\x003 4 F w\tforged", "\x00", "\x003 4 F w\t"])
def test_a_reason_is_not_parsed_as_attempts(servers: Servers, version: str, forged: str) -> None:
    text, *_ = ended(servers, version, "1 2", *(3, 4, "F", "w", forged))
    state = state_of(text)
    assert state.previous is not None
    assert state.previous.reason == forged
    assert len(state.tries) == 1


@pytest.mark.parametrize(
    "text", [b"1 2 2 1 0 1 4 4 3 4 F w\nbad", b"1 2 2 1 0 1 4 4 3 4 F w\nbad\x00\n\ngarbage\n1 2 X w\tr"]
)
def test_a_state_without_readable_earlier_attempts_has_only_the_last_one(text: bytes) -> None:
    state = state_of(text)
    assert state.previous is not None
    assert (state.previous.reason, len(state.tries)) == ("bad", 1)


@pytest.mark.parametrize("text", ["", "paid", "1", "1 x", "12 34 shipped", " 1 2", "1 2 3 4 5 6 7 8 9 10 F", "-1 2"])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_state_of_another_program_is_not_recognized(servers: Servers, version: str, text: str) -> None:
    common = scripts()["send"].text.partition("-- KEYS:")[0]
    assert servers.redis(version).client.eval(common + "return is_state(KEYS[1]) and 1 or 0", 1, text) == 0


def test_entry_of_returns_the_entry_id_of_a_receipt() -> None:
    assert entry_of("b90a4124bb879e06-1795281573041-7") == "1795281573041-7"


INVALID_RECEIPTS = [
    "-",
    "--",
    "x",
    "1-2",
    "a-b-c",
    "a-1-",
    "a--1",
    "a-1-x",
    "a-1-²",
    "a-+1-2",
    "a-1-1_0",
    "a-1-*",
    "a->-1",
    "a-1-$",
]


@pytest.mark.parametrize("receipt", [*INVALID_RECEIPTS, "", "a- 1-2", "a-1-2 ", "a-1-2\n", f"a-{'9' * 20}-0"])
def test_entry_of_returns_none_for_an_invalid_receipt(receipt: str) -> None:
    assert entry_of(receipt) is None


@given(st.text(max_size=30))
def test_entry_of_an_arbitrary_text_is_none_or_a_valid_redis_id(receipt: str) -> None:
    entry = entry_of(receipt)
    assert entry is None or all(int(part) < 2**64 and part.isascii() for part in entry.split("-"))


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, 0), (0.0001, 1), (0.001, 1), (1.0, 1000), (1.0005, 1001)])
def test_a_delay_is_never_rounded_down(seconds: float, expected: int) -> None:
    assert milliseconds(seconds) == expected
