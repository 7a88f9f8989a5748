"""Sentry, Rollbar and a chat's webhook on loopback: HTTP servers that keep the requests they receive."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DEADLINE_SECONDS = 180.0


@dataclass
class Receiver:
    """A server and its requests. ``status`` is its response from now on; it is silent while ``open`` is cleared."""

    port: int = 0
    status: int = 200
    requests: list[tuple[str, bytes]] = field(default_factory=list)  # path, body; appended by the server's threads
    arrived: threading.Condition = field(default_factory=threading.Condition)
    open: threading.Event = field(default_factory=threading.Event)

    def keep(self, path: str, body: bytes) -> None:
        with self.arrived:
            self.requests.append((path, body))
            self.arrived.notify_all()

    def bodies(self, count: int = 1) -> list[bytes]:
        """Return all bodies, once that many have arrived."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, DEADLINE_SECONDS), self.requests
            return [body for _, body in self.requests]

    @property
    def sentry_dsn(self) -> str:
        return f"http://public@127.0.0.1:{self.port}/42"

    @property
    def rollbar_endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/1/"

    @property
    def chat_url(self) -> str:
        return f"json://127.0.0.1:{self.port}/hook"

    def sentry_events(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the lines of the envelopes: a header, then a header and a body for each item."""
        events = []
        for body in self.bodies(count):
            lines = body.split(b"\n")
            assert json.loads(lines[1])["type"] == "event"
            events.append(json.loads(lines[2]))
        return events

    def documents(self, count: int = 1) -> list[dict[str, Any]]:
        """Return each body, which is JSON."""
        return [json.loads(body) for body in self.bodies(count)]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Start a separate server."""
    kept = Receiver()
    kept.open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert kept.open.wait(DEADLINE_SECONDS)
            kept.keep(self.path, body)
            self.send_response(kept.status)
            self.end_headers()
            self.wfile.write(b'{"err": 0, "result": {"id": null, "uuid": ""}}')

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing to stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    kept.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        kept.open.set()
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE_SECONDS)
