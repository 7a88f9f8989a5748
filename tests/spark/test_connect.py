"""Spark Connect, end to end: a real server whose workers' Python lacks Penstock, and clients as separate processes.

A process that has used classic Spark cannot use Spark Connect, so nothing here opens a session in the test's process.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.chaos.format_objects import FORMATS, check_read_once_from_s3
from tests.chaos.s3_case import S3Case
from tests.services.aws_server import NO_ACCOUNT, REGION, AwsServer
from tests.services.bare_python import bare_python
from tests.services.connect_server import ConnectServer
from tests.services.one_session import OneSession
from tests.services.ports import free_port

pytestmark = pytest.mark.timeout(900)

PATIENCE_SECONDS = 400.0
STOP_TIMEOUT_SECONDS = 20.0
LATE_SECONDS = 60.0  # allowance for a busy machine
PARTITIONS = 70  # more than the frames of a union
PACKAGES = ("boto3", "grpcio", "grpcio-status", "numpy", "obstore", "pandas", "pyarrow", "zstandard")

TRANSFORMS = """
import threading
import time
from pathlib import Path

from pyspark.sql import functions as F

FOLDER = Path(__file__).parent


def doubled(frame):
    def twice(number):
        import time
        time.sleep(0.03)  # the run must outlast a poll of the progress
        return number * 2

    return frame.withColumn("twice", F.udf(twice, "long")("id"))


def failing(frame):
    def boom(number):
        raise ValueError(f"no {number}")  # line 22

    return frame.withColumn("twice", F.udf(boom, "long")("id"))


def unplannable(frame):
    return frame.select("no_such_column")


both = threading.Barrier(2)


def by_view(frame):
    frame.createOrReplaceTempView("batch")
    both.wait(120)  # until the transform of the other batch has made its view, too
    return frame.sparkSession.sql("SELECT * FROM batch")


def held(frame):
    gate, at_gate = FOLDER / "gate", FOLDER / "at-gate"
    at_gate.mkdir(exist_ok=True)

    def wait(batches):
        import time
        for batch in batches:
            for uri in set(batch.column("_object").to_pylist()):
                (at_gate / uri.rpartition("/")[2]).touch()
            while gate.exists():
                time.sleep(0.02)  # between two looks at a file that the test removes
            yield batch

    return frame.mapInArrow(wait, frame.schema)
"""

GIVEN = """
import sys

from pyspark.sql import SparkSession
from penstock import App, DeltaSink, ObjectSource
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.spark.session import runtime_of
from penstock.worker.shutdown import StopSignal

theirs = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
theirs.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
theirs.range(3).createOrReplaceTempView("theirs")
before = dict(theirs.conf.getAll)
report = ingest(IngestRequest(source="in", table="again"), stop=StopSignal(), spark=theirs)
print("rows", report.rows_written)

app = App()
source = ObjectSource("in", queue="q", schema="id long, day string")
clicks = app.pipeline("clicks", source=source, sink=DeltaSink("lake", partition_by=["day"]))
print("sent", app.announce("q", "in"))
print("run", clicks.run(theirs).rows_written)

frame = clicks.read(theirs)
print("read", frame.count(), frame.agg({"id": "sum"}).collect()[0][0])
print("day 7", sorted(row.id for row in frame.where("day = 'd 7%+é'").collect()))

assert dict(theirs.conf.getAll) == before, "the settings changed"
assert theirs.table("theirs").count() == 3
print("whole")

fresh = SparkSession.builder.remote(sys.argv[1]).create()  # has sent no request yet
print("fresh", runtime_of(fresh).sibling().range(3).count())
fresh.stop()
theirs.stop()
"""


OWN = """
import os, sys

from penstock.pipeline.spark import connect

before = dict(os.environ)
first, second = (connect.open_session(sys.argv[1], {}) for _ in range(2))
connect.end_session(first, seconds=10.0)
print("rows", second.range(3).count())
connect.end_session(second, seconds=10.0)
assert dict(os.environ) == before, "the environment changed"

from pyspark.sql import SparkSession

theirs = SparkSession.builder.remote(sys.argv[1]).create()
before = dict(os.environ)
connect.end_session(connect.open_session(sys.argv[1], {}), seconds=10.0)
assert dict(os.environ) == before, "the environment changed"
print("rows", theirs.range(4).count())
theirs.stop()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    folder = tmp_path_factory.mktemp("connect")
    python = bare_python(folder / "bare", PACKAGES)
    running = ConnectServer(folder=folder / "server", python=python, environment=NO_ACCOUNT)
    yield running.start()
    running.close()


