"""Files in S3 on a server that speaks S3: leftovers of uploads, bytes fetched by readers, and delta-rs with the same
options.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from tests.services.aws_server import AwsServer

from penstock.errors import TableError
from penstock.storage.address import s3_address
from penstock.storage.s3_files import S3Files, S3Input

MIB = 1 << 20


@pytest.fixture
def s3(moto: AwsServer) -> Any:
    client = moto.client("s3")
    client.create_bucket(Bucket="lake")
    return client


@pytest.fixture
def files(moto: AwsServer, s3: Any) -> S3Files:
    return S3Files(s3_address("s3://lake/clicks"), moto.aws)


def uploads(s3: Any) -> list[str]:
    return [upload["Key"] for upload in s3.list_multipart_uploads(Bucket="lake").get("Uploads", ())]


def write_large_half(files: S3Files, s3: Any) -> None:
    with files.open_output("large") as file:
        file.write(bytes(40 * MIB))
        assert uploads(s3) == ["clicks/large"]
        raise KeyError


def test_an_aborted_upload_leaves_nothing(files: S3Files, s3: Any) -> None:
    with pytest.raises(KeyError):
        write_large_half(files, s3)
    assert uploads(s3) == []
    assert list(files.list()) == []


def test_many_threads_share_the_clients(files: S3Files) -> None:
    meet = threading.Barrier(8)

    def work(number: int) -> bytes:
        meet.wait(60)
        files.write(f"data/{number}", str(number).encode())
        with files.open_output(f"out/{number}") as file:
            file.write(b"x" * number)
        return files.read(f"data/{number}")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [str(number).encode() for number in range(8)]
    assert sorted(info.size_bytes for info in files.list("out")) == list(range(8))


def test_reading_a_footer_fetches_little_of_a_large_file(files: S3Files, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"noise": [os.urandom(1_000) for _ in range(20_000)], "x": list(range(20_000))})
    with files.open_output("data/rows.parquet") as sink:
        pq.write_table(table, sink)
    fetched: list[int] = []

    def counted(file: S3Input, wanted: int) -> bytes:
        data = take(file, wanted)
        fetched.append(len(data))
        return data

    take = S3Input._take
    monkeypatch.setattr(S3Input, "_take", counted)
    with files.open_input("data/rows.parquet") as source:
        assert pq.ParquetFile(source).metadata.num_rows == 20_000
        assert pq.ParquetFile(source).read(columns=["x"]).num_rows == 20_000
    assert 0 < sum(fetched) < MIB


def test_folder_markers_of_a_console_are_not_files(files: S3Files, s3: Any) -> None:
    for key in ("clicks/", "clicks/data/", "clicks/data//odd", "clicks/data/1"):
        s3.put_object(Bucket="lake", Key=key, Body=b"")
    assert sorted(info.path for info in files.list()) == ["data//odd", "data/1"]
    assert files.names() == ["data/"]


def test_delta_writes_and_reads_with_our_options(files: S3Files) -> None:
    options = files.store_options()
    schema = Schema.from_arrow(pa.schema([("x", pa.int64())]))
    table = DeltaTable.create(files.uri, schema, storage_options=dict(options))
    first, second = (DeltaTable(files.uri, storage_options=dict(options)) for _ in range(2))
    commit(first, 1)
    with pytest.raises(DeltaError):
        commit(second, 1)
    table.update_incremental()
    assert table.version() == 1
    assert table.transaction_version("penstock") == 1
    assert files.names() == ["_delta_log/"]


def commit(table: DeltaTable, number: int) -> None:
    properties = CommitProperties(app_transactions=[Transaction("penstock", number)], max_commit_retries=0)
    table.create_write_transaction([], "append", table.schema(), [], commit_properties=properties)


def test_a_missing_bucket_is_a_table_error(moto: AwsServer) -> None:
    nowhere = S3Files(s3_address("s3://none/clicks"), moto.aws)
    for call in (lambda: nowhere.write("a", b""), lambda: nowhere.names(), lambda: nowhere.read("a")):
        with pytest.raises(TableError, match="the bucket does not exist"):
            call()
