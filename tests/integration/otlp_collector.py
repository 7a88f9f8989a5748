"""A collector on loopback that accepts OTLP over HTTP and keeps what it receives."""

import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Keeps spans and metrics. Thread-safe."""

    def __init__(self) -> None:
        self._received = threading.Condition(threading.RLock())
        self._traces: list[ExportTraceServiceRequest] = []  # this and the next: under the condition
        self._metrics: list[ExportMetricsServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._receive(self.path, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> Sequence[Any]:
        """Return all spans so far, as (resource, span)."""
        with self._received:
            return [
                (values(one.resource.attributes), span)
                for request in self._traces
                for one in request.resource_spans
                for scope in one.scope_spans
                for span in scope.spans
            ]

    def metrics(self) -> Mapping[str, Any]:
        """Return the newest metric of each name."""
        with self._received:
            return {
                metric.name: metric
                for request in self._metrics
                for one in request.resource_metrics
                for scope in one.scope_metrics
                for metric in scope.metrics
            }

    def wait_for(self, condition: Callable[[], bool], *, seconds: float) -> bool:
        """Wait until the condition is true, checked whenever data arrives."""
        with self._received:
            return self._received.wait_for(condition, seconds)

    def _receive(self, path: str, body: bytes) -> None:
        with self._received:
            if path == "/v1/traces":
                self._traces.append(ExportTraceServiceRequest.FromString(body))
            elif path == "/v1/metrics":
                self._metrics.append(ExportMetricsServiceRequest.FromString(body))
            self._received.notify_all()


def values(attributes: Any) -> dict[str, Any]:
    """Return OTLP attributes as a dictionary."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
