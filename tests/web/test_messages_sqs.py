"""Peeking on SQS: a receive that a person asks for, with its cost, its refusal, its audit entry, and its release."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.services.aws_server import REGION, AwsServer
from tests.web.clients import client_of
from tests.web.markup import Markup, harmless

from penstock import App
from penstock.app.scope import scope_ledger, scope_of
from penstock.brokers.sqs import SqsBroker
from penstock.config import Settings
from penstock.errors import TemporaryError
from penstock.ledger.dead_letters import AuditRow
from penstock.messaging.broker import QueueSettings
from penstock.messaging.message import Outgoing
from penstock.operations.queued_messages import PEEK_LEASE_SECONDS, PEEK_MESSAGES_MAX, RECEIVES_MIN


class Site:
    """A dashboard of an app with queues on SQS."""

    def __init__(self, folder: Path, moto: AwsServer, broker: SqsBroker) -> None:
        self.moto = moto
        self.broker = broker
        settings = Settings(
            broker=f"sqs://{REGION}", ledger=f"sqlite:///{folder}/ledger.db", data_dir=str(folder), one_host=True
        )
        self.app = App(name="shop", settings=settings)
        for queue in ("orders", "strict", "lenient", "line.fifo"):
            self.app.handler(queue, name=queue.removesuffix(".fifo"))(lambda body: None)
        self.client = client_of(self.app)

    def make(self, name: str, receives_max: int | None = None) -> None:
        """Create a queue with its DLQs."""
        SqsBroker(self.moto.aws, holder="", queues=[QueueSettings(name=name, receives_max=receives_max)]).close()

    def page(self, queue: str = "orders", path: str = "/messages", **query: str) -> Markup:
        response = self.client.get(path, params={"queue": queue, **query})
        assert response.status_code == 200, response.text
        return harmless(response.text)

    def receive(self, queue: str = "orders") -> Markup:
        response = self.client.post("/messages/receive", params={"queue": queue}, follow_redirects=False)
        assert response.status_code == 303, response.text
        return harmless(self.client.get(response.headers["location"]).text)

    def audit(self) -> Sequence[AuditRow]:
        with closing(scope_ledger(scope_of(self.app))) as ledger:
            return ledger.audits.latest(limit=10)

    def counts(self, queue: str = "orders") -> list[int]:
        """Receive all visible messages; return how often each was received before."""
        sqs = self.moto.client("sqs")
        url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        found: list[int] = []
        while messages := sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["ApproximateReceiveCount"]
        ).get("Messages", ()):
            found += [int(message["Attributes"]["ApproximateReceiveCount"]) - 1 for message in messages]
        return found


@pytest.fixture
def site(tmp_path: Path, moto: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    with closing(SqsBroker(moto.aws, holder="test", queues=[QueueSettings(name="orders")], poll_seconds=1)) as broker:
        site = Site(tmp_path, moto, broker)
        with site.client:
            yield site


def send(site: Site, *bodies: str, queue: str = "orders", group: str | None = None) -> Sequence[str]:
    return site.broker.send(queue, [Outgoing(body=body.encode(), group=group) for body in bodies])


def test_the_page_states_the_cost_of_peeking_and_receives_nothing(site: Site) -> None:
    send(site, '{"n": 1}')
    page = site.page()
    for text in ("without receiving them", "grows by one", "redrive policy", "audit log", "Receive up to 10 messages"):
        assert text in page.text
    assert '"n"' not in page.text
    assert site.counts() == [0]
    assert site.audit() == []


def test_the_button_shows_messages_counts_one_receive_and_releases_them(site: Site) -> None:
    ids = send(site, '{"n": 1, "password": "hunter2"}', '{"n": 2}')
    page = site.receive()
    assert set(page.values("a", "title")) >= {*ids}
    assert "hunter2" not in page.page
    assert sorted(site.counts()) == [1, 1]  # visible at once, and received once
    (entry,) = site.audit()
    assert (entry.action, entry.queue, entry.who, entry.messages, entry.outcome) == (
        "peek",
        "orders",
        "ann via the dashboard",
        2,
        "done",
    )
    addresses = [link for link in page.values("a", "href") if link.startswith("/message?")]
    message = harmless(site.client.get(addresses[0]).text)
    assert "as it was received" in message.text
    assert "order" in message.text
    (download,) = [link for link in message.values("a", "href") if link.startswith("/message/body?")]
    assert b'"n"' in site.client.get(download).content
    assert site.counts() == []  # neither page received again


def test_at_most_ten_messages_are_received(site: Site) -> None:
    send(site, *(f'{{"n": {number}}}' for number in range(25)))
    site.receive()
    assert sorted(site.counts()) == [0] * (25 - PEEK_MESSAGES_MAX) + [1] * PEEK_MESSAGES_MAX


def test_a_queue_whose_next_receive_may_dead_letter_is_refused(site: Site) -> None:
    site.make("strict", receives_max=RECEIVES_MIN - 1)
    send(site, '{"n": 1}', queue="strict")
    page = site.page("strict")
    assert "one more receive could move a message to the DLQ" in page.text
    assert "Receive up to" not in page.text
    response = site.client.post("/messages/receive", params={"queue": "strict"}, follow_redirects=False)
    assert response.status_code == 400
    assert "maxReceiveCount" in response.text
    assert site.counts("strict") == [0]
    assert site.audit() == []


def test_a_policy_that_became_strict_is_noticed_at_once(site: Site) -> None:
    site.make("lenient", receives_max=RECEIVES_MIN)
    send(site, '{"n": 1}', queue="lenient")
    site.receive("lenient")
    sqs = site.moto.client("sqs")
    url = sqs.get_queue_url(QueueName="lenient")["QueueUrl"]
    policy = json.loads(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]["RedrivePolicy"])
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps({**policy, "maxReceiveCount": 3})})
    response = site.client.post("/messages/receive", params={"queue": "lenient"}, follow_redirects=False)
    assert response.status_code == 400


def test_a_queue_of_others_is_not_touched(site: Site) -> None:
    site.make("foreign")
    send(site, "x", queue="foreign")
    for method, path in (("GET", "/messages"), ("POST", "/messages/receive"), ("GET", "/message")):
        response = site.client.request(method, path, params={"queue": "foreign", "id": "x"}, follow_redirects=False)
        assert response.status_code == 400
        assert "none of this app" in response.text
    assert site.counts("foreign") == [0]


def test_an_address_from_outside_is_never_asked(site: Site) -> None:
    send(site, "x")
    for address in (
        "http://127.0.0.1:1/1/orders",
        "https://sqs.us-east-1.amazonaws.com/1/orders",
        "arn:aws:sqs:us-east-1:1:orders",
        "//x/orders",
    ):
        for method, path in (("GET", "/messages"), ("POST", "/messages/receive"), ("GET", "/message")):
            response = site.client.request(method, path, params={"queue": address, "id": "x"}, follow_redirects=False)
            assert response.status_code == 400
            assert "none of this app" in response.text
    assert site.counts() == [0]


def test_the_dlq_of_a_queue_can_be_looked_at(site: Site) -> None:
    send(site, "x", queue="orders-dlq")
    assert "x" in site.receive("orders-dlq").text
    assert site.counts("orders-dlq") == [1]


def test_a_fifo_queue_warns_of_its_groups(site: Site) -> None:
    site.make("line.fifo")
    send(site, '{"n": 1}', '{"n": 2}', queue="line.fifo", group="a")
    assert "nothing else of their groups is delivered" in site.page("line.fifo").text
    site.receive("line.fifo")
    (delivery,) = site.broker.receive("line.fifo", messages_max=1, lease_seconds=5)
    assert delivery.message.body == b'{"n": 1}'  # the group is free again, in its order


def test_an_empty_queue_says_so(site: Site) -> None:
    assert "No message was received" in site.receive().text
    (entry,) = site.audit()
    assert (entry.messages, entry.outcome) == (0, "done")


def test_old_keys_and_keys_of_other_queues_show_nothing(site: Site) -> None:
    send(site, '{"n": 1}')
    response = site.client.post("/messages/receive", params={"queue": "orders"}, follow_redirects=False)
    key = response.headers["location"].rpartition("received=")[2]
    for queue, other in (("orders", "x" + key), ("orders-dlq", key)):
        assert "no longer kept" in site.page(queue, received=other).text


class Settling:
    """The broker's own `settle`, which fails the first times."""

    def __init__(self, settle: Callable[..., Any], fails: int) -> None:
        self._settle = settle
        self.fails = fails

    def __call__(self, settlements: Any) -> Any:
        if self.fails:
            self.fails -= 1
            raise TemporaryError("SQS is away")
        return self._settle(settlements)


