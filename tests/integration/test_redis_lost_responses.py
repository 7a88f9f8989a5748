"""Messages of a lost response are redelivered at once, without a counted attempt."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from tests.integration.redis_scene import bodies, outgoing, take
from tests.services.fault_proxy import FaultProxy
from tests.services.plugin import StartRedis
from tests.services.redis_server import RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.redis.server import scripts
from penstock.errors import TemporaryError, UnknownOutcome
from penstock.messaging.broker import QueueSettings, ReceiveRequest
from penstock.messaging.delivery import AttemptEnd
from penstock.messaging.settlement import Ack, Release

LEASE = 600.0
TAKE = scripts()["take"].sha.encode()
SETTLE = scripts()["settle"].sha.encode()
SEND = scripts()["send"].sha.encode()


@pytest.fixture
def broker(proxy: FaultProxy) -> Iterator[RedisStreamsBroker]:
    with closing(RedisStreamsBroker(proxy.url, holder="w1")) as opened:
        yield opened


def receive(broker: RedisStreamsBroker, count: int) -> list[str]:
    return bodies(take(broker, count, lease=LEASE))


def test_messages_of_a_lost_response_are_redelivered_uncounted(broker: RedisStreamsBroker, proxy: FaultProxy) -> None:
    broker.send("q", outgoing("a", "b", "c"))
    (held,) = broker.receive("q", messages_max=1, lease_seconds=LEASE)
    trap = proxy.swallow(TAKE)
    with pytest.raises(TemporaryError):
        receive(broker, 1)
    trap.wait()
    assert broker.stats("q").in_flight == 2
    again = broker.receive("q", messages_max=5, lease_seconds=LEASE)
    assert [(delivery.message.body, delivery.attempt) for delivery in again] == [(b"b", 1), (b"c", 1)]
    assert again[0].previous is not None
    assert again[0].previous.end is AttemptEnd.RELEASED
    assert not broker.settle([(delivery, Ack()) for delivery in (held, *again)])  # delivered messages keep their lease


def test_a_turn_whose_response_is_lost_acks_once_and_redelivers_its_messages(
    broker: RedisStreamsBroker, proxy: FaultProxy
) -> None:
    broker.send("q", outgoing("a", "b"))
    (first,) = broker.receive("q", messages_max=1, lease_seconds=LEASE)
    trap = proxy.swallow(SETTLE)
    turn = broker.turn([(first, Ack())], [ReceiveRequest(queue="q", messages_max=1)], lease_seconds=LEASE)
    trap.wait()
    assert isinstance(turn.settle_error, TemporaryError)
    assert turn.receive_error is not None
    turn = broker.turn([(first, Ack())], [ReceiveRequest(queue="q", messages_max=1)], lease_seconds=LEASE)
    assert [failure.lost for failure in turn.failures] == [True]  # it was acked the first time
    assert [delivery.message.body for delivery in turn.deliveries] == [b"b"]
    assert broker.stats("q").in_flight == 1


def test_lost_responses_do_not_affect_messages_of_other_threads(broker: RedisStreamsBroker, proxy: FaultProxy) -> None:
    finished = threading.Event()

    def take_all() -> list[str]:
        mine: list[str] = []
        while not finished.is_set():
            try:
                mine += receive(broker, 5)
            except TemporaryError:
                continue
        return mine

    with ThreadPoolExecutor(4) as pool:
        takers = [pool.submit(take_all) for _ in range(4)]
        try:
            for first in range(0, 400, 40):
                broker.send("q", outgoing(*range(first, first + 40)))
                proxy.swallow(TAKE).wait()
        finally:
            finished.set()
    taken = [body for taker in takers for body in taker.result()]
    taken += receive(broker, 400)
    assert sorted(map(int, taken)) == list(range(400))


def test_after_a_flush_there_is_nothing_to_release(
    broker: RedisStreamsBroker, proxy: FaultProxy, redis_server: RedisServer
) -> None:
    broker.send("q", outgoing("a"))
    proxy.swallow(TAKE)
    with pytest.raises(TemporaryError):
        receive(broker, 1)
    redis_server.client.flushall()
    assert receive(broker, 1) == []


def test_messages_held_with_another_lease_are_not_in_doubt(broker: RedisStreamsBroker, proxy: FaultProxy) -> None:
    broker.send("q", outgoing("held", "lost"))
    held = broker.receive("q", messages_max=1, lease_seconds=LEASE)
    assert not broker.extend(held, lease_seconds=2 * LEASE)
    for lease_seconds in (LEASE, 2 * LEASE):
        proxy.swallow(TAKE)
        with pytest.raises(TemporaryError):
            broker.receive("q", messages_max=1, lease_seconds=lease_seconds)
    (again,) = broker.receive("q", messages_max=5, lease_seconds=LEASE)
    assert again.message.body == b"lost"
    assert not broker.extend(held, lease_seconds=LEASE)


def test_a_send_without_a_response_is_unknown_and_its_queue_is_listed(
    broker: RedisStreamsBroker, proxy: FaultProxy
) -> None:
    broker.queue_names()  # connects
    proxy.swallow(SEND)
    with pytest.raises(UnknownOutcome):
        broker.send("q", outgoing("a"))
    assert list(broker.queue_names()) == ["q"]
    assert broker.stats("q").visible == 1


def test_a_send_to_an_unavailable_server_is_not_unknown(broker: RedisStreamsBroker, start_redis: StartRedis) -> None:
    server = start_redis()
    other = RedisStreamsBroker(server.url, holder="w1")
    other.send("q", outgoing("a"))
    server.kill()
    for _ in range(3):  # the first may use the connection that is just closing
        with pytest.raises(TemporaryError) as error:
            other.send("q", outgoing("b"))
    assert not isinstance(error.value, UnknownOutcome)
    other.close()


def test_a_send_whose_response_is_lost_after_loading_scripts_is_unknown(
    broker: RedisStreamsBroker, proxy: FaultProxy, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send("q", outgoing("a"))
    redis_server.client.script_flush()
    load = broker._server._load

    def load_and_lose_the_next_response() -> None:
        load()
        proxy.swallow(SEND)

    monkeypatch.setattr(broker._server, "_load", load_and_lose_the_next_response)
    with pytest.raises(UnknownOutcome):
        broker.send("q", outgoing("b"))
    assert broker.stats("q").visible == 2


def test_settings_lost_before_the_first_message_are_stored_again(redis_server: RedisServer) -> None:
    settings = QueueSettings(name="q", receives_max=1)
    with closing(RedisStreamsBroker(redis_server.url, holder="w1", queues=[settings], sweep_seconds=0.0)) as broker:
        redis_server.client.flushall()
        broker.send("q", outgoing("a"))
        (delivery,) = take(broker, 1, lease=LEASE)
        broker.settle([(delivery, Release())])
        assert receive(broker, 1) == []
        assert broker.stats("q-dlq").visible == 1
