"""Measure the cost of traces for senders and for workers with empty handlers: no traces, all traces, 1 % of traces.

    python -m benchmarks.traces [--rounds N] [--messages N]

The queue is in memory, so that nothing else takes time; spans are exported in the SDK's batches and discarded. Each run
has its own process, and the kinds alternate. The figures are medians of the rounds: CPU microseconds per message, which
depend less on the load of the machine than messages per second.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from penstock import App, Queue
from penstock.app.serving import serve
from penstock.app.tracing import open_tracing
from penstock.config import Settings
from penstock.worker.shutdown import StopSignal

SHARES = {"off": None, "all": 1.0, "one in a hundred": 0.01}
BODY = b"{}"
WAITING_MAX = 1 << 20  # spans, so that none is dropped unmeasured


class Nowhere(SpanExporter):
    """An exporter that discards all spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002 - the SDK's
        return SpanExportResult.SUCCESS


def measured(share: float | None, messages: int) -> dict[str, float]:
    """Return this process's microseconds of CPU for a message sent alone, sent with others, and handled."""
    if share is not None:
        provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=WAITING_MAX))
        trace.set_tracer_provider(provider)
    settings = Settings(broker="memory://", tracing_enabled=share is not None)
    app, done = App(settings=settings), [0]

    @app.handler(Queue("orders"))
    def take(_: object) -> None:
        done[0] += 1

    began = time.process_time()
    for _ in range(messages // 2):
        app.send("orders", BODY)
    singly = time.process_time()
    app.send_many("orders", [BODY] * (messages // 2))
    together = time.process_time()
    tracing = open_tracing(settings, worker="w")
    listeners = () if tracing is None else (tracing.listener,)
    serve(app, stop=StopSignal(), until=lambda: done[0] >= messages // 2 * 2, resident=False, listeners=listeners)
    worked = time.process_time()
    return {
        "sent alone": (singly - began) / messages * 2e6,
        "sent with others": (together - singly) / messages * 2e6,
        "worked on": (worked - together) / messages * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--kind", choices=SHARES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kind is not None:
        print(json.dumps(measured(SHARES[given.kind], given.messages)))
        return
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in SHARES}
    for _ in range(given.rounds):
        for kind, found in runs.items():
            command = [sys.executable, "-m", "benchmarks.traces", "--kind", kind, "--messages", str(given.messages)]
            done = subprocess.run(command, env=os.environ, stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout))
    for kind, found in runs.items():
        figures = ", ".join(f"{name} {median(run[name] for run in found):,.0f} us" for name in found[0])
        print(f"traces {kind}: {figures}")


if __name__ == "__main__":
    main()