@pytest.mark.parametrize(("fails", "outcome"), [(2, "done"), (3, "interrupted")])
def test_a_release_is_tried_again_and_at_worst_the_short_lease_ends(
    site: Site, monkeypatch: pytest.MonkeyPatch, fails: int, outcome: str
) -> None:
    send(site, '{"n": 1}')
    monkeypatch.setattr(SqsBroker, "settle", Settling(site.broker.settle, fails))
    leases: list[float] = []
    receive = SqsBroker.receive

    def receiving(broker: SqsBroker, queue: str, *, lease_seconds: float, **given: Any) -> Any:
        leases.append(lease_seconds)
        return receive(broker, queue, lease_seconds=lease_seconds, **given)

    monkeypatch.setattr(SqsBroker, "receive", receiving)
    page = site.receive()
    assert leases == [PEEK_LEASE_SECONDS]
    assert ("could not be released" in page.text) is (outcome == "interrupted")
    assert site.counts() == ([1] if outcome == "done" else [])
    (entry,) = site.audit()
    assert entry.outcome == outcome


def test_a_failed_receive_is_in_the_audit_log(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise TemporaryError("SQS is away")

    send(site, '{"n": 1}')
    monkeypatch.setattr(SqsBroker, "receive", fail)
    response = site.client.post("/messages/receive", params={"queue": "orders"}, follow_redirects=False)
    assert response.status_code == 503
    (entry,) = site.audit()
    assert (entry.messages, entry.outcome) == (0, "failed")
