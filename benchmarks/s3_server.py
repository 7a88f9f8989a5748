"""A small S3 server for benchmarks: it serves the files of a folder, and every response may be delayed.

    python -m benchmarks.s3_server FOLDER [--port 0] [--delay-ms 0]

A bucket is a subfolder, an object is a file in it, and an ETag is the file's size and time. So a comparison with a
folder reads the same files from the same page cache, and the bytes of a response go from there to the socket with
sendfile: the server takes a fraction of the client's CPU. A delay is a timer per response, however many are in
progress, and costs no CPU. Has the requests that obstore, delta-rs and boto3 send here: objects with ranges and
conditions, listings, multipart uploads. It checks no signature, so it listens on loopback only.

`GET /?counts` returns the requests by kind, the bytes, the concurrent requests and the CPU seconds since the last call.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

UPLOADS = ".uploads"  # the folder of unfinished multipart uploads and PUTs
WHOLE_BYTES_MAX = 128 << 10  # sent with the headers in one call
KEYS_MAX = 1_000
_RANGE = re.compile(r"bytes=(\d*)-(\d*)$")
_PART = re.compile(r"<PartNumber>(\d+)</PartNumber>")
_KEY = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request with its whole body."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """Return the name by which the request is counted."""
        if self.key:
            what = "object part" if "partNumber" in self.query else "upload" if self.is_upload else "object"
        else:
            what = "versions" if "versions" in self.query else "listing" if "list-type" in self.query else "bucket"
        return f"{self.method} {what}"

    @property
    def is_upload(self) -> bool:
        return "uploads" in self.query or "uploadId" in self.query


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A status, headers, and a body: bytes, or ``length_bytes`` of an open file."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    file: BinaryIO | None = None
    offset: int = 0
    length_bytes: int | None = None  # None: of the body

    def head(self) -> bytes:
        """Return the status line and the headers."""
        length = len(self.body) if self.length_bytes is None else self.length_bytes
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1")


class Refusal(Exception):
    """An error response of S3."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.response = Response(status=status, body=f"<Error><Code>{code}</Code></Error>".encode())


