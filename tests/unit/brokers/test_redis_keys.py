"""Names of Redis keys.

All keys of a queue and its dead-letter queues share one slot of a cluster. No two queues share a key.
"""

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
QUEUE_NAMES = PARTS.map("".join) | st.text(min_size=1, max_size=9)
KEYS = QueueKeys("penstock")


def keys_of(queue: str) -> list[str]:
    """Return the keys that Python uses, and those that the scripts derive by replacing the end of the stream's key."""
    base = KEYS.stream(queue).removesuffix(":stream")
    parts = ("queue", "ring", "ready", "ready:{tenant}", "delayed", "wake", "once:{1}")
    return [KEYS.stream(queue), KEYS.wake_key(queue), KEYS.settings(queue), *(f"{base}:{part}" for part in parts)]


def slots(*queues: str) -> set[int]:
    return {key_slot(key.encode("utf-8", "surrogatepass")) for queue in queues for key in keys_of(queue)}


@pytest.mark.parametrize("queue", NAMES)
def test_the_keys_of_a_queue_and_its_dead_letter_queues_share_one_slot(queue: str) -> None:
    assert len(slots(queue, f"{queue}-dlq", conventional_dead_letter_queue(f"{queue}-dlq"))) == 1


@given(QUEUE_NAMES)
def test_keys_share_one_slot_for_any_queue_name(queue: str) -> None:
    assert len(slots(queue, f"{queue}-dlq", f"{queue}-dead", f"{queue}-dlq-dlq")) == 1


def test_queues_are_spread_over_the_slots() -> None:
    assert len(slots(*(f"queue {n}" for n in range(100)))) > 90


@given(QUEUE_NAMES, QUEUE_NAMES)
def test_no_two_queues_share_a_key(one: str, other: str) -> None:
    assume(one != other)
    assert set(keys_of(one)).isdisjoint(keys_of(other))


def test_a_plain_name_appears_unchanged_in_its_key() -> None:
    assert KEYS.stream("orders of 2026/eu") == "penstock:{orders of 2026/eu}:stream"
    assert KEYS.stream("orders-dlq") == "penstock:{orders}-dlq:stream"
    assert KEYS.stream("orders-dead") == "penstock:{orders}-dead:stream"
    assert KEYS.wake_key("-dlq") == "penstock:{-dlq}:wake"
    assert KEYS.wake_key("-dead") == "penstock:{-dead}:wake"
    assert QueueKeys("shop").settings("q") == "shop:{q}:queue"


def test_a_name_that_needs_escaping_has_an_unescaped_key() -> None:
    assert KEYS.stream("myqueue:realtime") == "penstock:{myqueue%3Arealtime}:stream"
    assert KEYS.unescaped_stream("myqueue:realtime") == "penstock:{myqueue:realtime}:stream"
    assert KEYS.unescaped_stream("orders of 2026/eu") is None
    assert KEYS.unescaped_stream("a%3Ab") is None, "this is the key of the queue a:b"
    assert KEYS.unescaped_stream("a:b-dlq") is None, "other clients send nothing to a dead-letter queue"


@given(QUEUE_NAMES)
def test_an_unescaped_key_is_never_a_key_of_the_queue(queue: str) -> None:
    assert KEYS.unescaped_stream(queue) not in keys_of(queue)
