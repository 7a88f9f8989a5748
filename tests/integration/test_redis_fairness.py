"""Shares: of tenants in one queue, of queues in one worker, and of senders without Penstock."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.integration.fleet import wait_for
from tests.integration.redis_scene import LEASE, STREAM, bodies, outgoing, take
from tests.integration.redis_worker import working
from tests.services.redis_server import RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.events import Event, MessagesReceived
from penstock.messaging.death import death_of
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import UNREADABLE_ATTRIBUTE, Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release

NOISY = 100_000


@pytest.fixture
def broker(redis_server: RedisServer) -> Iterator[RedisStreamsBroker]:
    with closing(RedisStreamsBroker(redis_server.url, holder="w1", sweep_seconds=3600.0)) as opened:
        yield opened


def rounds(broker: RedisStreamsBroker, count: int, *, each: int) -> list[Delivery]:
    taken: list[Delivery] = []
    for _ in range(count):
        deliveries = take(broker, each)
        assert len(deliveries) == each
        assert not broker.settle([(delivery, Ack()) for delivery in deliveries])
        taken += deliveries
    return taken


def test_a_noisy_tenant_delays_no_other(broker: RedisStreamsBroker) -> None:
    noise = [Outgoing(body=b"noise", group="noisy")] * 10_000
    for _ in range(NOISY // len(noise)):
        broker.send("q", noise)
    broker.send("q", [Outgoing(body=b"%d" % n, group="quiet") for n in range(10)])
    taken = rounds(broker, 2, each=50)
    positions = [position for position, delivery in enumerate(taken) if delivery.message.group == "quiet"]
    noise_before = [position - number for number, position in enumerate(positions)]
    assert len(positions) == 10
    assert all(before <= number + 1 for number, before in enumerate(noise_before)), noise_before
    assert broker.stats("q").visible == NOISY + 10 - 100


def test_released_messages_do_not_starve_other_tenants(broker: RedisStreamsBroker) -> None:
    """A tenant whose messages all fail gets no more than its share."""
    broker.send("q", [Outgoing(body=b"bad", group="bad") for _ in range(50)])
    broker.send("q", [Outgoing(body=b"good", group="good") for _ in range(50)])
    good = 0
    for _ in range(10):
        deliveries = take(broker, 10)
        mine = [each for each in deliveries if each.message.group == "good"]
        good += len(mine)
        broker.settle([(each, Ack() if each in mine else Release()) for each in deliveries])
    assert good == 50


def test_many_tenants_get_one_message_each_in_turn(broker: RedisStreamsBroker) -> None:
    for n in range(3):
        broker.send("q", [Outgoing(body=b"%d" % n, group=str(tenant)) for tenant in range(200)])
    taken = rounds(broker, 12, each=50)
    assert [each.message.body for each in taken] == [b"0"] * 200 + [b"1"] * 200 + [b"2"] * 200
    assert Counter(each.message.group for each in taken) == {str(tenant): 3 for tenant in range(200)}


def test_queues_get_shares_by_their_weights(broker: RedisStreamsBroker) -> None:
    count = 6_000
    received: list[tuple[str, int]] = []

    def count_received(event: Event) -> None:
        if isinstance(event, MessagesReceived):
            received.append((event.queue, len(event.message_ids)))

    for queue in ("heavy", "light"):
        broker.send(queue, outgoing(*range(count)))
    with working(broker, {"heavy": 3, "light": 1}, count_received):
        wait_for(lambda: sum(number for _, number in received) == 2 * count, "all is done")
    shares: Counter[str] = Counter()
    for queue, number in received:
        shares[queue] += number
        if shares["heavy"] == count:  # from here on one of the queues is empty
            break
    assert shares.total() >= 4_000
    assert shares["heavy"] / shares["light"] == pytest.approx(3.0, rel=0.05)
    for queue in ("heavy", "light"):
        stats = broker.stats(queue)
        assert (stats.visible, stats.in_flight) == (0, 0)


# --- senders without Penstock


def test_foreign_and_ungrouped_messages_take_their_turn(redis_server: RedisServer, broker: RedisStreamsBroker) -> None:
    broker.send("q", [Outgoing(body=b"ours", group="a") for _ in range(500)])
    broker.send("q", [Outgoing(body=b"ungrouped")] * 3)
    for n in range(5):
        redis_server.client.xadd(STREAM, {"body": f"foreign {n}"})
        redis_server.client.xadd(STREAM, {"group": "b", "body": f"foreign in b {n}"})
    first = bodies(rounds(broker, 1, each=24))
    assert first[:6] == ["ours", "ungrouped", "foreign in b 0", "ours", "ungrouped", "foreign in b 1"]
    assert Counter(body.rpartition(" ")[0] for body in first)["foreign in b"] == 5
    assert [body for body in first if body in ("ungrouped", "foreign 0", "foreign 1")] == (
        ["ungrouped"] * 3 + ["foreign 0", "foreign 1"]
    )


def test_a_foreign_message_keeps_its_id_and_becomes_json(redis_server: RedisServer, broker: RedisStreamsBroker) -> None:
    redis_server.client.xadd(STREAM, {"order": "7", "state": "paid", "note": 'a "quote"'})
    assert broker.stats("q").visible == 1
    assert list(broker.browse("q", messages_max=9)) == []  # no worker has read it yet
    (first,) = take(broker)
    assert json.loads(first.message.body) == {"order": "7", "state": "paid", "note": 'a "quote"'}
    assert (first.attempt, first.message.group) == (1, None)
    assert not broker.settle([(first, Release())])
    (second,) = take(broker)
    assert (second.message, second.attempt) == (first.message, 2)
    assert broker.extend([second], lease_seconds=LEASE) == []


def test_arbitrary_bytes_of_other_senders_do_not_stop_a_queue(
    redis_server: RedisServer, broker: RedisStreamsBroker
) -> None:
    broker.send("q", outgoing("ours"))
    redis_server.client.xadd(STREAM, {"group": b"\xff", "body": b"\xfe"})
    redis_server.client.xadd(STREAM, {"state": "1 2", "group": "b"})  # in Penstock's form, but without a body
    redis_server.client.xadd(STREAM, {b"\xff": b"\x00"})
    first = take(broker)
    assert Counter(each.message.body for each in first)[b"ours"] == 1
    assert {(each.message.group, each.message.body) for each in first} >= {("\ufffd", b"\xfe")}
    assert {"state": "1 2", "group": "b"} in [
        json.loads(each.message.body) for each in first if each.message.group == "b"
    ]
    assert len(first) == 4
    assert len(broker.browse("q", messages_max=9)) == 4
    assert not broker.settle([(each, Release()) for each in first])
    second = take(broker)
    assert {each.message.id for each in second} == {each.message.id for each in first}
    assert not broker.settle([(each, DeadLetter(reason="enough")) for each in second])
    assert broker.stats("q-dlq").visible == 4


@pytest.mark.parametrize(
    "head", ["no json", "[1]", '{"a": 1}', '{"a": ["no base64!"]}', b"\xff", "[" * 100_000], ids=lambda head: head[:9]
)
def test_unreadable_attributes_become_one_dead_letter(
    redis_server: RedisServer, broker: RedisStreamsBroker, head: str | bytes
) -> None:
    broker.send("q", outgoing("good 1", "good 2"))
    now = int(time.time() * 1000)
    redis_server.client.xadd(STREAM, {"state": f"7 {now}", "body": "x", "head": head})
    assert sorted(bodies(take(broker))) == ["good 1", "good 2"]
    (dead_letter,) = broker.receive("q-dlq", messages_max=9, lease_seconds=LEASE)
    death = death_of(dead_letter.message.attributes)
    assert death is not None
    assert death.poison
    shown = head if isinstance(head, str) else head.decode("utf-8", "backslashreplace")
    assert dead_letter.message.attributes[UNREADABLE_ATTRIBUTE] == shown[:4096]
    assert not broker.settle([(dead_letter, DeadLetter(reason="for people", set_aside=True))])
    assert [each.body for each in broker.browse("q-dead", messages_max=9)] == [b"x"]


@pytest.mark.parametrize(
    "state",
    [
        "9" * 5_000 + " 1",
        "1 " + "9" * 400,
        "1 1 1 1 1 1 1 1 1 1 F \0\0\n\0",
        "1 1 1 1 1 1 1 1 1 " + "9" * 5_000 + " E w\n",
    ],
    ids=lambda state: state[:12],
)
def test_a_forged_state_does_not_stop_a_queue(
    redis_server: RedisServer, broker: RedisStreamsBroker, state: str
) -> None:
    broker.send("q", outgoing("good"))
    redis_server.client.xadd(STREAM, {"state": state, "group": "b", "body": "x"})
    redis_server.client.xadd(STREAM, {"state": state, "body": "x"})
    assert "good" in bodies(take(broker))
    assert broker.stats("q").messages + broker.stats("q-dlq").messages == 3
    assert len({each.id for queue in ("q", "q-dlq") for each in broker.browse(queue, messages_max=9)}) == 3


def test_an_entry_copied_from_another_queue_gets_a_number_of_its_own(
    redis_server: RedisServer, broker: RedisStreamsBroker
) -> None:
    redis_server.client.xadd(STREAM, {"state": f"3 {int(time.time() * 1000)}", "body": "copied"})
    assert bodies(take(broker)) == ["copied"]
    broker.send("q", outgoing("1", "2", "3"))
    assert len({each.id for each in broker.browse("q", messages_max=9)}) == 4


@pytest.mark.parametrize("fields", [{"body": "theirs"}, {"state": "NY", "body": "theirs"}])
def test_messages_read_by_other_consumers_of_the_group_are_redelivered_after_a_minute(
    redis_server: RedisServer, broker: RedisStreamsBroker, fields: dict[Any, Any]
) -> None:
    broker.send("q", outgoing("ours"))
    assert bodies(take(broker)) == ["ours"]
    redis_server.client.xadd(STREAM, fields)
    redis_server.client.xreadgroup("penstock", "another", {STREAM: ">"})
    (pending,) = redis_server.client.xpending_range(STREAM, "penstock", "-", "+", 9, consumername="another")
    redis_server.client.xclaim(STREAM, "penstock", "another", 0, [pending["message_id"]], idle=61_000)
    with closing(RedisStreamsBroker(redis_server.url, holder="w2")) as other:  # it sweeps before its first poll
        assert bodies(take(other)) == ["theirs"]
    assert redis_server.client.xlen(STREAM) == 2


def test_messages_sent_while_no_worker_polled_all_arrive(redis_server: RedisServer, broker: RedisStreamsBroker) -> None:
    count = 21_000  # more than one call reads into the queue; such a call delivers nothing
    redis_server.client.eval("for n = 0, ARGV[1] - 1 do redis.call('XADD', KEYS[1], '*', 'n', n) end", 1, STREAM, count)
    broker.send("q", outgoing("ours"))
    assert broker.stats("q").visible == count + 1
    seen: list[str] = []
    polls = 0
    while broker.stats("q").visible:
        deliveries, polls = take(broker, 1000), polls + 1
        seen += bodies(deliveries)
        assert not broker.settle([(each, Ack()) for each in deliveries])
        assert polls <= count // 1000 + 2
    assert sorted(seen) == sorted(["ours", *(json.dumps({"n": str(n)}, separators=(",", ":")) for n in range(count))])
