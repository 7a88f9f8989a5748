"""Files in S3 against a stub that responds like S3: the requests, and the errors for refusals."""

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from tests.services.aws_server import aws_at
from tests.services.s3_stub import Answered, Asked, S3Stub, refusal

from penstock.errors import (
    ConfigurationError,
    PenstockError,
    TableDenied,
    TableNowhere,
    TemporaryError,
    UsageError,
)
from penstock.storage.address import S3Address, s3_address
from penstock.storage.aws import Aws
from penstock.storage.roots import files_at
from penstock.storage.s3_files import PART_BYTES, SINGLE_READ_BYTES_MAX, TAIL_BYTES, S3Files, S3Input, S3Output

NOWHERE = Aws(region="us-east-1", endpoint_url="http://127.0.0.1:9")


def ranges_of(content: bytes, *, etag: str = "0f") -> Callable[[Asked], Answered]:
    """Return the responses of a server that has this object."""

    def answer(asked: Asked) -> Answered:
        headers = {"ETag": f'"{etag}"'}
        if asked.headers.get("if-match", headers["ETag"]) != headers["ETag"]:
            return refusal(412, "PreconditionFailed")
        if "range" not in asked.headers:
            return Answered(headers=headers, body=content if asked.method == "GET" else b"")
        first, last = asked.headers["range"].removeprefix("bytes=").split("-")
        start = int(first) if first else max(0, len(content) - int(last))
        if start >= len(content):
            return refusal(416, "InvalidRange")
        stop = min(int(last) + 1, len(content)) if first else len(content)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return Answered(status=206, body=content[start:stop], headers=headers)

    return answer


@pytest.fixture(scope="module")
def server() -> Iterator[S3Stub]:
    with S3Stub(lambda asked: Answered()) as server:
        yield server


@pytest.fixture
def stub(server: S3Stub) -> S3Stub:
    server.answer = ranges_of(b"")
    server.asked.clear()
    return server


@pytest.fixture
def files(stub: S3Stub) -> S3Files:
    return S3Files(s3_address("s3://lake/clicks"), aws_at(stub.url))


def write_out(files: S3Files) -> None:
    with files.open_output("a") as file:
        file.write(b"1")


def read_in(files: S3Files) -> None:
    with files.open_input("a") as file:
        file.read()


