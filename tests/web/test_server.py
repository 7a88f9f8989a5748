"""The HTTP server of a dashboard."""

import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.web.seeds import empty

from penstock.monitoring.endpoint import Address
from penstock.operations.status.sentences import sentence
from penstock.web import connections, dashboard
from penstock.web.actions import ActionDescription, ActionProgress, ActionResult
from penstock.web.sampling import CLOSE_SECONDS
from penstock.web.server import STOP_SECONDS, WebServer


def test_open_event_streams_end_quietly_when_it_closes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with empty(tmp_path) as seed:
        server = WebServer(dashboard(seed.app), address=Address(host="127.0.0.1", port=0), setting="web.address")
        server.open()
        client = http.client.HTTPConnection(server.url.split("/")[2], timeout=30)
        client.request("GET", "/events")
        response = client.getresponse()
        assert response.readline().startswith(b"event: changed")
        server.close()
        assert response.read()[-4:] == b"\r\n\r\n"
        client.close()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_it_waits_for_the_end_of_an_actions_chunk(tmp_path: Path) -> None:
    with empty(tmp_path) as seed:
        pages = dashboard(seed.app)
        server = WebServer(pages, address=Address(host="127.0.0.1", port=0), setting="web.address")
        server.open()
        actions = pages.state.context.actions

        def run(progress: ActionProgress) -> ActionResult:
            while not progress.stopped():
                threading.Event().wait(0.01)
            threading.Event().wait(2 * STOP_SECONDS + CLOSE_SECONDS + 1)
            return ActionResult(sentences=[], outcome="stopped")

        actions.start("replay", "ann", ActionDescription(title=sentence("Replay")), run)
        server.close()
        (action,) = actions.latest()
        assert action.state == "interrupted"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    with empty(tmp_path) as seed:
        server = WebServer(dashboard(seed.app), address=Address(host="127.0.0.1", port=0), setting="web.address")
        server.open()
        host, _, port = server.url.split("/")[2].partition(":")
        yield host, int(port)
        server.close()


def status_of(address: tuple[str, int], path: str = "/actions") -> int:
    client = http.client.HTTPConnection(*address, timeout=30)
    client.request("GET", path)
    response = client.getresponse()
    response.read()
    client.close()
    return response.status


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_a_connection_without_a_whole_request_is_ended(
    sent: bytes, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with socket.create_connection(address, timeout=30) as client, suppress(ConnectionResetError):
        client.sendall(sent)
        assert client.recv(1) == b""


def test_a_client_that_sends_slowly_after_its_first_response_is_ended(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    end_at = time.monotonic() + 30
    with socket.create_connection(address, timeout=30) as client, suppress(OSError):
        client.sendall(b"GET /static/app.js HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nX: ")
        while time.monotonic() < end_at:
            client.sendall(b"x")
            threading.Event().wait(0.1)
    assert time.monotonic() < end_at


def test_idle_connections_make_room_for_requests_and_event_streams_stay(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 5)
    viewer = http.client.HTTPConnection(*address, timeout=30)
    viewer.request("GET", "/events")
    stream = viewer.getresponse()
    assert stream.readline().startswith(b"event: changed")
    idle = [socket.create_connection(address, timeout=30) for _ in range(40)]
    assert status_of(address) == 200
    left = 0
    for client in idle:
        client.setblocking(False)
        try:
            client.recv(1)
        except BlockingIOError:
            left += 1
        except ConnectionResetError:
            pass
        client.close()
    assert left <= 5
    assert stream.readline().startswith(b"data: ")
    viewer.close()
