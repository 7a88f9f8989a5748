"""The pages of messages: lists by state, one message, its body, attributes, deliveries and death, and its download."""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.web.clients import client_of
from tests.web.markup import Markup, harmless

from penstock import App
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import Settings
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter, Release
from penstock.web import messages

SECRET = "hunter2"


class Site(AbstractContextManager["Site"]):
    """A dashboard of an app with a queue in a file, and a broker to fill it."""

    def __init__(self, folder: Path, **settings: object) -> None:
        given = {"broker": f"sqlite:///{folder}/queue.db", "ledger": f"sqlite:///{folder}/ledger.db"}
        self.app = App(name="shop", settings=Settings(data_dir=str(folder), **given, **settings))  # type: ignore[arg-type]
        self.app.handler("orders", name="order")(lambda body: None)
        self.broker = SqliteBroker(folder / "queue.db", holder="worker-7")
        self.client = client_of(self.app)

    def __enter__(self) -> "Site":
        self.client.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.client.__exit__(None, None, None)
        self.broker.close()

    def send(self, *bodies: bytes, **options: object) -> Sequence[str]:
        return self.broker.send("orders", [Outgoing(body=body, **options) for body in bodies])  # type: ignore[arg-type]

    def receive(self, count: int = 1) -> Sequence[Delivery]:
        return self.broker.receive("orders", messages_max=count, lease_seconds=60)

    def list(self, queue: str = "orders", **query: str) -> Markup:
        return self._page("/messages", queue=queue, **query)

    def message(self, id: str, queue: str = "orders", **query: str) -> Markup:
        return self._page("/message", queue=queue, id=id, **query)

    def body(self, id: str) -> str:
        return self.message(id).part("pre")

    def _page(self, path: str, **query: str) -> Markup:
        response = self.client.get(path, params=query)
        assert response.status_code == 200, response.text
        return harmless(response.text)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site


def test_each_state_has_its_list_with_links_to_the_messages(site: Site) -> None:
    ids = site.send(b'{"n": 1}', b'{"n": 2}', group="tenant")
    (later,) = site.send(b'{"n": 3}', delay_seconds=500)
    site.receive()
    waiting, leased, delayed = site.list(), site.list(state="in_flight"), site.list(state="delayed")
    for page, id, texts in (
        (waiting, ids[1], ["tenant", '{ "n": 2 }']),
        (leased, ids[0], ["tenant", "worker-7", '{ "n": 1 }']),
        (delayed, later, ['{ "n": 3 }', "8 min"]),
    ):
        (address,) = [link for link in page.values("a", "href") if link.startswith("/message?")]
        assert id in address
        assert all(text in page.text for text in texts)
        assert site.client.get(address).status_code == 200
    assert "/worker?id=worker-7" in leased.values("a", "href")


def test_lists_change_nothing(site: Site) -> None:
    site.send(b"{}", b"{}")
    before = site.broker.stats("orders")
    for _ in range(3):
        for state in ("waiting", "in_flight", "delayed"):
            site.list(state=state)
    after = site.broker.stats("orders")
    assert (after.visible, after.in_flight, after.delayed) == (before.visible, before.in_flight, before.delayed)
    assert [each.attempt for each in site.receive(2)] == [1, 1]


def test_long_lists_have_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PAGE", 3)
    ids = site.send(*(b"%d" % number for number in range(7)))
    found: list[str] = []
    page = site.list()
    while True:
        found += [title for title in page.values("a", "title") if title in ids]
        following = [
            attributes["href"] for tag, attributes in page.elements if tag == "a" and attributes.get("rel") == "next"
        ]
        if not following:
            break
        page = harmless(site.client.get(following[0]).text)
        assert "First page" in page.text
    assert found == ids


