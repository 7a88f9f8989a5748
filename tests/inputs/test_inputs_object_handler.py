"""The rows of INPUTS for object handlers: a real queue and a real ledger, workers without their threads."""

import bz2
import gzip
import io
import json
import pickle
import threading
import unicodedata
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.claims import extended
from tests.unit.pipeline.objects.scene import HANDLER, LEASE_SECONDS, QUEUE, Scene, run

from penstock.errors import ObjectDenied, ObjectGone
from penstock.events import LinesQuarantined, ObjectFailed, ObjectFinished, ObjectSkipped
from penstock.ledger.records import ObjectState
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.objects.notification import announce
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectReader, ObjectStore
from penstock.pipeline.objects.declaration import ObjectContext
from penstock.pipeline.objects.stream import IncomingObject, ObjectLine


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


class Function:
    """A handler that reads every object whole and remembers it."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.calls: list[str] = []

    def __call__(self, obj: IncomingObject) -> None:
        self.calls.append(obj.key)
        self.contents[obj.key] = obj.read()


class Lines(Function):
    """A handler that reads objects line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[ObjectLine] = []

    def __call__(self, obj: IncomingObject) -> None:
        self.calls.append(obj.key)
        self.lines += obj.lines()


def record(**described: Any) -> dict[str, Any]:
    bucket = described.pop("bucket", "landing")
    event = described.pop("event", "ObjectCreated:Put")
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": event,
        "s3": {"bucket": {"name": bucket}, "object": {"key": "a", "size": 2, "eTag": "0f"} | described},
    }


def message(*records: dict[str, Any]) -> bytes:
    return json.dumps({"Records": records}).encode()


def announced_together(*refs: ObjectRef) -> bytes:
    return message(*(json.loads(announce(ref))["Records"][0] for ref in refs))


def dead_at_once(scene: Scene, body: bytes, function: Function | None = None) -> str:
    """Return why the message is dead-lettered on its first attempt, and check that another one is processed."""
    called = function or Function()
    handler = scene.handler(called)
    scene.send(body)
    good = scene.put("good.txt", b"good\n")
    scene.announce(good)
    first, second = scene.serve(handler)
    assert isinstance(first, DeadLetter)
    assert second == Ack()
    assert scene.state(good) is ObjectState.PROCESSED
    [death] = scene.dead()
    assert death.attempts == 1
    return death.reason


def dead_object(scene: Scene, name: str, content: bytes, function: Function | None = None) -> str:
    ref = scene.put(name, content)
    reason = dead_at_once(scene, announce(ref), function)
    assert scene.state(ref) is ObjectState.DEAD
    return reason


# Bad messages


def test_row_18_one_bad_record_among_good_ones(scene: Scene) -> None:
    function = Function()
    refs = [scene.put(name, name.encode()) for name in ("a", "b")]
    good = json.loads(announced_together(*refs))["Records"]
    scene.send(message(good[0], record(key=""), good[1]))
    [end] = scene.serve_to_the_end(scene.handler(function))
    assert isinstance(end, DeadLetter)
    assert "record 2" in end.reason
    assert list(function.contents.values()) == [b"a", b"b"]
    assert function.calls == [ref.key for ref in refs], "once each"
    [death] = scene.dead()
    assert "record 2" in death.reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(message(record(key="a%00b")), "NUL", id="row_20"),
        pytest.param(message(record(key="a" * 1_025)), "1,024", id="row_21"),
        pytest.param(message(record(bucket="elsewhere")), "elsewhere", id="row_22"),
        pytest.param(pickle.dumps({"Records": []}), "", id="row_26"),
        pytest.param(message(record(key="s3://landing/a")), "URL", id="row_27"),
    ],
)
def test_rows_20_21_22_26_27_messages_that_cannot_be_processed(tmp_path: Path, body: bytes, reason: str) -> None:
    scene = Scene(tmp_path, buckets_allowed=frozenset({"file", "landing"}))
    assert reason in dead_at_once(scene, body)
    scene.close()


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_row_28_a_compression_bomb(scene: Scene, compress: Any) -> None:
    suffix = "gz" if compress is gzip.compress else "bz2"
    function = Lines()
    ref = scene.put(f"bomb.{suffix}", compress(b"\0" * (8 << 20)))
    scene.announce(ref)
    [end] = scene.serve(scene.handler(function, inflated_bytes_max=1 << 20))
    assert isinstance(end, DeadLetter)
    assert "inflates to more than" in end.reason
    assert function.lines == []


