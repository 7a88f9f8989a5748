"""A gate before an SQS server: counts calls, and lets entries of batches fail as AWS does, with a 200 and `Failed`.

An entry that fails never reaches the server. Requests of other services pass as they are.
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
    """Between brokers and one server."""

    def __init__(self, server: AwsServer) -> None:
        gate = self
        host = urlsplit(server.url).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, answer = gate._handle(host, dict(self.headers.items()), body, self.path)
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._lock = threading.Lock()
        self._refusals: dict[str, list[Refuse]] = {}  # under the lock, as is the next; by operation, one a call
        self.calls: list[tuple[str, int]] = []  # operation, and how many entries
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def aws(self) -> Aws:
        return aws_at(f"http://127.0.0.1:{self._server.server_port}")

    def refuse(self, operation: str, *calls: Refuse) -> None:
        """The errors of an operation's next calls."""
        with self._lock:
            self._refusals.setdefault(operation, []).extend(calls)

    def counts(self) -> Counter[str]:
        """Calls by operation."""
        with self._lock:
            return Counter(operation for operation, _ in self.calls)

    def sizes(self, operation: str) -> list[int]:
        """Return the entries of a batch operation's calls."""
        with self._lock:
            return [size for called, size in self.calls if called == operation]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, host: str, headers: Mapping[str, str], body: bytes, path: str) -> tuple[int, bytes]:
        operation = headers.get("X-Amz-Target", "").rpartition(".")[2]
        asked: dict[str, Any] = json.loads(body or b"{}")
        entries: Sequence[Mapping[str, Any]] = asked.get("Entries", ())
        with self._lock:
            self.calls.append((operation, len(entries)))
            refusals = self._refusals.get(operation)
            refuse = refusals.pop(0) if refusals else None
        failed = []
        if refuse is not None:
            verdicts = [(entry, refuse(entry)) for entry in entries]
            failed = [
                {"Id": entry["Id"], "Code": verdict[0], "SenderFault": verdict[1], "Message": "refused at the gate"}
                for entry, verdict in verdicts
                if verdict is not None
            ]
            asked["Entries"] = [entry for entry, verdict in verdicts if verdict is None]
        if failed and not asked["Entries"]:
            return 200, json.dumps({"Failed": failed}).encode()
        status, answer = self._forward(host, headers, json.dumps(asked).encode() if failed else body, path)
        if failed:
            told = json.loads(answer)
            answer = json.dumps({**told, "Failed": [*told.get("Failed", ()), *failed]}).encode()
        return status, answer

    def _forward(self, host: str, headers: Mapping[str, str], body: bytes, path: str) -> tuple[int, bytes]:
        connection = HTTPConnection(host, timeout=ANSWER_SECONDS)
        passed = {name: value for name, value in headers.items() if name.lower() not in ("content-length", "host")}
        connection.request("POST", path, body=body, headers={**passed, "Host": host})
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer


def all_entries(code: str, *, sender_fault: bool = False) -> Refuse:
    return lambda entry: (code, sender_fault)


def entries_of(ids: Sequence[str], code: str, *, sender_fault: bool = False) -> Refuse:
    return lambda entry: (code, sender_fault) if entry["Id"] in ids else None
