"""Reading a large object of S3 ahead: in order, in parallel, within the span, bounded, and each failure in its turn."""

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.services.aws_server import aws_at
from tests.services.s3_stub import Answered, Asked, S3Stub, refusal

from penstock.errors import ObjectDenied, ObjectGone, ObjectSuperseded
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_store import HEAD_BYTES, RANGE_BYTES, RANGES_AHEAD_MAX, S3Store, Span
from penstock.objects.stores import ahead
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece, ReadPlan
from penstock.pipeline.spark.source.reading import partition_task, read_partition
from penstock.pipeline.spark.source.report import ReadingId
from penstock.storage.address import s3_address
from penstock.storage.local import LocalFiles

DEADLINE_SECONDS = 60.0
MIB = 1 << 20
RANGES = 12
LINE = b'{"id": 1234567}\n'
SIZE_BYTES = RANGES * RANGE_BYTES
REF = ObjectRef(bucket="landing", key="in/a.jsonl", size_bytes=SIZE_BYTES, etag="0f")
THREADS = "penstock-s3-range"


def content(start: int, stop: int) -> bytes:
    """Return a range of an object that repeats one line."""
    first = start % len(LINE)
    return (LINE * ((stop - start) // len(LINE) + 2))[first : first + stop - start]


@dataclass
class LargeObject:
    """A server with one object, whose responses may be held, refused, or those of a later version."""

    concurrent_min: int = 0  # no range is sent before this many requests were concurrent,
    concurrent_from: int = 0  # if it begins at this byte or later
    refused_at: int | None = None  # the range with this byte is refused
    changed_at: int | None = None  # the object is replaced when the range with this byte is requested
    awaited: threading.Event | None = None  # no range from that byte on is sent before it is set
    awaited_from: int = 0

    def __post_init__(self) -> None:
        self.concurrent_max = 0  # this and the next two fields are written under the condition
        self._concurrent = 0
        self._is_changed = False
        self._changed = threading.Condition()

    def answer(self, asked: Asked) -> Answered:
        start, stop = span_of(asked)
        with self._changed:
            self._concurrent += 1
            self.concurrent_max = max(self.concurrent_max, self._concurrent)
            self._changed.notify_all()
            if start >= self.concurrent_from:
                assert self._changed.wait_for(lambda: self.concurrent_max >= self.concurrent_min, DEADLINE_SECONDS)
            self._concurrent -= 1
            self._is_changed |= self.changed_at is not None and start <= self.changed_at < stop
            etag = '"10"' if self._is_changed else '"0f"'
        if self.awaited is not None and start >= self.awaited_from:
            assert self.awaited.wait(DEADLINE_SECONDS)
        if self.refused_at is not None and start <= self.refused_at < stop:
            return refusal(403, "AccessDenied")
        if asked.headers["if-match"] != etag:
            return refusal(412, "PreconditionFailed")
        headers = {"ETag": etag, "Content-Range": f"bytes {start}-{stop - 1}/{SIZE_BYTES}"}
        return Answered(status=206, body=content(start, stop), headers=headers)


def span_of(asked: Asked) -> Span:
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers["range"])
    assert found is not None
    return int(found[1]), int(found[2]) + 1


def spans_of(stub: S3Stub) -> list[Span]:
    """Return the requested ranges, by their start."""
    return sorted(map(span_of, stub.asked))


def reading_threads() -> Sequence[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]


@pytest.fixture
def large() -> LargeObject:
    return LargeObject()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Stub]:
    with S3Stub(LargeObject().answer) as server:
        yield server


@pytest.fixture
def stub(server: S3Stub, large: LargeObject) -> S3Stub:
    server.answer = large.answer
    server.asked.clear()
    return server


@pytest.fixture
def store(stub: S3Stub) -> S3Store:
    return S3Store(s3_address("s3://landing/in"), aws_at(stub.url), pause=lambda seconds: None)


def test_a_reader_in_order_gets_every_byte_once(store: S3Store, stub: S3Stub) -> None:
    at = 0
    with store.open(REF, (0, SIZE_BYTES)) as reader:
        for length in (2, 3 * MIB, RANGE_BYTES, 1, 20 * MIB, SIZE_BYTES):
            data = reader.pread(at, length)
            assert data == content(at, min(at + length, SIZE_BYTES))
            at += len(data)
    assert at == SIZE_BYTES
    assert spans_of(stub) == [(at, at + RANGE_BYTES) for at in range(0, SIZE_BYTES, RANGE_BYTES)]


