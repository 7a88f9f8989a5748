"""A Unity Catalog on loopback, as far as tables are registered in it.

A real server needs a JVM package from Maven. This one keeps the documented rules of the REST interface: required
fields, 404 for a missing table or schema, 409 for one that exists, tokens.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote


@dataclass
class UnityStub:
    """The tables of a catalog main with a schema web. Requests are handled one at a time."""

    token: str = "secret-token"
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    redirect_to: str | None = None

    def answer(self, method: str, path: str, token: str | None, body: Any) -> tuple[int, Mapping[str, Any]]:
        self.requests.append(method)
        if token != f"Bearer {self.token}":
            return 401, {"message": "no"}
        if method == "GET":
            name = unquote(path.rsplit("/", 1)[1])
            return (200, self.tables[name]) if name in self.tables else (404, {"message": f"{name} does not exist"})
        required = {"name", "catalog_name", "schema_name", "table_type", "data_source_format", "columns"}
        if missing := required - set(body):
            return 400, {"message": f"missing: {sorted(missing)}"}
        if (body["catalog_name"], body["schema_name"]) != ("main", "web"):
            return 404, {"message": f"Schema not found:\n {body['catalog_name']}.{body['schema_name']}"}
        name = f"main.web.{body['name']}"
        if name in self.tables:
            return 409, {"message": "Table already exists"}
        self.tables[name] = body
        return 200, body


@contextmanager
def served(stub: UnityStub) -> Iterator[str]:
    """Serve a stub on loopback; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: Any) -> None:
            code, document = stub.answer(self.command, self.path, self.headers.get("Authorization"), body)
            data = json.dumps(document).encode()
            self.send_response(302 if stub.redirect_to else code)
            if stub.redirect_to:
                self.send_header("Location", stub.redirect_to)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