def test_row_29_a_zip_bomb(scene: Scene) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("bomb", b"\0" * (8 << 20))
    assert "zip archive" in dead_object(scene, "bomb.zip", archive.getvalue(), Lines())


def test_row_30_a_corrupt_gzip_yields_no_line(scene: Scene) -> None:
    whole = gzip.compress(b"one\ntwo\n" * 100_000)
    function = Lines()
    reason = dead_object(scene, "a.gz", whole[:-8] + b"\0\0\0\0" + whole[-4:], function)
    assert "corrupt gzip" in reason
    assert [line.text for line in function.lines] == ["good"], "of the other message"


def test_row_31_an_object_over_the_size_limit(scene: Scene) -> None:
    function = Function()
    ref = scene.put("big", b"12345678901")
    scene.announce(ref)
    [end] = scene.serve(scene.handler(function, object_bytes_max=10))
    assert isinstance(end, DeadLetter)
    assert "11 bytes; at most 10" in end.reason
    assert function.calls == []


def test_row_32_an_etag_that_does_not_match_is_superseded(scene: Scene) -> None:
    function = Function()
    ref = scene.put("a", b"old")
    scene.announce(ref)
    scene.put("a", b"newer")
    assert scene.serve_to_the_end(scene.handler(function)) == [Ack()]
    assert scene.state(ref) is ObjectState.SUPERSEDED
    assert (function.calls, scene.dead()) == ([], [])


def test_row_32_an_object_that_changes_while_it_is_read_is_superseded_too(scene: Scene) -> None:
    def careless(obj: IncomingObject) -> None:
        scene.put("a", b"newer")
        try:
            obj.read()
        except Exception:
            return  # hides the error

    ref = scene.put("a", b"old")
    scene.announce(ref)
    assert scene.serve_to_the_end(scene.handler(careless)) == [Ack()]
    assert scene.state(ref) is ObjectState.SUPERSEDED


# Odd but valid

ODD_NAMES = {
    "row_40_newline_and_ansi": ["a\nb", "\x1b[31mred"],
    "row_41_sql": ["'; DROP TABLE objects; --", '"x" OR 1=1', "100%_\\"],
    "row_42_script": ["<script>alert(1)<"],
    "row_43_case": ["Data.csv", "data.csv"],
    "row_44_trailing_blank": ["a", "a "],
    "row_45_two_emoji": ["\N{GRINNING FACE}", "\N{PILE OF POO}"],
    "row_46_japanese": [unicodedata.normalize(form, "ガギグ.txt") for form in ("NFC", "NFD")],
}


@pytest.mark.parametrize("names", ODD_NAMES.values(), ids=ODD_NAMES.keys())
def test_rows_40_to_46_odd_names_are_processed_once_literally(scene: Scene, names: list[str]) -> None:
    function = Function()
    refs = [scene.put(name, name.encode()) for name in names]
    scene.announce(*refs, *refs)
    handler = scene.handler(function)
    assert set(map(type, scene.serve_to_the_end(handler))) == {Ack}
    assert {Path(key).name: content for key, content in function.contents.items()} == {
        name: name.encode() for name in names
    }
    assert len(function.calls) == len(names)
    assert {scene.state(ref) for ref in refs} == {ObjectState.PROCESSED}
    assert len({event.object_uri for event in scene.emitted(ObjectFinished)}) == len(names)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        pytest.param(b"", [], id="row_50_empty"),
        pytest.param(b"one\ntwo", [(1, 0, "one"), (2, 4, "two")], id="row_51_no_newline_at_the_end"),
        pytest.param(b"one\r\n\r\ntwo\r\n", [(1, 0, "one"), (2, 5, ""), (3, 7, "two")], id="row_52_crlf"),
    ],
)
def test_rows_50_51_52_lines(scene: Scene, content: bytes, lines: list[tuple[int, int, str]]) -> None:
    for name, stored in (("a.txt", content), ("a.gz", gzip.compress(content) if content else b"")):
        function = Lines()
        ref = scene.put(name, stored)
        scene.announce(ref)
        assert scene.serve(scene.handler(function)) == [Ack()]
        assert function.lines == lines
        assert scene.state(ref) is ObjectState.PROCESSED


