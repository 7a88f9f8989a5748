"""The endpoint over real connections: responses, refusals, and slow peers."""

import gzip
import http.client
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.unit.monitoring.scraping import samples_in

from penstock.errors import ConfigurationError
from penstock.monitoring import endpoint as module
from penstock.monitoring.endpoint import CONNECTIONS_MAX, Address, Endpoint, address_of
from penstock.monitoring.health import Health, ProbeResult
from penstock.monitoring.metrics.meters import Meters

DEADLINE_SECONDS = 60.0
HEALTHY: ProbeResult = (True, "The worker runs.")


@dataclass
class FakeWorker:
    """Health and metrics as the test sets them."""

    live: ProbeResult = HEALTHY
    ready: ProbeResult = HEALTHY
    started: ProbeResult = HEALTHY
    meters: Meters = field(default_factory=Meters)

    @property
    def health(self) -> Health:
        return Health(live=lambda: self.live, ready=lambda: self.ready, started=lambda: self.started)


@contextmanager
def listening(worker: FakeWorker, *, host: str = "127.0.0.1") -> Iterator[Address]:
    endpoint = Endpoint(
        Address(host=host, port=0), meters=worker.meters, health=worker.health, setting="metrics_address"
    )
    endpoint.open()
    try:
        yield address_of(endpoint.address, setting="metrics_address")
    finally:
        endpoint.close()


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes


def request(address: Address, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Response:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=DEADLINE_SECONDS)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return Response(answer.status, dict(answer.headers), answer.read())
    finally:
        connection.close()


def request_until_answered(address: Address, path: str) -> Response:
    """Repeat a request until it is answered: while all threads are busy, the endpoint closes new connections."""
    ends_at = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return request(address, path)
        except (http.client.HTTPException, OSError):
            if time.monotonic() > ends_at:
                raise


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_scrape_returns_the_counts(host: str) -> None:
    worker = FakeWorker()
    worker.meters.count("messages_received_total", ("orders",), 3)
    with listening(worker, host=host) as address:
        response = request(address, "/metrics")
        worker.meters.count("messages_received_total", ("orders",))
        second = request(address, "/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    assert samples_in(response.body.decode())["messages_received_total{queue=orders}"] == 3
    assert samples_in(second.body.decode())["messages_received_total{queue=orders}"] == 4


def test_a_scrape_includes_the_metrics_of_the_process() -> None:
    with listening(FakeWorker()) as address:
        assert samples_in(request(address, "/metrics").body.decode(), prefix="process_")["resident_memory_bytes"] > 1e6


def test_openmetrics_and_gzip_are_used_on_request() -> None:
    worker = FakeWorker()
    worker.meters.observe("loop_lag_seconds", ("w1",), 0.5)
    headers = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
    with listening(worker) as address:
        response = request(address, "/metrics", headers=headers)
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert response.headers["Content-Encoding"] == "gzip"
    parse: Any = text_string_to_metric_families  # untyped
    families = parse(gzip.decompress(response.body).decode())
    found = {sample.name: sample.value for family in families for sample in family.samples}
    assert found["penstock_loop_lag_seconds_count"] == 1


@pytest.mark.parametrize(("path", "check"), [("/livez", "live"), ("/readyz", "ready"), ("/startupz", "started")])
def test_health_is_a_status_code_and_a_sentence(path: str, check: str) -> None:
    worker = FakeWorker()
    with listening(worker) as address:
        healthy = request(address, path)
        setattr(worker, check, (False, "The thread penstock-io has not moved for 400 s."))
        unhealthy = request(address, path)
        others = [request(address, other).status for other in ("/livez", "/readyz", "/startupz") if other != path]
    assert (healthy.status, healthy.body) == (200, b"The worker runs.\n")
    assert (unhealthy.status, unhealthy.body) == (503, b"The thread penstock-io has not moved for 400 s.\n")
    assert others == [200, 200]


@pytest.mark.parametrize("path", ["/metrics", "/livez"])
def test_head_gets_the_status_without_a_body(path: str) -> None:
    with listening(FakeWorker()) as address:
        full = request(address, path)
        response = request(address, path, method="HEAD")
    assert (response.status, response.body) == (200, b"")
    assert response.headers["Content-Type"] == full.headers["Content-Type"]
    assert int(response.headers["Content-Length"]) > 0


def test_other_paths_and_methods_are_refused() -> None:
    with listening(FakeWorker()) as address:
        missing = request(address, "/metrics/x")
        refused = [
            request(address, path, method=method) for path in ("/metrics", "/livez") for method in ("POST", "OPTIONS")
        ]
    assert (missing.status, missing.body) == (404, b"Here are /metrics, /livez, /readyz, /startupz.\n")
    assert {(response.status, response.headers["Allow"]) for response in refused} == {(405, "GET, HEAD")}


def test_an_exception_in_a_health_check_is_a_500_and_the_endpoint_continues(capfd: pytest.CaptureFixture[str]) -> None:
    worker = FakeWorker()
    with listening(worker) as address:
        worker.live = None  # type: ignore[assignment] # a defect
        broken = request(address, "/livez")
        healthy = request(address, "/readyz")
    assert broken.status == 500
    assert healthy.status == 200
    assert capfd.readouterr() == ("", "")


def test_the_endpoint_survives_invalid_and_incomplete_requests(capfd: pytest.CaptureFixture[str]) -> None:
    with listening(FakeWorker()) as address:
        for sent in (b"\x16\x03\x01nonsense\r\n\r\n", b"GET /metrics HTTP/1.1\r\nHost:", b""):
            with socket.create_connection((address.host, address.port), DEADLINE_SECONDS) as peer:
                peer.sendall(sent)
        assert request(address, "/readyz").status == 200
    assert capfd.readouterr() == ("", "")


def test_slow_peers_are_disconnected_and_others_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTION_SECONDS_MAX", 0.5)
    with ExitStack() as stack:
        address = stack.enter_context(listening(FakeWorker()))
        peers = [
            stack.enter_context(socket.create_connection((address.host, address.port), DEADLINE_SECONDS))
            for _ in range(CONNECTIONS_MAX)
        ]
        for peer in peers:
            peer.sendall(b"GET /metrics HTTP/1.1\r\n")
        one_more = stack.enter_context(socket.create_connection((address.host, address.port), DEADLINE_SECONDS))
        assert one_more.recv(1) == b"", "no thread is free, so the connection is closed at once"
        for peer in peers:
            assert peer.recv(1) == b"", "its time limit has passed"
        assert request_until_answered(address, "/readyz").status == 200


def test_a_port_in_use_is_a_configuration_error() -> None:
    with listening(FakeWorker()) as address:
        second = Endpoint(address, meters=Meters(), health=FakeWorker().health, setting="metrics_address")
        with pytest.raises(ConfigurationError) as raised:
            second.open()
    assert str(raised.value) == (
        f"Nothing can be answered at {address}: another process listens there already; end it, or name another port in "
        "the setting metrics_address."
    )
    assert raised.value.exit_code == 78


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "a..b", "a" * 64])
def test_an_address_of_another_host_is_a_configuration_error(host: str) -> None:
    endpoint = Endpoint(
        Address(host=host, port=9464), meters=Meters(), health=FakeWorker().health, setting="monitor_address"
    )
    with pytest.raises(ConfigurationError, match=rf"Nothing can be answered at {host}:9464: .+monitor_address\.$"):
        endpoint.open()


