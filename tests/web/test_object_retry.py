"""Retry of objects from the dashboard: a plan that changes nothing, then an action with an audit entry."""

import re
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from starlette.testclient import TestClient
from tests.web.clients import client_of
from tests.web.object_scene import ObjectScene
from tests.web.test_objects import page, seen

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.ledger.records import AttemptFailure
from penstock.objects.notification import parse

WAIT_SECONDS = 120.0


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ObjectScene]:
    scene = ObjectScene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
def client(scene: ObjectScene) -> Iterator[TestClient]:
    with client_of(scene.scope) as client:
        yield client


def post(client: TestClient, path: str, **fields: str) -> str:
    """Send a form; return the address that it leads to."""
    response = client.post(path, data=fields, follow_redirects=False)
    assert response.status_code == 303, response.text
    return response.headers["location"]


def planned(client: TestClient, **fields: str) -> tuple[str, dict[str, str]]:
    """Make a plan, wait for it, and return its page and the fields of its confirmation."""
    address = post(client, "/objects/retry", **fields)
    plans = client.app.state.context.plans  # type: ignore[attr-defined]
    plans.wait(address.rpartition("=")[2], WAIT_SECONDS)
    shown = page(client, address)
    return shown, form_in(shown, "/objects/retry/start")


def form_in(shown: str, path: str) -> dict[str, str]:
    """Return the fields of the form with this path, in its address and its hidden inputs; none without a form."""
    found = re.search(rf'action="{path}(?:\?([^"]*))?"(.*?)</form>', shown, re.DOTALL)
    if found is None:
        return {}
    inputs = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', found[2])}
    return {**dict(parse_qsl(unescape(found[1] or ""), keep_blank_values=True)), **inputs}


def confirmed(client: TestClient, fields: dict[str, str]) -> str:
    """Confirm a plan; return the page of the action once it has ended."""
    fields.pop("csrf", None)
    address = post(client, "/objects/retry/start", **fields)
    actions = client.app.state.context.actions  # type: ignore[attr-defined]
    actions.wait(address.rpartition("=")[2], WAIT_SECONDS)
    return page(client, address)


def enqueued(scene: ObjectScene, queue: str = "clicks-files") -> list[str]:
    """Receive and return the keys of the notifications in a queue."""
    with closing(SqliteBroker(scene.folder / "queue.db", holder="")) as broker:
        found = broker.receive(queue, messages_max=10, lease_seconds=600.0)
        return sorted(ref.key for one in found for ref in parse(one.message.body, buckets_allowed=None).objects)


def test_a_plan_counts_and_changes_nothing(scene: ObjectScene, client: TestClient) -> None:
    scene.fail("a", "b")
    scene.fail("c", pipeline="orders")
    scene.fail("other", failure=AttemptFailure.DELETED)
    shown, _ = planned(client, state="dead", q="", pipeline="")
    assert "3 objects would be enqueued again." in shown
    assert "2 clicks-files 1 orders-files" in seen(shown)
    assert enqueued(scene) == []
    assert scene.ledger.audits.latest(limit=10) == []


def test_the_confirmation_is_in_the_part_that_is_fetched_again(scene: ObjectScene, client: TestClient) -> None:
    """The page that is open while the plan is counted shows its button without being loaded again."""
    scene.fail("a")
    shown, _ = planned(client, state="dead", q="", pipeline="")
    live = shown.partition('<section id="live"')[2].partition("</section>")[0]
    assert 'action="/objects/retry/start?' in live


def test_the_confirmed_objects_are_enqueued_with_the_users_name_in_the_audit(
    scene: ObjectScene, client: TestClient
) -> None:
    scene.fail("2026/a", "2026/b", "2025/c")
    _, fields = planned(client, state="dead", q="2026/", pipeline="clicks")
    shown = confirmed(client, fields)
    assert "2 objects were enqueued again." in shown
    assert enqueued(scene) == ["2026/a", "2026/b"]
    (entry,) = scene.ledger.audits.latest(limit=10)
    assert (entry.action, entry.who, entry.messages, entry.outcome) == ("retry", "ann via the dashboard", 2, "done")


