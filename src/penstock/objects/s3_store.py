"""The store for S3: read objects of one bucket, each in exactly the version named in its notification.

A version is S3's version id if the bucket keeps versions, else the ETag. Every GET carries it as a condition, so no
byte of another version is ever returned, and `verify` needs no request. Requests go through obstore, and through boto3
for keys that obstore would change. S3's errors are raised as Penstock's.

A large object is read in ranges. While one is processed, other threads fetch the next ones. That hides the latency of
requests, and uses several connections, since a single one is slower than a parser.

Notifications are untrusted and may name any key, so nothing outside the store's address is ever read.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from penstock.errors import (
    ConfigurationError,
    ObjectDenied,
    ObjectGone,
    ObjectSuperseded,
    ObjectUnreadable,
    TemporaryError,
)
from penstock.messaging.backoff import backoff_seconds
from penstock.objects.reference import ObjectRef
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws
from penstock.storage.s3 import RefusalKind, bucket_client, fault_of, is_nameable, is_of_s3, requester, service_client

if TYPE_CHECKING:
    from obstore import GetOptions


WHOLE_BYTES_MAX = 8 << 20  # up to this size an object is read with one request, and a response body at once
HEAD_BYTES = 64 << 10  # fetched when a large object is opened: proves that it exists, and serves its first reads
RANGE_BYTES = WHOLE_BYTES_MAX + HEAD_BYTES  # of a large one: a block of lines, behind the end of a line before it
CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRange:
    """A response: the size of the whole object, and the requested bytes. Closing `chunks` early ends the connection."""

    size_bytes: int
    chunks: Iterator[bytes]  # raises the library's errors


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentVersion:
    """The current version of a key, as S3 names it."""

    version_id: str | None  # None: the bucket keeps no versions, or the server does not name it
    etag: str | None

    def is_of(self, ref: ObjectRef) -> bool:
        """Return True if the reference, which has a version id, is of this version."""
        if self.version_id is None:
            return self.etag is not None and self.etag == ref.etag
        return self.version_id == ref.version_id


class Fetch(Protocol):
    """A request for the bytes [start, stop) of a version; (0, 0) for an empty object. Raises the errors of `refuse`."""

    def __call__(self, ref: ObjectRef, start: int, stop: int) -> FetchedRange: ...

    def current(self, ref: ObjectRef) -> CurrentVersion:
        """Return the current version of the key, whichever the reference names. Raises the errors of `refuse`."""
        ...


def fetch_of(ref: ObjectRef, aws: Aws) -> Fetch:
    """Return the client to use for this key."""
    return NamedFetch(aws) if is_nameable(ref.key) else LiteralFetch(aws)


@dataclass(frozen=True, slots=True)
class NamedFetch:
    """A request with obstore, which is twice as fast as boto3 (measured)."""

    aws: Aws

    def __call__(self, ref: ObjectRef, start: int, stop: int) -> FetchedRange:
        options: GetOptions = {"version": ref.version_id} if ref.version_id else {"if_match": _quoted(ref)}
        if stop > start:
            options["range"] = (start, stop)
        with explained(ref):
            got = bucket_client(ref.bucket, self.aws).get(ref.key, options=options)
        whole = stop - start <= WHOLE_BYTES_MAX
        return FetchedRange(size_bytes=got.meta["size"], chunks=_at_once(got) if whole else got.stream(CHUNK_BYTES))

    def current(self, ref: ObjectRef) -> CurrentVersion:
        with explained(ref):
            found = bucket_client(ref.bucket, self.aws).head(ref.key)
        return CurrentVersion(version_id=found["version"], etag=_unquoted(found["e_tag"]))


@dataclass(frozen=True, slots=True)
class LiteralFetch:
    """A request with boto3, which takes every key literally: ``../x``, ``/x``, ``a//b``, ``a/``, control characters."""

    aws: Aws

    def __call__(self, ref: ObjectRef, start: int, stop: int) -> FetchedRange:
        parameters: dict[str, Any] = {"Bucket": ref.bucket, "Key": ref.key, **requester(self.aws)}
        if ref.version_id:
            parameters["VersionId"] = ref.version_id
        elif ref.etag:
            parameters["IfMatch"] = _quoted(ref)
        if stop > start:
            parameters["Range"] = f"bytes={start}-{stop - 1}"
        with explained(ref):
            got = service_client(self.aws).get_object(**parameters)
        content_range, _, total = got.get("ContentRange", "").rpartition("/")
        if stop > start and not content_range.startswith(f"bytes {start}-"):  # obstore checks this itself
            raise TemporaryError(f"{ref.uri} cannot be read: S3 sent other bytes than were requested")
        return FetchedRange(
            size_bytes=int(total) if total.isdigit() else got["ContentLength"],
            chunks=got["Body"].iter_chunks(CHUNK_BYTES),
        )

    def current(self, ref: ObjectRef) -> CurrentVersion:
        with explained(ref):
            found = service_client(self.aws).head_object(Bucket=ref.bucket, Key=ref.key, **requester(self.aws))
        return CurrentVersion(version_id=found.get("VersionId"), etag=_unquoted(found.get("ETag")))


