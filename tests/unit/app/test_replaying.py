"""Which first tiers a replayer serves, and how it knows that nothing is due."""

from dataclasses import replace

import pytest

from penstock.app.app import App
from penstock.app.replayer import ReplayedQueue, first_tiers, replayed_queues, tiers_to_serve
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import ReplayQueue, Settings
from penstock.dead_letters.policy import ReplayPolicy
from penstock.errors import ConfigurationError, UsageError
from penstock.events import DeadReplayed
from penstock.messaging.broker import Capabilities, QueueSettings
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter
from penstock.operations.dead_letters.replay_once import NothingDue, ReplayCounts, ReplayTally
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
    return [(tier.queue, tier.second_tier, [source.queue for source in tier.sources]) for tier in tiers]


def test_queues_that_share_their_dead_letters_are_one_line() -> None:
    tiers = first_tiers(app("a", "b", "c"), ["a", "b", "c"])
    assert names(tiers) == [("both-dlq", "both-dead", ["a", "b"]), ("c-dlq", "c-dead", ["c"])]
    assert [source.retention_seconds for source in tiers[0].sources] == [600, 14 * 86_400]


def test_a_queue_that_is_served_elsewhere_gets_its_letters_back_too() -> None:
    assert names(first_tiers(app("a", "b", "c"), ["a"])) == [("both-dlq", "both-dead", ["a", "b"])]


def test_what_is_off_or_goes_straight_to_the_second_tier_is_left_out() -> None:
    off = {"b": ReplayQueue(off=True), "c": ReplayQueue(off=True), "a": ReplayQueue(replays_max=7)}
    made = app("a", "b", "c", "straight", replay_queues=off)
    tiers = first_tiers(made, ["a", "b", "c", "straight"])
    assert names(tiers) == [("both-dlq", "both-dead", ["a"])]
    assert tiers[0].sources[0].policy == ReplayPolicy(replays_max=7)
    assert list(first_tiers(made, ["c", "straight"])) == []
    with pytest.raises(ConfigurationError, match="No dead letters of c, straight come back by themselves"):
        tiers_to_serve(made, ["c", "straight"])


def test_a_tier_with_a_handler_is_refused_and_so_is_a_tier_by_name() -> None:
    with pytest.raises(ConfigurationError, match="The dead letters in c-dlq have a handler in this app"):
        first_tiers(app("c", "c-dlq"), ["c", "c-dlq"])
    with pytest.raises(UsageError, match="c-dlq holds dead letters by its name"):
        replayed_queues(app(), ["c-dlq"])


def test_a_slip_in_a_name_is_refused_and_not_passed_over() -> None:
    with pytest.raises(UsageError, match="There is no queue nope; queues there are"):
        tiers_to_serve(app("c"), ["nope"])
    with pytest.raises(ConfigurationError, match=r"replay_queues\.nope names no queue"):
        first_tiers(app("c", replay_queues={"nope": ReplayQueue(off=True)}), ["c"])
    with pytest.raises(ConfigurationError, match=r"replay_queues\.c-dlq names a queue of dead letters"):
        first_tiers(app("c", replay_queues={"c-dlq": ReplayQueue(off=True)}), ["c"])


def test_tiers_in_a_circle_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="in round-dlq that no replay helps would go to round and come back"):
        first_tiers(app("round"), ["round"])


def test_what_is_named_goes_before_the_settings_and_those_before_the_handlers() -> None:
    assert replayed_queues(app("a", queues={"b": 2}), ["c"]) == ["c"]
    assert replayed_queues(app("a", queues={"b": 2})) == ["b"]
    assert replayed_queues(app("a")) == ["a"]
    with pytest.raises(ConfigurationError, match="none is named"):
        replayed_queues(app())


def test_nothing_is_due_while_no_letter_is_visible() -> None:
    made = app("c")
    tiers = first_tiers(made, ["c"])
    due = NothingDue(made.broker, tiers, clock=FakeClock())
    assert due()
    made.broker.send("c", [Outgoing(body=b"{}")])
    (delivery,) = made.broker.receive("c", messages_max=1, lease_seconds=60)
    made.broker.settle([(delivery, DeadLetter(reason="no"))])
    assert not due()


class Roughly(MemoryBroker):
    """Whose counts are only nearly right."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, exact_stats=False)


def test_where_counts_are_rough_one_look_is_no_proof() -> None:
    broker, clock = Roughly(), FakeClock()
    due = NothingDue(broker, [ReplayedQueue(queue="c-dlq", second_tier="c-dead", sources=())], clock=clock)
    assert not due()
    clock.advance(5)
    assert not due()
    clock.advance(1)
    assert due()
    broker.send("c-dlq", [Outgoing(body=b"{}")])
    assert not due()


def told(replay_id: str, result: str, queue: str | None = "q") -> DeadReplayed:
    return DeadReplayed(
        queue=queue,
        letter_queue="q-dlq",
        message_id="m",
        replay_id=replay_id,
        count=1,
        due_at=None,
        new_message_id=None,
        result=result,  # type: ignore[arg-type]  # one of its values
    )


def test_the_tally_counts_what_became_of_each_letter_in_the_end() -> None:
    tally = ReplayTally()
    assert (tally.hears(DeadReplayed), tally.report()) == (True, {})
    for event in (
        told("1", "put_back"),
        told("1", "sent"),
        told("2", "already_sent"),
        told("3", "put_back"),
        told("3", "put_back"),
        told("4", "held"),
        told("5", "set_aside", queue=None),
    ):
        tally(event)
    assert tally.report() == {
        "q": ReplayCounts(sent=2, held=1, put_back=1),
        "unknown": ReplayCounts(set_aside=1),
    }
