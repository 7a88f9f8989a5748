"""Which DLQs a replayer serves, and when nothing is due."""

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
    made = App(broker=MemoryBroker(queues=SHARED), settings=Settings.model_construct(**settings))  # type: ignore[arg-type]
    for queue in handled:
        made.handler(queue, name=f"handler of {queue}")(print)
    return made


def names(tiers: object) -> list[tuple[str, str, list[str]]]:
    assert isinstance(tiers, list)
    assert all(isinstance(tier, ReplayedQueue) for tier in tiers)
    return [(tier.queue, tier.final_dlq, [source.queue for source in tier.sources]) for tier in tiers]


def test_queues_that_share_their_dead_letters_are_one_line() -> None:
    tiers = replayed_dlqs(app("a", "b", "c"), ["a", "b", "c"])
    assert names(tiers) == [("both-dlq", "both-dead", ["a", "b"]), ("c-dlq", "c-dead", ["c"])]
    assert [source.retention_seconds for source in tiers[0].sources] == [600, 14 * 86_400]


def test_a_queue_that_is_served_elsewhere_gets_its_dead_letters_back_too() -> None:
    assert names(replayed_dlqs(app("a", "b", "c"), ["a"])) == [("both-dlq", "both-dead", ["a", "b"])]


def test_what_is_off_or_goes_straight_to_the_second_tier_is_left_out() -> None:
    off = {"b": ReplayQueue(off=True), "c": ReplayQueue(off=True), "a": ReplayQueue(max_replays=7)}
    made = app("a", "b", "c", "straight", dead_letters_replay_queues=off)
    tiers = replayed_dlqs(made, ["a", "b", "c", "straight"])
    assert names(tiers) == [("both-dlq", "both-dead", ["a"])]
    assert tiers[0].sources[0].policy == ReplayPolicy(replays_max=7)
    assert list(replayed_dlqs(made, ["c", "straight"])) == []
    with pytest.raises(ConfigurationError, match="No dead letters of c, straight are replayed automatically"):
        dlqs_to_serve(made, ["c", "straight"])


def test_a_tier_with_a_handler_is_refused_and_so_is_a_tier_by_name() -> None:
    with pytest.raises(ConfigurationError, match="The dead letters in c-dlq have a handler in this app"):
        replayed_dlqs(app("c", "c-dlq"), ["c", "c-dlq"])
    with pytest.raises(UsageError, match="c-dlq is a dead-letter queue by its name"):
        replayed_queues(app(), ["c-dlq"])


def test_a_slip_in_a_name_is_refused_and_not_passed_over() -> None:
    with pytest.raises(UsageError, match="There is no queue nope; existing queues"):
        dlqs_to_serve(app("c"), ["nope"])
    with pytest.raises(ConfigurationError, match=r"dead_letters\.replay_queues\.nope names no queue"):
        replayed_dlqs(app("c", dead_letters_replay_queues={"nope": ReplayQueue(off=True)}), ["c"])
    with pytest.raises(ConfigurationError, match=r"dead_letters\.replay_queues\.c-dlq names a DLQ"):
        replayed_dlqs(app("c", dead_letters_replay_queues={"c-dlq": ReplayQueue(off=True)}), ["c"])


def test_tiers_in_a_circle_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="in round-dlq that fail again would go to round and be replayed"):
        replayed_dlqs(app("round"), ["round"])


def test_what_is_named_goes_before_the_settings_and_those_before_the_handlers() -> None:
    assert replayed_queues(app("a", worker_queues={"b": 2}), ["c"]) == ["c"]
    assert replayed_queues(app("a", worker_queues={"b": 2})) == ["b"]
    assert replayed_queues(app("a")) == ["a"]
    with pytest.raises(ConfigurationError, match="no queue is named"):
        replayed_queues(app())


def test_nothing_is_due_while_no_dead_letter_is_visible() -> None:
    made = app("c")
    tiers = replayed_dlqs(made, ["c"])
    due = NothingDue(made.broker, tiers, clock=FakeClock())
    assert due()
    made.broker.send("c", [Outgoing(body=b"{}")])
    (delivery,) = made.broker.receive("c", messages_max=1, lease_seconds=60)
    made.broker.settle([(delivery, DeadLetter(reason="no"))])
    assert not due()


class Roughly(MemoryBroker):
    """Whose counts are only nearly right."""

    @property
    def capabilities(self) -> BrokerCapabilities:
        return replace(super().capabilities, exact_stats=False)


def test_where_counts_are_rough_one_look_is_no_proof() -> None:
    broker, clock = Roughly(), FakeClock()
    due = NothingDue(broker, [ReplayedQueue(queue="c-dlq", final_dlq="c-dead", sources=())], clock=clock)
    assert not due()
    clock.advance(5)
    assert not due()
    clock.advance(1)
    assert due()
    broker.send("c-dlq", [Outgoing(body=b"{}")])
    assert not due()


def told(replay_id: str, result: str, queue: str | None = "q") -> DeadLetterReplayed:
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


def test_the_tally_counts_what_became_of_each_dead_letter_in_the_end() -> None:
    tally = ReplayCounter()
    assert (tally.wants(DeadLetterReplayed), tally.report()) == (True, {})
    for event in (
        told("1", "released"),
        told("1", "sent"),
        told("2", "already_sent"),
        told("3", "released"),
        told("3", "released"),
        told("4", "waiting"),
        told("5", "set_aside", queue=None),
    ):
        tally(event)
    assert tally.report() == {
        "q": ReplayCounts(sent=2, waiting=1, released=1),
        "unknown": ReplayCounts(set_aside=1),
    }
