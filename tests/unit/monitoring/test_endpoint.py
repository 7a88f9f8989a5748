"""The endpoint over real connections: what it answers, what it refuses, and that nobody can hold it up."""

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
WELL: ProbeResult = (True, "The worker runs.")


@dataclass
class Patient:
    """What its health is to be told as."""

    live: ProbeResult = WELL
    ready: ProbeResult = WELL
    started: ProbeResult = WELL
    meters: Meters = field(default_factory=Meters)

    @property
    def health(self) -> Health:
        return Health(live=lambda: self.live, ready=lambda: self.ready, started=lambda: self.started)


@contextmanager
def listening(patient: Patient, *, host: str = "127.0.0.1") -> Iterator[Address]:
    endpoint = Endpoint(
        Address(host=host, port=0), meters=patient.meters, health=patient.health, setting="metrics_address"
    )
    endpoint.open()
    try:
        yield address_of(endpoint.address, setting="metrics_address")
    finally:
        endpoint.close()


@dataclass(frozen=True)
class Said:
    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(address: Address, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Said:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=DEADLINE_SECONDS)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return Said(answer.status, dict(answer.headers), answer.read())
    finally:
        connection.close()


def asked_until_answered(address: Address, path: str) -> Said:
    """Whoever is hung up on, as those are who come while all threads are at work, comes again."""
    ends_at = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return ask(address, path)
        except (http.client.HTTPException, OSError):
            if time.monotonic() > ends_at:
                raise


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_scrape_says_what_was_counted(host: str) -> None:
    patient = Patient()
    patient.meters.count("messages_received_total", ("orders",), 3)
    with listening(patient, host=host) as address:
        said = ask(address, "/metrics")
        patient.meters.count("messages_received_total", ("orders",))
        again = ask(address, "/metrics")
    assert said.status == 200
    assert said.headers["Content-Type"].startswith("text/plain")
    assert samples_in(said.body.decode())["messages_received_total{queue=orders}"] == 3
    assert samples_in(again.body.decode())["messages_received_total{queue=orders}"] == 4


def test_a_scrape_also_says_what_the_system_knows_of_the_process() -> None:
    with listening(Patient()) as address:
        assert samples_in(ask(address, "/metrics").body.decode(), prefix="process_")["resident_memory_bytes"] > 1e6


def test_openmetrics_and_gzip_are_spoken_where_they_are_asked_for() -> None:
    patient = Patient()
    patient.meters.observe("loop_lag_seconds", ("w1",), 0.5)
    headers = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
    with listening(patient) as address:
        said = ask(address, "/metrics", headers=headers)
    assert said.headers["Content-Type"].startswith("application/openmetrics-text")
    assert said.headers["Content-Encoding"] == "gzip"
    parse: Any = text_string_to_metric_families  # which has no types
    families = parse(gzip.decompress(said.body).decode())
    found = {sample.name: sample.value for family in families for sample in family.samples}
    assert found["penstock_loop_lag_seconds_count"] == 1


@pytest.mark.parametrize(("path", "question"), [("/livez", "live"), ("/readyz", "ready"), ("/startupz", "started")])
def test_health_is_a_status_and_a_sentence(path: str, question: str) -> None:
    patient = Patient()
    with listening(patient) as address:
        well = ask(address, path)
        setattr(patient, question, (False, "The thread penstock-io has not moved for 400 s."))
        unwell = ask(address, path)
        others = [ask(address, other).status for other in ("/livez", "/readyz", "/startupz") if other != path]
    assert (well.status, well.body) == (200, b"The worker runs.\n")
    assert (unwell.status, unwell.body) == (503, b"The thread penstock-io has not moved for 400 s.\n")
    assert others == [200, 200]


@pytest.mark.parametrize("path", ["/metrics", "/livez"])
def test_head_gets_the_status_without_a_body(path: str) -> None:
    with listening(Patient()) as address:
        whole = ask(address, path)
        said = ask(address, path, method="HEAD")
    assert (said.status, said.body) == (200, b"")
    assert said.headers["Content-Type"] == whole.headers["Content-Type"]
    assert int(said.headers["Content-Length"]) > 0


def test_other_paths_and_methods_are_refused() -> None:
    with listening(Patient()) as address:
        nowhere = ask(address, "/metrics/x")
        refused = [
            ask(address, path, method=method) for path in ("/metrics", "/livez") for method in ("POST", "OPTIONS")
        ]
    assert (nowhere.status, nowhere.body) == (404, b"Here are /metrics, /livez, /readyz, /startupz.\n")
    assert {(said.status, said.headers["Allow"]) for said in refused} == {(405, "GET, HEAD")}