@contextmanager
def explained(ref: ObjectRef) -> Iterator[None]:
    """Convert S3's errors to Penstock's; see `refuse`."""
    try:
        yield
    except Exception as error:
        if is_of_s3(error):
            refuse(ref, error)
        raise


def refuse(ref: ObjectRef, error: Exception) -> NoReturn:
    """Raise the error that S3's refusal means for the object.

    Raises `ObjectGone`, `ObjectSuperseded`, `ObjectUnreadable`, `ConfigurationError`, `TemporaryError`, or
    `ObjectDenied`. The last also if the bucket is missing or a KMS key cannot be used: that affects many objects.
    """
    fault = fault_of(error)
    text = f"{ref.uri} cannot be read: {fault.text}"
    match fault.kind:
        case RefusalKind.MISSING:
            raise ObjectGone(f"{ref.uri}: {fault.text}") from None
        case RefusalKind.CHANGED:
            raise ObjectSuperseded(f"{ref.uri} changed: announced as version {ref.etag}, now another one") from None
        case RefusalKind.DENIED | RefusalKind.LOCKED | RefusalKind.NO_BUCKET:
            raise ObjectDenied(text) from None
        case RefusalKind.RANGE:
            raise ObjectUnreadable(f"{ref.uri} has fewer bytes than the {ref.size_bytes:,} announced") from None
        case RefusalKind.INVALID if ref.version_id:
            raise ObjectGone(f"{ref.uri} has no version {ref.version_id!r}") from None
        case RefusalKind.ARCHIVED | RefusalKind.INVALID:
            raise ObjectUnreadable(text) from None
        case RefusalKind.SETTINGS:
            raise ConfigurationError(text + ".") from None
        case RefusalKind.PASSING:
            raise TemporaryError(text) from None


def _quoted(ref: ObjectRef) -> str | None:
    return f'"{ref.etag}"' if ref.etag else None


def _unquoted(etag: str | None) -> str | None:
    return etag.strip('"') if etag else None


def _at_once(got: Any) -> Iterator[bytes]:
    yield bytes(got.bytes())


TRIES_MAX = 4  # in a row, without receiving a byte
BACKOFF_BASE_SECONDS = 0.2
BACKOFF_CAP_SECONDS = 5.0

RANGES_AHEAD_MAX = 3  # of `RANGE_BYTES` each, besides the one that is being read

Pause = Callable[[float], None]
Span = tuple[int, int]
"""The bytes [start, stop) of an object."""
Chunks = Sequence[bytes]
FetchRange = Callable[[ObjectRef, int, int], Chunks]
"""``fetch_range(ref, start, stop)``: exactly these bytes, which exist, as they were received. Raises as
`ObjectStore.read_range` does."""


@dataclass(frozen=True, slots=True)
class S3Store:
    """The objects below a prefix, or the one object of that name. See `ObjectStore`."""

    address: S3Address
    aws: Aws
    pause: Pause = time.sleep

    def contains(self, bucket: str, key: str) -> bool:
        """Return True if this key may be read."""
        return self.address.contains(bucket, key)

    def open(self, ref: ObjectRef, span: Span | None = None) -> "S3Reader":
        """Open this version with one GET, which fetches a small object whole and the first bytes of a large one.

        ``span``: the bytes of a large object that will be read in order. Its first ranges are fetched at the same time,
        and little is fetched beyond it.
        """
        if span is None or ref.size_bytes <= WHOLE_BYTES_MAX:
            return S3Reader(ref, _joined(self._range(ref, 0, prefetched_bytes(ref))), self._range)
        self._check_inside(ref)
        # The last line may end behind the span. The byte before the span shows if a line begins there.
        start, stop = max(0, span[0] - 1), min(span[1] + HEAD_BYTES, ref.size_bytes)
        ranges = _RangesAhead(ref, self._range, start, stop, ahead=RANGES_AHEAD_MAX)
        try:
            if start == 0:
                ranges.wait()
            head = _joined(self._range(ref, 0, HEAD_BYTES)) if start else b""
            return S3Reader(ref, head, self._range, ranges)
        except BaseException:
            ranges.close()
            raise

    def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
        stop = min(offset + length_bytes, ref.size_bytes)
        return _joined(self._range(ref, offset, stop)) if stop > offset else b""

    def check_current(self, ref: ObjectRef) -> None:
        """Raise `ObjectSuperseded` or `ObjectGone` if the store has another version as the key's current one, or none.

        Sends one HEAD if the reference has a version id. Without one, every GET has the ETag as its condition, which
        only the current version meets. Raises also as `open`.
        """
        if ref.version_id is None:
            return
        self._check_inside(ref)
        current = fetch_of(ref, self.aws).current(ref)
        if not current.is_of(ref):
            now = current.version_id or f"one with the ETag {current.etag}"
            raise ObjectSuperseded(f"{ref.uri} changed: announced as version {ref.version_id}, now {now}")

    def _check_inside(self, ref: ObjectRef) -> None:
        if not self.contains(ref.bucket, ref.key):
            raise ObjectUnreadable(f"{ref.uri} is outside {self.address}, so it is not read")

    def _range(self, ref: ObjectRef, start: int, stop: int) -> Chunks:
        self._check_inside(ref)
        return _ResumingBody(ref, fetch_of(ref, self.aws), start, stop, self.pause).read_all()


