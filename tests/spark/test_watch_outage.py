"""`ingest --watch --queue` while its source is unavailable: the queue is paused, and SQS counts no receives."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.services.aws_server import AwsServer

from penstock.config import Settings
from penstock.events import BatchCommitted, Event, MessagesReceived, StoreAvailable, StoreUnavailable
from penstock.handlers import outage
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import announce
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal

PATIENCE_SECONDS = 400.0
PINGS = 15  # failed ones: if each were a receive, every message would be dead-lettered
QUEUE = "landed"


class Recorder:
    """The events of an ingest, and the number of failed requests to its source."""

    def __init__(self) -> None:
        self.events: list[Event] = []  # written under the condition, like the next one
        self.failed_pings = 0
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def ping_failed(self) -> None:
        with self._changed:
            self.failed_pings += 1
            self._changed.notify_all()

    def until(self, condition: Callable[[], bool], description: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_SECONDS), f"never came true: {description}"

    def until_count(self, kind: type[Event], count: int = 1) -> None:
        self.until(lambda: sum(isinstance(one, kind) for one in self.events) >= count, f"{count} {kind.__name__}")

    @property
    def receives(self) -> Counter[str]:
        return Counter(id for one in self.events if isinstance(one, MessagesReceived) for id in one.message_ids)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder, record_unavailable = Recorder(), outage.OutageWatch._record_unavailable

    def record_and_count(self: outage.OutageWatch, error: str, *, by_request: bool) -> None:
        record_unavailable(self, error, by_request=by_request)
        if not by_request:
            recorder.ping_failed()

    monkeypatch.setattr(outage.OutageWatch, "_record_unavailable", record_and_count)
    for name, seconds in {
        "CHECK_SECONDS": 0.1,
        "PAUSE_SECONDS_MIN": 0.05,
        "PAUSE_SECONDS_MAX": 0.2,
        "COUNTED_RELEASE_SECONDS": 1.0,
    }.items():
        monkeypatch.setattr(outage, name, seconds)
    return recorder


def test_a_watching_ingest_receives_nothing_while_its_source_is_unavailable(
    tmp_path: Path, spark: SparkSession, moto: AwsServer, recorder: Recorder
) -> None:
    source, table, stop = tmp_path / "in", tmp_path / "t", StopSignal()
    source.mkdir()
    sqs = moto.client("sqs")
    url = sqs.create_queue(QueueName=QUEUE)["QueueUrl"]

    def put(number: int) -> None:
        path = source / f"{number}.jsonl"
        path.write_text(json.dumps({"id": number}))
        bodies.append(announce(LocalStore(source).describe(path)).decode())

    bodies: list[str] = []
    request = IngestRequest(
        source=str(source),
        table=str(table),
        schema="id long",
        watch=True,
        queue=QUEUE,
        settings=Settings(aws_endpoint_url=moto.url, aws_region=moto.aws.region, one_host=True),
    )
    thread = threading.Thread(
        target=lambda: ingest(request, stop=stop, spark=spark, listeners=(recorder,)), daemon=True
    )
    for number in range(3):
        put(number)
    sqs.send_message(QueueUrl=url, MessageBody=bodies[0])
    thread.start()
    try:
        recorder.until_count(BatchCommitted)
        source.rename(tmp_path / "record_unavailable")
        recorder.until_count(StoreUnavailable)
        for body in bodies[1:]:
            sqs.send_message(QueueUrl=url, MessageBody=body)
        pings_before = recorder.failed_pings
        recorder.until(lambda: recorder.failed_pings >= pings_before + PINGS, "pings of the source fail")
        (tmp_path / "record_unavailable").rename(source)
        recorder.until_count(StoreAvailable)
        recorder.until(
            lambda: sum(one.rows for one in recorder.events if isinstance(one, BatchCommitted)) == 3, "all rows"
        )
    finally:
        stop.request()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert sorted(DeltaTable(str(table)).to_pyarrow_table(columns=["id"])["id"].to_pylist()) == [0, 1, 2]
    assert max(recorder.receives.values()) <= 2, "one by a poll that was under way, and the successful one"
