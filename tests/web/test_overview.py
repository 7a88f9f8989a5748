"""The overview: health, rows of queues and pipelines in order, filter, bounds and empty states."""

import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from time import time
from typing import Any

import pytest
from markupsafe import Markup
from tests.web.clients import FormClient, client_of
from tests.web.figures import NO_OBJECTS, NOW, pipeline, queue, status, worker

from penstock import App
from penstock.app.flows import QueueFlow
from penstock.config import Settings
from penstock.ledger.pipelines import Reconciliation
from penstock.ledger.records import ObjectState
from penstock.operations.status.model import LaggingQueue, Status
from penstock.operations.status.status import silent_queues
from penstock.operations.status.watch import StatusFrame
from penstock.web import overview
from penstock.web.charts import GAP_SECONDS, SparklineSet, sparkline
from penstock.web.overview import pipeline_rows, queue_rows

HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b[31m\u202eq",
    "a'\"&b",
    "キュー",
    "x" * 300,
    "../../etc/passwd",
    "a b+c%2F",
]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(
        name="shop",
        settings=Settings(
            broker=f"sqlite:///{tmp_path}/queue.db", ledger=f"sqlite:///{tmp_path}/ledger.db", data_dir=str(tmp_path)
        ),
    )
    app.handler(queue="orders")(print)
    yield app
    app.close()


@pytest.fixture
def client(app: App) -> Iterator[FormClient]:
    with client_of(app) as client:
        yield client


def show(client: FormClient, found: Status | None, *, error: str | None = None, **query: str) -> str:
    """Return the page as it is for this reading."""
    frame = StatusFrame(at=NOW, status=found, error=error)
    client.app.state.context.sampler.frame = lambda: frame  # type: ignore[attr-defined]
    return client.get("/", params=query).text