class Buckets:
    """The buckets in a folder, and the unfinished uploads. Used by the event loop's thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._uploads = folder / UPLOADS
        self._uploads.mkdir(parents=True, exist_ok=True)

    def respond(self, request: Request) -> Response:
        """Return the response. Raises `Refusal`."""
        name = "upload" if request.is_upload and request.key else "object" if request.key else "bucket"
        action: Callable[[Request], Response] | None = getattr(self, f"_{request.method.lower()}_{name}", None)
        if action is None:
            raise Refusal(501, "NotImplemented")
        return action(request)

    # -- objects

    def _get_object(self, request: Request) -> Response:
        file, status = self._opened(request)
        start, stop = _range_of(request, status.st_size)
        headers = _headers(status)
        code = 206 if "range" in request.headers else 200
        if code == 206:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{status.st_size}"
        if stop - start <= WHOLE_BYTES_MAX:
            with file:
                return Response(status=code, headers=headers, body=os.pread(file.fileno(), stop - start, start))
        return Response(status=code, headers=headers, file=file, offset=start, length_bytes=stop - start)

    def _head_object(self, request: Request) -> Response:
        file, status = self._opened(request)
        file.close()
        return Response(headers=_headers(status), length_bytes=status.st_size)

    def _put_object(self, request: Request) -> Response:
        written = self._uploads / f"put-{next(_NUMBERS)}"
        written.write_bytes(request.body)
        return self._stored(request, written)

    def _delete_object(self, request: Request) -> Response:
        self._path(request.bucket, request.key).unlink(missing_ok=True)
        return Response(status=204)

    # -- multipart uploads

    def _post_upload(self, request: Request) -> Response:
        if "uploads" in request.query:
            upload = f"upload-{next(_NUMBERS)}"
            (self._uploads / upload).mkdir()
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        parts = self._parts(request)
        numbers = [int(number) for number in _PART.findall(request.body.decode())]
        written = parts / "whole"
        with written.open("wb") as whole:
            for number in numbers:
                with (parts / str(number)).open("rb") as part:
                    shutil.copyfileobj(part, whole, 1 << 20)
        response = self._stored(request, written)
        shutil.rmtree(parts)
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(response.headers['ETag'])}</ETag>")

    def _put_upload(self, request: Request) -> Response:
        path = self._parts(request) / request.query["partNumber"]
        path.write_bytes(request.body)
        return Response(headers={"ETag": _etag(path.stat())})

    def _delete_upload(self, request: Request) -> Response:
        shutil.rmtree(self._parts(request))
        return Response(status=204)

    # -- buckets

    def _put_bucket(self, request: Request) -> Response:
        (self._folder / request.bucket).mkdir(exist_ok=True)
        return Response()

    def _head_bucket(self, request: Request) -> Response:
        if not (self._folder / request.bucket).is_dir():
            raise Refusal(404, "NoSuchBucket")
        return Response()

    def _post_bucket(self, request: Request) -> Response:
        for key in _KEY.findall(request.body.decode()):
            self._path(request.bucket, key).unlink(missing_ok=True)
        return _xml("DeleteResult", "")

    def _get_bucket(self, request: Request) -> Response:
        self._head_bucket(request)
        if "versioning" in request.query:
            return _xml("VersioningConfiguration", "")
        is_versions = "versions" in request.query
        query = request.query
        after = max(query.get(name, "") for name in ("start-after", "continuation-token", "key-marker", "marker"))
        found = self._listed(request.bucket, query.get("prefix", ""), query.get("delimiter", ""), after)
        keys_max = int(query.get("max-keys", KEYS_MAX))
        page = list(itertools.islice(found, keys_max + 1))
        is_truncated, page = len(page) > keys_max, page[:keys_max]
        return _listing(request, page, is_truncated=is_truncated, is_versions=is_versions)

    # -- files and keys

    def _listed(
        self, bucket: str, prefix: str, delimiter: str, after: str
    ) -> Iterator[tuple[str, os.stat_result | None]]:
        """Yield keys with their status in order; common prefixes without one."""
        root, last = self._folder / bucket, ""
        for path in _sorted_files(root, prefix):
            if path <= after or not path.startswith(prefix):
                continue
            cut = path.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                with contextlib.suppress(FileNotFoundError):
                    yield path, (root / path).stat()
            elif (common := path[: cut + len(delimiter)]) != last and common != after:
                last = common
                yield common, None

    def _opened(self, request: Request) -> tuple[BinaryIO, os.stat_result]:
        try:
            file = self._path(request.bucket, request.key).open("rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise Refusal(404, "NoSuchKey") from None
        status = os.fstat(file.fileno())
        wanted = request.headers.get("if-match")
        if wanted is not None and wanted != _etag(status):
            file.close()
            raise Refusal(412, "PreconditionFailed")
        return file, status

    def _stored(self, request: Request, written: Path) -> Response:
        """Move a written file to its key, if the request's conditions hold."""
        path = self._path(request.bucket, request.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        etag = _etag(written.stat())
        wanted = request.headers.get("if-match")
        if wanted is not None and not (path.exists() and _etag(path.stat()) == wanted):
            raise Refusal(412, "PreconditionFailed")
        if request.headers.get("if-none-match") == "*":
            try:
                os.link(written, path)
            except FileExistsError:
                raise Refusal(412, "PreconditionFailed") from None
            finally:
                written.unlink()
        else:
            written.replace(path)
        return Response(headers={"ETag": etag})

    def _parts(self, request: Request) -> Path:
        parts = self._uploads / request.query["uploadId"]
        if not parts.is_dir():
            raise Refusal(404, "NoSuchUpload")
        return parts

    def _path(self, bucket: str, key: str) -> Path:
        if ".." in key.split("/"):
            raise Refusal(400, "InvalidArgument")
        return self._folder / bucket / key


def _sorted_files(root: Path, prefix: str) -> Sequence[str]:
    """Return the relative paths of the files whose names may begin with a prefix, in S3's order."""
    top = root / prefix.rpartition("/")[0]
    found = [
        f"{folder[len(str(root)) + 1 :]}/{name}" if len(folder) > len(str(root)) else name
        for folder, _, names in os.walk(top)
        for name in names
    ]
    return sorted(found)


def _range_of(request: Request, size_bytes: int) -> tuple[int, int]:
    found = _RANGE.match(request.headers.get("range", ""))
    if found is None:
        return 0, size_bytes
    start = int(found[1]) if found[1] else max(0, size_bytes - int(found[2]))
    stop = min(int(found[2]) + 1, size_bytes) if found[1] and found[2] else size_bytes
    if start >= size_bytes:
        raise Refusal(416, "InvalidRange")
    return start, stop


def _headers(status: os.stat_result) -> dict[str, str]:
    return {"ETag": _etag(status), "Last-Modified": formatdate(status.st_mtime, usegmt=True), "Accept-Ranges": "bytes"}


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_size:x}-{status.st_mtime_ns:x}"'


