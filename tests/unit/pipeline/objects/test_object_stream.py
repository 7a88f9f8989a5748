"""The content of an object as a handler receives it."""

import bz2
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pipeline.objects.scene import Scene

from penstock.errors import ObjectSuperseded, ObjectUnreadable, TemporaryError
from penstock.ledger.records import OriginalMessage
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.objects.reference import ObjectRef
from penstock.pipeline.objects.declaration import ObjectHandlerDeclaration
from penstock.pipeline.objects.stream import LINES_KEPT_MAX, RAW_BYTES_MAX, IncomingObject


class Reader:
    """A reader of any content, with any announced size."""

    def __init__(self, ref: ObjectRef, content: bytes, *, verified: bool = True) -> None:
        self.ref = ref
        self.closed = False
        self._file = io.BytesIO(content)
        self._verified = verified

    def read(self, size_bytes: int = -1, /) -> bytes:
        return self._file.read(size_bytes)

    def pread(self, offset: int, length_bytes: int) -> bytes:
        raise NotImplementedError

    def verify(self) -> None:
        if not self._verified:
            raise ObjectSuperseded("it changed")

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Store:
    def __init__(self, content: bytes, *, verified: bool = True) -> None:
        self.readers: list[Reader] = []
        self._content = content
        self._verified = verified

    def open(self, ref: ObjectRef) -> Reader:
        self.readers.append(Reader(ref, self._content, verified=self._verified))
        return self.readers[-1]

    def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
        raise NotImplementedError


def incoming(
    content: bytes,
    *,
    key: str = "a",
    size_bytes: int | None = None,
    scratch: Path | None = None,
    check: Callable[[], None] = lambda: None,
    verified: bool = True,
    **declared: Any,
) -> IncomingObject:
    ref = ObjectRef(bucket="b", key=key, size_bytes=len(content) if size_bytes is None else size_bytes, etag="1")
    store = Store(content, verified=verified)
    return IncomingObject(
        ref,
        store=store,
        reader=store.open(ref),
        original_message=OriginalMessage(message_id="m", enqueued_at=1.0),
        declaration=ObjectHandlerDeclaration(name="h", function=print, **declared),
        check=check,
        scratch=scratch,
    )


def test_open_returns_a_new_seekable_file_for_each_call() -> None:
    obj = incoming(b"0123456789")
    first, second = obj.open(), obj.open()
    assert (first.read(), second.read(3)) == (b"0123456789", b"012")
    first.seek(8)
    assert first.read() == b"89"
    obj.close()
    assert first.closed
    assert second.closed


def test_every_reader_is_closed() -> None:
    store = Store(b"x")
    ref = ObjectRef(bucket="b", key="a", size_bytes=1, etag="1")
    obj = IncomingObject(
        ref,
        store=store,
        reader=store.open(ref),
        original_message=OriginalMessage(message_id="m", enqueued_at=1.0),
        declaration=ObjectHandlerDeclaration(name="h", function=print),
        check=lambda: None,
        scratch=None,
    )
    obj.read()
    obj.read()
    obj.close()
    assert [reader.closed for reader in store.readers] == [True, True]


def test_content_beyond_the_limit_is_kept_in_the_scratch_folder_and_not_in_memory(tmp_path: Path) -> None:
    obj = incoming(b"x" * 100, scratch=tmp_path / "missing", memory_bytes_max=99)
    with pytest.raises(TemporaryError, match="temporary file"):
        obj.open()
    assert obj.fault is not None
    assert not obj.fault.lasting
    assert incoming(b"x" * 99, scratch=tmp_path / "missing", memory_bytes_max=99).open().read() == b"x" * 99
    assert incoming(b"x" * 100, scratch=tmp_path, memory_bytes_max=99).open().read() == b"x" * 100
    assert list(tmp_path.iterdir()) == [], "the file is unnamed, so none can remain"


def test_read_refuses_content_over_its_limit() -> None:
    assert incoming(b"12345").read(5) == b"12345"
    obj = incoming(b"12345")
    with pytest.raises(ObjectUnreadable, match="5 bytes; at most 4"):
        obj.read(4)
    assert obj.fault is not None
    assert obj.fault.lasting


@pytest.mark.parametrize("size_bytes", [4, 6])
def test_content_with_a_different_size_than_announced_is_refused(size_bytes: int) -> None:
    obj = incoming(b"12345", size_bytes=size_bytes)
    with pytest.raises(ObjectUnreadable, match="another size"):
        obj.read()


def test_content_is_verified_before_it_is_returned() -> None:
    for read in (IncomingObject.read, IncomingObject.open, lambda obj: next(obj.lines())):
        obj = incoming(b"one\ntwo\n", verified=False)
        with pytest.raises(ObjectSuperseded):
            read(obj)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".GZ", gzip.compress), (".bz2", bz2.compress)]
)
def test_lines_are_decompressed_by_the_name_and_bytes_are_not(suffix: str, compress: Callable[[bytes], bytes]) -> None:
    stored = compress(b"one\n") + compress(b"two\n")
    obj = incoming(stored, key=f"a{suffix}")
    assert [tuple(line) for line in obj.lines()] == [(1, 0, "one"), (2, 4, "two")]
    assert obj.read() == stored