def test_row_53_a_line_of_50_mb(scene: Scene) -> None:
    function = Lines()
    content = b"a" * (50 << 20) + b"\nb\n"
    scene.announce(scene.put("long", content))
    assert scene.serve(scene.handler(function)) == [Ack()]
    assert [(number, offset, len(text)) for number, offset, text in function.lines] == [
        (1, 0, 50 << 20),
        (2, (50 << 20) + 1, 1),
    ]


def test_row_54_a_multipart_upload_announced_twice(scene: Scene) -> None:
    function = Function()
    ref = scene.put("a")
    put = json.loads(announce(ref))
    complete = json.loads(announce(ref))
    complete["Records"][0]["eventName"] = "ObjectCreated:CompleteMultipartUpload"
    for body in (put, complete):
        scene.send(json.dumps(body).encode())
    assert scene.serve(scene.handler(function)) == [Ack(), Ack()]
    assert function.calls == [ref.key]


# Deleted, denied, repeated and removed objects


def test_row_57_a_deleted_object_is_marked_as_deleted_on_the_second_attempt(scene: Scene) -> None:
    ref = scene.put("a")
    scene.put("another")  # an empty folder might be a mount point without its mount
    Path(ref.key).unlink()
    scene.announce(ref)
    first, second = scene.serve_to_the_end(scene.handler(Function()))
    assert isinstance(first, Release)
    assert second == Ack()
    assert scene.state(ref) is ObjectState.DELETED


class Denying:
    """A store without the permission to read, while ``closed``."""

    def __init__(self, store: ObjectStore, *only: ObjectRef) -> None:
        self.store = store
        self.only = only
        self.closed = True

    def open(self, ref: ObjectRef) -> ObjectReader:
        if self.closed and (not self.only or ref in self.only):
            raise ObjectDenied(f"{ref.uri}: Permission denied")
        return self.store.open(ref)

    def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
        return self.store.read_range(ref, offset, length_bytes)


def test_row_58_no_permission_for_anything_makes_no_dead_letters(scene: Scene) -> None:
    function = Function()
    scene.store = denying = Denying(scene.store)
    refs = [scene.put(str(number)) for number in range(6)]
    scene.announce(*refs)
    handler = scene.handler(function)
    for _ in range(10):
        assert set(map(type, scene.serve(handler))) <= {Release}
        scene.clock.advance(400.0)
    assert scene.dead() == []
    assert {event.outcome for event in scene.emitted(ObjectFailed)} == {"retry"}, "each time is reported"
    denying.closed = False
    assert set(map(type, scene.serve_to_the_end(handler))) == {Ack}
    assert len(function.calls) == 6


def test_row_58_one_object_without_permission_is_dead_lettered_after_its_attempts(scene: Scene) -> None:
    refs = [scene.put(str(number)) for number in range(3)]
    scene.store = Denying(scene.store, refs[1])
    scene.announce(*refs)
    ends = scene.serve_to_the_end(scene.handler(Function()))
    assert [type(end) for end in ends].count(DeadLetter) == 1
    assert scene.state(refs[1]) is ObjectState.DEAD
    assert scene.row(refs[1]).attempts == 4


