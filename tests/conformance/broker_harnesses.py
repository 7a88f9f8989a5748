"""A test harness for each broker that keeps the common contract. Add a broker by an entry in `HARNESSES`."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.services.aws_server import Kind
from tests.services.frozen_clock import ServerClock
from tests.services.plugin import Servers

from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.testing import FakeClock

LEASE = 30.0


class BrokerHarness(Protocol):
    """One broker system, and as many workers' views of it as a test opens."""

    clock: FakeClock
    leases_end_by_time: bool  # else: only when another worker receives the message

    def broker(self, holder: str = "w1", queues: Sequence[QueueSettings] = ()) -> Broker: ...

    def advance(self, seconds: float) -> None: ...

    def close(self) -> None: ...


class MemoryHarness:
    leases_end_by_time = True

    def __init__(self) -> None:
        self.clock: FakeClock = FakeClock()
        self._first: MemoryBroker | None = None
        self._open: list[MemoryBroker] = []

    def broker(self, holder: str = "w1", queues: Sequence[QueueSettings] = ()) -> Broker:
        if self._first is None:
            self._first = MemoryBroker(clock=self.clock, holder=holder)
        MemoryBroker(queues=queues)  # raises for invalid settings
        store = self._first._store
        with store.lock:
            for settings in queues:  # as other brokers: each opening replaces the settings of the queues it names
                store.ensure_queue(settings.name).settings = settings
        self._open.append(self._first.with_holder(holder))
        return self._open[-1]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for broker in self._open:
            broker.close()


class SqliteHarness:
    leases_end_by_time = True

    def __init__(self, folder: Path) -> None:
        self.clock: FakeClock = FakeClock()
        self._folder = folder
        self._open: list[SqliteBroker] = []

    def broker(self, holder: str = "w1", queues: Sequence[QueueSettings] = ()) -> Broker:
        self._open.append(SqliteBroker(self._folder / "queue.db", holder=holder, clock=self.clock, queues=queues))
        return self._open[-1]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for broker in self._open:
            broker.close()


class RedisHarness:
    """A database of a shared server, whose clock follows the test's."""

    leases_end_by_time = False

    def __init__(self, servers: Servers, version: str) -> None:
        self.clock: FakeClock = ServerClock(servers.clock_file)
        self.server = servers.redis(version)
        self._open: list[RedisStreamsBroker] = []

    def broker(self, holder: str = "w1", queues: Sequence[QueueSettings] = ()) -> Broker:
        self._open.append(
            RedisStreamsBroker(self.server.url, holder=holder, queues=queues, sweep_seconds=0.0, clock=self.clock)
        )
        return self._open[-1]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for broker in self._open:
            broker.close()
        self.server.clean()


class SqsHarness:
    """A server that speaks SQS's protocol, whose clock follows the test's. It has the queues of all tests."""

    leases_end_by_time = False

    def __init__(self, servers: Servers, kind: Kind) -> None:
        self.clock: FakeClock = ServerClock(servers.clock_file)
        self.server = servers.aws(kind)
        self._open: list[SqsBroker] = []

    def broker(self, holder: str = "w1", queues: Sequence[QueueSettings] = ()) -> Broker:
        if not self._open:
            for name in SQS_QUEUES:
                self.server.client("sqs").create_queue(QueueName=name)
        self._open.append(SqsBroker(self.server.aws, holder=holder, queues=queues, poll_seconds=1, clock=self.clock))
        return self._open[-1]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for broker in self._open:
            broker.close()
        self.server.clean()


SQS_QUEUES = ("q", "q-dlq", "q-dead", "other", "a", "b", "first", "second", "third", "one", "two", "elsewhere")


def sqlite_harness(request: pytest.FixtureRequest) -> SqliteHarness:
    return SqliteHarness(request.getfixturevalue("tmp_path"))


def redis_harness(request: pytest.FixtureRequest, version: str) -> RedisHarness:
    return RedisHarness(request.getfixturevalue("frozen_servers"), version)


def sqs_harness(request: pytest.FixtureRequest, kind: Kind) -> SqsHarness:
    return SqsHarness(request.getfixturevalue("frozen_servers"), kind)


HARNESSES: dict[str, Callable[[pytest.FixtureRequest], BrokerHarness]] = {
    "memory": lambda request: MemoryHarness(),
    "sqlite": sqlite_harness,
    "redis 7.0": partial(redis_harness, version="7.0"),
    "redis 6.2": partial(redis_harness, version="6.2"),
    "sqs moto": partial(sqs_harness, kind="moto"),
    "sqs fauxqs": partial(sqs_harness, kind="fauxqs"),
}


LOCAL_HARNESSES = {"memory", "sqlite"}  # need no server