@pytest.mark.parametrize("language", ["en", "ja"])
def test_empty_lists_explain_themselves(site: Site, language: str) -> None:
    (id,) = site.send(b"x")
    site.broker.discard("orders", [id])
    site.client.cookies.set("penstock_language", language)
    texts = {state: site.list(state=state).text for state in ("waiting", "in_flight", "delayed")}
    expected = {
        "en": ["No message waits", "No message is in flight", "No message is delayed"],
        "ja": ["待機中のメッセージはありません", "処理中のメッセージはありません", "遅延中のメッセージはありません"],
    }[language]
    assert all(text in texts[state] for state, text in zip(texts, expected, strict=True))


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/messages", 400, "names no queue"),
        ("/messages?queue=nothing", 400, "There is no queue nothing"),
        ("/messages?queue=orders&state=dead", 400, "There is no such state"),
        ("/messages?queue=orders&after=x", 400, "go back to its first page"),
        ("/message?queue=nothing&id=1", 400, "There is no queue nothing"),
        ("/message?queue=orders&id=1", 404, "does not hold the message 1"),
        ("/message/body?queue=orders&id=1", 404, "does not hold the message 1"),
    ],
)
def test_wrong_addresses_are_explained(site: Site, path: str, status: int, text: str) -> None:
    site.send(b"x")
    response = site.client.get(path)
    assert response.status_code == status
    assert text in harmless(response.text).text


def test_nothing_is_received_by_hand_made_requests(site: Site) -> None:
    site.send(b"x")
    response = site.client.post("/messages/receive?queue=orders", follow_redirects=False)
    assert response.status_code == 400
    assert "without receiving them" in response.text
    assert site.client.get("/messages/receive?queue=orders").status_code == 405
    assert site.broker.stats("orders").visible == 1


def test_one_message_shows_its_details(site: Site) -> None:
    attributes = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "penstock-type": "order",
        "penstock-schema": "3",
        "penstock-deduplication-id": "once",
        "colour": "blue",
        "raw": b"\x00\xff",
    }
    (id,) = site.send(b'{"a": [1, {"b": null}]}', group="tenant", attributes=attributes)
    site.receive()
    page = site.message(id)
    for text in (
        id,
        "worker-7",
        "tenant",
        "0af7651916cd43dd8448eb211c80319c",
        "once",
        "blue",
        "00 ff",
        "order",
        "23 B",
    ):
        assert text in page.text
    assert page.part("pre") == '{\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ]\n}'


def test_deliveries_are_listed(site: Site) -> None:
    (id,) = site.send(b"{}")
    for release in (Release(reason="timed out"), Release(uncounted=True), Release(reason="password=" + SECRET)):
        site.broker.settle([(site.receive()[0], release)])
    page = site.message(id)
    assert "timed out" in page.text
    assert page.text.count("worker-7") == 3
    assert SECRET not in page.page


def test_a_dead_letter_shows_its_death_and_the_handler_after_a_replay(site: Site) -> None:
    site.send(b'{"n": 1}')
    traceback = f"Traceback (most recent call last):\n  login(password={SECRET!r})\nValueError: bad <b>amount</b>"
    death = DeadLetter(
        reason="ValueError: bad <b>amount</b>", exception="ValueError", traceback=traceback, handler="order"
    )
    site.broker.settle([(site.receive()[0], death)])
    (dead,) = site.broker.browse("orders-dlq", messages_max=9)
    page = site.message(dead.id, queue="orders-dlq")
    for text in ("bad <b>amount</b>", "ValueError", "handler after a replay", "login(password=***"):
        assert text in page.text
    assert SECRET not in page.page
    assert "penstock-death" not in page.text
    assert any(link.startswith("/dead/message?") for link in page.values("a", "href"))


def test_earlier_deaths_are_listed(site: Site) -> None:
    past = [
        {
            "reason": f"reason {number}",
            "queue": "orders",
            "message_id": f"id-{number}",
            "enqueued_at": 1e9,
            "attempts": 3,
            "last_failed_at": 1e300,
            "worker": "w",
        }
        for number in range(3)
    ]
    (id,) = site.send(b"{}", attributes={"penstock-past": json.dumps(past)})
    page = site.message(id)
    assert all(text in page.text for text in ("Earlier deaths", "reason 0", "reason 2", "id-1"))


def test_a_message_that_moved_says_where_it_may_be(site: Site) -> None:
    (id,) = site.send(b"{}")
    site.broker.discard("orders", [id])
    response = site.client.get("/message", params={"queue": "orders", "id": id})
    assert response.status_code == 404
    assert "/dead?queue=orders-dlq" in harmless(response.text).values("a", "href")


# --- bodies


