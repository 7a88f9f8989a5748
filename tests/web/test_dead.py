"""The pages of dead letters, on brokers that can be browsed and on SQS: groups, lists, one message."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.dead_letter_scene import DLQ, FINAL_DLQ, QUEUE
from tests.services.aws_server import REGION, AwsServer
from tests.web.dead_site import DEADLINE_SECONDS, DeadSite, id_in, opened_site
from tests.web.markup import Markup

from penstock.brokers.sqs import SqsBroker
from penstock.dead_letters.groups import group_id
from penstock.messaging.broker import QueueSettings
from penstock.messaging.death import DEATH_ATTRIBUTE
from penstock.messaging.message import Outgoing
from penstock.web import dead

HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)>\x1b[31m\u202e{{ 7*7 }}{count}%s'
SECRET = "open-sesame"
GROUP = group_id("order <n> is unknown")


@pytest.fixture(params=["sqlite", "redis"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeadSite]:
    with opened_site(request.param, tmp_path, request) as site:
        yield site


@pytest.fixture
def sqlite_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeadSite]:
    with opened_site("sqlite", tmp_path, request) as site:
        yield site


def ids_of(page: Markup) -> list[str]:
    """Return the ids of the messages that a list links to."""
    links = (link for link in page.values("a", "href") if link.startswith("/dead/message"))
    return [link.rpartition("id=")[2] for link in links]


def next_of(page: Markup) -> str | None:
    return next((a["href"] for tag, a in page.elements if tag == "a" and a.get("rel") == "next"), None)


# Groups


def test_dead_letters_are_grouped_by_error_with_counts_and_queues(site: DeadSite) -> None:
    site.dead_letter("1", "2", "3", reason="order 17 is unknown")
    site.dead_letter("4", reason="the gateway is down")
    page = site.groups()
    assert "4 dead letters in all, as of" in page.text
    assert "order <n> is unknown" in page.text
    assert page.text.index("order <n> is unknown") < page.text.index("the gateway is down")
    assert DLQ in page.text
    assert f"/dead?group={GROUP}" in page.values("a", "href")


def test_the_list_of_a_queue_has_its_errors_if_there_are_several(site: DeadSite) -> None:
    site.dead_letter("1", "2", reason="order 17 is unknown")
    site.groups()
    assert "By error" not in site.get("/dead", queue="orders").text
    site.dead_letter("3", reason="the gateway is down")
    site.groups()
    page = site.get("/dead", queue="orders")
    assert "order 17 is unknown 2 dead letters" in " ".join(page.text.split())
    assert f"/dead?group={GROUP}&queue=orders" in page.values("a", "href")
    assert len(ids_of(site.get("/dead", group=GROUP, queue="orders"))) == 2
    assert "By error" not in site.get("/dead", queue="orders", error="gateway").text
    assert "By error" not in site.get("/dead", queue="other").text


def test_without_dead_letters_the_page_explains_itself(site: DeadSite) -> None:
    assert "There are no dead letters" in site.groups().text


def test_a_page_shows_the_last_count_until_there_is_a_new_one(sqlite_site: DeadSite) -> None:
    sqlite_site.dead_letter("1")
    assert "1 dead letter in all, as of" in sqlite_site.groups().text
    sqlite_site.dead_letter("2")
    assert "1 dead letter in all, as of" in sqlite_site.get("/dead").text  # no new count for each look
    assert "2 dead letters in all, as of" in sqlite_site.groups().text


def test_more_groups_than_a_page_shows_are_on_further_pages(
    sqlite_site: DeadSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "GROUPS_SHOWN", 2)
    for reason in ("one failed", "two failed", "three failed"):
        sqlite_site.dead_letter("x", reason=reason)
    first = sqlite_site.groups()
    following = next_of(first)
    assert following is not None
    second = Markup(sqlite_site.client.get(following).text)
    assert sum("failed" in text for text in first.texts) == 2
    assert sum("failed" in text for text in second.texts) == 1
    assert next_of(second) is None


# Lists


def test_a_list_has_every_dead_letter_once_page_by_page(site: DeadSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "ROWS_SHOWN", 3)
    site.dead_letter(*map(str, range(7)))
    site.scene.move_to_final_dlq()
    site.groups()
    found: list[str] = []
    address: str | None = "/dead?list=1"
    while address is not None:
        page = Markup(site.client.get(address).text)
        assert len(ids_of(page)) <= 3
        found += ids_of(page)
        address = next_of(page)
    assert len(found) == len(set(found)) == 7


def test_the_list_of_a_group_has_its_members_that_are_still_there(site: DeadSite) -> None:
    site.dead_letter("a", "b", reason="order 1 is unknown")
    site.dead_letter("c", reason="the gateway is down")
    site.dead_letter("d", reason="order 2 is unknown")
    site.groups()
    page = site.get("/dead", group=GROUP)
    ids = ids_of(page)
    assert len(ids) == 3
    assert "the gateway is down" not in page.text
    site.broker.discard(DLQ, [ids[0]])
    assert ids_of(site.get("/dead", group=GROUP)) == ids[1:]


@pytest.mark.parametrize(
    ("query", "bodies"),
    [
        ({"queue": QUEUE}, ["apple", "berry", "fruit"]),
        ({"queue": DLQ}, ["berry", "fruit"]),
        ({"tier": "dead"}, ["apple"]),
        ({"handler": "order"}, ["berry"]),
        ({"error": "GATEWAY"}, ["berry"]),
        ({"attribute": "tenant=t"}, ["apple"]),
        ({"younger_than": "1h"}, ["apple", "berry", "fruit"]),
        ({"older_than": "1h"}, []),
        ({"object": "s3://landing/a.json"}, ["fruit"]),
    ],
)
def test_each_filter_selects(sqlite_site: DeadSite, query: dict[str, Any], bodies: list[str]) -> None:
    sqlite_site.dead_letter("apple", attributes={"tenant": "t"})
    sqlite_site.scene.move_to_final_dlq()
    sqlite_site.dead_letter("berry", reason="the gateway is down", handler="order")
    key = {"bucket": {"name": "landing"}, "object": {"key": "a.json", "size": 1, "eTag": "e"}}
    record = {"eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": key}
    sqlite_site.dead_letter(json.dumps({"fruit": 1, "Records": [record]}))
    sqlite_site.groups()
    page = sqlite_site.get("/dead", list=1, **query)
    assert [body for body in ("apple", "berry", "fruit") if body in page.text] == bodies


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"tier": "third"}, "There is no tier third"),
        ({"older_than": "soon"}, "is not a duration"),
        ({"attribute": "tenant"}, "is not of the form NAME=VALUE"),
        ({"limit": "0"}, "is no number from 1"),
        ({"error": "x" * 5_000}, "more than 4,000 characters"),
    ],
)
def test_a_malformed_filter_is_one_clear_error(sqlite_site: DeadSite, query: dict[str, Any], message: str) -> None:
    assert message in sqlite_site.get("/dead", status=400, **query).text


def test_a_search_that_takes_long_continues_on_the_next_page(
    sqlite_site: DeadSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.operations.dead_letters.listing.SEARCH_SECONDS", 0.0)
    sqlite_site.dead_letter("a", "b", reason="rare")
    sqlite_site.groups()
    page = sqlite_site.get("/dead", error="nothing has this")
    assert "2 dead letters were searched for this page" in page.text
    assert "No dead letter matches" not in page.text
    assert next_of(page) is not None


# One message


def test_a_dead_letter_shows_its_history_and_the_destination_of_a_replay(site: DeadSite) -> None:
    site.dead_letter("1", reason="first death")
    (first,) = site.scene.messages(DLQ)
    replay = {"queue": DLQ, "id": first.id, "limit": "1", "planned": "1"}
    site.ended(site.post("/dead/replay", replay).headers["location"].rpartition("=")[2])
    trace = 'Traceback (most recent call last):\n  File "shop.py", line 3, in take\nValueError: second death\n'
    site.scene.dead_letter_next(reason="second death", traceback=trace, exception="ValueError", handler="order")
    (message,) = site.scene.messages(DLQ)
    page = site.get("/dead/message", queue=DLQ, id=message.id)
    for text in (
        "second death",
        "first death",
        "ValueError",
        'File "shop.py", line 3',
        f"On replay it goes to {QUEUE}",
    ):
        assert text in page.text
    assert f"/queue?name={QUEUE}" in page.values("a", "href")


def test_a_message_whose_origin_is_unknown_asks_for_a_destination(sqlite_site: DeadSite) -> None:
    (id,) = sqlite_site.broker.send("lost-dlq", [Outgoing(body=b"1")])
    page = sqlite_site.get("/dead/message", queue="lost-dlq", id=id)
    assert "No reason was recorded." in page.text
    assert "choose a destination" in page.text
    assert ("input", {"type": "text", "name": "to", "placeholder": "", "required": ""}) in page.elements


def test_an_unknown_dead_letter_is_not_found(site: DeadSite) -> None:
    site.dead_letter("1")
    for query in ({"queue": DLQ, "id": "x-000000000009"}, {"queue": DLQ}, {"queue": "none", "id": "x"}):
        assert "There is no such dead letter" in site.get("/dead/message", status=404, **query).text


def test_hostile_errors_bodies_and_attributes_are_harmless_on_every_page(site: DeadSite) -> None:
    body = json.dumps({"text": HOSTILE})
    site.dead_letter(
        body,
        reason=HOSTILE,
        traceback=HOSTILE,
        exception=HOSTILE,
        fingerprint=HOSTILE,
        handler=HOSTILE,
        attributes={"x": HOSTILE},
    )
    site.dead_letter("plain", attributes={DEATH_ATTRIBUTE: '{"reason": "\\ud800", "fingerprint": "forged'})
    site.groups()
    (message, _) = sorted(site.scene.messages(DLQ), key=lambda message: message.body != body.encode())
    pages = [
        site.get("/dead"),
        site.get("/dead", list=1),
        site.get("/dead", group=group_id(HOSTILE)),
        site.get("/dead", queue=HOSTILE),
        site.get("/dead/message", queue=DLQ, id=message.id),
        site.plan(error=HOSTILE),
    ]
    for page in pages:
        assert "alert(1)" not in "".join(page.values("script", "src"))
        assert not page.values("img", "src")
    assert "\\x1b[31m\\u202e{{ 7*7 }}{count}%s" in pages[4].text


def test_secrets_in_bodies_errors_and_attributes_are_not_shown(sqlite_site: DeadSite) -> None:
    error = f"login failed, password={SECRET}"
    sqlite_site.dead_letter(
        json.dumps({"password": SECRET}), reason=error, traceback=error, attributes={"password": SECRET}
    )
    sqlite_site.groups()
    (message,) = sqlite_site.scene.messages(DLQ)
    survey = sqlite_site.context.dead_letters.last_survey()
    assert survey is not None
    group = survey.groups[0].id
    for page in (
        sqlite_site.get("/dead"),
        sqlite_site.get("/dead", list=1),
        sqlite_site.get("/dead", group=group),
        sqlite_site.get("/dead/message", queue=DLQ, id=message.id),
        sqlite_site.plan(group=group),
        sqlite_site.get("/actions/show", id=sqlite_site.confirm(sqlite_site.plan(group=group))),
    ):
        assert SECRET not in page.page
    assert SECRET not in str(sqlite_site.audit())


def test_the_pages_are_japanese(sqlite_site: DeadSite) -> None:
    sqlite_site.dead_letter("1", reason="x")
    sqlite_site.groups()
    (message,) = sqlite_site.scene.messages(DLQ)
    sqlite_site.client.headers["accept-language"] = "ja"
    assert "デッドレターは全部で 1 件" in sqlite_site.get("/dead").text
    assert "すべてのデッドレター" in sqlite_site.get("/dead", list=1).text
    assert f"再処理すると {QUEUE} に送信されます" in sqlite_site.get("/dead/message", queue=DLQ, id=message.id).text
    assert "デッドレター 1 件を送り返します" in sqlite_site.plan().text


# A broker that cannot be browsed


@pytest.fixture
def sqs_site(tmp_path: Path, moto: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeadSite]:
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    for name in (DLQ, FINAL_DLQ):
        moto.client("sqs").create_queue(QueueName=name)
    queues = [QueueSettings(name=QUEUE)]
    broker = SqsBroker(moto.aws, holder="test", queues=queues, poll_seconds=1)
    with DeadSite(tmp_path, broker, f"sqs://{REGION}") as site:
        yield site


def test_on_sqs_dead_letters_are_received_only_on_request(sqs_site: DeadSite, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[str] = []
    receive = SqsBroker.receive

    def noted(self: SqsBroker, queue: str, **options: object) -> object:
        received.append(queue)
        return receive(self, queue, **options)  # type: ignore[arg-type]

    sqs_site.dead_letter("1", "2", reason="order 17 is unknown")
    monkeypatch.setattr(SqsBroker, "receive", noted)
    page = sqs_site.get("/dead")
    assert "Not counted yet" in page.text
    assert "only read a message by receiving it" in page.text
    sqs_site.get("/dead", list=1)
    sqs_site.get("/dead/message", status=404, queue=DLQ, id="x")
    assert received == []
    sqs_site.post("/dead/count", {})
    sqs_site.await_that(lambda: sqs_site.context.dead_letters.last_survey() is not None)
    assert set(received) == {DLQ}
    received.clear()
    assert "2 dead letters in all, as of" in sqs_site.get("/dead").text
    (first, _) = ids_of(sqs_site.get("/dead", group=GROUP))
    assert "order 17 is unknown" in sqs_site.get("/dead/message", queue=DLQ, id=first).text
    assert received == []
    assert sqs_site.scene.bodies(DLQ) == ["1", "2"]  # released


def test_on_sqs_counts_at_the_same_time_do_not_hide_dead_letters_from_each_other(sqs_site: DeadSite) -> None:
    sqs_site.dead_letter(*map(str, range(12)))
    sqs_site.post("/dead/count", {})
    plans = [id_in(sqs_site.post("/dead/plan", {"goal": "replay", "limit": limit})) for limit in ("50", "60")]
    for plan_id in plans:
        sqs_site.context.plans.wait(plan_id, DEADLINE_SECONDS)
        assert "12 dead letters would be sent back." in sqs_site.get("/dead/plan", id=plan_id).text
    survey = sqs_site.context.dead_letters.last_survey()
    assert survey is not None
    assert survey.dead_letters == 12


def test_on_sqs_a_plan_that_waits_for_a_count_can_be_stopped(sqs_site: DeadSite) -> None:
    with sqs_site.context.counting.awaited(lambda: False):
        plan_id = id_in(sqs_site.post("/dead/plan", {"goal": "replay"}))
        sqs_site.post("/dead/plan/cancel", {"id": plan_id})
        found = sqs_site.context.plans.wait(plan_id, DEADLINE_SECONDS)
    assert found is not None
    assert found.state == "aborted"


def foreign_queue(moto: AwsServer) -> str:
    """Make a queue of another app with a dead letter; return the address of its DLQ."""
    sqs = moto.client("sqs")
    sqs.create_queue(QueueName="foreign")
    address: str = sqs.create_queue(QueueName="foreign-dlq")["QueueUrl"]
    sqs.send_message(QueueUrl=address, MessageBody="of another app")
    return address


@pytest.mark.parametrize("path", ["/dead/plan", "/dead/replay", "/dead/purge"])
def test_on_a_shared_account_the_queues_of_other_apps_are_left_alone(
    path: str, sqs_site: DeadSite, moto: AwsServer
) -> None:
    sqs_site.dead_letter("1")
    address = foreign_queue(moto)
    elsewhere = f"https://sqs.{REGION}.amazonaws.com/999999999999/{QUEUE}"
    given = {"goal": "replay", "planned": 1, "typed": 1}
    asked = [{"queue": queue} for queue in ("foreign", "foreign-dlq", address)]
    asked += [] if path == "/dead/purge" else [{"to": to} for to in ("foreign", elsewhere)]
    for fields in asked:
        response = sqs_site.post(path, {**given, **fields}, status=400)
        assert "is none of this app&#39;s" in response.text
    assert (sqs_site.count("foreign-dlq"), sqs_site.count(DLQ)) == (1, 1)
    assert sqs_site.audit() == []
