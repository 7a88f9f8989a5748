"""The contract of `Files`, for a folder and for a prefix in S3."""

import io
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.services.aws_server import AwsServer

from penstock.storage.address import S3Address
from penstock.storage.files import FileInfo, Files
from penstock.storage.local import LocalFiles
from penstock.storage.roots import files_at
from penstock.storage.s3_files import S3Files

MakeFiles = Callable[[], Files]


@pytest.fixture(params=["folder", "s3", "s3 whole bucket"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    if request.param == "folder":
        yield LocalFiles(tmp_path.resolve() / "lake" / "clicks")
        return
    server: AwsServer = request.getfixturevalue("moto")
    server.client("s3").create_bucket(Bucket="lake")
    prefix = "" if request.param == "s3 whole bucket" else "raw/clicks"
    yield S3Files(S3Address(bucket="lake", prefix=prefix), server.aws)


def paths(found: Iterator[FileInfo]) -> list[str]:
    return sorted(info.path for info in found)


def write_half(files: Files, path: str, data: bytes) -> None:
    with files.open_output(path) as file:
        file.write(data)
        raise KeyError


def test_written_files_are_read_back(files: Files) -> None:
    files.write("data/a/1.bin", b"one")
    files.write("data/a/1.bin", b"another")
    files.write("empty", b"")
    assert files.read("data/a/1.bin") == b"another"
    assert files.read("empty") == b""


def test_a_new_file_is_created_by_one_of_several_writers(files: Files) -> None:
    assert files.write_new("log/1.json", b"first") is True
    assert files.write_new("log/1.json", b"second") is False
    assert files.read("log/1.json") == b"first"
    assert paths(files.list("log")) == ["log/1.json"]


def test_a_missing_file_has_no_stat_and_cannot_be_read(files: Files) -> None:
    assert files.stat("data/none") is None
    with pytest.raises(FileNotFoundError):
        files.read("data/none")
    with pytest.raises(FileNotFoundError), files.open_input("data/none"):
        pass


def test_stat_returns_size_and_time_of_files_only(files: Files) -> None:
    files.write("data/1.bin", b"12345")
    info = files.stat("data/1.bin")
    assert info is not None
    assert (info.path, info.size_bytes) == ("data/1.bin", 5)
    assert abs(info.modified_at - time.time()) < 3600
    assert files.stat("data") is None


def test_listing_includes_any_depth(files: Files) -> None:
    for path in ("a", "data/1", "data/x y+%2F/2", "data/deep/er/3", "database"):
        files.write(path, path.encode())
    assert paths(files.list()) == ["a", "data/1", "data/deep/er/3", "data/x y+%2F/2", "database"]
    assert paths(files.list("data")) == ["data/1", "data/deep/er/3", "data/x y+%2F/2"]
    assert paths(files.list("none")) == []
    assert {info.path: info.size_bytes for info in files.list("data")}["data/deep/er/3"] == len("data/deep/er/3")


def test_names_lists_one_folder(files: Files) -> None:
    for path in ("b", "data/1", "data/deep/2", "data/deep/3"):
        files.write(path, b"")
    assert files.names() == ["b", "data/"]
    assert files.names("data") == ["1", "deep/"]
    assert files.names("none") == []


def test_a_folder_is_listed_after_a_name(files: Files) -> None:
    for path in ("log/01.json", "log/02.json", "log/03.json", "log/04/x.json", "other/05.json"):
        files.write(path, b"x")
    assert [info.path for info in files.list_after("log", "01.json")] == ["log/02.json", "log/03.json"]
    assert [info.path for info in files.list_after("log", "")] == ["log/01.json", "log/02.json", "log/03.json"]
    assert list(files.list_after("none", "")) == []


def test_a_replaced_file_has_another_tag_everywhere(files: Files) -> None:
    files.write("log/1.json", b"first")
    data, info = files.read_tagged("log/1.json")
    (listed,) = files.list_after("log", "")
    assert (data, listed, files.stat("log/1.json")) == (b"first", info, info)
    assert info.tag
    files.write("log/1.json", b"other")
    (again,) = files.list_after("log", "")
    assert (again.size_bytes, again.tag != info.tag) == (info.size_bytes, True)
    with pytest.raises(FileNotFoundError):
        files.read_tagged("log/2.json")


def test_an_input_is_read_from_any_position(files: Files) -> None:
    content = bytes(range(256)) * 20_000  # more than is fetched at once
    files.write("big", content)
    files.write("small", content[:300])
    for path, held in (("big", content), ("small", content[:300])):
        with files.open_input(path) as file:
            assert file.seek(0, io.SEEK_END) == len(held)
            assert file.read(1) == b""
            file.seek(-3, io.SEEK_END)
            assert file.read() == held[-3:]
            file.seek(100)
            assert (file.read(50), file.tell()) == (held[100:150], 150)
            file.seek(0)
            assert file.read() == held


def test_parquet_is_written_and_read_in_place(files: Files) -> None:
    table = pa.table({"x": list(range(1_000)), "text": ["words"] * 1_000})
    with files.open_output("data/rows.parquet") as sink:
        pq.write_table(table, sink)
    with files.open_input("data/rows.parquet") as source:
        assert pq.ParquetFile(source).read(columns=["x"]) == table.select(["x"])


def test_an_output_larger_than_a_part_is_written_whole(files: Files) -> None:
    pieces = [bytes([number]) * (5 << 20) for number in range(8)]
    with files.open_output("data/large") as file:
        for piece in pieces:
            assert file.write(piece) == len(piece)
        assert file.tell() == 40 << 20
    assert files.read("data/large") == b"".join(pieces)


@pytest.mark.parametrize("size_bytes", [10, 40 << 20])
def test_an_output_whose_block_fails_creates_no_file(files: Files, size_bytes: int) -> None:
    with pytest.raises(KeyError):
        write_half(files, "data/half", b"x" * size_bytes)
    assert paths(files.list()) == []


def test_an_output_that_fails_keeps_the_old_file(files: Files) -> None:
    files.write("data/kept", b"before")
    with pytest.raises(KeyError):
        write_half(files, "data/kept", b"after")
    assert files.read("data/kept") == b"before"


def test_an_error_raised_in_the_block_passes_unchanged(files: Files) -> None:
    with pytest.raises(FileNotFoundError, match="of the block"), files.open_output("data/half"):
        raise FileNotFoundError("of the block")


def test_delete_ignores_missing_files(files: Files) -> None:
    for number in range(3):
        files.write(f"data/{number}", b"")
    files.delete(iter(["data/0", "data/none", "data/2"]))
    assert paths(files.list()) == ["data/1"]
    files.delete([])
    files.delete(["data/1"])
    files.prune("data")
    assert files.names() == []


def test_below_and_beside_return_other_roots(files: Files) -> None:
    below = files.below("_penstock/work")
    below.write("plan", b"1")
    assert files.read("_penstock/work/plan") == b"1"
    assert below.name == "work"
    assert below.uri == files.uri + "/_penstock/work"
    assert str(below) == str(files) + "/_penstock/work"
    beside = below.beside("other")
    beside.write("x", b"2")
    assert files.read("_penstock/other/x") == b"2"
    assert paths(below.list()) == ["plan"]


def test_files_can_be_pickled_and_compared(files: Files) -> None:
    files.write("x", b"1")
    copy = pickle.loads(pickle.dumps(files))
    assert copy == files
    assert hash(copy) == hash(files)
    assert copy.read("x") == b"1"


def test_files_are_opened_again_by_their_address(files: Files, moto: AwsServer) -> None:
    for place in (files, files.below("a b%20ü")):
        assert files_at(place.uri, moto.aws) == place
        assert files_at(str(place), moto.aws) == place


def test_make_durable_keeps_the_written_file(files: Files) -> None:
    files.write("data/1", b"1")
    files.make_durable(["data/1"])
    assert files.read("data/1") == b"1"