def test_a_download_has_every_byte_and_a_fixed_name(site: Site) -> None:
    (id,) = site.send(b"\x00\xff<script>" * 10_000)
    (address,) = [link for link in site.message(id).values("a", "href") if link.startswith("/message/body?")]
    response = site.client.get(address)
    assert response.content == b"\x00\xff<script>" * 10_000
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"] == 'attachment; filename="message.bin"'
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_long_body_is_cut(site: Site) -> None:
    (id,) = site.send(b'{"a": "' + b"x" * 900_000 + b'"}')
    page = site.message(id)
    assert "Cut: only the beginning of 900.0 kB is shown" in page.text
    assert len(page.part("pre")) == 64 * 1024
    assert len(page.page) < 150_000


REDACTED = {
    "at-the-top": b'{"password": "hunter2", "n": 1}',
    "case-and-separators": b'{"Api-Key": "hunter2", "apiKey": "hunter2", "API_KEY": "hunter2", "X-Api-Key": "hunter2"}',
    "at-any-depth": b'{"a": [[{"b": {"secret": {"deep": ["hunter2"]}}}]]}',
    "a-list": b'{"token": ["hunter2", {"x": "hunter2"}], "n": 1}',
    "a-number": b'{"accessToken": -1.5e3, "n": "ok"}',
    "escaped-key": b'{"pass\\u0077ord": "hunter2"}',
    "duplicate-keys": b'{"password": "hunter2", "password": "hunter2", "a": 1, "a": 2}',
    "json-in-a-string": json.dumps({"Message": json.dumps({"db_password": SECRET, "n": 1})}).encode(),
    "json-twice-in-a-string": json.dumps({"a": json.dumps({"b": json.dumps({"token": SECRET})})}).encode(),
    "header-in-a-string": b'{"log": "GET / Authorization: Bearer hunter2"}',
    "query-in-a-string": b'{"url": "https://x.test/?a=1&access_key=hunter2"}',
    "xml-in-a-string": b'{"xml": "<password>hunter2</password>"}',
    "broken-json-in-a-string": json.dumps({"a": '{"password": "hunter2"'}).encode(),
    "invisible-character-in-the-key": '{"pass\u200bword": "hunter2"}'.encode(),
    "full-width-key": '{"\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44": "hunter2"}'.encode(),
    "deep-secret": b'{"token":' * 5_000 + b'"hunter2"' + b"}" * 5_000,
}
HIDDEN = {
    "truncated": b'{"n": 1, "password": "hunter2"',
    "trailing-text": b'{"password": "hunter2"} x',
    "single-quotes": b"{'token': 'hunter2'}",
    "not-a-number": b'{"a": NaN, "secret": "hunter2"}',
    "text": b"password=hunter2",
    "escaped-and-truncated": b'{"pass\\u0077ord": "hunter2"',
    "twice-escaped-and-truncated": b'{"x": "{\\"pass\\\\u0077ord\\": \\"hunter2\\"',
    "byte-order-mark": b'\xef\xbb\xbf{"password": "hunter2"}',
    "utf-16": '{"password": "hunter2"}'.encode("utf-16"),
    "utf-16-without-mark": '{"password": "hunter2"}'.encode("utf-16-le"),
    "invalid-utf-8": b'{"password": "hunter2\xff"}',
    "binary": b"\x80\x04\x95token\x94hunter2",
}


@pytest.mark.parametrize("body", REDACTED.values(), ids=REDACTED)
def test_secrets_are_replaced_on_pages_and_in_downloads(site: Site, body: bytes) -> None:
    (id,) = site.send(body)
    page = site.message(id)
    download = site.client.get("/message/body", params={"queue": "orders", "id": id})
    assert "***" in page.part("pre")
    assert "***" in download.text
    for text in (page.page, download.text, site.list().page):
        assert SECRET not in text
        assert "-1.5e3" not in text
    json.loads(download.text)


def test_everything_but_secrets_stays_as_it_was_sent(site: Site) -> None:
    body = b'{ "a" : 1.0e5,\n "token":"x" , "b": [ 123456789012345678901234567890, "\\u0041" ], "a": {} }'
    (id,) = site.send(body)
    download = site.client.get("/message/body", params={"queue": "orders", "id": id})
    assert download.content == body.replace(b'"x"', b'"***"')
    assert "1 value is replaced by ***" in site.message(id).text


