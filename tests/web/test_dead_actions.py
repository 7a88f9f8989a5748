"""Plans, replays and purges of dead letters from the dashboard, and the pages of actions."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.cli.dead_letter_scene import DLQ, FINAL_DLQ, QUEUE
from tests.web.clients import client_of
from tests.web.dead_site import DEADLINE_SECONDS, DeadSite, form_of, id_in, opened_site
from tests.web.markup import harmless

from penstock.dead_letters.canary import CanaryResult, watch
from penstock.dead_letters.groups import group_id
from penstock.dead_letters.operator import ReplayRate
from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.broker import Broker, send_each
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.operations.status.sentences import sentence
from penstock.web.actions import ActionDescription, ActionProgress, ActionResult, ActionSnapshot

UNKNOWN, DOWN = "order 1 is unknown", "the gateway is down"


@pytest.fixture(params=["sqlite", "redis"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeadSite]:
    with opened_site(request.param, tmp_path, request) as site:
        yield site


@pytest.fixture
def sqlite_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeadSite]:
    with opened_site("sqlite", tmp_path, request) as site:
        yield site


def texts_of(found: ActionSnapshot) -> list[str]:
    return [one.text for one in found.sentences]


class Held:
    """Hold a replay after its first message, until the test goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._go_on = threading.Event(), threading.Event()
        wait = ReplayRate.wait

        def held(rate: ReplayRate, done: int) -> None:
            self.reached.set()
            assert self._go_on.wait(DEADLINE_SECONDS)
            wait(rate, done)

        monkeypatch.setattr(ReplayRate, "wait", held)

    def until_first(self) -> None:
        assert self.reached.wait(DEADLINE_SECONDS)

    def go_on(self) -> None:
        self._go_on.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.go_on()


# Plans


def test_a_plan_counts_by_queue_and_error_and_changes_nothing(site: DeadSite) -> None:
    site.dead_letter("1", "2", reason=UNKNOWN)
    site.dead_letter("3", reason=DOWN)
    site.broker.send("lost-dlq", [Outgoing(body=b"4")])
    page = site.plan()
    assert "3 dead letters would be sent back." in page.text
    assert "1 would be left: its queue of origin is unknown" in page.text
    assert "order <n> is unknown" in page.text
    path, fields = form_of(page, "planned")
    assert (path, fields["planned"]) == ("/dead/replay?goal=replay", "3")
    assert (site.count(), site.count("lost-dlq"), site.count(QUEUE)) == (3, 1, 0)
    assert site.audit() == []


def test_a_plan_of_nothing_cannot_be_confirmed(sqlite_site: DeadSite) -> None:
    page = sqlite_site.plan(error="nothing has this")
    assert "0 dead letters would be sent back." in page.text
    with pytest.raises(AssertionError):
        form_of(page, "planned")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"goal": "replay", "rate": "fast"}, "Rate: fast is no number"),
        ({"goal": "replay", "rate": "nan"}, "Rate: nan is no number"),
        ({"goal": "replay", "canary": "101"}, "Canaries: 101 is no number from 0 to 100"),
        ({"goal": "replay", "limit": "-1"}, "At most: -1 is no number"),
        ({"goal": "purge"}, "That would delete every dead letter of every queue"),
        ({"goal": "eat"}, "does not say what to plan"),
        ({}, "does not say what to plan"),
    ],
)
def test_a_malformed_plan_is_one_clear_error(sqlite_site: DeadSite, fields: dict[str, str], message: str) -> None:
    assert message in sqlite_site.post("/dead/plan", fields, status=400).text


@pytest.mark.parametrize("fields", [{"to": "nowhere"}, {"queue": "nowhere"}])
def test_a_plan_of_a_queue_that_does_not_exist_says_so(sqlite_site: DeadSite, fields: dict[str, str]) -> None:
    sqlite_site.dead_letter("1")
    page = sqlite_site.plan(**fields)
    assert "There is no queue nowhere" in page.text
    assert "The plan was not completed. Nothing was changed." in page.text


def test_a_plan_that_is_not_known_any_more_says_so(sqlite_site: DeadSite) -> None:
    assert "This plan is no longer known" in sqlite_site.get("/dead/plan", status=404, id="x").text


