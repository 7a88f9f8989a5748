"""A gate before an SQS server: counts calls, loses responses, and lets entries of batches fail as AWS does, with a 200
and `Failed`.

A failing entry never reaches the server. Requests of other services are passed on.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.services.aws_server import AwsServer, aws_at

from penstock.storage.aws import Aws

ANSWER_SECONDS = 60.0

Refuse = Callable[[Mapping[str, Any]], tuple[str, bool] | None]  # an entry -> code and whether the sender is at fault


class SqsGate:
    """A proxy between brokers and one server."""

    def __init__(self, server: AwsServer) -> None:
        gate = self
        host = urlsplit(server.url).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, response_text = gate._handle(host, dict(self.headers.items()), body, self.path)
                if gate._loses(response_text):
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(response_text)))
                self.end_headers()
                self.wfile.write(response_text)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._lock = threading.Lock()
        self._refusals: dict[str, list[Refuse]] = {}  # under the lock, as is the next; by operation, one per call
        self._lost: bytes | None = None  # under the lock: the next response that contains it is lost
        self.calls: list[tuple[str, int]] = []  # operation, and how many entries
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def aws(self) -> Aws:
        return aws_at(f"http://127.0.0.1:{self._server.server_port}")

    def refuse(self, operation: str, *calls: Refuse) -> None:
        """Set the errors of an operation's next calls."""
        with self._lock:
            self._refusals.setdefault(operation, []).extend(calls)

    def lose(self, marker: bytes) -> None:
        """End the connection in place of the next response that contains these bytes. The server has done the call."""
        with self._lock:
            self._lost = marker

    @property
    def has_lost(self) -> bool:
        """Return True if the response set by `lose` came and was lost."""
        with self._lock:
            return self._lost is None

    def counts(self) -> Counter[str]:
        """Return the calls by operation."""
        with self._lock:
            return Counter(operation for operation, _ in self.calls)

    def sizes(self, operation: str) -> list[int]:
        """Return the number of entries of each call of a batch operation."""
        with self._lock:
            return [size for called, size in self.calls if called == operation]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, host: str, headers: Mapping[str, str], body: bytes, path: str) -> tuple[int, bytes]:
        operation = headers.get("X-Amz-Target", "").rpartition(".")[2]
        request: dict[str, Any] = json.loads(body or b"{}")
        entries: Sequence[Mapping[str, Any]] = request.get("Entries", ())
        with self._lock:
            self.calls.append((operation, len(entries)))
            refusals = self._refusals.get(operation)
            refuse = refusals.pop(0) if refusals else None
        failed = []
        if refuse is not None:
            refused_entries = [(entry, refuse(entry)) for entry in entries]
            failed = [
                {"Id": entry["Id"], "Code": refusal[0], "SenderFault": refusal[1], "Message": "refused at the gate"}
                for entry, refusal in refused_entries
                if refusal is not None
            ]
            request["Entries"] = [entry for entry, refusal in refused_entries if refusal is None]
        if failed and not request["Entries"]:
            return 200, json.dumps({"Failed": failed}).encode()
        status, response_text = self._forward(host, headers, json.dumps(request).encode() if failed else body, path)
        if failed:
            response_body = json.loads(response_text)
            response_text = json.dumps(
                {**response_body, "Failed": [*response_body.get("Failed", ()), *failed]}
            ).encode()
        return status, response_text

    def _loses(self, response_text: bytes) -> bool:
        with self._lock:
            found = self._lost is not None and self._lost in response_text
            if found:
                self._lost = None
        return found

    def _forward(self, host: str, headers: Mapping[str, str], body: bytes, path: str) -> tuple[int, bytes]:
        connection = HTTPConnection(host, timeout=ANSWER_SECONDS)
        passed = {name: value for name, value in headers.items() if name.lower() not in ("content-length", "host")}
        connection.request("POST", path, body=body, headers={**passed, "Host": host})
        response = connection.getresponse()
        response_text = response.status, response.read()
        connection.close()
        return response_text


def all_entries(code: str, *, sender_fault: bool = False) -> Refuse:
    return lambda entry: (code, sender_fault)


def entries_of(ids: Sequence[str], code: str, *, sender_fault: bool = False) -> Refuse:
    return lambda entry: (code, sender_fault) if entry["Id"] in ids else None
