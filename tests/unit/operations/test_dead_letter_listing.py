"""Surveys of dead letters, lists page by page, and single messages, each in a bounded time."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.app.scope import Scope
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import Settings
from penstock.dead_letters.filters import DeadLetterFilter
from penstock.dead_letters.groups import group_id
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import DeadLetter
from penstock.operations.dead_letters import survey as surveys
from penstock.operations.dead_letters.listing import (
    PLACES_SECONDS,
    SEARCH_SECONDS,
    DeadLetterCursor,
    find_dead_letter,
    list_dead_letters,
    queues_in,
)
from penstock.operations.dead_letters.selection import DeadLetterSelection, plan
from penstock.operations.dead_letters.survey import DeadLetterSurvey, take_survey
from penstock.operations.inspection import ScopeView
from penstock.testing.fake_clock import FakeClock

QUEUE, DLQ, FINAL_DLQ = "orders", "orders-dlq", "orders-dead"
UNKNOWN, DOWN = "order 1 is unknown", "the gateway is down"
GROUP_NAME = "order <n> is unknown"
GROUP = group_id(GROUP_NAME)


class CountingBroker(MemoryBroker):
    """A broker that counts the messages that are read, and takes time for each call."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.ours = clock
        self.read = self.calls = 0
        self.seconds = 0.0  # each call takes

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        self.ours.advance(self.seconds)
        found = super().browse(queue, messages_max=messages_max, after_id=after_id)
        self.read += len(found)
        self.calls += 1
        return found


class View(ScopeView):
    """A view of a broker in memory."""

    def __init__(self, broker: MemoryBroker, folder: Path) -> None:
        super().__init__(Scope(settings=Settings(data_dir=str(folder))), ExitStack())
        self.__dict__["broker"] = broker