@pytest.mark.parametrize(
    "name", ["請求書 <1> & 'x'%25.jsonl", "no\u00a0break.jsonl", "two\nlines.jsonl", "\x1b[31m.jsonl"]
)
def test_one_object_is_retried_from_its_page(name: str, scene: ObjectScene, client: TestClient) -> None:
    scene.fail(name, "another")
    given = form_in(page(client, "/object", address=scene.ref(name).uri), "/objects/retry")
    given.pop("csrf", None)
    _, fields = planned(client, **given)
    assert "1 object was enqueued again." in confirmed(client, fields)
    assert enqueued(scene) == [name]


def test_the_objects_of_a_search_are_retried_whatever_its_text(scene: ObjectScene, client: TestClient) -> None:
    scene.fail("no\u00a0break-1", "no\u00a0break-2", "no break-3")
    given = form_in(page(client, "/objects", q="no\u00a0break"), "/objects/retry")
    given.pop("csrf", None)
    _, fields = planned(client, **given)
    assert "2 objects were enqueued again." in confirmed(client, fields)


def test_the_retry_takes_no_more_than_the_plan_counted(scene: ObjectScene, client: TestClient) -> None:
    scene.fail("a")
    _, fields = planned(client, state="dead", q="", pipeline="")
    scene.fail("b", "c")
    assert "1 object was enqueued again." in confirmed(client, fields)
    assert len(enqueued(scene)) == 1


def test_an_object_that_was_processed_meanwhile_is_left_alone(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a")
    shown, fields = planned(client, address=scene.ref("a").uri, pipeline="clicks")
    assert "is left alone, because it needs no retry. State: processed" in shown
    assert not fields, "there is nothing to confirm"


def test_an_unknown_object_is_named(client: TestClient) -> None:
    shown, _ = planned(client, address="s3://landing/none", pipeline="clicks")
    assert "The ledger knows no object s3://landing/none." in shown


@pytest.mark.parametrize("state", ["processed", "processing", "no such"])
def test_objects_that_need_no_retry_cannot_be_chosen(client: TestClient, state: str) -> None:
    response = client.post("/objects/retry", data={"state": state})
    assert response.status_code == 400
    assert "This is not possible" in response.text


@pytest.mark.parametrize("count", ["", "0", "-1", "x", "9" * 30, "1" + "0" * 5_000])
def test_a_retry_needs_a_plan(scene: ObjectScene, client: TestClient, count: str) -> None:
    scene.fail("a")
    response = client.post("/objects/retry/start", data={"state": "dead", "planned": count})
    assert response.status_code == 400
    assert enqueued(scene) == []


def test_nothing_is_changed_by_get(scene: ObjectScene, client: TestClient) -> None:
    scene.fail("a")
    assert client.get("/objects/retry/start", params={"state": "dead", "planned": "1"}).status_code in (404, 405)
    assert "This plan is no longer known." in page(client, "/objects/retry", status=404, state="dead")
    assert enqueued(scene) == []


def test_a_plan_of_a_pipeline_whose_queue_is_unknown_is_refused_with_a_sentence(
    scene: ObjectScene, client: TestClient
) -> None:
    scene.fail("a")
    shown, _ = planned(client, state="dead", pipeline="nothing")
    assert "The plan was not completed. Nothing was changed." in shown
    assert "nothing" in shown


def test_it_is_there_in_japanese(scene: ObjectScene, client: TestClient) -> None:
    scene.fail("a")
    client.headers["accept-language"] = "ja"
    shown, fields = planned(client, state="dead")
    assert "1 個のオブジェクトを再びキューに入れます" in shown
    assert "1 個のオブジェクトを再びキューに入れました" in confirmed(client, fields)


def test_a_user_without_rights_sees_no_button_and_changes_nothing(scene: ObjectScene) -> None:
    scene.fail("a")
    with client_of(scene.scope, user=None) as client:
        assert "Retry this object" not in page(client, "/object", address=scene.ref("a").uri)
        assert "Process them again" not in page(client, "/objects")
        for path in ("/objects/retry", "/objects/retry/start", "/objects/retry/cancel"):
            assert client.post(path, data={"state": "dead", "planned": "1"}).status_code == 403
    assert enqueued(scene) == []
