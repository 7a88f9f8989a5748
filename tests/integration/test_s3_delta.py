"""A Delta table in S3 whose requests fail: committed batches count once, and temporary errors are not reported as
errors of the table.
"""

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

from penstock.errors import TableDenied, TableError, TableNowhere, TemporaryError
from penstock.sinks.delta.sink import DeltaTableSink, open_dataset
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import Append
from penstock.storage.aws import Aws
from penstock.storage.roots import files_at

ATTEMPTS = [f"01K0{number:022d}" for number in range(2)]
SCHEMA = pa.schema([("id", pa.int64())])
TABLE = "s3://lake/clicks"
UNREACHABLE = "http://127.0.0.1:1"


@pytest.fixture
def s3(moto: AwsServer) -> Any:
    client = moto.client("s3")
    client.create_bucket(Bucket="lake")
    return client


def sink_at(aws: Aws, table: str = TABLE) -> DeltaTableSink:
    return DeltaTableSink(files_at(table, aws), pipeline="p")


def append(aws: Aws, number: int) -> Append:
    """Return a batch of one row, with its file written."""
    files, path, data = files_at(TABLE, aws), f"data/{ATTEMPTS[number]}/r0/a.parquet", io.BytesIO()
    pq.write_table(pa.table({"id": [number]}, SCHEMA), data)
    files.write(path, data.getvalue())
    stat = files.stat(path)
    assert stat is not None
    file = DataFile(path=path, size_bytes=stat.size_bytes, rows=1, modified_at=stat.modified_at, statistics={})
    return Append(seq=number + 1, attempt_id=ATTEMPTS[number], files=[file])


def ids(aws: Aws) -> Sequence[int]:
    return sorted(open_dataset(files_at(TABLE, aws)).to_table()["id"].to_pylist())


def commit_with_a_lost_response(direct: Aws, failing: Aws, fail: Callable[[], object]) -> Sequence[int]:
    """Lose the response to a successful commit, and check that it counts once. Return the ids in the table."""
    sink_at(direct).ensure_schema(SCHEMA)
    first = append(direct, 0)
    loaded = sink_at(failing).load()
    assert loaded is not None
    fail()
    assert loaded.append(first) == 1
    again = sink_at(failing).load()
    assert again is not None
    assert (again.position.seq, again.version) == (1, 1)
    again.append(append(direct, 1))
    return ids(direct)


def test_a_commit_whose_response_is_lost_is_found(moto: AwsServer, s3: Any, start_aws_proxy: StartAwsProxy) -> None:
    proxy = start_aws_proxy(moto)
    lost_request = f"PUT /lake/clicks/_delta_log/{1:020d}".encode()
    assert commit_with_a_lost_response(moto.aws, proxy.aws, lambda: proxy.swallow(lost_request)) == [0, 1]


@pytest.fixture
def between(moto: AwsServer) -> Iterator[S3Stub]:
    with S3Stub(lambda request: forward(moto, request)) as stub:
        yield stub


def forward(moto: AwsServer, request: Asked) -> Answered:
    connection = http.client.HTTPConnection("127.0.0.1", moto.port)
    connection.request(request.method, request.target, request.body, dict(request.headers))
    respond = connection.getresponse()
    statuses = {name: value for name, value in respond.getheaders() if name.lower() != "connection"}
    return Answered(status=respond.status, body=respond.read(), headers=statuses)


def test_a_commit_retried_by_the_client_and_then_refused_is_found(moto: AwsServer, s3: Any, between: S3Stub) -> None:
    """The first try creates the object and its response is replaced by a 500; the second gets a 412."""
    statuses: list[int] = []

    def respond(request: Asked) -> Answered:
        response = forward(moto, request)
        if request.method == "PUT" and f"_delta_log/{1:020d}" in request.target:
            statuses.append(response.status)
            return response if len(statuses) > 1 else refusal(500, "InternalError")
        return response

    def fail() -> None:
        between.answer = respond

    assert commit_with_a_lost_response(moto.aws, aws_at(between.url), fail) == [0, 1]
    assert statuses == [200, 412]


def test_an_unavailable_store_is_a_temporary_error(moto: AwsServer) -> None:
    with pytest.raises(TemporaryError, match=r"s3://lake/clicks\S* cannot be used: no connection to the server"):
        sink_at(replace(moto.aws, endpoint_url=UNREACHABLE)).load()


@pytest.mark.parametrize(
    ("refused", "error", "words"),
    [
        (refusal(503, "SlowDown"), TemporaryError, "slow down"),
        (refusal(400, "ExpiredToken"), TemporaryError, "credentials have expired"),
        (refusal(403, "AccessDenied"), TableDenied, "access is denied"),
        (refusal(404, "NoSuchBucket"), TableNowhere, "the bucket does not exist"),
    ],
)
def test_refusals_of_s3_become_table_errors(refused: Answered, error: type[Exception], words: str) -> None:
    with S3Stub(lambda request: refused) as stub, pytest.raises(error, match=words) as error_info:
        sink_at(aws_at(stub.url)).load()
    assert "\n" not in str(error_info.value)


def test_a_prefix_that_cannot_be_listed_now_is_a_temporary_error() -> None:
    """There is no log, and it is unknown whether the prefix is in use."""
    empty = b"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>0</KeyCount></ListBucketResult>"

    def respond(request: Asked) -> Answered:
        if "delimiter" in request.target:
            return refusal(503, "SlowDown")
        return Answered(body=empty) if "list-type" in request.target else refusal(404, "NoSuchKey")

    with S3Stub(respond) as stub, pytest.raises(TemporaryError, match="slow down"):
        sink_at(aws_at(stub.url)).load()


@pytest.mark.parametrize("table", ["s3://lake/clicks#1", "s3://lake/clicks?1"])
def test_a_prefix_with_a_query_or_fragment_is_refused(moto: AwsServer, s3: Any, table: str) -> None:
    """The log of these tables would be that of s3://lake/clicks."""
    with pytest.raises(TableError, match="has a \\? or a #"):
        sink_at(moto.aws, table).ensure_schema(SCHEMA)
    assert "Contents" not in s3.list_objects_v2(Bucket="lake")