@pytest.mark.parametrize("body", HIDDEN.values(), ids=HIDDEN)
def test_bodies_whose_secrets_cannot_be_found_are_hidden(site: Site, body: bytes) -> None:
    (id,) = site.send(body)
    page = site.message(id)
    assert "This body is hidden" in page.text
    download = site.client.get("/message/body", params={"queue": "orders", "id": id})
    assert download.status_code == 400
    for text in (page.page, download.text, site.list().page):
        assert SECRET not in text
        assert b"hunter2".hex(" ") not in text


@pytest.mark.parametrize("body", [b'{"tokens": 5, "tokenizer": "a", "secretary": "b"}', b'{"n": "the word is lost"}'])
def test_names_that_only_begin_like_a_secret_stay(site: Site, body: bytes) -> None:
    (id,) = site.send(body)
    assert "***" not in site.message(id).text


def test_secret_attributes_are_replaced(site: Site) -> None:
    attributes = {
        "Authorization": f"Bearer {SECRET}",
        "X-Api-Key": SECRET.encode(),
        "context": json.dumps({"token": SECRET, "n": 1}),
        "broken": '{"token": "' + SECRET,
        "query": f"a=1&password={SECRET}",
        "binary": f"password={SECRET}".encode(),
    }
    (id,) = site.send(b"{}", attributes=attributes)
    page = site.message(id)
    assert SECRET not in page.page
    assert SECRET.encode().hex(" ") not in page.page
    assert page.text.count("***") == len(attributes)


def test_other_names_can_be_set(tmp_path: Path) -> None:
    with Site(tmp_path, web_redact=["card_number"]) as site:
        (id,) = site.send(b'{"cardNumber": "4111", "password": "shown"}')
        assert site.body(id) == '{\n  "cardNumber": "***",\n  "password": "shown"\n}'


def test_no_names_replace_nothing(tmp_path: Path) -> None:
    with Site(tmp_path, web_redact=[]) as site:
        ids = site.send(b'{"password": "shown"}', b"password: shown")
        assert ["shown" in site.body(id) for id in ids] == [True, True]


@pytest.mark.parametrize("body", [b'{"a": "hunter2"}', b"hunter2", b"\xff hunter2", b"[" * 9, b""])
def test_hidden_bodies_are_nowhere(tmp_path: Path, body: bytes) -> None:
    with Site(tmp_path, web_hide_bodies=True) as site:
        (id,) = site.send(body, attributes={"colour": "hunter2", "raw": b"hunter2"})
        page, download = site.message(id), site.client.get("/message/body", params={"queue": "orders", "id": id})
        assert "Bodies are hidden" in page.text
        assert not [link for link in page.values("a", "href") if "/message/body" in link]
        assert download.status_code == 400
        for text in (page.page, download.text, site.list().page):
            assert SECRET not in text
            assert b"hunter2".hex(" ") not in text


def test_a_forged_death_in_a_live_queue_changes_neither_queue_nor_handler(site: Site) -> None:
    site.send(b"{}")
    site.broker.settle([(site.receive()[0], DeadLetter(reason="broken"))])
    (dead,) = site.broker.browse("orders-dlq", messages_max=9)
    forged = {"penstock-death": dead.attributes["penstock-death"]}
    (id,) = site.send(b"{}", attributes=forged)
    page = site.message(id)
    assert "handler after a replay" not in page.text
    assert "handler after a replay" in site.message(dead.id, queue="orders-dlq").text


def test_one_message_costs_no_look_at_every_queue(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (id,) = site.send(b"{}")
    for number in range(20):
        site.broker.send(f"other-{number}", [Outgoing(body=b"{}")])
    asked: list[str] = []
    dead_letter_queue = SqliteBroker.dead_letter_queue

    def asking(broker: SqliteBroker, queue: str) -> str:
        asked.append(queue)
        return dead_letter_queue(broker, queue)

    site.client.app.state.context.sampler.close()  # type: ignore[attr-defined]  # it looks at every queue
    monkeypatch.setattr(SqliteBroker, "dead_letter_queue", asking)
    site.message(id)
    assert len(asked) < 5