def test_truncated_content_yields_no_line() -> None:
    obj = incoming(gzip.compress(b"one\n" * 1_000_000)[:-20], key="a.gz")
    with pytest.raises(ObjectUnreadable, match="truncated"):
        next(obj.lines())
    assert obj.fault is not None
    assert obj.fault.lasting


def test_a_line_over_the_limit_is_reported_with_its_offset() -> None:
    obj = incoming(b"ok\n" + b"x" * 10, line_bytes_max=9)
    lines = obj.lines()
    assert next(lines).text == "ok"
    with pytest.raises(ObjectUnreadable, match="9 bytes at offset 3"):
        next(lines)
    assert [line.text for line in incoming(b"x" * 9, line_bytes_max=9).lines()] == ["x" * 9]


def test_a_byte_order_mark_is_not_part_of_a_line() -> None:
    assert [tuple(line) for line in incoming(b"\xef\xbb\xbfone\ntwo").lines()] == [(1, 0, "one"), (2, 7, "two")]


def test_another_encoding_may_be_declared() -> None:
    assert [line.text for line in incoming(b"caf\xe9\n", encoding="latin-1").lines()] == ["café"]


def test_a_carriage_return_in_the_middle_ends_no_line() -> None:
    assert [line.text for line in incoming(b"a\rb\r\nc\r").lines()] == ["a\rb", "c\r"]


@pytest.mark.parametrize(
    ("encoding", "word"), [("utf-8", "invalid UTF-8"), ("UTF8", "invalid UTF-8"), ("ascii", "invalid encoding")]
)
def test_the_reason_of_quarantined_lines_does_not_depend_on_their_content(encoding: str, word: str) -> None:
    obj = incoming(b"\xff\na\n\xfe\xff\n", encoding=encoding)
    assert [line.text for line in obj.lines()] == ["a"]
    assert obj.quarantine_reasons == {word: 2}


def test_all_quarantined_lines_are_counted_and_a_bounded_number_kept() -> None:
    obj = incoming(b"".join(b"\xff" * 1_000 + b"\n" for _ in range(LINES_KEPT_MAX + 5)))
    assert list(obj.lines()) == []
    assert obj.lines_quarantined == LINES_KEPT_MAX + 5
    assert len(obj.quarantined) == LINES_KEPT_MAX
    assert {len(line.raw) for line in obj.quarantined} == {RAW_BYTES_MAX}
    assert list(obj.lines()) == []
    assert obj.lines_quarantined == LINES_KEPT_MAX + 5, "reading again restarts the count"


def test_every_read_passes_a_checkpoint() -> None:
    checks: list[int] = []
    obj = incoming(b"one\ntwo\n", check=lambda: checks.append(1))
    obj.read()
    assert len(checks) == 1
    lines = obj.lines()
    next(lines)
    before = len(checks)
    next(lines)
    assert len(checks) == before + 1


# The effect of a read fault on the message


def test_a_fault_of_the_content_is_final_at_once_even_if_the_function_wraps_it(scene: Scene) -> None:
    def hides(obj: IncomingObject) -> None:
        try:
            list(obj.lines())
        except Exception as error:
            raise ValueError("bad input") from error

    scene.announce(scene.put("a.gz", b"no gzip"))
    [end] = scene.serve(scene.handler(hides))
    assert isinstance(end, DeadLetter)
    assert "named like a gzip" in end.reason


def test_a_fault_of_the_reading_is_retried(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = scene.put("a")

    class Broken(Store):
        def open(self, ref: ObjectRef) -> Reader:
            reader = super().open(ref)
            monkeypatch.setattr(reader, "read", fails)
            return reader

    def fails(size_bytes: int = -1) -> bytes:
        raise ObjectUnreadable("an I/O error")

    good, scene.store = scene.store, Broken(b"x")
    scene.announce(ref)
    [end] = scene.serve(scene.handler(lambda obj: obj.read()))
    assert isinstance(end, Release)
    scene.store = good
    assert scene.serve_to_the_end(scene.handler(lambda obj: obj.read())) == [Ack()]


def test_a_full_disk_is_not_counted_as_an_attempt(scene: Scene) -> None:
    scene.scratch.rmdir()
    ref = scene.put("a", b"x" * 100)
    scene.announce(ref)
    ends = scene.serve(scene.handler(lambda obj: obj.open(), memory_bytes_max=10))
    assert ends == [Release(delay_seconds=0.5, uncounted=True)]
    assert scene.row(ref).attempts == 0
