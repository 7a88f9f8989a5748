"""The traps of Redis Streams, as docs/run/redis.md lists them: each is shown with a plain client, and then avoided by
the broker.
"""

import re
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest
from tests.integration.redis_scene import GROUP, LEASE, NOW, STREAM, Scene, bodies, outgoing, take

from penstock.brokers import shared
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.redis.server import Server, script
from penstock.messaging.broker import ReceiveRequest
from penstock.messaging.settlement import Ack, DeadLetter, Release

# --- XGROUP DELCONSUMER drops the pending entries of the consumer


def test_deleting_a_consumer_by_hand_loses_its_pending_messages(scene: Scene) -> None:
    scene.naive("lost")
    assert len(scene.read("dead")) == 1
    assert scene.raw.xgroup_delconsumer("s", "g", "dead") == 1
    assert scene.raw.xautoclaim("s", "g", "heir", 0)[1] == []
    assert scene.read("heir") == []
    assert scene.raw.xlen("s") == 1  # the entry exists, and no consumer will ever get it


def test_a_consumer_with_pending_messages_is_never_deleted(scene: Scene) -> None:
    dead, empty, alive = (scene.broker(name) for name in ("dead", "empty", "alive"))
    alive.send("q", outgoing("held", "acked"))
    (held,) = take(dead, 1, lease=3600.0)
    (acked,) = take(empty, 1)
    assert not empty.settle([(acked, Ack())])
    server = Server(scene.server.url)
    with closing(server):
        tidied = server.call(*script("tidy", [STREAM], 0))  # all consumers idle for any time
    assert tidied == 1
    (left,) = scene.raw.xinfo_consumers(STREAM, GROUP)
    assert left["name"].startswith(b"dead|")
    assert left["pending"] == 1
    assert alive.release_holder("dead") == 1
    assert [each.message.id for each in take(alive)] == [held.message.id]


def test_closing_a_broker_deletes_no_pending_message(scene: Scene) -> None:
    with closing(RedisStreamsBroker(scene.server.url, holder="ended")) as broker:
        broker.send("q", outgoing("held"))
        assert take(broker, lease=3600.0)
    assert scene.broker().release_holder("ended") == 1


# --- XCLAIM 0 JUSTID, as a heartbeat, takes the message back


def test_a_late_heartbeat_by_hand_takes_the_message_back(scene: Scene) -> None:
    (id,) = scene.naive("mine")
    scene.read("slow")
    assert scene.raw.xautoclaim("s", "g", "heir", 0)[1] != []
    assert scene.raw.xclaim("s", "g", "slow", 0, [id], justid=True) == [id]
    assert [each["consumer"] for each in scene.raw.xpending_range("s", "g", "-", "+", 9)] == [b"slow"]


def test_a_late_heartbeat_takes_nothing_from_the_new_owner(scene: Scene) -> None:
    slow, successor = scene.broker("slow"), scene.broker("heir")
    slow.send("q", outgoing("mine"))
    (before,) = take(slow, lease=NOW)
    (after,) = take(successor)
    assert after.message.id == before.message.id
    assert slow.extend([before], lease_seconds=LEASE) == [before]
    (pending,) = scene.raw.xpending_range(STREAM, GROUP, "-", "+", 9)
    assert pending["consumer"].startswith(b"heir|")
    assert successor.extend([after], lease_seconds=LEASE) == []
    assert not successor.settle([(after, Ack())])


# --- XACK does not check who acks; and a crash after it leaks the entry


def test_an_ack_by_hand_needs_no_ownership_and_leaves_the_entry(scene: Scene) -> None:
    (id,) = scene.naive("mine")
    scene.read("slow")
    scene.raw.xautoclaim("s", "g", "heir", 0)
    assert scene.raw.xack("s", "g", id) == 1  # by the consumer that lost it
    assert scene.pending() == 0
    assert scene.raw.xlen("s") == 1  # a crash here leaves the entry pending for no consumer, and never deleted


@pytest.mark.parametrize("settlement", [Ack(), Release(), DeadLetter(reason="x")], ids=lambda each: type(each).__name__)
def test_a_late_settlement_has_no_effect(scene: Scene, settlement: Ack | Release | DeadLetter) -> None:
    slow, successor = scene.broker("slow"), scene.broker("heir")
    slow.send("q", outgoing("mine"))
    (before,) = take(slow, lease=NOW)
    (after,) = take(successor)
    (failure,) = slow.settle([(before, settlement)])
    assert failure.lost
    assert failure.reason == shared.LOST
    assert successor.stats("q").in_flight == 1
    assert not slow.browse("q-dlq", messages_max=9)
    assert not successor.settle([(after, Ack())])