def test_ranges_are_fetched_in_parallel_while_one_is_read(store: S3Store, large: LargeObject) -> None:
    large.concurrent_min, large.concurrent_from = RANGES_AHEAD_MAX, RANGES_AHEAD_MAX * RANGE_BYTES
    with store.open(REF, (0, SIZE_BYTES)) as reader:
        read = iter(lambda: reader.read(RANGE_BYTES), b"")
        assert sum(map(len, read)) == SIZE_BYTES
    assert large.concurrent_max == RANGES_AHEAD_MAX


def test_the_bytes_ahead_are_bounded(store: S3Store, stub: S3Stub) -> None:
    ranges_read = 5
    with store.open(REF, (0, SIZE_BYTES)) as reader:
        for number in range(ranges_read):
            reader.pread(number * RANGE_BYTES, RANGE_BYTES)
    assert max(stop for _, stop in spans_of(stub)) <= (ranges_read + RANGES_AHEAD_MAX) * RANGE_BYTES
    assert len(stub.asked) >= ranges_read  # those ahead may not have begun when the reader is closed


def test_the_first_ranges_of_a_named_span_are_fetched_together(store: S3Store, large: LargeObject) -> None:
    large.concurrent_min = RANGES_AHEAD_MAX
    with store.open(REF, (0, SIZE_BYTES)) as reader:
        assert reader.pread(0, 2) == content(0, 2)


def test_fewer_are_fetched_for_a_reader_that_may_stop_after_the_first(store: S3Store, stub: S3Stub) -> None:
    with store.open(REF) as reader:
        assert reader.read(RANGE_BYTES) == content(0, RANGE_BYTES)
    assert max(stop for _, stop in spans_of(stub)) <= (1 + 2) * RANGE_BYTES < (1 + RANGES_AHEAD_MAX) * RANGE_BYTES


def test_the_first_bytes_of_a_piece_are_fetched_beside_those_of_the_object(store: S3Store, large: LargeObject) -> None:
    large.concurrent_min = 2
    start, stop = 20 * MIB, 30 * MIB
    with store.open(REF, (start, stop)) as reader:
        assert reader.pread(0, 2) == content(0, 2)
        assert reader.pread(start - 1, HEAD_BYTES) == content(start - 1, start - 1 + HEAD_BYTES)
        assert reader.pread(start, 8 * MIB) == content(start, start + 8 * MIB)
        assert reader.pread(start + 8 * MIB, 2 * MIB) == content(start + 8 * MIB, stop)
        assert reader.pread(stop, HEAD_BYTES) == content(stop, stop + HEAD_BYTES)


def test_the_first_block_of_a_piece_needs_one_range(store: S3Store, large: LargeObject) -> None:
    """Otherwise a second request would follow the first, at the beginning of every piece."""
    start, stop = 20 * MIB, 40 * MIB
    large.refused_at = start - 1 + RANGE_BYTES
    with store.open(REF, (start, stop)) as reader:
        first_line = start + HEAD_BYTES // 2
        assert reader.pread(start - 1, HEAD_BYTES) == content(start - 1, start - 1 + HEAD_BYTES)
        assert reader.pread(first_line, 8 * MIB) == content(first_line, first_line + 8 * MIB)


def test_nothing_far_behind_a_piece_is_fetched(store: S3Store, stub: S3Stub) -> None:
    start, stop = 20 * MIB, 30 * MIB
    with store.open(REF, (start, stop)) as reader:
        assert reader.pread(start, stop - start) == content(start, stop)
        assert reader.pread(stop, HEAD_BYTES) == content(stop, stop + HEAD_BYTES)  # to the end of the last line
    middle = start - 1 + RANGE_BYTES
    assert spans_of(stub) == [(0, HEAD_BYTES), (start - 1, middle), (middle, stop + HEAD_BYTES)]


def test_other_bytes_can_be_read_at_any_time(store: S3Store) -> None:
    start, stop = 20 * MIB, 30 * MIB
    with store.open(REF, (start, stop)) as reader:
        for offset in (start, 50 * MIB, start + MIB, 3 * MIB, stop - 5, stop + 10 * MIB, 0):
            assert reader.pread(offset, 2 * MIB) == content(offset, offset + 2 * MIB)
        assert reader.pread(SIZE_BYTES - 3, 10) == content(SIZE_BYTES - 3, SIZE_BYTES)


def test_a_range_that_fails_raises_in_its_turn(store: S3Store, large: LargeObject) -> None:
    large.refused_at = 3 * RANGE_BYTES
    with store.open(REF, (0, SIZE_BYTES)) as reader:
        for number in range(3):
            at = number * RANGE_BYTES
            assert reader.pread(at, RANGE_BYTES) == content(at, at + RANGE_BYTES)
        for _ in range(2):
            with pytest.raises(ObjectDenied):
                reader.pread(3 * RANGE_BYTES, 1)
    assert not reading_threads()