def test_row_58_the_local_store_reports_missing_permission(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = scene.put("a")

    def forbidden(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", forbidden)
    with pytest.raises(ObjectDenied, match="Permission denied"):
        scene.store.open(ref)


def test_row_59_an_older_sequencer_after_a_newer_one_is_superseded(scene: Scene) -> None:
    function = Function()
    ref = scene.put("a", b"newer")
    newer = replace(ref, sequencer="0B")
    older = replace(ref, sequencer="0A", etag="before", size_bytes=3)
    scene.announce(newer, older)
    assert scene.serve(scene.handler(function)) == [Ack(), Ack()]
    assert function.contents == {ref.key: b"newer"}
    assert scene.state(older) is ObjectState.SUPERSEDED
    assert [event.reason for event in scene.emitted(ObjectSkipped)] == ["superseded"]


class Versioned:
    """A store that keeps versions."""

    def __init__(self, **contents: bytes) -> None:
        self.contents = contents

    def ref(self, version_id: str) -> ObjectRef:
        size_bytes = len(self.contents[version_id])
        return ObjectRef(bucket="landing", key="a", size_bytes=size_bytes, version_id=version_id, etag="0f")

    def open(self, ref: ObjectRef) -> ObjectReader:
        if ref.version_id not in self.contents:
            raise ObjectGone(ref.uri)
        return Version(ref, self.contents[ref.version_id])

    def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
        return self.open(ref).pread(offset, length_bytes)


class Version(io.BytesIO):
    def __init__(self, ref: ObjectRef, content: bytes) -> None:
        super().__init__(content)
        self.ref = ref

    def read(self, size_bytes: int | None = -1, /) -> bytes:
        return super().read(size_bytes)

    def pread(self, offset: int, length_bytes: int) -> bytes:
        return self.getvalue()[offset : offset + length_bytes]

    def verify(self) -> None:
        """Do nothing: a version never changes."""

    def __enter__(self) -> "Version":
        return self


def test_row_60_two_versions_of_one_key_are_both_processed(scene: Scene) -> None:
    contents: list[tuple[str | None, bytes]] = []
    scene.store = versioned = Versioned(v1=b"one", v2=b"second")
    scene.announce(versioned.ref("v2"), versioned.ref("v1"))
    assert scene.serve(scene.handler(lambda obj: contents.append((obj.version_id, obj.read())))) == [Ack(), Ack()]
    assert contents == [("v2", b"second"), ("v1", b"one")]


@pytest.mark.parametrize("event", ["ObjectRemoved:Delete", "ObjectRemoved:DeleteMarkerCreated"])
def test_row_61_a_removal_is_acked_and_nothing_is_read(scene: Scene, event: str) -> None:
    function = Function()
    scene.send(message(record(event=event)))
    assert scene.serve(scene.handler(function)) == [Ack()]
    assert (function.calls, scene.ledger.objects(HANDLER)) == ([], [])


def test_row_64_a_duplicate_with_a_new_message_id_has_no_second_effect(scene: Scene) -> None:
    function = Function()
    ref = scene.put("a")
    scene.announce(ref)
    handler = scene.handler(function)
    scene.serve(handler)
    scene.announce(ref)
    assert scene.serve(handler) == [Ack()]
    assert function.calls == [ref.key]
    assert [event.reason for event in scene.emitted(ObjectSkipped)] == ["already_processed"]


def test_row_65_two_workers_run_one_object_once(scene: Scene) -> None:
    calls: list[str] = []
    inner_ends: list[object] = []
    ref = scene.put("a")
    scene.announce(ref, ref)
    first, second = scene.receive()

    def slow(obj: IncomingObject) -> None:
        calls.append(obj.key)
        inner_ends.extend(scene.settle([(second, run(scene.handler(slow).begin([second])))]))

    handler = scene.handler(slow)
    assert scene.settle([(first, run(handler.begin([first])))]) == [Ack()]
    [waiting] = inner_ends
    assert isinstance(waiting, Release)
    assert waiting.uncounted, "waiting for another worker counts no attempt"
    assert LEASE_SECONDS <= waiting.delay_seconds <= LEASE_SECONDS + 1
    assert scene.serve_to_the_end(handler) == [Ack()]
    assert calls == [ref.key]


def test_row_65_two_simultaneous_workers_run_one_object_once(scene: Scene) -> None:
    calls: list[str] = []
    ref = scene.put("a")
    scene.announce(ref, ref)
    handler = scene.handler(lambda obj: calls.append(obj.key))
    gate = threading.Barrier(2, timeout=60)
    results: list[object] = []

    def work(delivery: Any) -> None:
        execution = handler.begin([delivery])
        gate.wait()
        results.append(run(execution))

    threads = [threading.Thread(target=work, args=(delivery,)) for delivery in scene.receive()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 2
    assert calls == [ref.key]


def test_row_66_of_ten_records_only_the_failed_one_runs_again(scene: Scene) -> None:
    calls: list[str] = []

    def fails_once(obj: IncomingObject) -> None:
        name = Path(obj.key).name
        calls.append(name)
        if name == "6" and calls.count("6") == 1:
            raise ValueError("not yet")

    scene.send(announced_together(*(scene.put(str(number)) for number in range(10))))
    first, second = scene.serve_to_the_end(scene.handler(fails_once))
    assert isinstance(first, Release)
    assert second == Ack()
    assert calls == [*(str(number) for number in range(10)), "6"]


def test_row_69_work_longer_than_the_lease_is_not_delivered_again(scene: Scene) -> None:
    calls: list[str] = []
    ref = scene.put("a")
    scene.announce(ref)
    other = scene.broker
    found: list[object] = []

    def long(obj: IncomingObject) -> None:
        calls.append(obj.key)
        for _ in range(6):  # three leases long
            scene.clock.advance(LEASE_SECONDS / 2)
            assert extended(execution)
            assert other.extend([delivery], lease_seconds=LEASE_SECONDS) == []
            found.extend(other.receive(QUEUE, messages_max=1, lease_seconds=LEASE_SECONDS))

    delivery, execution = scene.begin(scene.handler(long))
    assert scene.settle([(delivery, run(execution))]) == [Ack()]
    assert found == []
    assert calls == [ref.key]


def test_row_69_an_expired_claim_is_taken_over_and_the_late_commit_refused(scene: Scene) -> None:
    calls: list[str] = []
    ref = scene.put("a")
    scene.announce(ref)

    def hangs_once(obj: IncomingObject) -> None:
        calls.append(obj.key)
        if len(calls) == 1:
            scene.clock.advance(2 * LEASE_SECONDS)
            [again] = scene.receive()
            assert scene.settle([(again, run(scene.handler(hangs_once).begin([again])))]) == [Ack()]

    delivery, execution = scene.begin(scene.handler(hangs_once))
    [end] = run(execution).values()
    assert isinstance(end, Release)
    assert [failure.lost for failure in scene.broker.settle([(delivery, end)])] == [True]
    assert len(calls) == 2
    assert [batch.objects for batch in scene.ledger.batches(HANDLER)] == [1], "one of the two counts"


def test_row_72_a_crash_after_the_commit_has_no_second_effect(scene: Scene) -> None:
    function = Function()
    ref = scene.put("a")
    scene.announce(ref)
    handler = scene.handler(function)
    _, execution = scene.begin(handler)
    assert list(run(execution).values()) == [Ack()]  # and the broker never learns of it
    scene.clock.advance(LEASE_SECONDS + 1)
    assert scene.serve_to_the_end(handler) == [Ack()]
    assert function.calls == [ref.key]


def test_row_73_a_line_of_invalid_utf8_is_quarantined_with_its_offset(scene: Scene) -> None:
    function = Lines()
    quarantined: list[tuple[int, int, bytes]] = []

    def reads(obj: IncomingObject, ctx: ObjectContext) -> None:
        function(obj)
        quarantined.extend((line.number, line.offset, line.raw) for line in obj.quarantined)

    ref = scene.put("a", b"one\n\xff\xfebad\nthree\n")
    scene.announce(ref)
    assert scene.serve(scene.handler(reads)) == [Ack()]
    assert function.lines == [(1, 0, "one"), (3, 10, "three")]
    assert quarantined == [(2, 4, b"\xff\xfebad")]
    row = scene.row(ref)
    assert (row.state, row.lines_quarantined) == (ObjectState.PROCESSED, 1)
    [event] = scene.emitted(LinesQuarantined)
    assert (event.object_uri, event.count, event.sample[0][0]) == (ref.uri, 1, 4)
    assert "invalid UTF-8" in event.sample[0][1]