def test_a_late_ack_among_others_is_the_only_one_that_fails(scene: Scene) -> None:
    slow, successor = scene.broker("slow"), scene.broker("heir")
    slow.send("q", outgoing("late"))
    (late,) = take(slow, lease=NOW)
    (again,) = take(successor)
    slow.send("q", outgoing("one", "two"))
    one, two = take(slow)
    (failure,) = slow.settle([(one, Ack()), (late, Ack()), (two, Ack())])
    assert (failure.delivery, failure.lost) == (late, True)
    assert successor.stats("q").in_flight == 1
    assert not successor.settle([(again, Ack())])
    assert scene.raw.xlen(STREAM) == 0


def test_settled_messages_leave_no_entry(scene: Scene) -> None:
    broker = scene.broker()
    broker.send("q", outgoing(*range(9)))
    first, second, third = (take(broker, 3) for _ in range(3))
    broker.settle([(each, Ack()) for each in first])
    broker.settle([(each, DeadLetter(reason="bad")) for each in second])
    broker.settle([(each, Release(delay_seconds=60)) for each in third])
    assert scene.raw.xlen(STREAM) == 0


def test_ack_and_deletion_are_in_one_script() -> None:
    """Redis runs a script completely or not at all, so no crash can separate the two."""
    text = (files("penstock.brokers.redis") / "lua" / "settle.lua").read_text(encoding="utf-8")
    assert text.index("'XACK'") < text.index("'XDEL'")
    python = (Path(str(files("penstock.brokers.redis")))).glob("*.py")
    assert [path.name for path in python if re.search(r'"(XACK|XDEL)"', path.read_text(encoding="utf-8"))] == []


# --- XAUTOCLAIM from 0-0 scans ten times its COUNT

LIVE = 6_000


def test_claiming_by_hand_from_the_start_never_reaches_expired_entries_behind_live_ones(scene: Scene) -> None:
    scene.raw.eval("for n = 1, 2001 do redis.call('XADD', KEYS[1], '*', 'n', n) end", 1, "s")
    scene.raw.xgroup_create("s", "g", "0")
    ids = scene.read("dead", 2001)
    long_ago = {"idle": 3_600_000, "justid": True}
    scene.raw.xclaim("s", "g", "dead", 0, ids[-1:], **long_ago)
    for _ in range(5):  # any number of times: each call starts at the beginning
        _, claimed, *_ = scene.raw.xautoclaim("s", "g", "heir", 60_000, start_id="0-0", count=100)
        assert claimed == []
    assert [len(scene.raw.xpending_range("s", "g", "-", "+", 9, consumername="dead", idle=60_000))] == [1]


def test_one_sweep_reaches_expired_entries_behind_thousands_of_live_ones(scene: Scene) -> None:
    alive, dead, successor = scene.broker("alive"), scene.broker("dead"), scene.broker("heir", sweep_seconds=3600.0)
    alive.send("q", outgoing(*range(LIVE), "orphan"))
    for _ in range(LIVE // 1000):
        assert len(take(alive, 1000)) == 1000
    assert bodies(take(dead, 10, lease=NOW)) == ["orphan"]
    assert bodies(take(successor)) == ["orphan"]  # its first poll sweeps, once
    assert alive.stats("q").in_flight == LIVE + 1


# --- COUNT applies to each stream of a read


def test_a_read_by_hand_of_three_streams_returns_three_times_its_count(scene: Scene) -> None:
    for stream in "abc":
        scene.raw.xgroup_create(stream, "g", "0", mkstream=True)
        for n in range(9):
            scene.raw.xadd(stream, {"n": n})
    assert len(scene.read("w", 5, "a", "b", "c")) == 15


def test_a_turn_over_three_full_queues_returns_the_messages_of_one(scene: Scene) -> None:
    broker = scene.broker()
    for queue in "abc":
        broker.send(queue, outgoing(*range(9)))
    requests = [ReceiveRequest(queue=queue, messages_max=count) for queue, count in (("a", 5), ("b", 4), ("c", 3))]
    turn = broker.turn((), requests, lease_seconds=LEASE)
    assert [(each.queue, each.message.body) for each in turn.deliveries] == [("a", b"%d" % n) for n in range(5)]
    assert [broker.stats(queue).visible for queue in "abc"] == [4, 9, 9]


# --- MAXLEN and XTRIM delete undelivered entries


def test_trimming_by_hand_loses_undelivered_entries(scene: Scene) -> None:
    scene.naive()
    for n in range(20):
        scene.raw.xadd("s", {"n": n}, maxlen=10, approximate=False)
    assert len(scene.read("w", 100)) == 10


def test_the_broker_never_trims_a_stream(scene: Scene) -> None:
    folder = Path(str(files("penstock.brokers.redis")))
    sources = [*folder.glob("*.py"), *folder.glob("lua/*.lua")]
    assert len(sources) > 15
    assert [path.name for path in sources if re.search(r"MAXLEN|MINID|XTRIM", path.read_text(encoding="utf-8"))] == []
    broker = scene.broker()
    broker.send("q", outgoing(*range(10_000)))
    seen: list[str] = []
    while deliveries := take(broker, 1000):
        seen += bodies(deliveries)
        assert not broker.settle([(each, Ack()) for each in deliveries])
    assert seen == [str(n) for n in range(10_000)]