def _xml(name: str, content: str) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name}>{content}</{name}>'
    return Response(headers={"Content-Type": "application/xml"}, body=text.encode())


def _listing(
    request: Request, page: Sequence[tuple[str, os.stat_result | None]], *, is_truncated: bool, is_versions: bool
) -> Response:
    entry = "Version" if is_versions else "Contents"
    extra = "<VersionId>null</VersionId><IsLatest>true</IsLatest>" if is_versions else ""
    parts = [f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated><KeyCount>{len(page)}</KeyCount>"]
    parts.append(f"<Name>{request.bucket}</Name><Prefix>{escape(request.query.get('prefix', ''))}</Prefix>")
    if is_truncated and page:
        last = escape(page[-1][0])
        parts.append(
            f"<NextKeyMarker>{last}</NextKeyMarker><NextVersionIdMarker>null</NextVersionIdMarker>"
            if is_versions
            else f"<NextContinuationToken>{last}</NextContinuationToken>"
        )
    for key, status in page:
        if status is None:
            parts.append(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>")
            continue
        modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))
        parts.append(
            f"<{entry}><Key>{escape(key)}</Key><LastModified>{modified}</LastModified><ETag>{escape(_etag(status))}</ETag>"
            f"<Size>{status.st_size}</Size><StorageClass>STANDARD</StorageClass>{extra}</{entry}>"
        )
    return _xml("ListVersionsResult" if is_versions else "ListBucketResult", "".join(parts))


class Connection(asyncio.Protocol):
    """One connection: requests one after another, with a response to each after the delay."""

    def __init__(self, buckets: Buckets, counts: "Counts", delay_seconds: float) -> None:
        self._buckets = buckets
        self._counts = counts
        self._delay_seconds = delay_seconds
        self._received = bytearray()
        self._head: tuple[str, dict[str, str]] | None = None  # of the request whose body is awaited
        self._transport: asyncio.Transport | None = None
        self._sending: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = _parsed(bytes(self._received[:end]))
            del self._received[: end + 4]
            if self._head[1].get("expect") == "100-continue" and self._transport is not None:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        line, headers = self._head
        length = int(headers.get("content-length", 0))
        if len(self._received) >= length:
            body = bytes(self._received[:length])
            del self._received[:length]
            self._head = None
            self._respond(_request(line, headers, body))

    def _respond(self, request: Request) -> None:
        if "counts" in request.query:
            assert self._transport is not None
            response = Response(body=json.dumps(self._counts.take()).encode())
            self._transport.write(response.head() + response.body)
            return
        self._counts.begin(request)
        try:
            response = self._buckets.respond(request)
        except Refusal as refusal:
            response = refusal.response
        if self._delay_seconds:
            asyncio.get_running_loop().call_later(self._delay_seconds, self._write, request, response)
        else:
            self._write(request, response)

    def _write(self, request: Request, response: Response) -> None:
        if self._transport is None or self._transport.is_closing():
            if response.file is not None:
                response.file.close()
        elif response.file is None:
            body = b"" if request.method == "HEAD" else response.body
            self._transport.write(response.head() + body)
        else:
            self._transport.write(response.head())
            self._sending = asyncio.get_running_loop().create_task(self._send_file(response.file, response))
            return
        self._counts.end(len(response.body))

    async def _send_file(self, file: BinaryIO, response: Response) -> None:
        with file, contextlib.suppress(OSError, RuntimeError):  # a client that reads no further closes the connection
            assert self._transport is not None
            loop = asyncio.get_running_loop()
            await loop.sendfile(self._transport, file, response.offset, response.length_bytes, fallback=False)
        self._counts.end(response.length_bytes or 0)


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    line, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return line, {name.lower(): value.strip() for name, value in pairs}