class Rows(HTMLParser):
    """The headers of the rows of a page's tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self._in_row_header = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "th" and ("scope", "row") in attrs:
            self._in_row_header = True
            self.names.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_row_header = self._in_row_header and tag != "a"

    def handle_data(self, data: str) -> None:
        if self._in_row_header:
            self.names[-1] += data


def test_before_the_first_message_the_page_explains_how_to_send_one(client: FormClient) -> None:
    page = show(client, status())
    assert "Nothing was sent yet" in page
    assert "`penstock send`" in page
    assert "<table>" not in page


def test_all_is_well(client: FormClient) -> None:
    page = show(client, status(queues=[queue(workers=("w",))], workers=("w",)))
    assert '<p class="health good">all well</p>' in page
    assert "No worker runs" not in page


def test_at_work(client: FormClient) -> None:
    page = show(client, status(objects={**NO_OBJECTS, ObjectState.UNPROCESSED: 2}, workers=("w",), queues=[queue()]))
    assert '<p class="health good">at work</p>' in page


def test_an_unavailable_service_is_named_and_the_page_stays(client: FormClient) -> None:
    page = show(client, None, error="the broker <b> does not answer")
    assert "unavailable" in page
    assert "the broker &lt;b&gt; does not answer" in page
    assert '<nav aria-label="Pages">' in page


def test_each_problem_has_its_kind(client: FormClient) -> None:
    lagging = LaggingQueue(queue="orders", age_seconds=900, after_seconds=300, no_consumer=False)
    page = show(client, status(lagging=[lagging], dead_letters=3, workers=("w",), queues=[queue(workers=("w",))]))
    assert '<span class="badge bad">failed</span> <a href="/dead">dead letters: 3</a>' in page
    assert (
        '<span class="badge bad">lagging</span> '
        '<a href="/queue?name=orders">the oldest visible message of orders is 15 min old'
    ) in page
    assert "<details" not in page


def test_a_problem_leads_to_the_page_of_its_queue_or_objects(client: FormClient) -> None:
    broken = queue("a&b", breaker="down", workers=("w",))
    failed = {**NO_OBJECTS, ObjectState.DEAD: 1}
    page = show(client, status(queues=[broken], objects=failed, dead_letters=1, workers=("w",)))
    links = re.findall(r'<span class="badge bad">[^<]*</span> <a href="([^"]*)">', page)
    assert links == ["/queue?name=a%26b", "/objects?state=dead", "/dead"]


def test_many_problems_are_cut(client: FormClient) -> None:
    queues = [queue(f"q{number}", breaker="down") for number in range(120)]
    page = show(client, status(queues=queues, workers=("w",), dead_letters=3))
    assert page.count("is paused by its breaker") == overview.PROBLEMS_MAX
    assert "and 21 more" in page


def test_of_many_problems_three_are_shown_and_the_others_counted_by_kind(client: FormClient) -> None:
    queues = [queue(f"q{number}", breaker="down") for number in range(4)]
    page = show(client, status(queues=queues, workers=("w",), dead_letters=3))
    summary = " ".join(page.partition("<summary>")[2].partition("</summary>")[0].split())
    assert summary == (
        '<span class="badge bad">no consumer 1</span> <span class="badge bad">failed 1</span> 2 more problems'
    )
    assert page.partition("<details")[0].count("is paused by its breaker") == overview.PROBLEMS_SHOWN


def test_while_a_service_is_unavailable_the_last_numbers_stay(client: FormClient) -> None:
    before = StatusFrame(at=NOW - 60, status=status(queues=[queue("orders", visible=7, workers=("w",))]))
    client.app.state.context.sampler.last_status = lambda: before  # type: ignore[attr-defined]
    page = show(client, None, error="the ledger is away")
    assert "the ledger is away" in page
    assert "The numbers below are those of" in page
    assert Rows(page).names == ["orders"]
    assert "all well" not in page


def test_a_queue_whose_workers_are_all_silent_has_no_heartbeat(client: FormClient) -> None:
    waiting = queue("orders", visible=1, workers=("w", "v"))
    page = show(client, status(queues=[waiting], workers=("w", "v"), queues_silent={"orders": 60.0}))
    assert "orders is not consumed: its workers have had no heartbeat for 60 s" in page
    assert '<span class="badge bad">no heartbeat</span>' in page
    assert "all well" not in page


def test_silent_queues_have_messages_and_only_workers_without_a_heartbeat() -> None:
    beats = [worker("w", beat_at=NOW - 90), worker("v", beat_at=NOW - 60), worker("u", beat_at=NOW)]
    queues = [
        queue("orders", visible=1, workers=("w", "v")),
        queue("held", in_flight=1, workers=("w",)),
        queue("half", visible=1, workers=("w", "u")),
        queue("idle", workers=("w",)),
        queue("unserved", visible=1),
    ]
    assert silent_queues(queues, beats, now=NOW, elsewhere=False) == {"orders": 60.0, "held": 90.0}
    assert silent_queues(queues, beats, now=NOW, elsewhere=True) == {"orders": 60.0}


def test_a_queue_that_workers_elsewhere_may_consume_is_not_silent() -> None:
    beats = [worker("w", beat_at=NOW - 90)]
    queues = [
        queue("unknown", visible=1, workers=("w",)),
        queue("old", visible=1, oldest_visible_message_age_seconds=20.0, workers=("w",)),
        queue("young", visible=1, oldest_visible_message_age_seconds=2.0, workers=("w",)),
        queue("delayed", delayed=1, workers=("w",)),
    ]
    assert list(silent_queues(queues, beats, now=NOW, elsewhere=True)) == ["unknown", "old"]
    assert len(silent_queues(queues, beats, now=NOW, elsewhere=False)) == len(queues)


def test_without_workers_the_page_says_how_to_start_one(client: FormClient) -> None:
    assert "No worker runs with this data directory." in show(client, status(queues=[queue(visible=1)]))
    assert "No worker runs" not in show(client, status(table="t", queues=[queue()]))  # an ingest runs when it is called
    elsewhere = status(queues=[queue(visible=1)], workers_elsewhere=True, messages_visible=1)
    page = show(client, elsewhere)
    assert "No worker runs with this data directory." not in page
    assert "workers of other hosts are invisible" in page


NO_LINES = SparklineSet(at=NOW)


def rows(found: Status, *, wanted: str = "", rows_max: int = 100) -> overview.Rows:
    return queue_rows(
        StatusFrame(at=NOW, status=found), NO_LINES, wanted=wanted, rows_max=rows_max, label=lambda *_: ""
    )


def test_the_worst_queue_comes_first() -> None:
    w = ("w",)
    queues = [
        queue("idle", workers=w),
        queue("deep", workers=w, visible=900, oldest_visible_message_age_seconds=1.0),
        queue("old", workers=w, visible=1, oldest_visible_message_age_seconds=250.0),
        queue("dying", workers=w, dead_letters=1),
        queue("paused", workers=w, paused=True),
        queue("lagging", workers=w, visible=1, oldest_visible_message_age_seconds=900.0),
        queue("deserted", visible=1),
        queue("unserved", workers=w, unserved="the ledger is unavailable"),
        queue("broken", workers=w, breaker="down"),
    ]
    lagging = LaggingQueue(queue="lagging", age_seconds=900, after_seconds=300, no_consumer=False)
    found = rows(status(queues=queues, lagging=[lagging], workers=w, queues_unserved=["deserted"])).shown
    assert [(row.status.queue, row.state, row.is_bad) for row in found] == [  # type: ignore[union-attr]
        ("broken", "breaker", True),
        ("unserved", "unserved", True),
        ("deserted", "no consumer", True),
        ("lagging", "lagging", True),
        ("paused", "paused", False),
        ("dying", "", False),
        ("old", "", False),
        ("deep", "", False),
        ("idle", "", False),
    ]


def test_of_many_queues_the_first_hundred_are_shown_unless_all_are_wanted(client: FormClient) -> None:
    queues = [queue(f"queue-{number:04}", visible=number, workers=("w",)) for number in range(1_000)]
    found = status(queues=queues, workers=("w",))
    page = show(client, found)
    assert len(Rows(page).names) == overview.ROWS_MAX
    assert "100 of 1,000, the worst first." in page
    assert 'href="/?all=1"' in page
    assert len(Rows(show(client, found, all="1")).names) == 1_000
    filtered = show(client, found, q="QUEUE-07")
    assert len(Rows(filtered).names) == 100
    assert all(name.startswith("queue-07") for name in Rows(filtered).names)
    assert 'name="q" value="QUEUE-07"' in filtered
    assert "No queue has this in its name" in show(client, found, q="<none>")


def test_a_row_has_all_figures(client: FormClient) -> None:
    flow = QueueFlow(in_per_second=1.5, out_per_second=2.5, net_per_second=-1.0, drained_in_seconds=7_200.0)
    one = queue(
        visible=1_234_567,
        in_flight=2,
        delayed=3,
        oldest_visible_message_age_seconds=600.0,
        dead_letters=9,
        workers=("a", "b"),
    )
    frame = StatusFrame(at=NOW, status=status(queues=[one], workers=("a", "b")), flows={"orders": flow})
    client.app.state.context.sampler.frame = lambda: frame  # type: ignore[attr-defined]
    page = client.get("/").text
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r'<td class="number">(.*?)</td>', page, re.S)]
    assert [cell.strip() for cell in cells] == ["10 min", "1,234,567", "2", "3", "1.5", "2.5", "2 h", "9", "2"]
    assert 'href="/queue?name=orders"' in page
    assert 'href="/dead?queue=orders"' in page


def test_an_estimated_age_is_marked(client: FormClient) -> None:
    one = queue(visible=1, oldest_visible_message_age_seconds=600.0, oldest_visible_message_age_source="estimated")
    assert "about 10 min" in show(client, status(queues=[one]))


def test_a_pipeline_has_all_figures(client: FormClient) -> None:
    objects = {
        **NO_OBJECTS,
        ObjectState.PROCESSED: 1_000_000,
        ObjectState.UNPROCESSED: 4,
        ObjectState.PROCESSING: 3,
        ObjectState.DEAD: 2,
        ObjectState.SUPERSEDED: 11,
    }
    last = Reconciliation(
        pipeline="clicks",
        finished_at=NOW,
        **{name: value for name, value in _reconcile_values().items() if name not in ("pipeline", "finished_at")},
    )
    one = pipeline(
        objects=objects,
        objects_overdue=5,
        objects_missing=6,
        oldest_unprocessed_age_seconds=7_200.0,
        batches_committed=77,
        batches_unpublished=8,
        reconciled=last,
        table="/lake/<clicks>",
        table_version=9,
        table_format="delta",
    )
    page = show(client, status(pipelines=[one], workers=("w",)))
    for text in ("1,000,000", "superseded before it was read: 11", "2 h", "77", "version 9", "/lake/&lt;clicks&gt;"):
        assert text in page
    assert 'href="/objects?pipeline=clicks&amp;state=dead"' in page
    assert "needs attention" in page
    assert "2023-11-14 22:13:20Z" in page


def _reconcile_values() -> Mapping[str, Any]:
    from dataclasses import fields

    return {field.name: 0 if "int" in str(field.type) else "s" for field in fields(Reconciliation)}


def test_the_worst_pipeline_comes_first() -> None:
    found = status(
        pipelines=[
            pipeline(objects={**NO_OBJECTS, ObjectState.PROCESSED: 9}),
            pipeline(objects={**NO_OBJECTS, ObjectState.DEAD: 1}),
            pipeline(objects_missing=1),
            pipeline(disagreement="of another ledger"),
            pipeline(objects={**NO_OBJECTS, ObjectState.DEAD: 5}, objects_replaced=5),
        ]
    )
    shown = pipeline_rows(found, NO_LINES, wanted="", rows_max=9, label=lambda *_: "").shown
    assert [row.is_bad for row in shown] == [True, True, True, False, False]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_harmless_and_lead_to_their_page(app: App, client: FormClient, name: str) -> None:
    app.broker.pause(name)
    client.app.state.context.sampler.refresh()  # type: ignore[attr-defined]
    page = client.get("/").text
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    address = re.search(r'<th scope="row"><a href="([^"]*)"', page)
    assert address is not None
    assert client.get(Markup(address[1]).unescape()).status_code == 200


def test_the_page_is_japanese(client: FormClient) -> None:
    client.cookies.set("penstock_language", "ja")
    page = show(client, status(queues=[queue(visible=1, paused=True)]))
    assert "<h1>概要</h1>" in page
    assert "一時停止" in page
    assert "稼働中のワーカーがありません" in page


def test_a_line_is_broken_by_a_gap_and_has_a_text() -> None:
    now = time()
    line = [(now - 3_000, 0.0), (now - 2_940, 10.0), (now - 2_940 + GAP_SECONDS + 60, 5.0), (now - 60, 7.0)]
    drawn = sparkline(line, at=now, label=lambda latest, highest: f'now "{latest:g}" of {highest:g}')
    assert drawn.count("<polyline") == 3
    assert 'aria-label="now &#34;7&#34; of 10"' in drawn
    assert "style" not in drawn
    assert sparkline(line[:1], at=now, label=lambda *_: "") == ""
    assert sparkline([(now - 9_000, 1.0), (now - 8_000, 1.0)], at=now, label=lambda *_: "") == ""


def test_a_worker_record_counts_as_worker(client: FormClient) -> None:
    page = show(client, status(queues=[queue(workers=("w",))], workers=("w",), records=[worker("w")]))
    assert Rows(page).names == ["orders"]
