"""A Prometheus that does not answer, answers nonsense, wants a password, or leads elsewhere."""

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.services.ports import free_port
from tests.web.clients import client_of

from penstock import App
from penstock.app.history.chart import Chart
from penstock.app.history.points import SeriesKind
from penstock.app.history.ring import HistoryRange
from penstock.config import Settings, load_settings, shown
from penstock.errors import ConfigurationError
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.web import prometheus
from penstock.web.prometheus import PrometheusCharts

SECRET = "pa ss/wörd"
ANSWER = {
    "status": "success",
    "data": {"result": [{"metric": {"queue": "orders"}, "values": [[1_000, "3"], [1_010, "NaN"], [1_020, "-2"]]}]},
}


@contextmanager
def server(
    body: bytes = json.dumps(ANSWER).encode(), *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Iterator[tuple[str, list[Mapping[str, str]]]]:
    """Answer every request like this; yield HOST:PORT and the headers of the requests."""
    seen: list[Mapping[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            seen.append(dict(self.headers))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{http.server_address[1]}", seen
        finally:
            http.shutdown()
            thread.join()


def chart_at(address: str, *, user: str = "") -> Chart:
    charts = PrometheusCharts(f"http://{user}{address}", measured_every_seconds=20, clock=SystemClock())
    return charts.chart(SeriesKind.QUEUE, "orders", HistoryRange.HOUR, at=1_030.0)


def test_values_are_those_of_the_queue_without_those_that_are_no_number() -> None:
    with server() as (address, seen):
        chart = chart_at(address)
    assert chart.error is None
    assert (chart.times, chart.values["visible"]) == ([1_000, 1_020], [3.0, 0.0])
    assert "Authorization" not in seen[0]


def test_the_password_of_the_url_is_sent_and_never_shown() -> None:
    with server(status=401) as (address, seen):
        chart = chart_at(address, user="ann:pa%20ss%2Fw%C3%B6rd@")
    assert seen[0]["Authorization"] == f"Basic {base64.b64encode(f'ann:{SECRET}'.encode()).decode()}"
    assert chart.error == f"http://{address} refuses the user of web.prometheus_url (HTTP 401)"


def test_a_redirect_is_not_followed() -> None:
    with server() as (other, seen), server(status=302, headers={"Location": f"http://{other}/"}) as (address, _):
        chart = chart_at(address, user="ann:secret@")
    assert seen == []
    assert chart.error is not None
    assert "HTTP 302" in chart.error


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (200, b"<html>", "is not JSON"),
        (200, b"[" * 100_000, "is not JSON"),
        (200, b"[]", "is not Prometheus's"),
        (200, b'{"status": "success"}', "is not Prometheus's"),
        (200, b'{"status": "success", "data": {"result": [{"metric": {}, "values": [[1, "x"]]}]}}', "not Prometheus's"),
        (400, b'{"error": "parse error <b>"}', "refused a query: parse error <b>"),
        (503, b"nothing", "HTTP 503"),
    ],
)
def test_a_wrong_answer_is_a_sentence(status: int, body: bytes, sentence: str) -> None:
    with server(body, status=status) as (address, _):
        error = chart_at(address).error
    assert error is not None
    assert sentence in error


def test_a_huge_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "ANSWER_BYTES_MAX", 20)
    with server() as (address, _):
        error = chart_at(address).error
    assert error is not None
    assert "more than 20 bytes" in error


class FakeClock(SystemClock):
    at = 0.0

    def monotonic(self) -> float:
        return self.at


def test_a_server_that_does_not_answer_is_left_alone_for_a_while() -> None:
    clock, port = FakeClock(), free_port()
    charts = PrometheusCharts(f"http://ann:secret@127.0.0.1:{port}", measured_every_seconds=20, clock=clock)

    def error() -> str | None:
        return charts.chart(SeriesKind.QUEUE, "orders", HistoryRange.HOUR, at=1_030.0).error

    first = error()
    assert first is not None
    assert "does not answer" in first
    assert "secret" not in first
    with server() as (address, seen):
        charts._address = f"http://{address}"
        clock.at = prometheus.SILENT_SECONDS - 1
        assert (error(), seen) == (first, [])
        clock.at += 1
        assert error() is None


def test_the_page_names_the_error_and_stays(tmp_path: Path) -> None:
    url = f"http://ann:secret@127.0.0.1:{free_port()}"
    settings = Settings(broker=f"sqlite:///{tmp_path}/queue.db", data_dir=str(tmp_path), web_prometheus_url=url)
    app = App(name="shop", settings=settings)
    app.broker.send("orders", [Outgoing(body=b"{}")])
    with client_of(app) as client:
        page = client.get("/queue", params={"name": "orders"})
        assert page.status_code == 200
        assert "There are no numbers for charts: http://127.0.0.1:" in page.text
        assert "No worker serves this queue." in page.text
        assert "secret" not in page.text
        assert client.get("/").status_code == 200
    app.close()


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://p", "http://", "http://p?x=1", "file:///etc/passwd"])
def test_a_setting_that_is_no_url_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_WEB_PROMETHEUS_URL", url)
    with pytest.raises(ConfigurationError, match="it should be a URL such as"):
        load_settings()


def test_the_password_is_masked_where_settings_are_shown() -> None:
    assert "secret" not in str(shown("web_prometheus_url", "http://ann:secret@p:9090"))
