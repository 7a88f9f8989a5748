"""The DLQs that a replayer serves, and the check that nothing is due."""

from dataclasses import replace

import pytest

from penstock.app.app import App
from penstock.app.replayer import ReplayedQueue, dlqs_to_serve, replayed_dlqs, replayed_queues
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import ReplayQueue, Settings
from penstock.dead_letters.policy import ReplayPolicy
from penstock.errors import ConfigurationError, UsageError
from penstock.events import DeadLetterReplayed
from penstock.messaging.broker import BrokerCapabilities, QueueSettings
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter
from penstock.operations.dead_letters.replay_once import NothingDue, ReplayCounter, ReplayCounts
from penstock.testing import FakeClock

SHARED = (
    QueueSettings(name="a", dead_letter_queue="both-dlq", retention_seconds=600),
    QueueSettings(name="b", dead_letter_queue="both-dlq"),
    QueueSettings(name="straight", dead_letter_queue="straight-dead"),
    QueueSettings(name="round", dead_letter_queue="round-dlq"),
    QueueSettings(name="round-dlq", dead_letter_queue="round"),
)


def app(*handled: str, **settings: object) -> App:
    replaying_app = App(broker=MemoryBroker(queues=SHARED), settings=Settings.model_construct(**settings))  # type: ignore[arg-type]
    for queue in handled:
        replaying_app.handler(queue, name=f"handler of {queue}")(print)
    return replaying_app


def names(dlqs: object) -> list[tuple[str, str, list[str]]]:
    assert isinstance(dlqs, list)
    assert all(isinstance(dlq, ReplayedQueue) for dlq in dlqs)
    return [(dlq.queue, dlq.final_dlq, [source.queue for source in dlq.sources]) for dlq in dlqs]


def test_queues_that_share_a_dlq_are_one_entry() -> None:
    dlqs = replayed_dlqs(app("a", "b", "c"), ["a", "b", "c"])
    assert names(dlqs) == [("both-dlq", "both-dead", ["a", "b"]), ("c-dlq", "c-dead", ["c"])]
    assert [source.retention_seconds for source in dlqs[0].sources] == [600, 14 * 86_400]


def test_a_shared_dlq_is_replayed_to_queues_that_other_workers_serve() -> None:
    assert names(replayed_dlqs(app("a", "b", "c"), ["a"])) == [("both-dlq", "both-dead", ["a", "b"])]


def test_queues_without_replays_or_with_only_a_final_dlq_are_left_out() -> None:
    off = {"b": ReplayQueue(off=True), "c": ReplayQueue(off=True), "a": ReplayQueue(max_replays=7)}
    replaying_app = app("a", "b", "c", "straight", dead_letters_replay_queues=off)
    dlqs = replayed_dlqs(replaying_app, ["a", "b", "c", "straight"])
    assert names(dlqs) == [("both-dlq", "both-dead", ["a"])]
    assert dlqs[0].sources[0].policy == ReplayPolicy(replays_max=7)
    assert list(replayed_dlqs(replaying_app, ["c", "straight"])) == []
    with pytest.raises(ConfigurationError, match="No dead letters of c, straight are replayed automatically"):
        dlqs_to_serve(replaying_app, ["c", "straight"])


def test_a_dlq_with_a_handler_or_given_by_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="The dead letters in c-dlq have a handler in this app"):
        replayed_dlqs(app("c", "c-dlq"), ["c", "c-dlq"])
    with pytest.raises(UsageError, match="c-dlq is a dead-letter queue by its name"):
        replayed_queues(app(), ["c-dlq"])


def test_an_unknown_queue_name_is_refused() -> None:
    with pytest.raises(UsageError, match="There is no queue nope; existing queues"):
        dlqs_to_serve(app("c"), ["nope"])
    with pytest.raises(ConfigurationError, match=r"dead_letters\.replay_queues\.nope names no queue"):
        replayed_dlqs(app("c", dead_letters_replay_queues={"nope": ReplayQueue(off=True)}), ["c"])
    with pytest.raises(ConfigurationError, match=r"dead_letters\.replay_queues\.c-dlq names a DLQ"):
        replayed_dlqs(app("c", dead_letters_replay_queues={"c-dlq": ReplayQueue(off=True)}), ["c"])


def test_dlqs_in_a_circle_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="in round-dlq that fail again would go to round and be replayed"):
        replayed_dlqs(app("round"), ["round"])


def test_named_queues_override_the_settings_and_the_settings_override_the_handlers() -> None:
    assert replayed_queues(app("a", worker_queues={"b": 2}), ["c"]) == ["c"]
    assert replayed_queues(app("a", worker_queues={"b": 2})) == ["b"]
    assert replayed_queues(app("a")) == ["a"]
    with pytest.raises(ConfigurationError, match="no queue is named"):
        replayed_queues(app())


def test_nothing_is_due_while_no_dead_letter_is_visible() -> None:
    replaying_app = app("c")
    dlqs = replayed_dlqs(replaying_app, ["c"])
    due = NothingDue(replaying_app.broker, dlqs, clock=FakeClock())
    assert due()
    replaying_app.broker.send("c", [Outgoing(body=b"{}")])
    (delivery,) = replaying_app.broker.receive("c", messages_max=1, lease_seconds=60)
    replaying_app.broker.settle([(delivery, DeadLetter(reason="no"))])
    assert not due()


class ApproximateBroker(MemoryBroker):
    """A broker whose counts are approximate."""

    @property
    def capabilities(self) -> BrokerCapabilities:
        return replace(super().capabilities, exact_stats=False)


def test_one_check_of_approximate_counts_is_no_proof() -> None:
    broker, clock = ApproximateBroker(), FakeClock()
    due = NothingDue(broker, [ReplayedQueue(queue="c-dlq", final_dlq="c-dead", sources=())], clock=clock)
    assert not due()
    clock.advance(5)
    assert not due()
    clock.advance(1)
    assert due()
    broker.send("c-dlq", [Outgoing(body=b"{}")])
    assert not due()


def replayed(replay_id: str, result: str, queue: str | None = "q") -> DeadLetterReplayed:
    return DeadLetterReplayed(
        queue=queue,
        dead_letter_queue="q-dlq",
        message_id="m",
        replay_id=replay_id,
        count=1,
        due_at=None,
        new_message_id=None,
        result=result,  # type: ignore[arg-type]  # one of its values
    )


def test_the_counter_counts_the_last_result_of_each_dead_letter() -> None:
    counter = ReplayCounter()
    assert (counter.wants(DeadLetterReplayed), counter.report()) == (True, {})
    for event in (
        replayed("1", "released"),
        replayed("1", "sent"),
        replayed("2", "already_sent"),
        replayed("3", "released"),
        replayed("3", "released"),
        replayed("4", "waiting"),
        replayed("5", "set_aside", queue=None),
    ):
        counter(event)
    assert counter.report() == {
        "q": ReplayCounts(sent=2, waiting=1, released=1),
        "unknown": ReplayCounts(set_aside=1),
    }
