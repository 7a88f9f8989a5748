"""The page of a queue: its reasons, figures, charts, leases and dead letters; pauses; the numbers of charts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup
from tests.web.clients import FormClient, client_of
from tests.web.figures import held, queue, status, worker
from tests.web.test_overview import HOSTILE

from penstock import App
from penstock.app.flows import QueueFlow
from penstock.app.history.history import HistoryWriter
from penstock.app.history.points import HistorySample, PipelinePoint, QueuePoint
from penstock.brokers import capabilities
from penstock.config import Settings
from penstock.errors import TemporaryError
from penstock.events import ignore
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.operations.queue_groups import GroupSample, sample_groups
from penstock.operations.status.watch import StatusFrame
from penstock.web import queue_details, queues
from penstock.web.context import DashboardContext
from penstock.web.recording import FrameRecorder


def settings_in(folder: Path, **given: Any) -> Settings:
    return Settings(
        broker=f"sqlite:///{folder}/queue.db", ledger=f"sqlite:///{folder}/ledger.db", data_dir=str(folder), **given
    )


def app_in(folder: Path, **given: Any) -> App:
    app = App(name="shop", settings=settings_in(folder, **given))

    @app.handler(queue="orders")
    def order(body: dict[str, int]) -> None: ...

    return app


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = app_in(tmp_path)
    app.broker.send("orders", [Outgoing(body=b"{}")])
    yield app
    app.close()


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sampler record nothing, so that the history has what a test records."""
    monkeypatch.setattr(FrameRecorder, "__call__", lambda self, frame: None)


@pytest.fixture
def client(app: App) -> Iterator[FormClient]:
    with client_of(app) as client:
        yield client


def context(client: FormClient) -> DashboardContext:
    found: DashboardContext = client.app.state.context  # type: ignore[attr-defined]
    return found


def live(page: str) -> str:
    return page[page.index('<section id="live"') : page.index("</section>")]


def record(app: App, **values: float) -> float:
    """Record two slots of the history, the last one now; return its time."""
    now = SystemClock().now()
    writer = HistoryWriter(app.settings.data_dir, emit=ignore)
    for at in (now - 30, now):
        point = QueuePoint(**{name: value if at == now else 0.0 for name, value in values.items()})
        writer.write(HistorySample(at=at, queues={"orders": point}, pipelines={"clicks": PipelinePoint(failed=3)}))
    return now


def test_the_page_says_why_the_queue_is_slow(client: FormClient) -> None:
    page = client.get("/queue", params={"name": "orders"}).text
    assert "No worker serves this queue." in live(page)
    assert "`penstock worker`" in live(page)
    assert "Queue orders" in page
    assert "<dd>order</dd>" in page  # its handler
    assert "worker.concurrency" in page


def test_figures_workers_and_leases(client: FormClient) -> None:
    now = context(client).clock.now()
    one = queue(visible=3, in_flight=2, dead_letters=9, dead_letters_set_aside=4, workers=("w-1",))
    record = worker("w-1", beat_at=now, in_flight=2, held=held("orders", 2, seconds=0), settled={"orders": 1_234})
    flow = QueueFlow(in_per_second=4.0, out_per_second=5.0, net_per_second=-1.0, drained_in_seconds=600.0)
    found = status(queues=[one], workers=("w-1",), records=[record])
    frame = StatusFrame(at=now, status=found, flows={"orders": flow})
    context(client).sampler.frame = lambda: frame  # type: ignore[method-assign]
    page = client.get("/queue", params={"name": "orders"}).text
    for text in ("1,234", "2 / 4", "orders-0", "orders-dlq", "orders-dead", "4.0", "5.0", "10 min"):
        assert text in live(page)
    assert 'href="/worker?id=w-1"' in page
    assert 'href="/message?queue=orders&amp;id=orders-0"' in page
    assert 'href="/dead?queue=orders-dlq"' in page
    assert re.search(r"orders-dlq</a></th>\s*<td>a replay, or people</td>\s*<td class=\"number\">5</td>", page)


def test_a_worker_that_is_stuck_is_linked(client: FormClient) -> None:
    now = context(client).clock.now()
    found = status(
        queues=[queue(visible=1, workers=("w-1",))], workers=("w-1",), records=[worker("w-1", beat_at=now - 600)]
    )
    frame = StatusFrame(at=now, status=found)
    context(client).sampler.frame = lambda: frame  # type: ignore[method-assign]
    page = client.get("/queue", params={"name": "orders"}).text
    assert "The worker w-1 has had no heartbeat for 10 min." in page
    assert re.search(r'<a href="/worker\?id=w-1">Show the worker</a>', page)


def test_a_queue_that_does_not_exist(client: FormClient) -> None:
    response = client.get("/queue", params={"name": "ordres"})
    assert response.status_code == 404
    assert "There is no queue of this name" in response.text
    assert "Pause the queue" not in response.text


