"""Opening objects ahead: in order, bounded, with each failure raised for its own object."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services.aws_server import aws_at
from tests.services.s3_stub import Answered, Asked, S3Stub, refusal

from penstock.errors import ObjectGone
from penstock.objects.local_store import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_store import S3Store
from penstock.objects.store import ObjectStore
from penstock.objects.stores import OPENED_AT_FIRST, ahead
from penstock.storage.address import s3_address

DEADLINE_SECONDS = 60.0


class NumberedObjects:
    """A server whose objects contain their own numbers. Counts concurrent requests."""

    def __init__(self) -> None:
        self.missing: set[int] = set()
        self.concurrent_min = 0  # no response is sent before this many requests were concurrent
        self.concurrent_max = 0  # this and the next field are written under the condition
        self._concurrent = 0
        self._responses = 0
        self._changed = threading.Condition()

    def answer(self, asked: Asked) -> Answered:
        with self._changed:
            self._concurrent += 1
            self.concurrent_max = max(self.concurrent_max, self._concurrent)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.concurrent_max >= self.concurrent_min, DEADLINE_SECONDS)
            self._concurrent -= 1
            self._responses += 1
            self._changed.notify_all()
        number = int(asked.target.rpartition("/")[2])
        if number in self.missing:
            return refusal(404, "NoSuchKey")
        body = content(number)
        headers = {"ETag": '"0f"', "Content-Range": f"bytes 0-{len(body) - 1}/{len(body)}"}
        return Answered(status=206, body=body, headers=headers)

    def await_responses(self, count: int) -> None:
        """Wait until this number of responses was sent."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._responses >= count, DEADLINE_SECONDS)


def content(number: int) -> bytes:
    return b"%05d" % number


@pytest.fixture
def objects() -> NumberedObjects:
    return NumberedObjects()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Stub]:
    with S3Stub(NumberedObjects().answer) as server:
        yield server


@pytest.fixture
def stub(server: S3Stub, objects: NumberedObjects) -> S3Stub:
    server.answer = objects.answer
    server.asked.clear()
    return server


@pytest.fixture
def store(stub: S3Stub) -> S3Store:
    return S3Store(s3_address("s3://landing"), aws_at(stub.url))


def refs(count: int) -> list[ObjectRef]:
    return [ObjectRef(bucket="landing", key=f"in/{number}", size_bytes=5, etag="0f") for number in range(count)]


def read(store: ObjectStore, ref: ObjectRef) -> bytes:
    with store.open(ref) as reader:
        return reader.read()


def test_objects_are_read_in_order_with_one_request_each(store: S3Store, stub: S3Stub) -> None:
    wanted = refs(100)
    with ahead(store, wanted) as opening:
        assert [read(opening, ref) for ref in wanted] == [content(number) for number in range(100)]
    assert len(stub.asked) == 100


def test_as_many_objects_as_allowed_are_requested_at_once(store: S3Store, objects: NumberedObjects) -> None:
    wanted = refs(16)
    objects.concurrent_min = 4
    with ahead(store, wanted, opened_max=4) as opening:
        for ref in wanted:
            read(opening, ref)
    assert objects.concurrent_max == 4


def test_more_objects_are_requested_at_once_if_the_reader_waits(
    store: S3Store, stub: S3Stub, objects: NumberedObjects
) -> None:
    wanted = refs(5 * OPENED_AT_FIRST)
    objects.concurrent_min = 2 * OPENED_AT_FIRST
    with ahead(store, wanted, opened_max=2 * OPENED_AT_FIRST) as opening:
        for ref in wanted:
            read(opening, ref)
    assert objects.concurrent_max == 2 * OPENED_AT_FIRST
    assert len(stub.asked) == len(wanted), "no request timed out and was repeated"


def test_objects_are_fetched_while_the_reader_does_something_else(store: S3Store, objects: NumberedObjects) -> None:
    wanted = refs(8 * OPENED_AT_FIRST)
    opened_max = OPENED_AT_FIRST // 2
    objects.concurrent_min = opened_max
    with ahead(store, wanted, opened_max=opened_max) as opening:
        read(opening, wanted[0])
        objects.await_responses(OPENED_AT_FIRST)  # without another read
        for ref in wanted[1:]:
            read(opening, ref)
    assert objects.concurrent_max == opened_max


def test_prefetched_bytes_are_bounded(store: S3Store, objects: NumberedObjects) -> None:
    wanted = refs(9)
    objects.concurrent_min = 4
    with ahead(store, wanted, prefetched_bytes_max=15) as opening:  # three, and the awaited one
        for ref in wanted:
            read(opening, ref)
    assert objects.concurrent_max == 4


def test_an_object_larger_than_the_bound_is_opened(store: S3Store, objects: NumberedObjects) -> None:
    wanted = refs(6)
    with ahead(store, wanted, prefetched_bytes_max=1) as opening:
        assert [read(opening, ref) for ref in wanted] == [content(number) for number in range(6)]
    assert objects.concurrent_max <= 2


def test_a_failure_is_raised_for_its_own_object(store: S3Store, objects: NumberedObjects) -> None:
    objects.missing.add(1)
    wanted = refs(3)
    with ahead(store, wanted) as opening:
        assert read(opening, wanted[0]) == content(0)
        with pytest.raises(ObjectGone):
            opening.open(wanted[1])
        assert read(opening, wanted[2]) == content(2)


def test_skipped_and_unlisted_objects_can_be_read(store: S3Store) -> None:
    wanted = refs(10)
    with ahead(store, wanted[:6], opened_max=2) as opening:
        assert read(opening, wanted[4]) == content(4)
        assert read(opening, wanted[9]) == content(9)
        assert read(opening, wanted[5]) == content(5)
        assert opening.read_range(wanted[0], 0, 5) == content(0)


def test_an_object_may_be_listed_twice(store: S3Store) -> None:
    wanted = [*refs(2), *refs(2)]
    with ahead(store, wanted) as opening:
        assert [read(opening, ref) for ref in wanted] == [content(0), content(1)] * 2


def test_a_reader_that_ends_early_leaves_no_thread(store: S3Store) -> None:
    wanted = refs(50)
    with ahead(store, wanted, opened_max=4) as opening:
        read(opening, wanted[0])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-s3-ahead")]


def test_a_local_store_is_returned_unchanged(tmp_path: Path) -> None:
    local = LocalStore(tmp_path)
    with ahead(local, refs(2)) as opening:
        assert opening is local