def test_counting_for_a_plan_can_be_stopped(sqlite_site: DeadSite, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def counting(*_: object, stopped: object, **__: object) -> object:
        begun.set()
        assert callable(stopped)
        DeadSite.await_that(stopped)
        return None

    monkeypatch.setattr("penstock.web.dead_actions.plan", counting)
    plan_id = id_in(sqlite_site.post("/dead/plan", {"goal": "replay"}))
    assert begun.wait(DEADLINE_SECONDS)
    page = sqlite_site.get("/dead/plan", id=plan_id)
    assert "are being counted" in page.text
    assert page.values("section", "hx-trigger") == ["every 1s"]
    sqlite_site.post("/dead/plan/cancel", {"id": plan_id})
    sqlite_site.context.plans.wait(plan_id, DEADLINE_SECONDS)
    assert "The plan was not completed" in sqlite_site.get("/dead/plan", id=plan_id).text


@pytest.mark.parametrize("goal", ["replay", "purge"])
def test_the_confirmation_is_in_the_part_that_is_fetched_again(sqlite_site: DeadSite, goal: str) -> None:
    """The page that is open while the plan is counted shows its buttons without being loaded again."""
    sqlite_site.dead_letter("1")
    page = sqlite_site.plan(goal, queue=DLQ).page
    live = page.partition('<section id="live"')[2].partition("</section>")[0]
    assert f'action="/dead/{goal}?' in live
    assert f"<h1>Plan of a {goal}</h1>" in live


# Replays


def test_a_confirmed_replay_sends_exactly_the_messages_that_match(site: DeadSite) -> None:
    site.dead_letter("1", "2", reason=UNKNOWN)
    site.dead_letter("3", reason=DOWN)
    site.groups()
    group = group_id("order <n> is unknown")
    found = site.ended(site.confirm(site.plan(group=group, rate="1000")))
    assert (found.state, found.done, found.total) == ("done", 2, 2)
    assert texts_of(found) == ["2 dead letters were sent back.", f"To {QUEUE}: 2."]
    assert (site.scene.bodies(QUEUE), site.scene.bodies(DLQ)) == (["1", "2"], ["3"])
    (entry,) = site.audit()
    assert (entry.action, entry.queue, entry.messages, entry.outcome) == ("replay", DLQ, 2, "done")
    assert entry.who == "ann via the dashboard"
    assert entry.details == {"group": group, "group_name": "order <n> is unknown", "rate": 1000.0}
    page = site.get("/actions/show", id=found.id)
    assert "2 dead letters were sent back." in page.text
    assert page.values("section", "hx-trigger") == []
    assert "Replay of 2 dead letters" in site.get("/actions").text


def test_the_plan_of_a_group_on_its_page_is_of_this_group_whatever_its_name(site: DeadSite) -> None:
    name = '\x1b[31m<b>"&amp;\u202e\x00\t{count}'
    site.dead_letter("1", reason=name)
    site.dead_letter("2", reason=DOWN)
    link = next(link for link in site.groups().values("a", "href") if "group=" in link and group_id(DOWN) not in link)
    (action,) = (
        address
        for address in harmless(site.client.get(link).text).values("form", "action")
        if address.startswith("/dead/plan?")
    )
    plan_id = id_in(site.post(action, {"goal": "replay"}))
    site.context.plans.wait(plan_id, DEADLINE_SECONDS)
    site.ended(site.confirm(site.get("/dead/plan", id=plan_id)))
    assert (site.scene.bodies(QUEUE), site.scene.bodies(DLQ)) == (["1"], ["2"])


def test_a_replay_says_if_the_number_is_not_that_of_the_plan(sqlite_site: DeadSite) -> None:
    sqlite_site.dead_letter("1", "2", reason=UNKNOWN)
    plan = sqlite_site.plan(error="unknown")
    sqlite_site.dead_letter("3", reason=UNKNOWN)
    found = sqlite_site.ended(sqlite_site.confirm(plan))
    assert texts_of(found)[-1] == ("The plan counted 2, and 3 were found: others were added or removed since.")
    assert sqlite_site.count() == 0


class SlowClock(SystemClock):
    """The clock of a host that is five minutes behind that of the broker."""

    def now(self) -> float:
        return super().now() - 300


def test_a_host_whose_clock_is_behind_replays_all_messages_of_its_plan(site: DeadSite) -> None:
    site.dead_letter("1", "2")
    with client_of(site.app, clock=SlowClock()) as site.client:
        assert "2 dead letters were sent back." in texts_of(site.ended(site.confirm(site.plan())))
    assert (site.count(DLQ), site.count(QUEUE)) == (0, 2)


def test_messages_go_to_the_destination_of_the_form(sqlite_site: DeadSite) -> None:
    sqlite_site.broker.send("lost-dlq", [Outgoing(body=b"4")])
    sqlite_site.broker.send(QUEUE, [Outgoing(body=b"0")])
    found = sqlite_site.ended(sqlite_site.confirm(sqlite_site.plan(to=QUEUE)))
    assert texts_of(found)[0] == "1 dead letter was sent back."
    assert sqlite_site.scene.bodies() == ["0", "4"]


def test_messages_without_an_origin_are_left_and_counted(sqlite_site: DeadSite) -> None:
    sqlite_site.dead_letter("1")
    sqlite_site.broker.send("lost-dlq", [Outgoing(body=b"4")])
    found = sqlite_site.ended(sqlite_site.confirm(sqlite_site.plan()))
    assert any(text.startswith("1 was left: its queue of origin is unknown") for text in texts_of(found))
    assert sqlite_site.count("lost-dlq") == 1


def test_an_aborted_replay_leaves_the_rest_untouched_and_the_next_one_completes(site: DeadSite, held: Held) -> None:
    site.dead_letter(*map(str, range(10)), reason=UNKNOWN)
    action_id = site.confirm(site.plan(rate="3"))
    held.until_first()
    page = site.get("/actions/show", id=action_id)
    assert "running" in page.text
    assert "3 of 10 done" in page.text
    path, fields = form_of(page, "id")
    assert path == "/actions/abort"
    site.post(path, fields)
    page = site.get("/actions/show", id=action_id)
    assert "It stops after its current chunk." in page.text
    held.go_on()
    found = site.ended(action_id)
    assert (found.state, found.aborted_by) == ("aborted", "ann")
    assert "7 of the planned dead letters were left untouched." in texts_of(found)
    assert (site.count(DLQ), site.count(QUEUE)) == (7, 3)
    (entry,) = site.audit()
    assert (entry.messages, entry.outcome) == (3, "interrupted")
    rest = site.ended(site.confirm(site.plan()))
    assert (rest.state, rest.done) == ("done", 7)
    assert site.scene.bodies(QUEUE) == sorted(map(str, range(10)))


def test_the_same_replay_is_refused_while_it_runs_and_another_of_the_queue_waits(
    sqlite_site: DeadSite, held: Held
) -> None:
    sqlite_site.dead_letter("1", "2", "3", reason=UNKNOWN)
    plan, other = sqlite_site.plan(rate="1"), sqlite_site.plan("purge", queue=DLQ)
    first = sqlite_site.confirm(plan)
    held.until_first()
    path, fields = form_of(plan, "planned")
    location = sqlite_site.post(path, fields).headers["location"]
    assert parse_qs(urlsplit(location).query) == {"id": [first], "refused": ["1"]}
    assert "The same action runs already" in sqlite_site.client.get(location).text
    waiting = sqlite_site.confirm(other, typed="3")
    page = sqlite_site.get("/actions/show", id=waiting)
    assert "It waits for another action on the same queue." in page.text
    sqlite_site.post("/actions/abort", {"id": waiting})
    assert texts_of(sqlite_site.ended(waiting)) == ["It had not begun: nothing was changed."]
    sqlite_site.post("/actions/abort", {"id": first})
    held.go_on()
    sqlite_site.ended(first)
    assert sqlite_site.count(DLQ) == 2


def test_a_stop_of_the_dashboard_interrupts_a_replay(sqlite_site: DeadSite, held: Held) -> None:
    sqlite_site.dead_letter("1", "2", "3", reason=UNKNOWN)
    sqlite_site.confirm(sqlite_site.plan(rate="1"))
    held.until_first()
    stopping = threading.Thread(target=sqlite_site.context.close)
    stopping.start()
    sqlite_site.await_that(lambda: sqlite_site.context.actions.latest()[0].stop_requested)
    held.go_on()
    stopping.join(DEADLINE_SECONDS)
    assert sqlite_site.context.actions.latest()[0].state == "interrupted"
    (entry,) = sqlite_site.audit()
    assert (entry.messages, entry.outcome) == (1, "interrupted")
    assert (sqlite_site.count(DLQ), sqlite_site.count(QUEUE)) == (2, 1)


def test_a_failed_replay_reports_the_number_it_sent(sqlite_site: DeadSite, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: object, done: int) -> None:
        raise TemporaryError(f"the broker is unavailable after {done}")

    sqlite_site.dead_letter("1", "2", reason=UNKNOWN)
    monkeypatch.setattr(ReplayRate, "wait", failing)
    found = sqlite_site.ended(sqlite_site.confirm(sqlite_site.plan(rate="1")))
    assert found.state == "failed"
    assert texts_of(found) == [
        "the broker is unavailable after 1",
        "1 dead letter was sent back.",
        f"To {QUEUE}: 1.",
        "1 of the planned dead letters was left untouched.",
    ]
    assert sqlite_site.audit()[0].outcome == "failed"


def test_a_canary_that_fails_again_keeps_the_rest(sqlite_site: DeadSite, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite_site.dead_letter("1", "2", reason=UNKNOWN)
    plan = sqlite_site.plan(canary="1")

    def failing(*arguments: Any, **options: Any) -> object:
        sqlite_site.scene.dead_letter_next(reason="again")
        return watch(*arguments, **options)

    monkeypatch.setattr("penstock.operations.dead_letters.actions.watch", failing)
    found = sqlite_site.ended(sqlite_site.confirm(plan))
    assert found.state == "failed"
    assert any(text.startswith("A canary failed again, so the rest was not sent: ") for text in texts_of(found))
    assert sqlite_site.count(DLQ) == 2


def test_a_message_that_is_refused_is_counted_once_after_canaries(
    sqlite_site: DeadSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_site.dead_letter("1", "2", "3", reason=UNKNOWN)

    def refusing(broker: Broker, queue: str, messages: Sequence[Outgoing]) -> Sequence[str | PenstockError]:
        return [
            ConfigurationError("it is too large") if one.body == b"1" else send_each(broker, queue, [one])[0]
            for one in messages
        ]

    settled = CanaryResult(status="settled", text="it was processed")
    monkeypatch.setattr("penstock.dead_letters.operator.send_each", refusing)
    monkeypatch.setattr("penstock.operations.dead_letters.actions.watch", lambda *_, **__: settled)
    found = sqlite_site.ended(sqlite_site.confirm(sqlite_site.plan(canary="1")))
    assert texts_of(found)[1:] == [
        "2 dead letters were sent back.",
        f"To {QUEUE}: 2.",
        "1 was left: the queue refuses it: it is too large",
        "A canary was processed.",
    ]


def test_the_reason_of_a_dead_canary_is_shown_without_secrets(
    sqlite_site: DeadSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_site.dead_letter("1", "2", reason=UNKNOWN)
    plan = sqlite_site.plan(canary="1")

    def failing(*arguments: Any, **options: Any) -> object:
        sqlite_site.scene.dead_letter_next(reason="no login with password=hunter2")
        return watch(*arguments, **options)

    monkeypatch.setattr("penstock.operations.dead_letters.actions.watch", failing)
    action_id = sqlite_site.confirm(plan)
    sqlite_site.ended(action_id)
    page = sqlite_site.get("/actions/show", id=action_id)
    assert "no login with password=***" in page.text
    assert "hunter2" not in page.page


def test_a_replay_sends_no_more_than_its_plan_if_some_have_no_origin(sqlite_site: DeadSite) -> None:
    sqlite_site.broker.send("lost-dlq", [Outgoing(body=b"a"), Outgoing(body=b"b")])
    sqlite_site.dead_letter("1", "2", "3", queue="zoo")
    plan = sqlite_site.plan(limit="2")
    assert "2 dead letters would be sent back." in plan.text
    assert "2 would be left: their queue of origin is unknown" in plan.text
    assert sqlite_site.ended(sqlite_site.confirm(plan)).state == "done"
    assert (sqlite_site.count("zoo-dlq"), sqlite_site.count("zoo")) == (1, 2)


def test_a_message_that_is_deleted_for_good_is_not_sent_by_a_replay_that_runs(site: DeadSite, held: Held) -> None:
    site.dead_letter("1", "2", "3", reason=UNKNOWN)
    replay = site.confirm(site.plan(rate="1"))
    held.until_first()
    last = site.scene.messages(DLQ)[-1]
    path, fields = form_of(site.get("/dead/message", queue=DLQ, id=last.id), "typed")
    deletion = id_in(site.post(path, fields))
    assert "It waits for another action on the same queue." in site.get("/actions/show", id=deletion).text
    site.post("/actions/abort", {"id": replay})
    held.go_on()
    assert texts_of(site.ended(deletion)) == ["1 dead letter was deleted."]
    assert (site.scene.bodies(QUEUE), site.scene.bodies(DLQ)) == (["1"], ["2"])


def test_a_single_dead_letter_is_replayed_from_its_page(site: DeadSite) -> None:
    site.dead_letter("1", "2")
    first, _ = site.scene.messages(DLQ)
    path, fields = form_of(site.get("/dead/message", queue=DLQ, id=first.id), "planned")
    found = site.ended(id_in(site.post(path, fields)))
    assert (found.state, site.scene.bodies(QUEUE), site.scene.bodies(DLQ)) == ("done", ["1"], ["2"])


def test_a_replay_needs_the_number_of_a_plan(sqlite_site: DeadSite) -> None:
    sqlite_site.dead_letter("1")
    for planned in ({}, {"planned": ""}, {"planned": "0"}, {"planned": "many"}):
        sqlite_site.post("/dead/replay", planned, status=400)
    assert sqlite_site.count(DLQ) == 1


# Purges


def test_a_purge_needs_its_number_typed(site: DeadSite) -> None:
    site.dead_letter("1", "2", reason=UNKNOWN)
    site.dead_letter("3", reason=DOWN)
    page = site.plan("purge", error="unknown")
    assert "2 dead letters would be deleted for good." in page.text
    path, fields = form_of(page, "planned")
    for typed in ("", "3", "two", "02x"):
        refused = site.post(path, {**fields, "typed": typed}, status=400)
        assert "Nothing was deleted." in refused.text
        assert "2 dead letters would be deleted for good." in refused.text
    assert site.count(DLQ) == 3
    found = site.ended(id_in(site.post(path, {**fields, "typed": "2"})))
    assert (found.state, texts_of(found)) == ("done", ["2 dead letters were deleted."])
    assert site.scene.bodies(DLQ) == ["3"]
    (entry,) = site.audit()
    assert (entry.action, entry.messages, entry.outcome) == ("purge", 2, "done")
    assert (entry.who, entry.details) == ("ann via the dashboard", {"error": "unknown"})


def test_a_single_dead_letter_is_deleted_from_its_page(sqlite_site: DeadSite) -> None:
    sqlite_site.dead_letter("1")
    sqlite_site.scene.move_to_final_dlq()
    sqlite_site.dead_letter("2")
    (message,) = sqlite_site.scene.messages(FINAL_DLQ)
    page = sqlite_site.get("/dead/message", queue=FINAL_DLQ, id=message.id)
    path, fields = form_of(page, "typed")
    sqlite_site.ended(id_in(sqlite_site.post(path, fields)))
    assert (sqlite_site.count(FINAL_DLQ), sqlite_site.count(DLQ)) == (0, 1)


# Actions


def test_without_actions_and_for_unknown_ones_the_pages_say_so(sqlite_site: DeadSite) -> None:
    assert "No actions yet" in sqlite_site.get("/actions").text
    assert "no longer known" in sqlite_site.get("/actions/show", status=404, id="x").text
    assert sqlite_site.client.get("/actions/show").status_code == 404
    sqlite_site.post("/actions/abort", {"id": "x"})


@pytest.mark.parametrize("path", ["/dead/replay", "/dead/purge", "/dead/plan/cancel", "/dead/count", "/actions/abort"])
def test_nothing_is_changed_by_get(sqlite_site: DeadSite, path: str) -> None:
    sqlite_site.dead_letter("1")
    query = {"planned": "1", "typed": "1", "queue": DLQ}
    assert sqlite_site.client.get(path, params=query).status_code == 405
    assert sqlite_site.count(DLQ) == 1


def test_an_unexpected_error_of_an_action_is_one_sentence(sqlite_site: DeadSite) -> None:
    def run(_: ActionProgress) -> ActionResult:
        raise ZeroDivisionError("by zero")

    described = ActionDescription(title=sentence("Plan"))
    action_id = sqlite_site.context.actions.start("replay", "ann", described, run)
    sqlite_site.ended(action_id)
    page = sqlite_site.get("/actions/show", id=action_id)
    assert "It failed with an error that Penstock did not expect: ZeroDivisionError: by zero" in page.text
    assert "Traceback" not in page.text


def test_a_read_only_user_sees_no_buttons_and_changes_nothing(sqlite_site: DeadSite) -> None:
    sqlite_site.dead_letter("1")
    sqlite_site.groups()
    (message,) = sqlite_site.scene.messages(DLQ)
    with client_of(sqlite_site.app, user=None) as visitor:
        for path in ("/dead?list=1", f"/dead/message?queue={DLQ}&id={message.id}", "/actions"):
            page = visitor.get(path).text
            assert "Plan a replay" not in page
            assert "/dead/replay" not in page
        fields = {"queue": DLQ, "id": message.id, "planned": "1", "typed": "1", "goal": "replay"}
        for path in ("/dead/plan", "/dead/replay", "/dead/purge", "/dead/plan/cancel", "/dead/count", "/actions/abort"):
            assert visitor.post(path, data=fields).status_code == 403
    assert sqlite_site.count(DLQ) == 1