def test_an_object_that_is_replaced_meanwhile_is_superseded(store: S3Store, stub: S3Stub, large: LargeObject) -> None:
    large.changed_at = 4 * RANGE_BYTES
    read: list[bytes] = []
    with store.open(REF, (0, SIZE_BYTES)) as reader, pytest.raises(ObjectSuperseded):
        read.extend(iter(lambda: reader.read(RANGE_BYTES), b""))
    assert {asked.headers["if-match"] for asked in stub.asked} == {'"0f"'}


@pytest.mark.parametrize("span", [None, (0, SIZE_BYTES), (20 * MIB, 30 * MIB)])
def test_opening_raises_the_error_of_the_object(store: S3Store, stub: S3Stub, span: Span | None) -> None:
    stub.answer = lambda asked: refusal(404, "NoSuchKey")
    with pytest.raises(ObjectGone):
        store.open(REF, span)
    assert not reading_threads()


def test_a_reader_that_ends_early_leaves_no_thread_and_sends_no_request(store: S3Store, stub: S3Stub) -> None:
    with store.open(REF, (0, SIZE_BYTES)) as reader:
        reader.pread(0, 2)
    assert not reading_threads()
    assert len(stub.asked) <= 1 + RANGES_AHEAD_MAX
    with pytest.raises(ValueError, match="closed"):
        reader.pread(2, 2)


def test_pieces_opened_ahead_are_read_in_order(store: S3Store, stub: S3Stub) -> None:
    spans = [(20 * MIB, 30 * MIB), (40 * MIB, 45 * MIB)]
    with ahead(store, [REF, REF], spans=spans) as opening:
        for start, stop in spans:
            with opening.open(REF) as reader:
                assert reader.pread(start, stop - start) == content(start, stop)
    assert all(stop <= 45 * MIB + HEAD_BYTES for _, stop in spans_of(stub))


def test_small_objects_have_one_request_whatever_their_span(store: S3Store, stub: S3Stub) -> None:
    stub.answer = lambda asked: Answered(
        status=206, body=LINE, headers={"ETag": '"0f"', "Content-Range": f"bytes 0-{len(LINE) - 1}/{len(LINE)}"}
    )
    small = replace(REF, size_bytes=len(LINE))
    with store.open(small, (5, len(LINE))) as reader:
        assert reader.pread(5, 100) == LINE[5:]
    assert spans_of(stub) == [(0, len(LINE))]


def test_a_run_reads_pieces_of_lines_ahead_and_no_further(store: S3Store, stub: S3Stub, tmp_path: Path) -> None:
    cut = 21 * MIB + 5  # within a line
    stop = 40 * MIB + 7
    plan = ReadPlan(
        attempt_id="A",
        run=0,
        options=ReadOptions(schema_ddl="id long", provenance=False),
        objects=[REF],
        partitions=[[Piece(object=0, start=0, stop=cut)], [Piece(object=0, start=cut, stop=stop)]],
        source="s3://landing/in",
        aws=store.aws,
        quarantine=LocalFiles(tmp_path / "quarantine"),
        work=LocalFiles(tmp_path / "work"),
    )
    ends, rows = [], 0
    for number in range(2):
        stub.asked.clear()
        batches = read_partition(partition_task(plan, number), store, ReadingId(plan.reports, number))
        rows += sum(batch.num_rows for batch in batches)
        ends.append(max(end for _, end in spans_of(stub)))
        assert len(stub.asked) == (3, 4)[number]  # three ranges, and the beginning of the object
    assert rows == -(-stop // len(LINE))
    assert ends == [cut + HEAD_BYTES, stop + HEAD_BYTES]


def test_the_first_block_of_a_piece_is_decoded_without_the_second(
    store: S3Store, large: LargeObject, tmp_path: Path
) -> None:
    plan = ReadPlan(
        attempt_id="A",
        run=0,
        options=ReadOptions(schema_ddl="id long", provenance=False),
        objects=[REF],
        partitions=[[Piece(object=0, start=0, stop=40 * MIB)]],
        source="s3://landing/in",
        aws=store.aws,
        quarantine=LocalFiles(tmp_path / "quarantine"),
        work=LocalFiles(tmp_path / "work"),
    )
    decoded = threading.Event()
    large.awaited, large.awaited_from = decoded, RANGE_BYTES
    batches = read_partition(partition_task(plan, 0), store, ReadingId(plan.reports, 0))
    rows = next(batches).num_rows
    decoded.set()
    assert rows + sum(batch.num_rows for batch in batches) == -(-40 * MIB // len(LINE))