def day(number: int) -> str:
    return f"d {number}%+é"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with transforms, and with three files: 140 rows of 70 days, and a line that is no JSON."""
    (tmp_path / "transforms.py").write_text(TRANSFORMS)
    rows = [json.dumps({"id": number, "day": day(number % PARTITIONS)}) for number in range(2 * PARTITIONS)]
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text("\n".join([*rows[:50], "not json", *rows[50:90]]) + "\n")
    (source / "b b.jsonl").write_text("\n".join(rows[90:]) + "\n")
    return tmp_path


def started(place: Path, *command: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place), *sys.path]), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in err, err
    return process.returncode, out, err


def ingest(place: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    return ended(started(place, "-m", "penstock", "ingest", *words, **environment))


def ids(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table(columns=["id"]).column("id").to_pylist())


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline, tick = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the condition did not come true"
        tick.wait(0.05)


def ended_sessions(server: ConnectServer) -> int:
    return server.log.read_text(errors="replace").count("Closing session with userId")


def cancelled_operations(server: ConnectServer) -> int:
    found = re.findall(r"OPERATION_CANCELED", server.log.read_text(errors="replace"))
    return len(found)


EVERY_ID = list(range(2 * PARTITIONS))


def test_an_ingest_ships_penstock_reports_progress_and_ends_its_session(place: Path, server: ConnectServer) -> None:
    sessions_before = ended_sessions(server)
    code, out, err = ingest(
        place, "in", "table", "--master", server.url, "--transform", "transforms:doubled", "--partition-by", "day"
    )
    assert code == 0, err
    rows = DeltaTable(str(place / "table")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["day"], row["twice"]) for row in rows) == [
        (number, day(number % PARTITIONS), number * 2) for number in EVERY_ID
    ]
    bad = DeltaTable(str(place / "table_quarantine")).to_pyarrow_table().to_pylist()
    assert [row["raw"] for row in bad] == [b"not json"]
    assert re.search(r"this batch: \d+ of \d+ tasks", err), err  # BatchProgressed
    assert f" at {server.url})" in err
    assert ended_sessions(server) == sessions_before + 1
    # The reconcile finds everything in the ledger.
    code, out, err = ended(
        started(
            place,
            *("-m", "penstock", "reconcile", "--table", "table", "--source", "in", "--check", "--json"),
            *("--listing", "--master", server.url),
            PENSTOCK_OBJECTS_RECONCILE_OLDER_THAN="0",
        )
    )
    report: dict[str, Any] = json.loads(out)
    assert (code, report["listed"], report["missing"]) == (0, 2, 0), err


@pytest.mark.slow
def test_an_ingest_reads_from_s3_and_writes_to_s3(place: Path, server: ConnectServer, moto: AwsServer) -> None:
    s3 = moto.client("s3")
    s3.create_bucket(Bucket="shop")
    for path in (place / "in").iterdir():
        s3.upload_file(str(path), "shop", f"in/{path.name}")
    settings = {"PENSTOCK_AWS_ENDPOINT_URL": moto.url, **NO_ACCOUNT}  # the server's tasks get this from Penstock
    words = ["s3://shop/in", "s3://shop/table", "--data-dir", "state", "--master", server.url]
    code, _, err = ingest(place, *words, **settings)
    assert code == 0, err
    options = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": moto.url,
        "AWS_ALLOW_HTTP": "true",
    }
    table = DeltaTable("s3://shop/table", storage_options=options).to_pyarrow_table(columns=["id"])
    assert sorted(table.column("id").to_pylist()) == EVERY_ID


@pytest.fixture(scope="module")
def session(server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneSession]:
    with closing(OneSession(tmp_path_factory.mktemp("session"), master=server.url, conf={})) as made:
        yield made


# The readers are those of classic Spark, which reads every format on a cluster (test_cluster_formats.py).
QUICK_FORMATS = ("parquet",)  # the first test reads lines of JSON


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_FORMATS else pytest.mark.slow) for name in FORMATS]
)
def test_objects_of_every_format_in_s3_are_read_once_into_a_table_in_s3(
    tmp_path: Path, server: ConnectServer, session: OneSession, moto: AwsServer, name: str
) -> None:
    case = S3Case(tmp_path, moto, by_queue=False, content=FORMATS[name], spark_master=server.url)
    case.session = session
    check_read_once_from_s3(case)


@pytest.mark.slow
def test_a_failing_transform_is_one_sentence_with_the_users_line(place: Path, server: ConnectServer) -> None:
    code, _, err = ingest(place, "in", "table", "--master", server.url, "--transform", "transforms:failing")
    last = err.strip().splitlines()[-1]
    assert code == 1
    assert re.fullmatch(
        r"penstock: Every run failed, down to those of one object alone: ValueError: no \d+ \(transforms\.py:22\)\. "
        r"Nothing is lost; fix the transform or the schema and run it again\.",
        last,
    ), err
    assert "JVM stacktrace" not in err
    assert "org.apache.spark" not in err


@pytest.mark.slow
def test_a_transform_that_cannot_be_planned_is_one_sentence(place: Path, server: ConnectServer) -> None:
    code, _, err = ingest(place, "in", "table", "--master", server.url, "--transform", "transforms:unplannable")
    assert code == 1
    assert "no_such_column" in err.strip().splitlines()[-1]
    assert "JVM stacktrace" not in err
    assert "org.apache.spark" not in err


@pytest.mark.slow
def test_a_given_session_is_neither_changed_nor_stopped(place: Path, server: ConnectServer) -> None:
    (place / "given.py").write_text(GIVEN)
    sessions_before = ended_sessions(server)
    code, out, err = ended(started(place, "given.py", server.url))
    assert code == 0, err
    total = sum(EVERY_ID)
    assert out.splitlines() == [
        "rows 140",
        "sent 2",
        "run 140",
        f"read 140 {total}",
        "day 7 [7, 77]",
        "whole",
        "fresh 3",
    ], out
    assert ended_sessions(server) == sessions_before + 4  # two siblings, and both of theirs


def test_sessions_of_our_own_leave_the_environment_as_it_was(place: Path, server: ConnectServer) -> None:
    code, out, err = ended(started(place, "-c", OWN, server.url))
    assert (code, err) == (0, "")
    assert out.splitlines() == ["rows 3", "rows 4"]


@pytest.mark.slow
def test_temporary_views_of_two_batches_in_flight_stay_apart(place: Path, server: ConnectServer) -> None:
    sessions_before = ended_sessions(server)
    words = ["in", "table", "--master", server.url, "--transform", "transforms:by_view", "--max-batch-objects", "1"]
    code, out, err = ingest(place, *words, "--json")
    assert code == 0, err
    assert json.loads(out)["batches"] == 2
    assert ids(place / "table") == EVERY_ID
    assert ended_sessions(server) == sessions_before + 2, "that of the second batch, and the ingest's"


def test_a_stop_cancels_both_batches_in_flight_and_the_next_run_commits_every_row_once(
    place: Path, server: ConnectServer
) -> None:
    (place / "gate").touch()
    words = ["in", "table", "--master", server.url, "--transform", "transforms:held", "--max-batch-objects", "1"]
    cancelled_before = cancelled_operations(server)
    process = started(place, "-m", "penstock", "ingest", *words, PENSTOCK_WORKER_STOP_TIMEOUT=f"{STOP_TIMEOUT_SECONDS}")
    wait_until(lambda: len(list((place / "at-gate").glob("*"))) == 2, process)
    process.send_signal(signal.SIGTERM)
    process.wait(STOP_TIMEOUT_SECONDS + LATE_SECONDS)
    code, _, err = ended(process)
    assert code == 75, err
    assert cancelled_operations(server) == cancelled_before + 2
    assert not DeltaTable.is_deltatable(str(place / "table"))
    (place / "gate").unlink()
    code, _, err = ingest(place, *words)
    assert code == 0, err
    assert ids(place / "table") == EVERY_ID


def test_a_server_that_cannot_be_reached_is_one_sentence_without_the_token(place: Path) -> None:
    address = f"sc://127.0.0.1:{free_port()}"
    code, _, err = ingest(place, "in", "table", "--master", f"{address}/;user_id=ann;token=secret")
    assert code == 78, err
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"penstock: No session could be opened at {address}: failed to connect"), err
    assert "secret" not in err
    assert "RETRIES_EXCEEDED" not in err


@pytest.mark.slow
def test_the_loss_of_the_server_ends_the_ingest_and_a_new_server_finishes_it(
    place: Path, server: ConnectServer
) -> None:
    """Last in this file: it restarts the server."""
    (place / "gate").touch()
    words = ["in", "table", "--master", server.url, "--transform", "transforms:held"]
    process = started(place, "-m", "penstock", "ingest", *words)
    wait_until((place / "at-gate").exists, process)
    server.kill()
    code, _, err = ended(process)
    last = err.strip().splitlines()[-1]
    assert code == 75, err
    assert last.startswith("penstock: The Spark Connect server ended the session, or cannot be reached:"), err
    assert last.endswith("Nothing is lost; run it again."), err
    assert not DeltaTable.is_deltatable(str(place / "table"))
    (place / "gate").unlink()
    server.start()
    code, _, err = ingest(place, *words)
    assert code == 0, err
    assert ids(place / "table") == EVERY_ID
