"""An Iceberg REST catalog on loopback, over PyIceberg's SQL catalog in a SQLite file.

It follows the REST specification as far as clients create, load, commit and drop tables: requirements are checked and
the pointer replaced in one step; the status is 409 if one is not met, 404 for a missing table or namespace, and 401 for
a wrong token. Requests are handled one at a time. A `Fault` loses a reply, or refuses a request.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, Table

SEPARATOR = "\x1f"  # between the parts of a namespace in a path
STATUSES: dict[type[Exception], int] = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    ValueError: 400,
}
WAIT_SECONDS = 60.0  # for the event of a fault
Reply = tuple[int, Any]  # the status, and the document; None: no body


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of the next request with this method and a path that contains ``path``."""

    method: str = "POST"
    path: str = ""
    executes: bool = True  # before the fault
    status: int | None = None  # of the reply; None: the connection ends without one
    reason: str = "fault"
    body: bytes | None = None  # in place of an error
    waits: Event | None = None  # before the reply


@dataclass
class RestCatalogServer:
    """The server's state. ``requests`` are those that it received, as METHOD PATH?QUERY."""

    folder: Path
    token: str | None = None
    assigned_location: str | None = None  # of new tables, in place of the requested one
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._tables = SqlCatalog("server", uri=f"sqlite:///{self.folder / 'catalog.db'}")

    def reply(self, method: str, target: str, token: str | None, body: bytes) -> tuple[int, bytes] | None:
        """Return the status and the body of a reply; None if the connection is to end without one."""
        path = urlsplit(target).path.strip("/")
        with self._lock:
            self.requests.append(f"{method} {target}")
            fault = next((one for one in self.faults if one.method == method and one.path in path), None)
            if fault is not None:
                self.faults.remove(fault)
            if fault is None or fault.executes:
                status, document = self._executed(method, path, token, body)
        if fault is None:
            return status, _encoded(document)
        if fault.waits is not None:
            fault.waits.wait(WAIT_SECONDS)
        if fault.status is None:
            return None
        return fault.status, fault.body or _encoded(_error(fault.status, "Fault", fault.reason))

    def _executed(self, method: str, path: str, token: str | None, body: bytes) -> Reply:
        if self.token is not None and token != f"Bearer {self.token}":
            return 401, _error(401, "NotAuthorizedException", "no such token")
        try:
            return self._handle(method, path.split("/"), body)
        except tuple(STATUSES) as error:
            status = next(status for kind, status in STATUSES.items() if isinstance(error, kind))
            return status, _error(status, type(error).__name__, str(error))

    def _handle(self, method: str, parts: list[str], body: bytes) -> Reply:
        match method, parts:
            case "GET", ["v1", "config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "POST", ["v1", "namespaces"]:
                found = json.loads(body)
                self._tables.create_namespace(tuple(found["namespace"]))
                return 200, {"namespace": found["namespace"], "properties": {}}
            case "GET" | "HEAD", ["v1", "namespaces", name]:
                if not self._tables.namespace_exists(_namespace(name)):
                    raise NoSuchNamespaceError(f"Namespace does not exist: {name}")
                return 200, {"namespace": _namespace(name), "properties": {}}
            case "POST", ["v1", "namespaces", name, "tables"]:
                return 200, _document(self._create(_namespace(name), CreateTableRequest.model_validate_json(body)))
            case "GET" | "HEAD", ["v1", "namespaces", name, "tables", table]:
                return 200, _document(self._tables.load_table((*_namespace(name), unquote(table))))
            case "POST", ["v1", "namespaces", name, "tables", table]:
                request = CommitTableRequest.model_validate_json(body)
                found = self._tables.load_table((*_namespace(name), unquote(table)))
                made = self._tables.commit_table(found, request.requirements, request.updates)
                return 200, json.loads(made.model_dump_json(by_alias=True))
            case "DELETE", ["v1", "namespaces", name, "tables", table]:
                self._tables.drop_table((*_namespace(name), unquote(table)))
                return 204, None
        return 404, _error(404, "NoSuchEndpoint", "/".join(parts))

    def _create(self, namespace: tuple[str, ...], request: CreateTableRequest) -> Table:
        return self._tables.create_table(
            (*namespace, request.name),
            request.table_schema,
            location=self.assigned_location or request.location,
            partition_spec=request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            properties=request.properties,
        )


def _namespace(text: str) -> tuple[str, ...]:
    return tuple(unquote(text).split(SEPARATOR))


def _document(table: Table) -> Any:
    metadata = json.loads(table.metadata.model_dump_json(by_alias=True))
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _error(status: int, kind: str, message: str) -> Any:
    return {"error": {"message": message, "type": kind, "code": status}}


def _encoded(document: Any) -> bytes:
    return b"" if document is None else json.dumps(document).encode()


@contextmanager
def served(state: RestCatalogServer) -> Iterator[str]:
    """Serve a catalog on loopback; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two writes, and the second would wait 40 ms

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = state.reply(self.command, self.path, self.headers.get("Authorization"), body)
            if reply is None:
                self.close_connection = True
                return
            status, data = reply
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815 -- the base class's names

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # clients keep connections open

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