class Scene:
    """Dead letters in memory."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.broker = CountingBroker(self.clock)
        self.view = View(self.broker, folder)

    def dead_letter(self, *reasons: str, queue: str = QUEUE) -> None:
        for reason in reasons:
            self.broker.send(queue, [Outgoing(body=reason.encode())])
            (delivery,) = self.broker.receive(queue, messages_max=1, lease_seconds=60)
            self.broker.settle([(delivery, DeadLetter(reason=reason))])

    def survey(self) -> DeadLetterSurvey:
        taken = take_survey(self.view, clock=self.clock)
        self.broker.read = self.broker.calls = 0
        return taken

    def pages(self, survey: DeadLetterSurvey, rows_max: int = 50, **wanted: object) -> Iterator[list[str]]:
        """Yield the reasons on each page."""
        queue, tier = wanted.pop("queue", None), wanted.pop("tier", None)
        selection = DeadLetterSelection(queue=queue, tier=tier, wanted=DeadLetterFilter(**wanted))  # type: ignore[arg-type]
        after: DeadLetterCursor | None = None
        while True:
            page = list_dead_letters(self.broker, survey, selection, after=after, rows_max=rows_max, clock=self.clock)
            yield [dead_letter.message.body.decode() for dead_letter in page.dead_letters]
            if (after := page.following) is None:
                return


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_survey_counts_groups_and_knows_queues_with_their_tiers(scene: Scene) -> None:
    scene.dead_letter(UNKNOWN, "order 2 is unknown", DOWN)
    scene.broker.send("other-dead", [Outgoing(body=b"x")])
    taken = scene.survey()
    assert (taken.dead_letters, taken.is_complete, taken.queues) == (4, True, [DLQ, "other-dead"])
    assert next((group.key, group.count) for group in taken.groups) == (GROUP_NAME, 2)


def test_a_survey_publishes_its_queues_first_and_then_partial_counts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveys, "PARTIAL_SECONDS", 0.0)
    scene.dead_letter(UNKNOWN, DOWN)
    partial: list[DeadLetterSurvey] = []
    take_survey(scene.view, clock=scene.clock, on_partial=partial.append)
    assert [(one.queues, one.dead_letters, one.is_complete) for one in partial] == [
        ([DLQ], 0, False),
        ([DLQ], 2, False),
    ]


def test_a_stopped_survey_is_not_complete(scene: Scene) -> None:
    scene.dead_letter(UNKNOWN)
    assert not take_survey(scene.view, clock=scene.clock, stopped=lambda: True).is_complete


def test_the_members_of_a_rare_group_are_listed_without_reading_the_others(scene: Scene) -> None:
    for _ in range(4):
        scene.dead_letter(*[DOWN] * 40, UNKNOWN)
    taken = scene.survey()
    assert list(scene.pages(taken, group=GROUP)) == [[UNKNOWN] * 4]
    assert scene.broker.read <= 8


def test_reading_the_members_of_a_group_ends_in_time_and_continues(scene: Scene) -> None:
    for _ in range(4):
        scene.dead_letter(*[DOWN] * 40, UNKNOWN)
    taken = scene.survey()
    scene.broker.seconds = PLACES_SECONDS / 2
    assert list(scene.pages(taken, group=GROUP)) == [[UNKNOWN] * 2, [UNKNOWN] * 2, []]


def test_the_members_of_a_large_group_take_few_calls(scene: Scene) -> None:
    scene.dead_letter(*[UNKNOWN] * 60)
    taken = scene.survey()
    found = [reason for page in scene.pages(taken, group=GROUP) for reason in page]
    assert len(found) == 60
    assert scene.broker.calls <= 10


def test_a_group_is_listed_by_its_exact_key(scene: Scene) -> None:
    scene.dead_letter(UNKNOWN, f"{UNKNOWN} to the shop")
    assert list(scene.pages(scene.survey(), group=GROUP)) == [[UNKNOWN]]


def test_members_that_left_are_passed_over_and_new_ones_are_in_the_next_survey(scene: Scene) -> None:
    scene.dead_letter(UNKNOWN, "order 2 is unknown")
    taken = scene.survey()
    first = scene.broker.browse(DLQ, messages_max=1)[0]
    scene.broker.discard(DLQ, [first.id])
    scene.dead_letter("order 3 is unknown")
    assert list(scene.pages(taken, group=GROUP)) == [["order 2 is unknown"]]
    assert list(scene.pages(scene.survey(), group=GROUP)) == [["order 2 is unknown", "order 3 is unknown"]]


def test_a_list_continues_after_a_new_survey_in_which_its_last_message_is_missing(scene: Scene) -> None:
    scene.dead_letter(UNKNOWN, "order 2 is unknown", "order 3 is unknown")
    selection = DeadLetterSelection(wanted=DeadLetterFilter(group=GROUP))
    page = list_dead_letters(scene.broker, scene.survey(), selection, after=None, rows_max=2, clock=scene.clock)
    assert page.following is not None
    scene.broker.discard(DLQ, [page.following.id])
    rest = list_dead_letters(
        scene.broker, scene.survey(), selection, after=page.following, rows_max=2, clock=scene.clock
    )
    assert [dead_letter.message.body for dead_letter in rest.dead_letters] == [b"order 3 is unknown"]


def test_a_survey_that_remembers_too_few_places_is_read_through(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "POSITIONS_MAX", 1)
    scene.dead_letter(UNKNOWN, DOWN, "order 2 is unknown")
    taken = scene.survey()
    assert not taken.positions_known
    assert list(scene.pages(taken, group=GROUP)) == [[UNKNOWN, "order 2 is unknown"]]


def test_a_search_ends_in_time_and_continues_there(scene: Scene) -> None:
    scene.dead_letter(*[DOWN] * 450, UNKNOWN)
    taken = scene.survey()
    scene.broker.seconds = SEARCH_SECONDS / 2
    assert list(scene.pages(taken, error="unknown")) == [[], [], [UNKNOWN]]
    assert scene.broker.read == 451


def test_final_dlqs_are_listed_last_and_a_queue_means_its_two_dlqs(scene: Scene) -> None:
    scene.broker.send(FINAL_DLQ, [Outgoing(body=b"final")])
    scene.broker.send("another-dlq", [Outgoing(body=b"another")])
    scene.dead_letter(DOWN)
    taken = scene.survey()
    assert [reason for page in scene.pages(taken) for reason in page] == ["another", DOWN, "final"]
    assert list(scene.pages(taken, queue=QUEUE)) == [[DOWN, "final"]]
    assert list(scene.pages(taken, queue=DLQ)) == [[DOWN]]
    assert list(scene.pages(taken, tier="dead")) == [["final"]]
    assert queues_in(scene.broker, taken, DeadLetterSelection(queue="no-such")) == []


def test_a_message_is_found_by_its_id_in_one_call(scene: Scene) -> None:
    scene.dead_letter(*[DOWN] * 250)
    wanted = scene.broker.browse(DLQ, messages_max=250)[-1]
    scene.broker.calls = 0
    found = find_dead_letter(scene.broker, None, DLQ, wanted.id)
    assert found is not None
    assert found.message.id == wanted.id
    assert scene.broker.calls == 1


@pytest.mark.parametrize("id", ["", "x", "x-", "x-5", "-1", f"x-{'9' * 40}", "x-٣", "x-000000000000"])
def test_an_id_of_another_form_is_not_found(scene: Scene, id: str) -> None:
    scene.dead_letter(DOWN)
    assert find_dead_letter(scene.broker, None, DLQ, id) is None


def test_a_plan_reports_its_progress_and_can_be_stopped(scene: Scene) -> None:
    scene.dead_letter(*[DOWN] * 501)
    steps: list[int] = []
    made = plan(scene.view, DeadLetterSelection(), to=None, clock=scene.clock, on_progress=steps.append)
    assert (made.dead_letters, steps) == (501, [500, 1])
    stopped = plan(
        scene.view,
        DeadLetterSelection(),
        to=None,
        clock=scene.clock,
        stopped=lambda: len(steps) > 2,
        on_progress=steps.append,
    )
    assert stopped.dead_letters == 500
