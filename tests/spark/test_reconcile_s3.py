"""Reconcile of a bucket: its listing and its inventories in all formats agree with the notifications."""

import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.services.aws_server import AwsServer

from penstock import App, DeltaSink, ObjectSource
from penstock.app.context import PipelineTools
from penstock.app.reconcile import ReconcileReport, ReconcileRequest, reconcile
from penstock.app.reconcile_target import ReconcileTarget, target_in
from penstock.config import Settings
from penstock.errors import ConfigurationError, UsageError
from penstock.events import Bus
from penstock.ledger.records import BatchOutcome, Candidate, ObjectResult, OnChange, OriginalMessage
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import no_probe
from penstock.objects.notification import parse
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_listing import S3Listing, s3_spans
from penstock.storage.address import s3_address
from penstock.worker.shutdown import StopSignal

BUCKET, INVENTORIES, QUEUE = "landing", "inventories", "clicks-events"
FORMATS = ("CSV", "ORC", "Parquet")
NOW = ReconcileRequest(older_than_seconds=-5.0)  # moto's stamps are of this second
ODD_KEYS = (
    "in/../../etc/passwd",
    "in//srv/absolute",
    "in/a%252Fb",
    "in/a+b%2Bc",
    "in/a b+c",
    "in/'; DROP TABLE objects; --",
    "in/<script>",
    "in/Data.csv",
    "in/data.csv",
    "in/a",
    "in/a ",
    "in/😀",
    "in/😁",
    "in/日本/が",
    "in/日本/か\u3099",
    'in/"quoted", and a comma',
)
PLAIN_KEYS = tuple(f"in/2024/{number:03}.jsonl" for number in range(40))
NO_OBJECTS = {  # keys that are never announced, and why
    "in/folder/": "folder_marker",
    "in/.hidden/a": "hidden",
    "in/x/.b": "hidden",
    "in/...": "hidden",
    "in/made/_delta_log/0.json": "excluded",
    "in/made/part-0.parquet": "excluded",
    "in/clicks/data/0.parquet": "excluded",
    "in/clicks_quarantine/data/0.parquet": "excluded",
}