# One server of each protocol runs every test: Redis 7.0 and fauxqs. The second server runs these; its other tests have
# the marker `slow` (make test-slow). tests/integration/test_redis_*.py runs on both versions of Redis in any case, and
# test_sqs_traps.py on both SQS servers.
SECOND_HARNESSES: dict[str, frozenset[str]] = {
    # Each Lua script, and the differences between the versions: deleted entries, blocking reads, error texts.
    "redis 6.2": frozenset({
        "test_a_message_is_delivered_unchanged",
        "test_a_delay_is_honoured",
        "test_a_duplicate_within_the_window_is_dropped_even_when_the_first_is_done",
        "test_row_84_a_stale_receipt_settles_and_extends_nothing",
        "test_an_expired_lease_can_neither_be_extended_nor_settled",
        "test_the_first_of_two_settlements_of_one_delivery_counts",
        "test_a_released_message_is_visible_after_its_delay_with_a_higher_attempt",
        "test_a_group_of_settlements_reports_exactly_those_that_failed",
        "test_a_dead_letter_keeps_the_message_and_records_its_failure",
        "test_a_message_delivered_too_often_is_dead_lettered_by_the_broker",
        "test_past_its_retention_a_message_is_dead_lettered_instead_of_delivered",
        "test_a_dead_letter_past_its_retention_is_deleted_and_counted",
        "test_groups_take_turns_and_each_is_served_oldest_first",
        "test_stats_count_every_state_and_the_oldest_visible_age",
        "test_browsing_leases_nothing_and_continues_after_a_deleted_id",
        "test_a_wait_ends_with_the_first_message",
        "test_a_wait_ends_when_a_lease_ends",
        "test_a_lease_of_a_dead_worker_ended_when_its_death_was_found",
        "test_a_release_is_reported_with_its_reason",
        "test_a_message_that_fails_in_the_final_dlq_waits_there_unchanged",
        "test_expired_dead_letters_of_both_dlqs_are_deleted_and_counted",
        "test_messages_are_discarded_in_every_state",
        "test_many_dead_letters_are_discarded_in_one_call_with_their_ages",
        "test_with_redrive_the_age_resets_at_the_third_failure_and_ends_at_the_sixth",
        "test_the_oldest_age_includes_in_flight_and_delayed_messages_and_the_visible_age_does_not",
        "test_a_turn_settles_and_receives",
        "test_a_failed_settlement_is_reported_and_the_turn_continues",
        "test_an_arrival_is_reported_once_a_listener_asks",
        "test_the_end_of_a_pause_is_reported",
        "test_a_paused_queue_delivers_nothing_until_it_is_resumed",
        "test_a_waiting_receiver_continues_when_the_queue_is_resumed",
        "test_a_message_carries_the_trace_context_of_its_send",
        "test_a_replayed_dead_letter_is_an_ordinary_message",
        "test_row_81_a_crash_doubles_at_most_once_and_loses_nothing",
    }),
    # The behaviour that fauxqs gets wrong (retention), and one test of each operation of the service.
    "sqs moto": frozenset({
        "test_a_message_is_delivered_unchanged",
        "test_a_delay_is_honoured",
        "test_an_invalid_message_refuses_the_whole_call",
        "test_a_leased_message_is_hidden_until_its_lease_ends",
        "test_an_extended_lease_holds_from_now_on",
        "test_a_released_message_is_visible_after_its_delay_with_a_higher_attempt",
        "test_a_group_of_settlements_reports_exactly_those_that_failed",
        "test_a_dead_letter_keeps_the_message_and_records_its_failure",
        "test_a_message_delivered_too_often_is_dead_lettered_by_the_broker",
        "test_past_its_retention_a_message_is_not_delivered",
        "test_stats_count_every_state_approximately",
        "test_a_wait_ends_with_the_first_message",
        "test_a_lease_of_a_dead_worker_ended_when_its_death_was_found",
        "test_the_retention_of_a_queue_is_reported",
        "test_a_death_lists_every_attempt",
        "test_a_turn_settles_and_receives",
        "test_a_broker_without_ages_dead_letters_the_poison_message_too",
        "test_a_message_carries_the_trace_context_of_its_send",
        "test_a_replayed_dead_letter_is_an_ordinary_message",
        "test_row_62_a_forged_counter_is_ignored_and_reset",
    }),
}  # fmt: skip


def is_slow(harness: str, test: str) -> bool:
    """Return True if only the long matrix runs a test with this harness."""
    return harness in SECOND_HARNESSES and test not in SECOND_HARNESSES[harness]


# Tests that a server fails because it differs from the real system: harness, test, and the difference. Another server
# of the same protocol runs the test.
NOT_APPLICABLE: dict[tuple[str, str], str] = {
    (
        "sqs fauxqs",
        "test_past_its_retention_a_message_is_not_delivered",
    ): "not applicable: fauxqs keeps messages for ever",
}


def outgoing(*bodies: str, **fields: Any) -> list[Outgoing]:
    return [Outgoing(body=body.encode(), **fields) for body in bodies]


def receive(broker: Broker, count: int = 10, *, queue: str = "q", lease: float = LEASE) -> list[Delivery]:
    return list(broker.receive(queue, messages_max=count, lease_seconds=lease))


ANSWER_SECONDS = 60.0


class WaitingReceiver:
    """A receiver that waits in its own thread while the test advances time."""

    def __init__(self, harness: BrokerHarness, wait: Callable[[], Sequence[Delivery]]) -> None:
        self._harness = harness
        self._pool = ThreadPoolExecutor(1)
        self._waiting = self._pool.submit(wait)
        self._pool.shutdown(wait=False)  # the thread ends with its one task

    def still_waits(self) -> bool:
        """Return True if the receiver still waits after a moment of real time."""
        return not wait([self._waiting], timeout=0.2).done

    def over(self, *, within_seconds: float) -> list[Delivery]:
        """Advance time in small steps until the wait is over, by ``within_seconds`` at most; return the deliveries.

        Time then stands still, and a server on a busy machine gets `ANSWER_SECONDS` of real time for its answer.
        """
        last_step = self._harness.clock.monotonic() + within_seconds
        while not wait([self._waiting], timeout=0.01).done and self._harness.clock.monotonic() < last_step:
            self._harness.advance(0.1)
        assert wait([self._waiting], timeout=ANSWER_SECONDS).done, "the receiver still waits"
        return list(self._waiting.result())


def waiting(harness: BrokerHarness, broker: Broker, *, wait_seconds: float) -> WaitingReceiver:
    """Start a receiver that waits for the first message of q."""
    return WaitingReceiver(
        harness, lambda: broker.receive("q", messages_max=5, lease_seconds=LEASE, wait_seconds=wait_seconds)
    )


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]
