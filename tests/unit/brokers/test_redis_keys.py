"""The names of keys: all of a queue and its dead letters in one slot of a cluster, and no name of two queues."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from redis.crc import key_slot

from penstock.brokers.redis.keys import QueueKeys
from penstock.messaging.broker import conventional_dead_letter_queue

NAMES = [
    "q",
    "a b",
    "{q}",
    "}{",
    "a}b",
    "%",
    "100%25",
    "q-dlq",
    "-dlq",
    "q-dlq-dlq",
    "q-dead",
    "-dead",
    "заказы",
    "注文",
    "q:stream",
    "\n",
    "*",
]
PARTS = st.lists(st.sampled_from(["-dlq", "-dead", *"{}%-dlq:ä \x00*"]), min_size=1, max_size=9)
TEXTS = PARTS.map("".join) | st.text(min_size=1, max_size=9)
KEYS = QueueKeys("penstock")


def keys_of(queue: str) -> list[str]:
    """What Python asks for, and what the scripts make of the stream's name: they put others in the place of its end."""
    base = KEYS.stream(queue).removesuffix(":stream")
    parts = ("queue", "ring", "ready", "ready:{tenant}", "delayed", "wake", "once:{1}")
    return [KEYS.stream(queue), KEYS.wake_key(queue), KEYS.settings(queue), *(f"{base}:{part}" for part in parts)]


def slots(*queues: str) -> set[int]:
    return {key_slot(key.encode("utf-8", "surrogatepass")) for queue in queues for key in keys_of(queue)}


@pytest.mark.parametrize("queue", NAMES)
def test_the_keys_of_a_queue_and_of_its_dead_letters_lie_in_one_slot(queue: str) -> None:
    assert len(slots(queue, f"{queue}-dlq", conventional_dead_letter_queue(f"{queue}-dlq"))) == 1


@given(TEXTS)
def test_whatever_the_queue_is_called(queue: str) -> None:
    assert len(slots(queue, f"{queue}-dlq", f"{queue}-dead", f"{queue}-dlq-dlq")) == 1


def test_queues_are_spread_over_the_slots() -> None:
    assert len(slots(*(f"queue {n}" for n in range(100)))) > 90


@given(TEXTS, TEXTS)
def test_no_two_queues_share_a_key(one: str, other: str) -> None:
    assume(one != other)
    assert set(keys_of(one)).isdisjoint(keys_of(other))


def test_a_plain_name_can_be_read_in_its_key() -> None:
    assert KEYS.stream("orders of 2026/eu") == "penstock:{orders of 2026/eu}:stream"
    assert KEYS.stream("orders-dlq") == "penstock:{orders}-dlq:stream"
    assert KEYS.stream("orders-dead") == "penstock:{orders}-dead:stream"
    assert KEYS.wake_key("-dlq") == "penstock:{-dlq}:wake"
    assert KEYS.wake_key("-dead") == "penstock:{-dead}:wake"
    assert QueueKeys("shop").settings("q") == "shop:{q}:queue"


def test_a_name_that_has_to_be_escaped_has_an_unescaped_key_that_nothing_reads() -> None:
    assert KEYS.stream("myqueue:realtime") == "penstock:{myqueue%3Arealtime}:stream"
    assert KEYS.unescaped_stream("myqueue:realtime") == "penstock:{myqueue:realtime}:stream"
    assert KEYS.unescaped_stream("orders of 2026/eu") is None
    assert KEYS.unescaped_stream("a%3Ab") is None, "it is the key of the queue a:b"
    assert KEYS.unescaped_stream("a:b-dlq") is None, "nothing is sent there by other clients"


@given(TEXTS)
def test_an_unescaped_key_is_never_one_of_the_queue(queue: str) -> None:
    assert KEYS.unescaped_stream(queue) not in keys_of(queue)
