"""The HTTP server of a dashboard."""

import http.client
import logging
from pathlib import Path

import pytest
from tests.web.seeds import empty

from penstock.monitoring.endpoint import Address
from penstock.web import dashboard
from penstock.web.server import WebServer


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