def test_closing_the_endpoint_frees_its_port() -> None:
    with listening(FakeWorker()) as address:
        assert request(address, "/livez").status == 200
    again = Endpoint(address, meters=Meters(), health=FakeWorker().health, setting="metrics_address")
    again.open()
    again.close()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9464", "127.0.0.1", 9464),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("[::1]:9464", "::1", 9464),
        ("localhost:65535", "localhost", 65535),
    ],
)
def test_addresses_are_parsed_and_formatted_alike(text: str, host: str, port: int) -> None:
    address = address_of(text, setting="metrics_address")
    assert address == Address(host=host, port=port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "9464", ":9464", "localhost", "localhost:", "::1:9464", "[]:1", "a:65536", "a:-1", "a:٣", "http://a:1"]
)
def test_an_invalid_address_is_a_configuration_error(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^The setting metrics_address is '.*', which is not HOST:PORT, as in "
    ):
        address_of(text, setting="metrics_address")


def test_processes_of_one_group_have_consecutive_ports() -> None:
    address = address_of("[::1]:65533", setting="metrics_address")
    assert [str(address.beside(number)) for number in range(3)] == ["[::1]:65533", "[::1]:65534", "[::1]:65535"]
    with pytest.raises(ConfigurationError, match="begin at a lower one"):
        address.beside(3)
    assert address_of("a:0", setting="metrics_address").beside(7).port == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux does closing not wait for a turn")
def test_closing_does_not_wait_for_the_end_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 10 * DEADLINE_SECONDS)
    worker = FakeWorker()
    endpoint = Endpoint(
        Address(host="127.0.0.1", port=0), meters=worker.meters, health=worker.health, setting="metrics_address"
    )
    endpoint.open()
    assert request(address_of(endpoint.address, setting="metrics_address"), "/livez").status == 200
    closing = threading.Thread(target=endpoint.close, daemon=True)
    closing.start()
    closing.join(DEADLINE_SECONDS)
    assert not closing.is_alive()
