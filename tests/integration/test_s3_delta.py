"""A Delta table in S3 whose requests fail: what was committed counts once, and what may pass is no table's fault."""

import http.client
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.services.aws_server import AwsServer, aws_at
from tests.services.plugin import StartAwsProxy
from tests.services.s3_stub import Answered, Asked, S3Stub, refusal

from penstock.errors import PublishConflict, TableDenied, TableError, TableNowhere, TemporaryError
from penstock.sinks.delta.sink import DeltaTableSink, open_dataset
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import Append
from penstock.storage.aws import Aws
from penstock.storage.roots import files_at

ATTEMPTS = [f"01K0{number:022d}" for number in range(2)]
SCHEMA = pa.schema([("id", pa.int64())])
TABLE = "s3://lake/clicks"
NOBODY_THERE = "http://127.0.0.1:1"


@pytest.fixture
def s3(moto: AwsServer) -> Any:
    client = moto.client("s3")
    client.create_bucket(Bucket="lake")
    return client


def sink_at(aws: Aws, table: str = TABLE) -> DeltaTableSink:
    return DeltaTableSink(files_at(table, aws), pipeline="p")


def append(aws: Aws, number: int) -> Append:
    """A batch of one row, its file written."""
    files, path, data = files_at(TABLE, aws), f"data/{ATTEMPTS[number]}/r0/a.parquet", io.BytesIO()
    pq.write_table(pa.table({"id": [number]}, SCHEMA), data)
    files.write(path, data.getvalue())
    there = files.stat(path)
    assert there is not None
    file = DataFile(path=path, size_bytes=there.size_bytes, rows=1, modified_at=there.modified_at, statistics={})
    return Append(seq=number + 1, attempt_id=ATTEMPTS[number], files=[file])


def ids(aws: Aws) -> Sequence[int]:
    return sorted(open_dataset(files_at(TABLE, aws)).to_table()["id"].to_pylist())


def committed_by_a_failing_way(straight: Aws, failing: Aws, fail: Callable[[], object]) -> Sequence[int]:
    """A commit took effect and nobody heard of it: the next look has to find it. Answers what there is then."""
    sink_at(straight).ensure_schema(SCHEMA)
    first = append(straight, 0)
    loaded = sink_at(failing).load()
    assert loaded is not None
    fail()
    with pytest.raises(PublishConflict):
        loaded.append(first)
    again = sink_at(failing).load()
    assert again is not None
    assert (again.position.seq, again.version) == (1, 1)
    again.append(append(straight, 1))
    return ids(straight)


def test_a_commit_whose_answer_is_lost_is_found(moto: AwsServer, s3: Any, start_aws_proxy: StartAwsProxy) -> None:
    proxy = start_aws_proxy(moto)
    lose = f"PUT /lake/clicks/_delta_log/{1:020d}".encode()
    assert committed_by_a_failing_way(moto.aws, proxy.aws, lambda: proxy.swallow(lose)) == [0, 1]


@pytest.fixture
def between(moto: AwsServer) -> Iterator[S3Stub]:
    with S3Stub(lambda asked: passed_on(moto, asked)) as stub:
        yield stub


def passed_on(moto: AwsServer, asked: Asked) -> Answered:
    connection = http.client.HTTPConnection("127.0.0.1", moto.port)
    connection.request(asked.method, asked.target, asked.body, dict(asked.headers))
    answer = connection.getresponse()
    told = {name: value for name, value in answer.getheaders() if name.lower() != "connection"}
    return Answered(status=answer.status, body=answer.read(), headers=told)


def test_a_commit_that_is_tried_again_by_the_library_and_refused_then_is_found(
    moto: AwsServer, s3: Any, between: S3Stub
) -> None:
    """The first try's object is there, its answer is a 500, and the second is told 412."""
    told: list[int] = []

    def answer(asked: Asked) -> Answered:
        passed = passed_on(moto, asked)
        if asked.method == "PUT" and f"_delta_log/{1:020d}" in asked.target:
            told.append(passed.status)
            return passed if len(told) > 1 else refusal(500, "InternalError")
        return passed

    def fail() -> None:
        between.answer = answer

    assert committed_by_a_failing_way(moto.aws, aws_at(between.url), fail) == [0, 1]
    assert told == [200, 412]


def test_a_store_that_is_away_is_no_fault_of_the_table(moto: AwsServer) -> None:
    with pytest.raises(TemporaryError, match="s3://lake/clicks cannot be used: no connection to the server"):
        sink_at(replace(moto.aws, endpoint_url=NOBODY_THERE)).load()


@pytest.mark.parametrize(
    ("refused", "error", "words"),
    [
        (refusal(503, "SlowDown"), TemporaryError, "slow down"),
        (refusal(400, "ExpiredToken"), TemporaryError, "credentials have expired"),
        (refusal(403, "AccessDenied"), TableDenied, "access is denied"),
        (refusal(404, "NoSuchBucket"), TableNowhere, "the bucket does not exist"),
    ],
)
def test_refusals_of_s3_become_errors_of_the_table(refused: Answered, error: type[Exception], words: str) -> None:
    with S3Stub(lambda asked: refused) as stub, pytest.raises(error, match=words) as raised:
        sink_at(aws_at(stub.url)).load()
    assert "\n" not in str(raised.value)


def test_a_place_that_cannot_be_listed_for_now_is_no_fault_of_the_table() -> None:
    """No log is there, and whether the place is free cannot be told."""
    empty = b"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>0</KeyCount></ListBucketResult>"

    def answer(asked: Asked) -> Answered:
        if "delimiter" in asked.target:
            return refusal(503, "SlowDown")
        return Answered(body=empty) if "list-type" in asked.target else refusal(404, "NoSuchKey")

    with S3Stub(answer) as stub, pytest.raises(TemporaryError, match="slow down"):
        sink_at(aws_at(stub.url)).load()


@pytest.mark.parametrize("table", ["s3://lake/clicks#1", "s3://lake/clicks?1"])
def test_a_prefix_that_ends_early_in_a_url_is_refused(moto: AwsServer, s3: Any, table: str) -> None:
    """The log of these would be that of s3://lake/clicks."""
    with pytest.raises(TableError, match="has a \\? or a #"):
        sink_at(moto.aws, table).ensure_schema(SCHEMA)
    assert "Contents" not in s3.list_objects_v2(Bucket="lake")