def prefetched_bytes(ref: ObjectRef, span: Span | None = None) -> int:
    """Return how many bytes a newly opened reader of this object has fetched and holds, or will hold soon."""
    if ref.size_bytes <= WHOLE_BYTES_MAX:
        return ref.size_bytes
    if span is None:
        return HEAD_BYTES
    return HEAD_BYTES + min(RANGES_AHEAD_MAX * RANGE_BYTES, span[1] - span[0] + HEAD_BYTES)


class S3Reader:
    """A reader of one version. See `ObjectReader`.

    Sequential reads, by `read` or by consecutive `pread` calls, read ahead (`_RangesAhead`), as do those of the span
    named at opening. Any other read is a GET of its own.
    """

    __slots__ = ("_closed", "_fetch", "_head", "_next", "_offset", "_ranges", "_ref")

    def __init__(self, ref: ObjectRef, head: bytes, fetch: FetchRange, ranges: "_RangesAhead | None" = None) -> None:
        self._ref = ref
        self._head = head  # the object's first bytes
        self._fetch = fetch
        self._offset = 0  # the position of `read`
        self._next = -1  # the end of the last `pread`
        self._ranges = ranges
        self._closed = False

    @property
    def ref(self) -> ObjectRef:
        return self._ref

    def read(self, size_bytes: int = -1, /) -> bytes:
        wanted = self._ref.size_bytes if size_bytes < 0 else size_bytes
        data = self._take(self._offset, wanted, in_order=True)
        self._offset += len(data)
        return data

    def pread(self, offset: int, length_bytes: int) -> bytes:
        data = self._take(offset, length_bytes, in_order=offset == self._next)
        self._next = offset + len(data)
        return data

    def verify(self) -> None:
        """Do nothing: every byte was fetched under the condition."""

    def close(self) -> None:
        self._closed = True
        self._read_ahead(None)
        self._head = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, offset: int, length_bytes: int, *, in_order: bool) -> bytes:
        if self._closed:
            raise ValueError("the reader is closed")
        stop = min(offset + length_bytes, self._ref.size_bytes)
        if stop <= offset:
            return b""
        if stop <= len(self._head):
            return self._head[offset:stop]
        if self._ranges is None or not self._ranges.holds(offset):
            if not in_order:
                return _joined(self._fetch(self._ref, offset, stop))
            self._read_ahead(_RangesAhead(self._ref, self._fetch, offset, self._ref.size_bytes))
        assert self._ranges is not None
        taken_to = min(stop, self._ranges.stop)
        data = self._ranges.take(offset, taken_to - offset)
        return data if taken_to == stop else b"".join([data, *self._fetch(self._ref, taken_to, stop)])

    def _read_ahead(self, ranges: "_RangesAhead | None") -> None:
        if self._ranges is not None:
            self._ranges.close()
        self._ranges = ranges