CALLS: dict[str, Callable[[S3Files], Any]] = {
    "read": lambda files: files.read("a"),
    "write": lambda files: files.write("a", b"1"),
    "output": write_out,
    "input": read_in,
    "stat": lambda files: files.stat("a"),
    "list": lambda files: list(files.list()),
    "names": lambda files: files.names("deeper"),
    "delete": lambda files: files.delete(["a"]),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@every_call
@pytest.mark.parametrize(
    ("status", "code", "error", "words"),
    [
        (403, "AccessDenied", TableDenied, "access is denied: check the permissions"),
        (400, "ExpiredToken", TemporaryError, "cannot be used"),
    ],
)
def test_a_refusal_is_one_short_sentence(
    files: S3Files, stub: S3Stub, call: Callable[[S3Files], Any], status: int, code: str, error: type, words: str
) -> None:
    stub.answer = lambda asked: refusal(status, code, "SECRET")
    with pytest.raises(PenstockError, match=words) as caught:
        call(files)
    assert caught.type is error
    message = str(caught.value)
    assert message.startswith("s3://lake/clicks")
    assert message.endswith(".")
    assert not any(part in message for part in ("<", "SECRET", "\n", "Error"))


@pytest.mark.parametrize("name", ["read", "write", "output", "list", "delete"])
def test_a_missing_bucket_is_not_a_missing_file(files: S3Files, stub: S3Stub, name: str) -> None:
    stub.answer = lambda asked: refusal(404, "NoSuchBucket")
    with pytest.raises(TableNowhere, match="the bucket does not exist: create it, or correct its name"):
        CALLS[name](files)


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_wrong_access_keys_are_reported(files: S3Files, stub: S3Stub, code: str) -> None:
    stub.answer = lambda asked: refusal(403, code)
    with pytest.raises(TableDenied, match=f"access key .{code}.: check the credentials") as caught:
        files.names()
    assert (caught.value.exit_code, TableNowhere.exit_code) == (ConfigurationError.exit_code, UsageError.exit_code)


def test_a_bucket_in_another_region_is_a_configuration_error(files: S3Files, stub: S3Stub) -> None:
    stub.answer = lambda asked: refusal(301, "PermanentRedirect")
    with pytest.raises(ConfigurationError, match=r"set aws\.region"):
        files.write("a", b"1")


def test_a_write_is_one_request_and_is_retried(files: S3Files, stub: S3Stub) -> None:
    good = stub.answer
    stub.answer = lambda asked: refusal(503, "SlowDown") if len(stub.asked) == 1 else good(asked)
    files.write("a/b c", b"123")
    assert [(asked.method, asked.target, asked.body) for asked in stub.asked] == [
        ("PUT", "/lake/clicks/a/b%20c", b"123")
    ] * 2


def test_a_write_that_keeps_failing_is_a_temporary_error(files: S3Files, stub: S3Stub) -> None:
    stub.answer = lambda asked: refusal(500, "InternalError")
    with pytest.raises(
        TemporaryError, match=r"^s3://lake/clicks/a cannot be used: S3 responded with 500 InternalError\.$"
    ):
        files.write("a", b"1")


@every_call
def test_the_requester_pays_only_if_configured(files: S3Files, stub: S3Stub, call: Callable[[S3Files], Any]) -> None:
    call(S3Files(files.address, replace(files.aws, requester_pays=True)))
    assert {asked.headers.get("x-amz-request-payer") for asked in stub.asked} == {"requester"}
    stub.asked.clear()
    call(files)
    assert {asked.headers.get("x-amz-request-payer") for asked in stub.asked} == {None}


def test_many_files_are_deleted_a_thousand_at_a_time(files: S3Files, stub: S3Stub) -> None:
    files.delete(f"data/{number}" for number in range(2_500))
    assert [asked.method for asked in stub.asked] == ["POST"] * 3
    assert [asked.body.count(b"<Key>clicks/data/") for asked in stub.asked] == [1_000, 1_000, 500]


@pytest.mark.parametrize(
    ("code", "error"), [("AccessDenied", TableDenied), ("InternalError", TemporaryError), ("SlowDown", TemporaryError)]
)
def test_a_file_that_cannot_be_deleted_is_reported(files: S3Files, stub: S3Stub, code: str, error: type) -> None:
    body = f"<DeleteResult><Error><Key>clicks/b</Key><Code>{code}</Code><Message>m</Message></Error></DeleteResult>"
    stub.answer = lambda asked: Answered(body=body.encode())
    with pytest.raises(PenstockError, match=r"^s3://lake/clicks/b cannot be used") as caught:
        files.delete(["a", "b"])
    assert caught.type is error


def asked_ranges(stub: S3Stub) -> list[tuple[str | None, str | None]]:
    return [(asked.headers.get("range"), asked.headers.get("if-match")) for asked in stub.asked]


def test_the_end_of_an_input_is_fetched_with_its_size(files: S3Files, stub: S3Stub) -> None:
    content = bytes(range(256)) * (SINGLE_READ_BYTES_MAX // 256 + 1)
    stub.answer = ranges_of(content)
    with files.open_input("a") as file:
        file.seek(-TAIL_BYTES, io.SEEK_END)
        assert file.read() == content[-TAIL_BYTES:]
        file.seek(-8, io.SEEK_END)
        assert file.read(4) == content[-8:-4]
    assert asked_ranges(stub) == [(f"bytes=-{TAIL_BYTES}", None)]


def test_an_input_fetches_only_the_bytes_read_of_one_version(files: S3Files, stub: S3Stub) -> None:
    content = bytes(range(256)) * (SINGLE_READ_BYTES_MAX // 256 + 1)
    stub.answer = ranges_of(content)
    start = len(content) - TAIL_BYTES - 4
    with files.open_input("a") as file:
        file.seek(start)
        assert file.read(8) == content[start : start + 8]
        assert asked_ranges(stub)[1:] == [(f"bytes={start}-{start + 7}", '"0f"')]
        stub.answer = ranges_of(content, etag="10")
        file.seek(0)
        with pytest.raises(TemporaryError, match="another version"):
            file.read(8)


@pytest.mark.parametrize("size_bytes", [1, 1_000, TAIL_BYTES])
def test_a_small_input_is_fetched_with_one_request(files: S3Files, stub: S3Stub, size_bytes: int) -> None:
    content = (b"line\n" * size_bytes)[:size_bytes]
    stub.answer = ranges_of(content)
    with files.open_input("a") as file:
        assert b"".join(file) == content
        file.seek(0)
        assert file.read() == content
    assert asked_ranges(stub) == [(f"bytes=-{TAIL_BYTES}", None)]


def test_an_input_of_medium_size_is_fetched_with_two_requests(files: S3Files, stub: S3Stub) -> None:
    content = bytes(range(256)) * (SINGLE_READ_BYTES_MAX // 256)
    stub.answer = ranges_of(content)
    with files.open_input("a") as file:
        assert file.read() == content
        file.seek(-1, io.SEEK_END)
        assert file.read() == content[-1:]
    before = len(content) - TAIL_BYTES
    assert asked_ranges(stub) == [(f"bytes=-{TAIL_BYTES}", None), (f"bytes=0-{before - 1}", '"0f"')]


def test_an_empty_input_has_no_bytes(files: S3Files, stub: S3Stub) -> None:
    with files.open_input("a") as file:
        assert file.read() == b""
    assert [asked.method for asked in stub.asked] == ["GET", "GET"], "S3 refuses any range of an empty object"


def test_an_input_behaves_like_a_python_file() -> None:
    content = bytes(range(100))
    file = S3Input(100, lambda start, stop: content[start:stop])
    with io.BufferedReader(file) as buffered:
        assert buffered.read(3) == content[:3]
        assert buffered.read() == content[3:]
        assert buffered.seek(-1, io.SEEK_END) == 99
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read(1)
    with pytest.raises(ValueError, match="seek to -1"):
        S3Input(1, lambda start, stop: b"").seek(-1)


class Uploads:
    """A stand-in for boto3's client whose parts may fail."""

    def __init__(self, *, failing: int | None = None) -> None:
        self.failing = failing
        self.parts: dict[int, bytes] = {}
        self.ended: list[str] = []
        self.named: list[Any] = []

    def create_multipart_upload(self, **asked: Any) -> dict[str, str]:
        return {"UploadId": "u"}

    def upload_part(self, *, PartNumber: int, Body: bytes, **asked: Any) -> dict[str, str]:  # noqa: N803 - boto3's names
        if PartNumber == self.failing:
            raise ConnectionError("part")
        self.parts[PartNumber] = Body
        return {"ETag": f'"{PartNumber}"'}

    def complete_multipart_upload(self, *, MultipartUpload: Any, **asked: Any) -> None:  # noqa: N803 - boto3's name
        self.ended.append("completed")
        self.named = [part["PartNumber"] for part in MultipartUpload["Parts"]]

    def abort_multipart_upload(self, **asked: Any) -> None:
        self.ended.append("aborted")


def output(uploads: Uploads, *, put: Callable[[bytes], None] = lambda data: None) -> S3Output:
    return S3Output(
        client=uploads,
        bucket="lake",
        key="a",
        put=put,
        size_of=lambda: None,
        explained=nullcontext,
        extra={},
        part_bytes=4,
    )


def test_content_that_fits_a_part_is_put_in_one_request() -> None:
    uploads, taken = Uploads(), list[bytes]()
    for data in (b"", b"1234"):
        file = output(uploads, put=taken.append)
        file.write(data)
        file.complete()
    assert taken == [b"", b"1234"]
    assert uploads.parts == {}


def test_parts_are_completed_in_order() -> None:
    uploads = Uploads()
    file = output(uploads)
    for piece in (b"123", b"45678901234567", memoryview(b"8")):
        file.write(piece)
    assert file.tell() == 18
    file.complete()
    assert [uploads.parts[number] for number in uploads.named] == [b"1234", b"5678", b"9012", b"3456", b"78"]
    assert uploads.ended == ["completed"]


def test_a_part_that_fails_fails_the_upload() -> None:
    uploads = Uploads(failing=2)
    file = output(uploads)
    file.write(b"1234567890")
    with pytest.raises(ConnectionError):
        file.complete()
    file.abort()
    assert uploads.ended == ["aborted"]


LARGE = bytes(PART_BYTES + 1)
BEGUN = Answered(body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")


def large(files: S3Files) -> None:
    with files.open_output("a") as file:
        file.write(LARGE)


@pytest.mark.parametrize("there", [True, False], ids=["completed", "aborted"])
def test_an_upload_whose_completion_response_was_lost_is_checked(files: S3Files, stub: S3Stub, there: bool) -> None:
    """The first try's response was lost, and the next one is refused because the upload no longer exists."""

    def answer(asked: Asked) -> Answered:
        if asked.method == "HEAD" and there:
            head = {"ETag": '"0f"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "Content-Length": str(len(LARGE))}
            return Answered(headers=head)
        if asked.method in ("HEAD", "POST") and "uploads" not in asked.target:
            return refusal(404, "NoSuchUpload")
        return BEGUN if asked.method == "POST" else Answered(headers={"ETag": '"0f"'})

    stub.answer = answer
    if there:
        large(files)
    else:
        with pytest.raises(TemporaryError, match="the upload was ended"):
            large(files)
    assert any(asked.method == "DELETE" for asked in stub.asked) is not there


def test_a_failed_part_is_reported_to_the_writer_with_an_explanation(files: S3Files, stub: S3Stub) -> None:
    """Parquet's writers hold the file open over many calls, each of which may send a part."""
    stub.answer = lambda asked: BEGUN if asked.method == "POST" else refusal(400, "ExpiredToken")
    with ExitStack() as stack:
        file = stack.enter_context(files.open_output("a"))
        file.write(LARGE)
        with pytest.raises(TemporaryError, match="credentials have expired: get new ones"):
            file.write(bytes(4 * PART_BYTES))
        stack.pop_all()


def test_an_aborted_output_is_not_completed() -> None:
    uploads = Uploads()
    file = output(uploads)
    file.write(b"1234567890")
    file.abort()
    assert uploads.ended == ["aborted"]


@pytest.mark.parametrize("prefix", ["a//b", "a/../b", ".", "a/\n"])
def test_an_invalid_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="cannot hold Penstock's files"):
        S3Files(S3Address(bucket="lake", prefix=prefix), NOWHERE)


def test_a_whole_bucket_has_no_folder_beside_it() -> None:
    whole = S3Files(s3_address("s3://lake"), NOWHERE)
    assert (whole.name, whole.uri, whole.is_local) == ("lake", "s3://lake", False)
    with pytest.raises(UsageError, match="give a prefix in it, such as s3://lake/clicks"):
        whole.beside("quarantine")
    assert whole.below("clicks").beside("quarantine").uri == "s3://lake/quarantine"


@pytest.mark.parametrize(
    "address", ["gs://lake/clicks", "s3b://lake/clicks", "file://host/srv", "s3://", "s3a://", "http://x/y"]
)
def test_unknown_addresses_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="s3://BUCKET/PREFIX"):
        files_at(address, NOWHERE)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_every_name_of_s3_leads_to_the_same_files(scheme: str) -> None:
    assert files_at(f"{scheme}://lake/clicks/", NOWHERE).uri == "s3://lake/clicks"


def test_addresses_of_local_folders_are_accepted() -> None:
    assert files_at("/srv/a b", NOWHERE) == files_at("file:///srv/a%20b", NOWHERE)
    assert files_at("file://localhost/srv/%FF", NOWHERE).uri == "file:///srv/%FF"