def test_a_dead_letter_queue_leads_to_the_dead_letters(client: FormClient) -> None:
    response = client.get("/queue", params={"name": "orders-dlq"}, follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (303, "/dead?queue=orders-dlq")


def test_an_unavailable_service_is_named_and_charts_stay(app: App, still: None, client: FormClient) -> None:
    record(app, visible=8.0)
    frame = StatusFrame(at=0.0, status=None, error="the broker does not answer")
    context(client).sampler.frame = lambda: frame  # type: ignore[method-assign]
    response = client.get("/queue", params={"name": "orders"})
    assert response.status_code == 200
    assert "the broker does not answer" in response.text
    assert "The charts in numbers" in response.text


def test_a_broker_that_fails_for_details_does_not_take_the_page_away(
    client: FormClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise TemporaryError("no route to <host>")

    monkeypatch.setattr(queue_details, "sample_groups", fail)
    page = client.get("/queue", params={"name": "orders"}).text
    assert "This cannot be read at the moment: no route to &lt;host&gt;" in page


def test_charts_have_a_table_of_their_numbers(app: App, still: None, client: FormClient) -> None:
    record(app, visible=80.0, oldest_visible_age_seconds=7_200.0, settled_per_second=2.5)
    page = client.get("/queue", params={"name": "orders"}).text
    table = page[page.index('id="numbers"') :]
    rows = re.findall(r'<th scope="row">([^<]*)</th>((?:\s*<td class="number">[^<]*</td>)*)', table)
    numbers = {name: re.findall(r">([^<]*)<", cells) for name, cells in rows}
    assert [text for text in numbers["visible"] if text.strip()] == ["80", "0", "80"]
    assert [text for text in numbers["oldest visible"] if text.strip()] == ["2 h", "0 s", "2 h"]
    assert [text for text in numbers["out/s"] if text.strip()] == ["2.5", "0", "2.5"]


def test_without_history_the_page_says_when_it_begins(still: None, client: FormClient) -> None:
    assert "There is no history yet" in client.get("/queue", params={"name": "orders"}).text


def test_the_live_part_asks_for_no_charts(client: FormClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(type(context(client).charts), "chart")
    history = context(client).queue_details
    monkeypatch.setattr(history, "_dead_letters_before", lambda queue: None)
    response = client.get("/queue", params={"name": "orders"}, headers={"HX-Request": "true", "HX-Target": "live"})
    assert response.status_code == 200
    assert "Why is it slow?" in response.text


@pytest.mark.parametrize("range_", ["1h", "24h", "14d"])
def test_the_numbers_of_charts(app: App, still: None, client: FormClient, range_: str) -> None:
    at = record(app, visible=8.0)
    found = client.get("/history.json", params={"queue": "orders", "range": range_}).json()
    assert found["error"] is None
    assert found["values"]["visible"][-1] == 8.0
    assert at - 600 <= found["times"][-1] <= at
    pipeline = client.get("/history.json", params={"pipeline": "clicks", "range": range_}).json()
    assert pipeline["values"]["failed"][-1] == 3.0
    assert client.get("/history.json", params={"queue": "none", "range": range_}).json()["times"] == []


def test_a_range_that_is_none_is_refused(client: FormClient) -> None:
    response = client.get("/history.json", params={"queue": "orders", "range": "<2h>"})
    assert response.status_code == 400
    assert "the ranges: 1h, 24h, 14d" in response.text


def test_the_sampler_records_the_history(client: FormClient) -> None:
    context(client).sampler.frame()
    values = client.get("/history.json", params={"queue": "orders"}).json()["values"]
    assert set(values["visible"]) == {1.0}


def test_a_queue_is_paused_and_resumed_with_entries_in_the_audit_log(app: App, client: FormClient) -> None:
    page = client.get("/queue", params={"name": "orders"}).text
    assert 'action="/queue/pause?name=orders"' in page
    response = client.post("/queue/pause", data={"name": "orders"}, follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (303, "/queue?name=orders")
    assert app.broker.paused("orders")
    page = client.get("/queue", params={"name": "orders"}).text
    assert "The queue is paused" in page
    assert 'action="/queue/resume?name=orders"' in page
    client.post("/queue/resume", data={"name": "orders"})
    assert not app.broker.paused("orders")
    rows = app.ledger.audits.latest(limit=9)
    assert [(row.action, row.queue, row.who, row.outcome) for row in rows] == [
        ("resume", "orders", "ann via the dashboard", "done"),
        ("pause", "orders", "ann via the dashboard", "done"),
    ]


def test_a_queue_is_paused_although_the_ledger_does_not_answer(tmp_path: Path) -> None:
    app = app_in(tmp_path)
    app.broker.send("orders", [Outgoing(body=b"{}")])
    with client_of(app) as client:
        context(client).sampler.frame()
        object.__setattr__(
            context(client).scope,
            "settings",
            settings_in(tmp_path).model_copy(update={"ledger": "mysql://u:p@127.0.0.1:1/d"}),
        )
        response = client.post("/queue/pause", data={"name": "orders"}, follow_redirects=False)
        assert response.headers["location"] == "/queue?name=orders&unrecorded=1"
    assert app.broker.paused("orders")
    app.close()


def test_a_queue_that_does_not_exist_is_not_paused(app: App, client: FormClient) -> None:
    response = client.post("/queue/pause", data={"name": "ordres"})
    assert response.status_code == 400
    assert "There is no queue ordres" in response.text
    assert "ordres" not in app.broker.queue_names()


def test_a_broker_without_pauses_has_no_button(client: FormClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "capabilities_of", lambda _: capabilities.SQS)
    page = client.get("/queue", params={"name": "orders"}).text
    assert "This broker cannot pause queues." in page
    assert 'action="/queue/pause' not in page


def test_a_ledger_that_does_not_answer_leaves_the_page(client: FormClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: DashboardContext) -> None:
        raise TemporaryError("the ledger is down")

    monkeypatch.setattr(DashboardContext, "view", fail)
    response = client.get("/queue", params={"name": "orders"})
    assert response.status_code == 200
    assert "This cannot be read at the moment: the ledger is down" in response.text


def test_a_reader_sees_no_button_and_cannot_pause(app: App) -> None:
    with client_of(app, user=None) as client:
        page = client.get("/queue", params={"name": "orders"}).text
        assert "Pause the queue" not in page
        assert client.post("/queue/pause", data={"name": "orders"}).status_code == 403
    assert not app.broker.paused("orders")


def test_a_get_pauses_nothing(app: App, client: FormClient) -> None:
    assert client.get("/queue/pause", params={"name": "orders"}).status_code == 405
    assert not app.broker.paused("orders")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_harmless(app: App, still: None, client: FormClient, name: str) -> None:
    app.broker.send(name, [Outgoing(body=b"{}", group=name)] * 30)
    sample = HistorySample(at=SystemClock().now(), queues={name: QueuePoint(visible=30)})
    HistoryWriter(app.settings.data_dir, emit=ignore).write(sample)
    context(client).sampler.refresh()
    page = client.get("/queue", params={"name": name}).text
    assert "has 100% of the 30 messages" in page
    assert "<script>alert" not in page
    assert not {"\x1b", "\u202e"} & set(page)
    address = re.search(r'data-chart="([^"]*)"', page)
    assert address is not None
    assert client.get(Markup(address[1]).unescape()).json()["values"]["visible"][-1] == 30
    form = re.search(r'action="(/queue/pause[^"]*)"', page)
    assert form is not None
    assert client.post(Markup(form[1]).unescape(), follow_redirects=False).status_code == 303
    assert app.broker.paused(name)


def test_the_group_of_most_messages_is_found(app: App) -> None:
    app.broker.send("mails", [Outgoing(body=b"{}", group="loud" if number % 10 else None) for number in range(50)])
    app.broker.send("plain", [Outgoing(body=b"{}")] * 30)
    assert sample_groups(app.broker, "mails") == GroupSample(messages=50, group="loud", in_group=45)
    assert sample_groups(app.broker, "plain") == GroupSample(messages=30)
    assert sample_groups(app.broker, "none") == GroupSample(messages=0)


def test_details_are_read_once_for_all_viewers(client: FormClient, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(queue_details, "sample_groups", lambda broker, name: calls.append(name))
    for _ in range(3):
        client.get("/queue", params={"name": "orders"})
    assert calls == ["orders"]


def test_the_page_is_japanese(client: FormClient) -> None:
    client.cookies.set("penstock_language", "ja")
    page = client.get("/queue", params={"name": "orders"}).text
    assert "このキューを担当するワーカーがありません。" in page
    assert "遅い理由" in page


def test_no_page_has_styles_or_scripts_of_its_own(app: App, still: None, client: FormClient) -> None:
    record(app, visible=1.0)
    for path in ("/", "/queue?name=orders"):
        page = client.get(path).text
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|<script(?![^>]*src=)", page)


def test_the_limits_of_the_handler_are_shown_and_explain_why_messages_wait(tmp_path: Path) -> None:
    app = App(name="shop", settings=settings_in(tmp_path))

    @app.handler(queue="orders", concurrency=2, timeout="3 min")
    def order(body: dict[str, int]) -> None: ...

    app.broker.send("orders", [Outgoing(body=b"{}")])
    with client_of(app) as client:
        waiting = queue("orders", visible=9, in_flight=2, workers=("w",))
        busy = worker("w", held=held("orders", 2, seconds=90), beat_at=SystemClock().now())
        frame = StatusFrame(at=SystemClock().now(), status=status(queues=[waiting], records=[busy], workers=("w",)))
        context(client).sampler.frame = lambda: frame  # type: ignore[method-assign]
        page = client.get("/queue", params={"name": "orders"}).text
    app.close()
    assert "All 2 slots of the handler are busy" in page
    assert "<dt>concurrency</dt><dd>2</dd>" in page
    assert "<dt>timeout</dt><dd>3 min</dd>" in page