def test_an_answer_that_cannot_be_given_is_an_error_and_ends_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    patient = Patient()
    with listening(patient) as address:
        patient.live = None  # type: ignore[assignment] # a defect
        broken = ask(address, "/livez")
        well = ask(address, "/readyz")
    assert broken.status == 500
    assert well.status == 200
    assert capfd.readouterr() == ("", "")


def test_what_is_no_http_and_who_goes_away_in_the_middle_end_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with listening(Patient()) as address:
        for spoken in (b"\x16\x03\x01nonsense\r\n\r\n", b"GET /metrics HTTP/1.1\r\nHost:", b""):
            with socket.create_connection((address.host, address.port), DEADLINE_SECONDS) as peer:
                peer.sendall(spoken)
        assert ask(address, "/readyz").status == 200
    assert capfd.readouterr() == ("", "")


def test_slow_peers_are_hung_up_on_and_others_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTION_SECONDS_MAX", 0.5)
    with ExitStack() as stack:
        address = stack.enter_context(listening(Patient()))
        peers = [
            stack.enter_context(socket.create_connection((address.host, address.port), DEADLINE_SECONDS))
            for _ in range(CONNECTIONS_MAX)
        ]
        for peer in peers:
            peer.sendall(b"GET /metrics HTTP/1.1\r\n")
        one_more = stack.enter_context(socket.create_connection((address.host, address.port), DEADLINE_SECONDS))
        assert one_more.recv(1) == b"", "there is no thread for it, so it is closed at once"
        for peer in peers:
            assert peer.recv(1) == b"", "its time is over"
        assert asked_until_answered(address, "/readyz").status == 200


def test_a_port_that_is_taken_is_one_clear_sentence() -> None:
    with listening(Patient()) as address:
        second = Endpoint(address, meters=Meters(), health=Patient().health, setting="metrics_address")
        with pytest.raises(ConfigurationError) as raised:
            second.open()
    assert str(raised.value) == (
        f"Nothing can be answered at {address}: another process listens there already; end it, or name another port in "
        "the setting metrics_address."
    )
    assert raised.value.exit_code == 78


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "a..b", "a" * 64])
def test_an_address_that_is_not_ours_is_one_clear_sentence(host: str) -> None:
    endpoint = Endpoint(
        Address(host=host, port=9464), meters=Meters(), health=Patient().health, setting="monitor_address"
    )
    with pytest.raises(ConfigurationError, match=rf"Nothing can be answered at {host}:9464: .+monitor_address\.$"):
        endpoint.open()


def test_a_port_is_free_again_when_it_is_closed() -> None:
    with listening(Patient()) as address:
        assert ask(address, "/livez").status == 200
    again = Endpoint(address, meters=Meters(), health=Patient().health, setting="metrics_address")
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
def test_addresses_are_read_and_written_alike(text: str, host: str, port: int) -> None:
    address = address_of(text, setting="metrics_address")
    assert address == Address(host=host, port=port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "9464", ":9464", "localhost", "localhost:", "::1:9464", "[]:1", "a:65536", "a:-1", "a:٣", "http://a:1"]
)
def test_what_is_no_address_is_one_clear_sentence(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^The setting metrics_address is '.*', which is not HOST:PORT, as in "
    ):
        address_of(text, setting="metrics_address")


def test_processes_beside_each_other_have_ports_beside_each_other() -> None:
    address = address_of("[::1]:65533", setting="metrics_address")
    assert [str(address.beside(number)) for number in range(3)] == ["[::1]:65533", "[::1]:65534", "[::1]:65535"]
    with pytest.raises(ConfigurationError, match="begin at a lower one"):
        address.beside(3)
    assert address_of("a:0", setting="metrics_address").beside(7).port == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere closing takes a turn")
def test_closing_does_not_wait_for_the_end_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 10 * DEADLINE_SECONDS)
    patient = Patient()
    endpoint = Endpoint(
        Address(host="127.0.0.1", port=0), meters=patient.meters, health=patient.health, setting="metrics_address"
    )
    endpoint.open()
    assert ask(address_of(endpoint.address, setting="metrics_address"), "/livez").status == 200
    closing = threading.Thread(target=endpoint.close, daemon=True)
    closing.start()
    closing.join(DEADLINE_SECONDS)
    assert not closing.is_alive()
