"""Create the store for a source's address, open objects ahead of their reader, and find versions that were replaced.

An object in S3 takes tens of milliseconds to its first byte, and a small one little more to its last. A reader that
opens them one by one spends its time waiting, so `ahead` opens several in parallel, bounded in number and bytes.
`replaced` asks for the current versions of many objects in parallel, too.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from penstock.errors import ObjectError
from penstock.objects.local_store import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_store import S3Store, Span, prefetched_bytes
from penstock.objects.store import ObjectReader, ObjectStore
from penstock.storage.address import is_s3, s3_address
from penstock.storage.aws import Aws


def store_at(source: str, aws: Aws, *, remembers: bool = True) -> ObjectStore:
    """Return the store for a folder's real path, or for s3://BUCKET/PREFIX. ``remembers``: see `LocalRoot`."""
    if is_s3(source):
        return S3Store(s3_address(source), aws)
    return LocalStore(source, remembers=remembers)


OPENED_AT_FIRST = 32
OPENED_MAX = 128  # requested at once; at 20 ms each, one core cannot take more (measured: 150 us of CPU each)
PREFETCH_FACTOR = 8  # times as many are fetched before the reader opens them: it decodes a thousand at a time
PREFETCHED_BYTES_MAX = 32 << 20


@contextmanager
def ahead(
    store: ObjectStore,
    refs: Sequence[ObjectRef],
    *,
    spans: Sequence[Span] | None = None,
    opened_max: int = OPENED_MAX,
    prefetched_bytes_max: int = PREFETCHED_BYTES_MAX,
) -> Iterator[ObjectStore]:
    """Yield a store for a reader that opens these objects in this order. The store is not thread-safe.

    An object that the reader skips is opened in vain, so name only objects that it will open. ``spans``: the bytes of
    each that it will read in order, see `S3Store.open`; None: unknown. ``opened_max``: the objects that are requested
    at once. Local files open fast: their store is yielded unchanged.
    """
    if not isinstance(store, S3Store) or not refs:
        yield store
        return
    spans_known = [None] * len(refs) if spans is None else spans
    pool = ThreadPoolExecutor(opened_max, thread_name_prefix="penstock-s3-ahead")
    opening = _PrefetchingStore(
        store,
        list(zip(refs, spans_known, strict=True)),
        pool,
        opened_max=opened_max,
        prefetched_bytes_max=prefetched_bytes_max,
    )
    try:
        yield opening
    finally:
        pool.shutdown(cancel_futures=True)
        opening.close()


def replaced(
    store: ObjectStore, refs: Sequence[ObjectRef], *, requests_max: int = OPENED_MAX
) -> Mapping[int, ObjectError]:
    """Return why versions are not the current ones of their keys, by position. Those that are current are omitted.

    Opening a local file checks that already. Raises `TemporaryError` and `ConfigurationError` as opening does.
    """
    if not isinstance(store, S3Store):
        return {}
    versions = [position for position, ref in enumerate(refs) if ref.version_id is not None]
    if not versions:
        return {}
    pool = ThreadPoolExecutor(min(requests_max, len(versions)), thread_name_prefix="penstock-s3-current")
    try:
        failures = pool.map(lambda position: _failure_of(store, refs[position]), versions)
        return {position: failure for position, failure in zip(versions, failures, strict=True) if failure is not None}
    finally:
        pool.shutdown(cancel_futures=True)


def _failure_of(store: S3Store, ref: ObjectRef) -> ObjectError | None:
    try:
        store.check_current(ref)
    except ObjectError as error:
        return error
    return None


class _PrefetchingStore:
    """An `ObjectStore` that opens the next objects in a thread pool. Used by one thread.

    Whenever the reader has to wait for an object, twice as many are opened ahead of it, up to the limit. So their
    number fits the latency, and the time that the reader takes for an object.
    """

    def __init__(
        self,
        store: S3Store,
        objects: Sequence[tuple[ObjectRef, Span | None]],
        pool: ThreadPoolExecutor,
        *,
        opened_max: int,
        prefetched_bytes_max: int,
    ) -> None:
        self._store = store
        self._pool = pool
        self._opened_max = PREFETCH_FACTOR * opened_max
        self._opened_now = min(OPENED_AT_FIRST, self._opened_max)
        self._prefetched_bytes_max = prefetched_bytes_max
        self._later = deque(objects)
        self._opened: deque[tuple[ObjectRef, int, Future[ObjectReader]]] = deque()  # with the prefetched bytes
        self._prefetched_bytes = 0  # total of the opened objects

    def open(self, ref: ObjectRef) -> ObjectReader:
        while self._opened or self._later:
            self._open_more()
            opened, reader = self._next()
            if opened == ref:
                if not reader.done():
                    self._opened_now = min(2 * self._opened_now, self._opened_max)
                self._open_more()
                return reader.result()
            _drop(reader)
        return self._store.open(ref)  # not one of the named objects, or out of order

    def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
        return self._store.read_range(ref, offset, length_bytes)

    def close(self) -> None:
        while self._opened:
            _drop(self._next()[1])

    def _open_more(self) -> None:
        while self._later and len(self._opened) < self._opened_now:
            ref, span = self._later[0]
            needed = prefetched_bytes(ref, span)
            if self._opened and self._prefetched_bytes + needed > self._prefetched_bytes_max:
                return
            self._later.popleft()
            self._prefetched_bytes += needed
            self._opened.append((ref, needed, self._pool.submit(self._store.open, ref, span)))

    def _next(self) -> tuple[ObjectRef, Future[ObjectReader]]:
        ref, prefetched, reader = self._opened.popleft()
        self._prefetched_bytes -= prefetched
        return ref, reader


def _drop(opened: Future[ObjectReader]) -> None:
    """Close the reader as soon as it is open, if it ever is."""

    def close(done: Future[ObjectReader]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    opened.cancel()
    opened.add_done_callback(close)