def _request(line: str, headers: Mapping[str, str], body: bytes) -> Request:
    method, target, _ = line.split(" ")
    parts = urlsplit(target)
    bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if headers.get("content-encoding", "").startswith("aws-chunked") or "x-amz-decoded-content-length" in headers:
        body = b"".join(_chunks(body))
    return Request(method=method, bucket=bucket, key=key, query=query, headers=headers, body=body)


def _chunks(body: bytes) -> Iterator[bytes]:
    """Yield the data of a body in AWS's chunked encoding."""
    at = 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].partition(b";")[0], 16)
        if not size:
            return
        yield body[end + 2 : end + 2 + size]
        at = end + 4 + size


class Counts:
    """Counts of requests since they were last taken. Used by the event loop's thread."""

    def __init__(self) -> None:
        self._began = time.process_time()
        self._kinds: Counter[str] = Counter()
        self._bytes_sent = 0
        self._in_progress = 0
        self._in_progress_max = 0

    def begin(self, request: Request) -> None:
        self._kinds[request.kind] += 1
        self._in_progress += 1
        self._in_progress_max = max(self._in_progress_max, self._in_progress)

    def end(self, bytes_sent: int) -> None:
        self._in_progress -= 1
        self._bytes_sent += bytes_sent

    def take(self) -> dict[str, Any]:
        now = time.process_time()
        taken = {
            "requests": dict(self._kinds),
            "bytes_sent": self._bytes_sent,
            "in_progress_max": self._in_progress_max,
            "cpu_seconds": now - self._began,
        }
        self._began, self._bytes_sent, self._in_progress_max = now, 0, self._in_progress
        self._kinds.clear()
        return taken


async def serve(folder: Path, *, port: int, delay_seconds: float) -> None:
    """Serve until the process ends; print the port first. The end of standard input ends it too."""
    loop = asyncio.get_running_loop()
    buckets, counts, ended = Buckets(folder), Counts(), asyncio.Event()
    made = functools.partial(Connection, buckets, counts, delay_seconds)
    server = await loop.create_server(made, "127.0.0.1", port, backlog=512)
    loop.add_reader(sys.stdin.fileno(), ended.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()


class FolderServer:
    """A server in a process of its own. A context manager, used by one thread."""

    def __init__(self, folder: Path, *, delay_ms: float) -> None:
        command = [sys.executable, "-m", "benchmarks.s3_server", str(folder), "--delay-ms", str(delay_ms)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def counts(self) -> Mapping[str, Any]:
        """Return the counts since the last call."""
        with urllib.request.urlopen(f"{self.url}/?counts", timeout=10.0) as response:
            counts: Mapping[str, Any] = json.load(response)
        return counts

    def __enter__(self) -> "FolderServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, which ends it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.folder, port=arguments.port, delay_seconds=arguments.delay_ms / 1_000))


if __name__ == "__main__":
    main()
