"""Replays keep the user's content of every dead-lettered message, however often it fails and is replayed."""

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.messaging.death import (
    DEATH_ATTRIBUTE,
    EARLIER_DEATHS_ATTRIBUTE,
    EARLIER_DEATHS_MAX,
    SET_ASIDE_ATTRIBUTE,
    AttemptRecord,
    Death,
    buried,
    death_of,
    decode_death,
    earlier_deaths_of,
    encode_death,
    move_death_to_history,
    set_aside_reason,
)
from penstock.messaging.message import ORIGIN_ATTRIBUTE, Attributes, Message
from penstock.messaging.replay import COUNTER_ATTRIBUTE, REPLAY_ID_ATTRIBUTE, Replay, replay_id_of, replayed
from penstock.messaging.settlement import DeadLetter

OURS = {
    COUNTER_ATTRIBUTE,
    REPLAY_ID_ATTRIBUTE,
    ORIGIN_ATTRIBUTE,
    EARLIER_DEATHS_ATTRIBUTE,
    DEATH_ATTRIBUTE,
    SET_ASIDE_ATTRIBUTE,
}
NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name not in OURS)
VALUES = st.text(max_size=30) | st.binary(max_size=30)
USERS = st.dictionaries(NAMES, VALUES, max_size=10)
TEXTS = st.text(max_size=50)
MOMENTS = st.floats(allow_nan=False, allow_infinity=False)
TRIES = st.builds(
    AttemptRecord, started_at=MOMENTS, ended_at=MOMENTS, worker=TEXTS, end=st.just("failed"), reason=st.none() | TEXTS
)
DEATHS = st.builds(
    Death,
    reason=TEXTS,
    exception=st.none() | TEXTS,
    attempts=st.integers(0, 1000),
    last_failed_at=MOMENTS,
    worker=TEXTS,
    queue=TEXTS,
    message_id=TEXTS,
    enqueued_at=MOMENTS,
    poison=st.booleans(),
    fingerprint=st.none() | TEXTS,
    handler=st.none() | TEXTS,
    tries=st.lists(TRIES, max_size=10).map(tuple),
)
ANYTHING = st.text(max_size=200) | st.binary(max_size=200)


def dead_letter(attributes: Attributes, *, body: bytes = b"", group: str | None = None) -> Message:
    return Message(id="l", body=body, attributes=attributes, group=group, enqueued_at=1.0)


def again(attributes: Attributes, count: int = 1) -> Attributes:
    replay = Replay(
        replay_id=replay_id_of("q-dlq", str(count)),
        dead_letter_queue="q-dlq",
        dead_letter_id=str(count),
        queue="q",
        count=count,
        due_at=0.0,
    )
    return replayed(dead_letter(attributes), replay, delay_seconds=0.0).attributes


def users(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if name not in OURS}


@given(
    attributes=USERS,
    death=DEATHS,
    body=st.binary(max_size=100),
    group=st.none() | TEXTS,
    delay=st.floats(0, 900),
    set_aside=st.booleans(),
)
def test_a_replay_keeps_every_attribute_body_and_group(
    attributes: Attributes, death: Death, body: bytes, group: str | None, delay: float, set_aside: bool
) -> None:
    dead = buried(attributes, DeadLetter(reason="x"), death)
    if set_aside:
        dead = buried(dead, DeadLetter(reason="aside", set_aside=True), death)
    replay = Replay(replay_id="1" * 32, dead_letter_queue="q-dlq", dead_letter_id="l", queue="q", count=3, due_at=0.0)
    message = replayed(dead_letter(dead, body=body, group=group), replay, delay_seconds=delay)
    assert users(message.attributes) == attributes
    assert (message.body, message.group, message.delay_seconds) == (body, group, delay)
    ours = message.attributes.keys() - attributes.keys()
    assert ours == {COUNTER_ATTRIBUTE, REPLAY_ID_ATTRIBUTE, ORIGIN_ATTRIBUTE, EARLIER_DEATHS_ATTRIBUTE}


@given(attributes=USERS, deaths=st.lists(DEATHS, min_size=1, max_size=2 * EARLIER_DEATHS_MAX))
def test_a_bounded_history_keeps_the_first_and_the_last_failures(attributes: Attributes, deaths: list[Death]) -> None:
    carried = attributes
    for number, death in enumerate(deaths, 1):
        carried = again(buried(carried, DeadLetter(reason="x"), death), number)
    kept = deaths if len(deaths) <= EARLIER_DEATHS_MAX else [deaths[0], *deaths[1 - EARLIER_DEATHS_MAX :]]
    assert [
        (each.reason, each.queue, each.message_id, each.enqueued_at, each.attempts, each.last_failed_at, each.worker)
        for each in earlier_deaths_of(carried)
    ] == [(d.reason, d.queue, d.message_id, d.enqueued_at, d.attempts, d.last_failed_at, d.worker) for d in kept]
    assert users(carried) == attributes


@given(
    texts=st.lists(st.text(min_size=150, max_size=300), min_size=4, max_size=4),
    count=st.integers(EARLIER_DEATHS_MAX, EARLIER_DEATHS_MAX + 3),
)
@example(texts=["😀" * 200] * 4, count=EARLIER_DEATHS_MAX)
def test_long_texts_leave_room_for_the_whole_history(texts: list[str], count: int) -> None:
    reason, queue, message_id, worker = texts
    death = Death(
        reason=reason,
        attempts=1,
        last_failed_at=1.0,
        worker=worker,
        queue=queue,
        message_id=message_id,
        enqueued_at=1.0,
    )
    carried: Attributes = {}
    for number in range(count):
        carried = again(buried(carried, DeadLetter(reason="x"), death), number)
    assert len(earlier_deaths_of(carried)) == EARLIER_DEATHS_MAX, "a history over its limit would be read as empty"


@given(attributes=USERS, past=ANYTHING, death=ANYTHING)
def test_forged_attributes_raise_nothing_and_lose_no_user_attribute(
    attributes: Attributes, past: str | bytes, death: str | bytes
) -> None:
    forged = {**attributes, EARLIER_DEATHS_ATTRIBUTE: past, DEATH_ATTRIBUTE: death}
    kept = move_death_to_history(forged)
    assert users(kept) == attributes
    assert DEATH_ATTRIBUTE not in kept
    assert len(earlier_deaths_of(kept)) <= EARLIER_DEATHS_MAX
    assert users(again(forged)) == attributes


@given(death=DEATHS)
def test_a_death_survives_encoding_and_decoding(death: Death) -> None:
    assert decode_death(encode_death(death)) == death


@given(attributes=USERS, death=DEATHS, other=DEATHS, reason=TEXTS)
def test_a_message_moved_to_the_final_dlq_keeps_its_death_and_the_reason(
    attributes: Attributes, death: Death, other: Death, reason: str
) -> None:
    first = buried(attributes, DeadLetter(reason="x"), death)
    second = buried(first, DeadLetter(reason=reason, set_aside=True), other)
    assert death_of(second) == death
    assert earlier_deaths_of(second) == ()
    assert set_aside_reason(second) == reason
    assert set_aside_reason(again(second)) is None
