"""A small HTTP server for answers of S3 that no real server gives on demand."""

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as received."""

    method: str
    target: str  # path and query, still encoded
    headers: Mapping[str, str]  # names in lower case
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A response. With ``cut_after_bytes``, the connection ends after that many bytes of the body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after_bytes: int | None = None


def refusal(status: int, code: str, message: str = "as the test wants it") -> Answered:
    """Return an error response in the form of S3."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answered(status=status, body=body.encode(), headers={"Content-Type": "application/xml"})


class S3Stub:
    """A server that answers each request with the test's function, and remembers the requests."""

    def __init__(self, answer: Callable[[Asked], Answered]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []  # appended to by the threads that serve
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True, name="s3-stub")
        self._serving.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._serving.join(10)
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that disconnects is no error
            super().handle_error(request, client_address)


def _handler(stub: S3Stub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet per answer, not two of which one waits
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(method=self.command, target=self.path, headers=headers, body=body)
            stub.asked.append(asked)
            self._send(stub.answer(asked))

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - http.server's names

        def _send(self, answered: Answered) -> None:
            self.send_response(answered.status)
            if not any(name.lower() == "content-length" for name in answered.headers):
                self.send_header("Content-Length", str(len(answered.body)))
            for name, value in answered.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answered.body[: answered.cut_after_bytes])
            if answered.cut_after_bytes is not None:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    return Handler
