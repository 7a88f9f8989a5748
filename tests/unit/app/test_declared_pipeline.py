"""Declarations of pipelines: checked at once, and loading no heavy library."""

import subprocess
import sys
from typing import Any

import pytest

from penstock import App, DeltaSink, Handlers, ObjectSource, Pipeline, PublishedBatch, Queue
from penstock.errors import PenstockError, UsageError

DECLARING = """
import sys
from penstock import App, DeltaSink, Handlers, ObjectSource, PublishedBatch
app = App()
clicks = app.pipeline(
    "clicks",
    source=ObjectSource("landing/clicks/", queue="clicks-events", format="jsonl", schema="id long"),
    transform=lambda frame: frame,
    sink=DeltaSink("lake/clicks", partition_by=["day"]),
    max_batch_objects=5_000, max_batch_bytes="8 GiB", max_wait="30 s", max_attempts=4, max_quarantine_ratio=0.5,
)

@app.handler(clicks.published)
def refresh(batch: PublishedBatch) -> None: ...

heavy = {"pyspark", "pyarrow", "sqlalchemy", "deltalake", "numpy", "pandas"}
print("loaded:", *sorted(heavy & set(sys.modules)))
"""

SOURCE = ObjectSource("landing", queue="clicks-events", schema="id long")
SINK = DeltaSink("lake/clicks")


def declare(group: Handlers, **options: Any) -> Pipeline:
    return group.pipeline("clicks", **{"source": SOURCE, "sink": SINK, **options})


def test_a_declaration_loads_no_heavy_library() -> None:
    ran = subprocess.run([sys.executable, "-c", DECLARING], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "loaded:"


def test_sizes_and_durations_become_numbers() -> None:
    declaration = declare(App(), max_batch_bytes="8 GiB", max_wait="1 min").declaration
    assert (declaration.max_batch_bytes, declaration.max_wait_seconds) == (8 * 1024**3, 60.0)


def test_a_pipeline_has_one_queue_for_its_published_batches() -> None:
    clicks = declare(App())
    assert isinstance(clicks.published, Queue)
    assert (clicks.published.name, clicks.published.model) == ("clicks-published", PublishedBatch)
    assert clicks.published is clicks.published


@pytest.mark.parametrize(
    ("declare_invalid", "message"),
    [
        (lambda: ObjectSource("hdfs://landing/", queue="q", schema="id long"), "neither a local folder nor s3://"),
        (lambda: ObjectSource("s3:///landing", queue="q", schema="id long"), "not an S3 address"),
        (lambda: ObjectSource("s3//landing", queue="q", schema="id long"), "neither a local folder nor s3://"),
        (lambda: DeltaSink("s3:/lake/clicks"), "neither a local folder nor s3://"),
        (lambda: DeltaSink("hdfs://lake/clicks"), "neither a local folder nor s3://"),
        (lambda: DeltaSink("s3://"), "not an S3 address"),
        (lambda: ObjectSource("", queue="q", schema="id long"), "no address"),
        (lambda: ObjectSource("in", queue="", schema="id long"), "no queue"),
        (lambda: ObjectSource("in", queue="q"), "no schema"),
        (lambda: ObjectSource("in", queue="q", schema="id long", delimiter=";"), "only csv has delimiter"),
        (lambda: DeltaSink("t", partition_by="day"), "list of columns"),
        (lambda: DeltaSink("t", partition_by=["day", "day"]), "more than once"),
        (lambda: DeltaSink("t", order_by="id"), "write a list of columns"),
        (lambda: DeltaSink("t", order_by=["id", "id"]), "ordered by id more than once"),
        (lambda: DeltaSink("t", partition_by=["day"], order_by=["id", "day"]), "is partitioned by day"),
        (lambda: declare(App(), max_batch_bytes="lots"), "not a size"),
        (lambda: declare(App(), max_wait="soon"), "not a duration"),
        (lambda: declare(App(), max_batch_objects=0), "max_batch_objects=0"),
        (lambda: declare(App(), max_attempts=101), "max_attempts=101"),
        (lambda: declare(App(), max_quarantine_ratio=2), "max_quarantine_ratio=2"),
        (lambda: declare(App(), transform="clean"), "not a function"),
        (lambda: declare(App(), sink="lake"), "DeltaSink"),
        (lambda: App().pipeline("a b", source=SOURCE, sink=SINK), "'a b'"),
    ],
)
def test_an_invalid_declaration_is_refused_at_once(declare_invalid: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        declare_invalid()


def test_a_queue_of_a_pipeline_accepts_no_handler() -> None:
    app = App()
    declare(app)
    with pytest.raises(UsageError, match="one queue has one handler"):
        app.handler("clicks-events")(lambda body: None)


def test_a_groups_pipeline_runs_only_if_exactly_one_app_includes_it() -> None:
    group = Handlers()
    clicks = declare(group)
    with pytest.raises(PenstockError, match="no App includes its group"):
        clicks.run()
    first, second = App(), App()
    first.include(group)
    assert first.pipelines == (clicks,)
    second.include(group)
    with pytest.raises(PenstockError, match="2 apps include it"):
        clicks.run()
