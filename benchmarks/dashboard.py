"""Measure the dashboard on much data: the time of each page, and what viewers cost the broker.

    python -m benchmarks.dashboard [--objects 1000000] [--dead-letters 100000] [--queues 1000]
                                   [--requests 50] [--only sqlite|redis] [--viewers 50] [--readings 10]

Fills a ledger in SQLite, queues with a message each and the dead letters of one of them, and starts `penstock web` on
them. Each page is requested over one connection, one request after the other, while the server reads the status every
two seconds as for any viewer. On Redis, it also counts the commands between readings of the status, for one open page
and for many: each of them holds an event stream and fetches its page at each reading, as a browser does.
"""

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from starlette.routing import Route

from benchmarks.dashboard_seed import PIPELINES, seed_ledger
from benchmarks.dead_letters import DEAD, QUEUE, add_dead_letters, brokers
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState
from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing
from penstock.web.dashboard import routes

APP = """
from penstock import App

app = App.from_config(name="bench")

@app.handler("orders")
def bill(message):
    pass
"""
START_SECONDS_MAX, ANSWER_SECONDS_MAX = 60, 120
# A stream, and pages of what nothing here makes: an action, a plan, a worker.
NO_PAGES = frozenset({"/events", "/actions/show", "/dead/plan", "/objects/retry", "/worker"})
GOAL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of one page, in seconds, and its size."""

    address: str
    seconds: Sequence[float]
    bytes: int

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.seconds, n=20)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """One thing of each kind that a page shows."""

    message_id: str
    dead_letter_id: str
    object_address: str

    @property
    def queries(self) -> Mapping[str, Sequence[Mapping[str, object]]]:
        """The queries by path; a page that is not listed needs none."""
        first = next(iter(PIPELINES))
        return {
            "/queue": [{"name": QUEUE}],
            "/history.json": [{"queue": QUEUE}],
            "/messages": [{"queue": QUEUE}],
            "/message": [{"queue": QUEUE, "id": self.message_id}],
            "/message/body": [{"queue": QUEUE, "id": self.message_id}],
            "/dead": [{}, {"queue": QUEUE}, {"error": "KeyError"}],
            "/dead/message": [{"queue": DEAD, "id": self.dead_letter_id}],
            "/objects": [{}, {"state": "dead"}, {"pipeline": first}],
            "/object": [{"address": self.object_address}],
            "/batches": [{}, {"pipeline": first}],
            "/batch": [{"pipeline": first, "seq": 2}],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--dead-letters", type=int, default=100_000)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--readings", type=int, default=10)
    parser.add_argument("--only", choices=("sqlite", "redis"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-dashboard-") as name:
        folder = Path(name)
        ledger = f"sqlite:///{folder / 'ledger.db'}"
        began_at = time.monotonic()
        seed_ledger(ledger, given.objects)
        print(f"{given.objects:,} objects in the ledger after {time.monotonic() - began_at:.0f} s", flush=True)
        for kind in ("sqlite", "redis"):
            if given.only in (None, kind):
                _measure(kind, folder, ledger, given)


def _measure(kind: str, folder: Path, ledger: str, given: argparse.Namespace) -> None:
    with brokers(kind, folder) as (broker, address):
        data = _fill(broker, ledger, queues=given.queues, letters=given.dead_letters)
        print(f"\n{kind}: {given.queues:,} queues, {given.dead_letters:,} dead letters", flush=True)
        with _served(folder, broker=address, ledger=ledger) as base:
            _print_times([_times(base, each, given.requests) for each in _addresses(data)])
            if kind == "redis":
                _print_viewers(base, lambda: _commands(address), viewers=given.viewers, readings=given.readings)


def _fill(broker: Broker, ledger: str, *, queues: int, letters: int) -> Data:
    add_dead_letters(broker, letters)
    for number in range(queues - 1):
        broker.send(f"queue-{number:04}", [Outgoing(body=b'{"number": %d}' % number)])
    with closing(Ledger.open(ledger)) as opened:
        (row,) = opened.objects(next(iter(PIPELINES)), state=ObjectState.PROCESSED, limit=1)
    (message,) = broker.browse(QUEUE, messages_max=1)
    (dead_letter,) = broker.browse(DEAD, messages_max=1)
    return Data(message_id=message.id, dead_letter_id=dead_letter.id, object_address=row.uri)


@contextmanager
def _served(folder: Path, *, broker: str, ledger: str) -> Iterator[str]:
    """Run `penstock web` and yield its address, as HOST:PORT."""
    (folder / "bench.py").write_text(APP)
    settings = {"broker": broker, "ledger": ledger}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
    (folder / "penstock.toml").write_text("".join([*lines, "one_host = true\n"]))
    command = [sys.executable, "-m", "penstock", "web", "bench:app", "--address", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            described = "".join(iter(server.stdout.readline, "}\n")) + "}"
            yield urlsplit(json.loads(described)["url"]).netloc
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(START_SECONDS_MAX)


def _addresses(data: Data) -> Iterator[str]:
    for route in routes():
        if not isinstance(route, Route) or "GET" not in (route.methods or ()) or route.path in NO_PAGES:
            continue
        for query in data.queries.get(route.path, [{}]):
            yield f"{route.path}?{urlencode(query)}" if query else route.path


def _times(base: str, address: str, requests: int) -> Times:
    """Request a page often. The first request does not count: it may wait for the first reading."""
    with closing(http.client.HTTPConnection(base, timeout=ANSWER_SECONDS_MAX)) as client:
        size, seconds = len(_answer(client, address)), list[float]()
        for _ in range(requests):
            began_at = time.perf_counter()
            _answer(client, address)
            seconds.append(time.perf_counter() - began_at)
    return Times(address=address, seconds=seconds, bytes=size)


def _answer(client: http.client.HTTPConnection, address: str) -> bytes:
    client.request("GET", address)
    answer = client.getresponse()
    content = answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise SystemExit(f"{address}: status {answer.status}\n{content.decode()[-2_000:]}")
    return content


def _print_times(times: Sequence[Times]) -> None:
    print("| page | p50 | p95 | longest | bytes |\n|---|---|---|---|---|")
    for one in times:
        half, most = statistics.median(one.seconds), max(one.seconds)
        late = " **over**" if one.p95 > GOAL_SECONDS else ""
        cells = (f"{value * 1_000:,.0f} ms" for value in (half, one.p95, most))
        print(f"| `{one.address[:70]}` | {' | '.join(cells)}{late} | {one.bytes:,} |", flush=True)


def _print_viewers(base: str, commands: Callable[[], int], *, viewers: int, readings: int) -> None:
    for count in (1, viewers):
        used = _costs(base, commands, viewers=count, readings=readings)
        half = statistics.median(used)
        print(f"viewers: {count}; commands per reading: {half:,.0f}, in {readings} readings {sum(used):,}", flush=True)


def _costs(base: str, commands: Callable[[], int], *, viewers: int, readings: int) -> Sequence[int]:
    """Return the broker's commands of each of these readings of the status while that many people look."""
    with ExitStack() as leaving:
        everyone = [leaving.enter_context(_Viewer(base)) for _ in range(viewers)]
        for each in everyone:
            each.opened.wait(ANSWER_SECONDS_MAX)
        everyone[-1].next_reading()
        totals = [commands()]
        for _ in range(readings):
            everyone[-1].next_reading()
            totals.append(commands())
    return [after - before for before, after in pairwise(totals)]


class _Viewer:
    """An open page: a thread that holds the event stream and fetches the page at each event."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._changed = threading.Semaphore(0)
        self._left = threading.Event()
        self.opened = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "_Viewer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join(ANSWER_SECONDS_MAX)

    def next_reading(self) -> None:
        """Wait until this page learns of the next reading."""
        assert self._changed.acquire(timeout=ANSWER_SECONDS_MAX)

    def _run(self) -> None:
        with closing(http.client.HTTPConnection(self._base, timeout=ANSWER_SECONDS_MAX)) as stream:
            stream.request("GET", "/events")
            events = stream.getresponse()
            self.opened.set()
            while not self._left.is_set():
                if events.readline().startswith(b"event: changed"):
                    self._changed.release()
                    with closing(http.client.HTTPConnection(self._base, timeout=ANSWER_SECONDS_MAX)) as client:
                        _answer(client, "/")


def _commands(address: str) -> int:
    """Return how many commands a Redis server has executed, without our own."""
    import redis

    with closing(redis.Redis.from_url(address)) as client:
        stats = client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_info", "cmdstat_client|setinfo"))


if __name__ == "__main__":
    main()
