"""The whole chain from S3's notifications, through SQS and Spark, into a table in S3, and back as a DataFrame."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.services.aws_server import AwsServer
from tests.services.s3_scene import WAYS, Announced, Way

from penstock import App, DeltaSink, ObjectSource, Pipeline
from penstock.app.serving import serve
from penstock.config import Settings
from penstock.events import BatchCommitted, Event
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal

LAKE = "lake"
PATIENCE_SECONDS = 400.0
SCHEMA = "id long, day string"
ODD_KEYS = (
    "../../etc/passwd",
    "/srv/absolute",
    "in/a%252Fb",
    "in/a+b%2Bc",
    "in/Data.csv",
    "in/data.csv",
    "in/a",
    "in/a ",
    "in/日本/ガ.jsonl",
    "in//twice//",
)


class Scene:
    """Buckets, a queue with notifications from one of them, and an app with a pipeline between them."""

    def __init__(self, folder: Path, server: AwsServer, way: Way = "sqs") -> None:
        self.landing = Announced(server, way)
        self.landing.s3.create_bucket(Bucket=LAKE)
        self.table = f"s3://{LAKE}/clicks"
        self.settings = Settings.model_construct(
            broker="sqs://",
            ledger=f"sqlite:///{folder}/ledger.db",
            one_host=True,
            data_dir=str(folder / "state"),
            aws_endpoint_url=server.url,
            aws_region=server.aws.region,
        )
        self.folder = folder
        self.app = App(settings=self.settings)

    def pipeline(self, *, partition_by: Sequence[str] = ()) -> Pipeline:
        source = ObjectSource(f"s3://{self.landing.bucket}/", queue=self.landing.queue_arn, schema=SCHEMA)
        return self.app.pipeline("clicks", source=source, sink=DeltaSink(self.table, partition_by=partition_by))

    def put(self, key: str, *ids: int, junk: bytes = b"") -> None:
        lines = b"".join(json.dumps({"id": number, "day": f"d{number % 2}"}).encode() + b"\n" for number in ids)
        self.landing.put(key, lines + junk)

    def ingest(self, spark: SparkSession, *, queue: str | None = None, schema: str | None = SCHEMA) -> IngestReport:
        request = IngestRequest(
            source=f"s3://{self.landing.bucket}",
            table=self.table,
            format="jsonl",  # the names tell several
            schema=schema,
            state=str(self.folder / "ingest"),
            queue=queue,
            settings=Settings(
                aws_endpoint_url=self.settings.aws_endpoint_url, aws_region=self.settings.aws_region, one_host=True
            ),
        )
        return ingest(request, stop=StopSignal(), spark=spark)

    def waiting(self) -> int:
        stats = self.app.broker.stats(self.landing.queue_arn)
        return stats.visible + stats.in_flight + stats.delayed


@pytest.fixture
def scene(tmp_path: Path, moto: AwsServer) -> Iterator[Scene]:
    made = Scene(tmp_path, moto)
    yield made
    made.app.close()


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


@pytest.mark.parametrize("way", WAYS)
def test_objects_reach_the_table_by_every_notification_path(
    tmp_path: Path, moto: AwsServer, spark: SparkSession, way: Way
) -> None:
    if way == "eventbridge":
        pytest.skip("not applicable: moto leaves the object's ETag out of what it sends through EventBridge")
    scene = Scene(tmp_path, moto, way)
    clicks = scene.pipeline(partition_by=["day"])
    scene.put("in/a.jsonl", 1, 2)
    scene.put("in/b.jsonl", 3, junk=b"no json\n")
    report = clicks.run(spark)
    assert (report.objects_processed, report.rows_written, report.lines_quarantined) == (2, 3, 1)
    assert report.messages_left == 0
    assert ids(clicks.read(spark)) == [1, 2, 3]
    assert ids(clicks.read(spark).where("day = 'd1'")) == [1, 3]
    bad = clicks.quarantine.read(spark).collect()
    assert [(row["object"], bytes(row["raw"])) for row in bad] == [
        (f"s3://{scene.landing.bucket}/in/b.jsonl", b"no json")
    ]
    scene.app.close()


def test_a_worker_processes_each_version_once(scene: Scene, spark: SparkSession) -> None:
    clicks = scene.pipeline()
    committed, stop = threading.Semaphore(0), StopSignal()

    def hear(event: Event) -> None:
        if isinstance(event, BatchCommitted):
            committed.release()

    thread = threading.Thread(
        target=lambda: serve(scene.app, stop=stop, listeners=(hear,), resident=False, spark=spark), daemon=True
    )
    thread.start()
    try:
        for number in (1, 2):
            scene.put("in/a.jsonl", number)
            assert committed.acquire(timeout=PATIENCE_SECONDS)
    finally:
        stop.request()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert ids(clicks.read(spark)) == [2], "the second version replaced the first one's rows"
    assert scene.app.ledger.counts("clicks")[ObjectState.PROCESSED] == 2


def test_an_ingest_lists_odd_keys_and_a_second_one_finds_nothing_new(scene: Scene, spark: SparkSession) -> None:
    for number, key in enumerate(ODD_KEYS):
        scene.put(key, number)
    scene.put(".hidden/x", 99)
    scene.put("in/folder/")
    report = scene.ingest(spark)
    assert (report.objects_processed, report.rows_written) == (len(ODD_KEYS), len(ODD_KEYS))
    assert report.files_ignored == {"hidden": 1, "folder_marker": 1}
    again = scene.ingest(spark)
    assert (again.objects_skipped, again.rows_written) == (len(ODD_KEYS), 0)


def test_an_ingest_processes_the_announced_objects_and_empties_the_queue(scene: Scene, spark: SparkSession) -> None:
    scene.put("in/a.jsonl", 1, 2)
    scene.put("in/b.jsonl", 3)
    scene.landing.s3.delete_object(Bucket=scene.landing.bucket, Key="in/b.jsonl")
    report = scene.ingest(spark, queue=scene.landing.queue_arn, schema=None)
    assert (report.objects_processed, report.objects_gone, report.rows_written) == (1, 1, 2)
    assert report.schema == "id BIGINT, day STRING"
    assert scene.waiting() == 0
    again = scene.ingest(spark, queue=scene.landing.queue_arn)
    assert (again.objects_found, again.rows_written) == (0, 0)


def test_a_table_in_the_source_bucket_does_not_feed_on_itself(scene: Scene, spark: SparkSession) -> None:
    """The table's plans and log would be valid JSON lines if they were ingested."""
    scene.table = f"s3://{scene.landing.bucket}/tables/clicks"
    scene.put("in/a.jsonl", 1, 2, junk=b"no json\n")
    first = scene.ingest(spark, queue=scene.landing.queue_arn)
    assert (first.objects_processed, first.rows_written, first.lines_quarantined) == (1, 2, 1)
    assert scene.waiting() > 0, "publishing is not announced"
    second = scene.ingest(spark, queue=scene.landing.queue_arn)
    assert (second.objects_found, second.rows_written) == (0, 0)
    assert scene.waiting() == 0
    with closing(Ledger.open(f"sqlite:///{scene.folder}/ingest/ledger.db")) as ledger:
        counts = ledger.counts(scene.table)
    assert (counts[ObjectState.PROCESSED], sum(counts.values())) == (1, 1)


def test_objects_listed_by_one_ingest_are_not_reported_by_another(scene: Scene, spark: SparkSession) -> None:
    """A listing and a notification yield the same identity for a version."""
    scene.put("in/a.jsonl", 1)
    assert scene.ingest(spark).rows_written == 1
    by_queue = scene.ingest(spark, queue=scene.landing.queue_arn)
    assert by_queue.rows_written == 0
    assert scene.waiting() == 0