@dataclass
class Scene:
    """A bucket, and an app with a pipeline whose table is below its own source."""

    folder: Path
    server: AwsServer
    source: str = f"s3://{BUCKET}/in"
    table: str = f"s3://{BUCKET}/in/clicks"

    def __post_init__(self) -> None:
        self.s3 = self.server.client("s3")
        for bucket in (BUCKET, INVENTORIES):
            self.s3.create_bucket(Bucket=bucket)
        settings = Settings.model_construct(
            broker=f"sqlite:///{self.folder}/state/queue.db",
            ledger=f"sqlite:///{self.folder}/state/ledger.db",
            data_dir=f"{self.folder}/state",
            aws_endpoint_url=self.server.url,
            aws_region=self.server.aws.region,
        )
        self.app = App(settings=settings)
        source = ObjectSource(self.source, queue=QUEUE, schema="id long")
        self.app.pipeline("clicks", source=source, sink=DeltaSink(self.table))

    def keep_versions(self) -> None:
        self.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})

    def put(self, *keys: str, body: bytes = b'{"id": 1}\n') -> None:
        for key in keys:
            self.s3.put_object(Bucket=BUCKET, Key=key, Body=b"" if key.endswith("/") else body)

    def refs(self) -> Sequence[ObjectRef]:
        """Return the present objects, from the listing that the product uses everywhere."""
        excluded = [s3_address(f"s3://{BUCKET}/in/{own}") for own in ("clicks", "clicks_quarantine")]
        listing = S3Listing(s3_address(f"s3://{BUCKET}/in"), aws=self.server.aws, excluded=excluded)
        return [ref for chunk in listing.chunks() for ref in chunk]

    def process(self, refs: Sequence[ObjectRef]) -> None:
        self.app.ledger.ensure_pipeline("clicks")
        original_message = OriginalMessage(message_id="m", enqueued_at=1.0)
        candidates = [
            Candidate(
                object_id=ref.object_id,
                bucket=ref.bucket,
                key=ref.key_bytes,
                size_bytes=ref.size_bytes,
                uri=ref.uri,
                original_message=original_message,
            )
            for ref in refs
        ]
        self.app.ledger.claim("clicks", candidates, attempt_id="a", worker="w", lease_seconds=60.0)
        processed = [ObjectResult(object_id=ref.object_id, rows=1, lines_quarantined=0) for ref in refs]
        self.app.ledger.commit(BatchOutcome(pipeline="clicks", attempt_id="a", processed=processed))

    def reconcile(
        self, spark: SparkSession, request: ReconcileRequest = NOW, *, target: ReconcileTarget | None = None
    ) -> ReconcileReport:
        tools = PipelineTools(stop=StopSignal(), clock=SystemClock(), bus=Bus(), probe=no_probe)
        return reconcile(target or target_in(self.app, "clicks"), request, spark=spark, tools=tools)

    def announced(self) -> list[ObjectRef]:
        messages = self.app.broker.browse(QUEUE, messages_max=10_000)
        return [ref for message in messages for ref in parse(message.body, buckets_allowed=frozenset({BUCKET})).objects]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of an inventory: every version, and every delete marker."""
        found = self.s3.list_object_versions(Bucket=BUCKET)
        return [
            {
                "bucket": BUCKET,
                "key": entry["Key"],
                "version_id": entry["VersionId"] if entry["VersionId"] != "null" else None,
                "is_latest": entry["IsLatest"],
                "is_delete_marker": "ETag" not in entry,
                "size": entry.get("Size"),
                "last_modified_date": entry["LastModified"].astimezone(UTC),
                "e_tag": entry.get("ETag", "").strip('"') or None,
                "storage_class": entry.get("StorageClass"),
            }
            for entry in (*found.get("Versions", ()), *found.get("DeleteMarkers", ()))
        ]

    def close(self) -> None:
        self.app.close()


SCHEMA = pa.schema(
    [
        pa.field("bucket", pa.string()),
        pa.field("key", pa.string()),
        pa.field("version_id", pa.string()),
        pa.field("is_latest", pa.bool_()),
        pa.field("is_delete_marker", pa.bool_()),
        pa.field("size", pa.int64()),
        pa.field("last_modified_date", pa.timestamp("ms", tz="UTC")),
        pa.field("e_tag", pa.string()),
        pa.field("storage_class", pa.string()),
    ]
)
CSV_NAMES = (
    "Bucket",
    "Key",
    "VersionId",
    "IsLatest",
    "IsDeleteMarker",
    "Size",
    "LastModifiedDate",
    "ETag",
    "StorageClass",
)


def files_of(rows: Sequence[Mapping[str, Any]], form: str, names: Sequence[str]) -> bytes:
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA).select(names)
    sink = io.BytesIO()
    if form == "Parquet":
        pq.write_table(table, sink)
    elif form == "ORC":
        pyarrow.orc.write_table(table, sink)
    else:
        for row in table.to_pylist():
            cells = {**row, "key": quote_plus(row["key"], safe="/")}
            if row["last_modified_date"] is not None:
                cells["last_modified_date"] = row["last_modified_date"].strftime("%Y-%m-%dT%H:%M:%S.000Z")
            texts = (
                "" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell)
                for cell in cells.values()
            )
            sink.write((",".join(f'"{text}"' for text in texts) + "\n").encode())
        return gzip.compress(sink.getvalue())
    return sink.getvalue()


def schema_of(form: str, names: Sequence[str]) -> str:
    if form == "CSV":
        return ", ".join(name for name, ours in zip(CSV_NAMES, SCHEMA.names, strict=True) if ours in names)
    if form == "ORC":
        return f"struct<{','.join(f'{name}:string' for name in names)}>"
    return f"message s3.inventory {{ {' '.join(f'optional binary {name};' for name in names)} }}"


def manifest_of(form: str, keys: Sequence[str], names: Sequence[str], bucket: str = BUCKET) -> bytes:
    return json.dumps(
        {
            "sourceBucket": bucket,
            "destinationBucket": f"arn:aws:s3:::{INVENTORIES}",
            "creationTimestamp": str(int(datetime.now(UTC).timestamp() * 1_000)),
            "fileFormat": form,
            "fileSchema": schema_of(form, names),
            "files": [{"key": key, "size": 1} for key in keys],
        }
    ).encode()


def make_inventory(
    scene: Scene, form: str, where: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str] = SCHEMA.names
) -> str:
    """Write an inventory of two files to S3 or a folder, and return the manifest's address."""
    halves = [files_of(rows[: len(rows) // 2], form, names), files_of(rows[len(rows) // 2 :], form, names)]
    ending = "csv.gz" if form == "CSV" else form.lower()
    keys = [f"all/data/{number}.{ending}" for number in range(2)]
    manifest = manifest_of(form, keys, names)
    stored = {**dict(zip(keys, halves, strict=True)), "all/2024-01-01T01-00Z/manifest.json": manifest}
    for key, data in stored.items():
        if where == "s3":
            scene.s3.put_object(Bucket=INVENTORIES, Key=key, Body=data)
        else:
            path = scene.folder / "copy" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    root = f"s3://{INVENTORIES}" if where == "s3" else str(scene.folder / "copy")
    return f"{root}/all/2024-01-01T01-00Z/manifest.json"


def from_inventory(uri: str, **more: Any) -> ReconcileRequest:
    return ReconcileRequest(inventory=uri, older_than_seconds=-5.0, **more)


def ids(refs: Sequence[ObjectRef]) -> list[bytes]:
    return sorted(ref.object_id for ref in refs)


@pytest.fixture
def scene(tmp_path: Path, moto: AwsServer) -> Iterator[Scene]:
    made = Scene(tmp_path, moto)
    yield made
    made.close()


def lose_some(scene: Scene) -> Sequence[ObjectRef]:
    """Process two of three objects, and return the others."""
    refs = scene.refs()
    lost = refs[::3]
    scene.process([ref for ref in refs if ref not in lost])
    return lost


@pytest.mark.parametrize("versions", [False, True], ids=["plain", "versions"])
def test_a_listing_finds_exactly_the_lost_objects(
    scene: Scene, spark: SparkSession, versions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "penstock.pipeline.reconcile.existing.s3_spans",
        lambda address, aws, *, prefix, parts: s3_spans(address, aws, prefix=prefix, parts=5, whole_keys_max=1),
    )
    if versions:
        scene.keep_versions()
    scene.put("elsewhere/a", *PLAIN_KEYS, *ODD_KEYS, *NO_OBJECTS)
    if versions:
        scene.put(*PLAIN_KEYS[:5])
        scene.s3.delete_object(Bucket=BUCKET, Key=PLAIN_KEYS[39])
    lost = lose_some(scene)
    report = scene.reconcile(spark)
    assert ids(scene.announced()) == ids(lost)
    assert (report.missing, report.sent, report.source) == (len(lost), len(lost), f"s3://{BUCKET}/in")
    assert report.left_out == {reason: [*NO_OBJECTS.values()].count(reason) for reason in {*NO_OBJECTS.values()}}
    assert report.listed == len(PLAIN_KEYS) + len(ODD_KEYS) + len(NO_OBJECTS) - versions


@pytest.mark.parametrize(
    ("form", "where"),
    [
        *((form, "s3") for form in FORMATS),
        (FORMATS[0], "folder"),
        *(pytest.param(form, "folder", marks=pytest.mark.slow) for form in FORMATS[1:]),
    ],
)
def test_an_inventory_finds_exactly_the_lost_objects(scene: Scene, spark: SparkSession, form: str, where: str) -> None:
    scene.keep_versions()
    scene.put("elsewhere/a", *PLAIN_KEYS, *ODD_KEYS, *NO_OBJECTS)
    scene.put(*PLAIN_KEYS[:5], body=b"once more")
    scene.s3.delete_object(Bucket=BUCKET, Key=PLAIN_KEYS[39])
    lost = lose_some(scene)
    rows = scene.rows()
    report = scene.reconcile(spark, from_inventory(make_inventory(scene, form, where, [*rows, *rows[:20]])))
    assert ids(scene.announced()) == ids(lost)  # some are listed twice, and announced once
    assert (report.missing, report.problems) == (len(lost), ())
    assert report.left_out == {reason: [*NO_OBJECTS.values()].count(reason) for reason in {*NO_OBJECTS.values()}}


def test_overwritten_versions_are_checked_on_request(scene: Scene, spark: SparkSession) -> None:
    scene.keep_versions()
    scene.put("in/a", "in/b")
    scene.put("in/a", body=b"once more")
    scene.s3.delete_object(Bucket=BUCKET, Key="in/b")
    adding = replace(target_in(scene.app, "clicks"), change_rule=lambda: OnChange.ADD)
    uri = make_inventory(scene, "Parquet", "s3", scene.rows())
    assert scene.reconcile(spark, ReconcileRequest(older_than_seconds=-5.0, dry_run=True)).missing == 1
    for request in (
        ReconcileRequest(older_than_seconds=-5.0, all_versions=True),
        from_inventory(uri, all_versions=True),
    ):
        assert scene.reconcile(spark, request, target=adding).missing == 3
        assert len({ref.version_id for ref in scene.announced()}) == 3
        scene.app.broker.purge(QUEUE)


def test_an_inventory_without_version_ids_is_enough_for_an_unversioned_bucket(
    scene: Scene, spark: SparkSession
) -> None:
    scene.put(*PLAIN_KEYS)
    lost = lose_some(scene)
    names = [name for name in SCHEMA.names if name not in ("version_id", "is_latest", "is_delete_marker")]
    uri = make_inventory(scene, "CSV", "s3", scene.rows(), names)
    assert scene.reconcile(spark, from_inventory(uri)).missing == len(lost)
    assert ids(scene.announced()) == ids(lost)
    scene.keep_versions()  # now an ETag does not identify a version
    with pytest.raises(ConfigurationError, match=r"has no version ids.*versioning: Enabled"):
        scene.reconcile(spark, from_inventory(uri))


def test_archived_objects_are_not_announced(scene: Scene, spark: SparkSession) -> None:
    scene.put("in/a")
    scene.s3.put_object(Bucket=BUCKET, Key="in/cold", Body=b"x", StorageClass="GLACIER")
    uri = make_inventory(scene, "ORC", "s3", scene.rows())
    for request in (NOW, from_inventory(uri)):
        report = scene.reconcile(spark, request)
        assert (report.missing, report.left_out) == (1, {"archived": 1})


def test_a_key_that_no_notification_can_name_is_left_alone(
    tmp_path: Path, moto: AwsServer, spark: SparkSession
) -> None:
    scene = Scene(tmp_path, moto, source=f"s3://{BUCKET}", table=f"s3://{INVENTORIES}/clicks")
    scene.put("https://example.org/a", "a")
    report = scene.reconcile(spark)
    assert (report.missing, report.left_out) == (1, {"unnameable": 1})
    assert [ref.key for ref in scene.announced()] == ["a"]
    scene.close()


def test_a_row_that_cannot_be_read_is_reported(scene: Scene, spark: SparkSession) -> None:
    scene.put("in/a", "in/b")
    rows = scene.rows()
    rows[1]["size"] = None
    report = scene.reconcile(spark, from_inventory(make_inventory(scene, "CSV", "s3", rows)))
    assert report.missing == 1
    assert len(report.problems) == 1
    assert "in/b" in report.problems[0]


def test_an_inventory_of_another_bucket_is_refused(scene: Scene, spark: SparkSession) -> None:
    scene.s3.put_object(
        Bucket=INVENTORIES, Key="all/manifest.json", Body=manifest_of("CSV", [], SCHEMA.names, bucket="other")
    )
    with pytest.raises(UsageError, match="lists the bucket other"):
        scene.reconcile(spark, from_inventory(f"s3://{INVENTORIES}/all/manifest.json"))


def test_a_bucket_that_does_not_exist_is_reported_in_a_sentence(scene: Scene, spark: SparkSession) -> None:
    scene.s3.delete_bucket(Bucket=BUCKET)
    with pytest.raises(UsageError, match="cannot be listed"):
        scene.reconcile(spark)
