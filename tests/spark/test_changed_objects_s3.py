"""Objects in S3 that change, with and without versions: late messages, objects that change back, and deleted ones."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.services.aws_server import AwsServer

from penstock import App, DeltaSink, IcebergSink, ObjectSource, Pipeline
from penstock.app.context import PipelineTools
from penstock.app.pipelines.declaration import Change
from penstock.app.pipelines.running import RunReport
from penstock.app.reconcile import ReconcileRequest, reconcile
from penstock.app.reconcile_target import target_in
from penstock.config import Settings
from penstock.events import Bus
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import no_probe
from penstock.objects.notification import announce
from penstock.objects.reference import ObjectRef
from penstock.worker.shutdown import StopSignal

BUCKET, LAKE, KEY, QUEUE = "landing", "lake", "in/a.jsonl", "clicks-events"
FUTURE_SECONDS = -60.0  # a margin: the server's times are whole seconds


class Scene:
    """A bucket with one object, and an app with a pipeline that reads it. Messages are sent by the test."""

    def __init__(
        self,
        folder: Path,
        server: AwsServer,
        spark: SparkSession,
        *,
        sink: Any,
        is_versioned: bool,
        on_change: Change | None = None,
    ) -> None:
        self.s3 = server.client("s3")
        for bucket in (BUCKET, LAKE):
            self.s3.create_bucket(Bucket=bucket)
        if is_versioned:
            self.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        settings = Settings.model_construct(
            broker=f"sqlite:///{folder}/state/queue.db",
            ledger=f"sqlite:///{folder}/state/ledger.db",
            data_dir=f"{folder}/state",
            aws_endpoint_url=server.url,
            aws_region=server.aws.region,
        )
        self.app = App(settings=settings)
        source = ObjectSource(f"s3://{BUCKET}/in", queue=QUEUE, schema="id long", on_change=on_change)
        self.clicks: Pipeline = self.app.pipeline("clicks", source=source, sink=sink(f"s3://{LAKE}/clicks"))
        self._spark = spark

    def put(self, *ids: int) -> ObjectRef:
        """Store a version, and return the reference that its notification has."""
        body = "".join(f'{{"id": {number}}}\n' for number in ids).encode()
        stored = self.s3.put_object(Bucket=BUCKET, Key=KEY, Body=body)
        return ObjectRef(
            bucket=BUCKET,
            key=KEY,
            size_bytes=len(body),
            etag=stored["ETag"].strip('"'),
            version_id=stored.get("VersionId"),
        )

    def run(self, *announced: ObjectRef) -> RunReport:
        """Process these messages, and what waits."""
        self.app.broker.send(QUEUE, [Outgoing(body=announce(ref)) for ref in announced])
        report = self.clicks.run(self._spark)
        assert report.messages_left == 0
        return report

    def reconcile(self) -> int:
        """Return the number of objects that a reconcile enqueues."""
        tools = PipelineTools(stop=StopSignal(), clock=SystemClock(), bus=Bus(), probe=no_probe)
        request = ReconcileRequest(older_than_seconds=FUTURE_SECONDS)
        return reconcile(target_in(self.app, "clicks"), request, spark=self._spark, tools=tools).sent

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.clicks.read(self._spark).select("id").collect())


@pytest.fixture
def is_versioned() -> bool:
    return True


@pytest.fixture
def sink() -> Any:
    return DeltaSink


@pytest.fixture
def scene(tmp_path: Path, moto: AwsServer, spark: SparkSession, sink: Any, is_versioned: bool) -> Iterator[Scene]:
    made = Scene(tmp_path, moto, spark, sink=sink, is_versioned=is_versioned)
    with closing(made.app):
        yield made


@pytest.mark.parametrize("is_versioned", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_of_an_object_that_grew_only_the_appended_lines_are_read(
    tmp_path: Path, moto: AwsServer, spark: SparkSession, is_versioned: bool
) -> None:
    scene = Scene(tmp_path, moto, spark, sink=DeltaSink, is_versioned=is_versioned, on_change="tail")
    with closing(scene.app):
        first = scene.put(1, 2)
        scene.run(first)
        grown = scene.run(scene.put(1, 2, 3, 4), first)
        assert (grown.grown_objects, grown.appended_rows, grown.replaced_objects) == (1, 2, 0)
        assert (grown.rows_written, scene.ids()) == (2, [1, 2, 3, 4])
        late, current = scene.put(1, 2, 3, 4, 5), scene.put(9, 2, 3, 4, 5, 6)
        corrected = scene.run(current, late)
        assert (corrected.grown_objects, corrected.replaced_rows, corrected.objects_superseded) == (0, 4, 1)
        assert scene.ids() == [2, 3, 4, 5, 6, 9]


@pytest.mark.parametrize(
    ("sink", "is_versioned"),
    [
        pytest.param(DeltaSink, True, id="delta-versions"),
        pytest.param(DeltaSink, False, id="delta", marks=pytest.mark.slow),
        pytest.param(IcebergSink, True, id="iceberg-versions", marks=pytest.mark.slow),
        pytest.param(IcebergSink, False, id="iceberg", marks=pytest.mark.slow),
    ],
)
def test_the_table_shows_the_current_version_whatever_the_order_of_messages(scene: Scene, is_versioned: bool) -> None:
    first = scene.put(1, 2)
    assert scene.run(first).replaced_objects == 0
    late, current = scene.put(3), scene.put(4, 5, 6)

    report = scene.run(current, late)
    assert (report.objects_processed, report.objects_superseded) == (1, 1)
    assert (report.replaced_objects, report.replaced_rows) == (1, 2)
    assert scene.ids() == [4, 5, 6]

    report = scene.run(first, late)  # once more, as queues deliver
    assert (report.objects_processed, report.replaced_objects) == (0, 0)
    assert scene.ids() == [4, 5, 6]

    if is_versioned:  # the first version is the current one again, and no message says so
        for ref in (late, current):
            scene.s3.delete_object(Bucket=BUCKET, Key=KEY, VersionId=ref.version_id)
        assert scene.reconcile() == 1
        report = scene.run()
    else:
        assert scene.put(1, 2) == first
        report = scene.run(first)
    assert (report.objects_processed, report.replaced_objects, report.replaced_rows) == (1, 1, 3)
    assert scene.ids() == [1, 2]
    assert scene.reconcile() == 0

    scene.s3.delete_object(Bucket=BUCKET, Key=KEY)
    report = scene.run(current)
    assert (report.objects_processed, report.objects_gone) == (0, 1)
    assert scene.ids() == [1, 2], "a deleted object keeps its rows"