class _RangesAhead:
    """The bytes [start, stop) of a version, for a reader that takes them in order. Used by one thread.

    Fetches ranges of `RANGE_BYTES` in threads of its own: ``ahead`` at first, and one more with each that is read, up
    to `RANGES_AHEAD_MAX`, since a reader may stop after the first. Holds these, and the one that is being read.
    A failed range raises its error when its turn comes.
    """

    __slots__ = ("_ahead_max", "_begin", "_end", "_fetch", "_held", "_later", "_pool", "_ref", "_requested", "stop")

    def __init__(self, ref: ObjectRef, fetch: FetchRange, start: int, stop: int, *, ahead: int = 1) -> None:
        self._ref = ref
        self._fetch = fetch
        self.stop = stop
        self._begin = self._end = start  # of the range that is held
        self._held: Chunks = ()
        self._requested = start  # end of the last range that was requested
        self._ahead_max = ahead
        self._later: deque[Future[Chunks]] = deque()
        self._pool = ThreadPoolExecutor(RANGES_AHEAD_MAX, thread_name_prefix="penstock-s3-range")
        self._request_more()

    def holds(self, offset: int) -> bool:
        """Return True if the bytes from there on can be taken: they are held, or in the next range."""
        return self._begin <= offset < min(self._end + RANGE_BYTES, self.stop)

    def wait(self) -> None:
        """Wait for the first range. Raises its error."""
        self._later[0].result()

    def take(self, offset: int, wanted_bytes: int) -> bytes:
        """Return exactly these bytes. The caller guarantees that they exist, and that `holds` is true."""
        parts: list[memoryview] = []
        stop = offset + wanted_bytes
        while offset < stop:
            while offset >= self._end:
                self._advance()
            parts.extend(self._held_between(offset, stop))
            offset = self._end
        return b"".join(parts)

    def _held_between(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the held bytes between two places of the object."""
        at = self._begin
        for chunk in self._held:
            yield memoryview(chunk)[max(start - at, 0) : max(stop - at, 0)]
            at += len(chunk)

    def close(self) -> None:
        """Drop what was fetched. Waits for the requests in progress."""
        self._pool.shutdown(cancel_futures=True)
        self._later.clear()
        self._begin, self._held = self._end, ()

    def _advance(self) -> None:
        """Hold the next range in place of this one. One that failed stays the next, and raises its error each time."""
        found = self._later[0].result()
        self._later.popleft()
        self._begin, self._end = self._end, self._end + sum(map(len, found))
        self._held = found
        self._ahead_max = min(self._ahead_max + 1, RANGES_AHEAD_MAX)
        self._request_more()

    def _request_more(self) -> None:
        while self._requested < self.stop and len(self._later) < self._ahead_max:
            stop = min(self._requested + RANGE_BYTES, self.stop)
            self._later.append(self._pool.submit(self._fetch, self._ref, self._requested, stop))
            self._requested = stop


class _ResumingBody:
    """The bytes [start, stop) of a version. Resumes after a broken connection, under the same condition."""

    __slots__ = ("_chunks", "_fetch", "_fetched", "_pause", "_ref", "_stop")

    def __init__(self, ref: ObjectRef, fetch: Fetch, start: int, stop: int, pause: Pause) -> None:
        self._ref = ref
        self._fetch = fetch
        self._pause = pause
        self._stop = stop
        self._fetched = start  # end of the received bytes
        self._chunks: Iterator[bytes] | None = self._request()

    def read_all(self) -> Chunks:
        """Return the bytes. The caller guarantees that they exist."""
        chunks: list[bytes] = []
        while self._fetched < self._stop:
            chunks.append(self._next_chunk())
        return chunks

    def _next_chunk(self) -> bytes:
        for attempt in range(TRIES_MAX):
            if attempt:
                self._pause(_wait_seconds(attempt))
            if chunk := self._receive():
                self._fetched += len(chunk)
                return chunk
            self._chunks = None
        raise TemporaryError(f"{self._ref.uri} cannot be read: the connection broke at {self._fetched:,} bytes")

    def _receive(self) -> bytes:
        """Return the next bytes, or none if the connection broke."""
        if self._chunks is None:
            self._chunks = self._request()
        try:
            return next(self._chunks, b"")
        except Exception as error:
            if not (is_of_s3(error) or isinstance(error, OSError)):
                raise
            if fault_of(error).kind is not RefusalKind.PASSING:
                refuse(self._ref, error)
            return b""

    def _request(self) -> Iterator[bytes]:
        ref = self._ref
        fetched = self._fetch(ref, self._fetched, self._stop)
        if fetched.size_bytes != ref.size_bytes:
            raise ObjectUnreadable(
                f"{ref.uri} was announced with {ref.size_bytes:,} bytes and has {fetched.size_bytes:,}"
            )
        return fetched.chunks


def _joined(chunks: Chunks) -> bytes:
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _wait_seconds(attempt: int) -> float:
    return backoff_seconds(
        attempt=attempt, base_seconds=BACKOFF_BASE_SECONDS, cap_seconds=BACKOFF_CAP_SECONDS, random=random.random
    )
