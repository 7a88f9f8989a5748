"""Beginnings of objects: what is compared, which of them are used, and limits that apply to the whole object."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.property.source_run import MemoryReader, MemoryStore

from penstock.ledger.records import Beginning, KnownBeginning
from penstock.objects.reference import ObjectRef
from penstock.objects.replays import replay_of
from penstock.pipeline.spark.source.beginnings import (
    HashingReader,
    as_text,
    beginning_digest,
    from_text,
    joined,
    reading_of,
    usable_beginnings,
)
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, checked
from penstock.pipeline.spark.source.plan import make_plan
from penstock.pipeline.spark.source.reading import partition_task, read_partition
from penstock.pipeline.spark.source.report import FailureKind, ReadingId
from penstock.pipeline.spark.source.summary import summarise
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

OPTIONS = checked(ReadOptions(schema_ddl="id bigint"))
DATA = b'{"id": 1}\n{"id": 2}\n{"id": 3}\n'


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def reader(data: bytes = DATA) -> MemoryReader:
    return MemoryReader(ObjectRef(bucket="b", key="k", size_bytes=len(data), etag="e"), data)


def known(size_bytes: int, digest: str = "", *, rows: int = 2, bad: int = 0) -> KnownBeginning:
    beginning = Beginning(size_bytes=size_bytes, digest=digest, reading=reading_of(OPTIONS, ""))
    return KnownBeginning(beginning=beginning, attempt_id="earlier", rows=rows, lines_quarantined=bad)


def test_the_digest_of_a_range_is_computed_while_it_is_read_in_any_blocks() -> None:
    hashing = HashingReader(reader(), 5, 20)
    for offset, length in ((4, 3), (0, 2), (7, 1), (6, 9), (15, 15)):
        hashing.pread(offset, length)
    assert hashing.result() == sha(DATA[5:20])


def test_bytes_that_were_passed_over_are_read_for_the_digest() -> None:
    hashing = HashingReader(reader(), 0, len(DATA))
    hashing.pread(0, 10)
    hashing.pread(12, 18)
    assert hashing.result() == sha(DATA)


@pytest.mark.parametrize("data", [DATA[:-1], b"\xff\xfe" + DATA, b"\xfe\xff" + DATA])
def test_an_object_that_ends_within_a_line_or_is_utf16_has_no_digest(data: bytes) -> None:
    hashing = HashingReader(reader(data), 0, len(data))
    hashing.pread(0, len(data))
    assert hashing.result() is None


def test_the_check_compares_each_stretch_and_continues_with_one_digest_of_all() -> None:
    stretches = from_text(as_text([(10, sha(DATA[:10])), (20, sha(DATA[10:20]))]))
    found = beginning_digest(reader(), stretches, block_bytes=3)
    assert found is not None
    hashing = HashingReader(reader(), 20, len(DATA), found)
    hashing.pread(20, 10)
    assert hashing.result() == sha(DATA)
    for other in (b"x" + DATA[1:], DATA[:11] + b"x" + DATA[12:], DATA[:15]):
        assert beginning_digest(reader(other), stretches, block_bytes=3) is None


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ({0: (30, "a")}, '[[30,"a"]]'),
        ({10: (30, "b"), 0: (10, "a")}, '[[10,"a"],[30,"b"]]'),
        ({20: (30, "b")}, '[[30,"b"]]'),
        ({0: (10, "a"), 20: (30, "b")}, None),
        ({0: (10, "a"), 10: (30, None)}, None),
        ({0: (20, "a")}, None),
        ({}, None),
    ],
)
def test_pieces_are_a_beginning_if_they_follow_each_other_to_the_end(
    pieces: dict[int, tuple[int, str | None]], text: str | None
) -> None:
    assert joined(pieces, 30) == text
    assert joined({0: (0, "a")}, 0) is None


def test_a_beginning_is_used_if_it_was_read_in_the_same_way() -> None:
    ref = reader().ref
    zipped = replace(ref, key="k.gz")
    replay = replay_of(ref, "a")
    reading = reading_of(OPTIONS, "")
    by_id = {one.object_id: known(10) for one in (ref, zipped, replay)}
    found = usable_beginnings(by_id, [zipped, ref, replay], OPTIONS, reading=reading)
    assert found == {1: known(10)}
    assert not usable_beginnings({ref.object_id: known(len(DATA))}, [ref], OPTIONS, reading=reading)
    assert not usable_beginnings(by_id, [ref], replace(OPTIONS, format="parquet"), reading=reading)
    changed = [
        reading_of(replace(OPTIONS, schema_ddl="id int"), ""),
        reading_of(replace(OPTIONS, evolve="rescue"), ""),
        reading_of(replace(OPTIONS, csv=CsvOptions(delimiter=";")), ""),
        reading_of(replace(OPTIONS, partitions_ddl="day date"), ""),
        reading_of(OPTIONS, "jobs:clean"),
        reading_of(OPTIONS, None),
    ]
    assert len({reading, *changed}) == 1 + len(changed)
    assert not any(usable_beginnings(by_id, [ref], OPTIONS, reading=other) for other in changed)
    assert usable_beginnings(by_id, [ref], replace(OPTIONS, block_bytes=1), reading=reading)


@pytest.mark.parametrize(("base", "fails"), [((8, 0), False), ((8, 2), True), ((0, 0), True)])
def test_the_limit_of_bad_lines_is_that_of_the_whole_object(tmp_path: Path, base: tuple[int, int], fails: bool) -> None:
    before, rows, bad = b'{"id": 1}\n', *base
    data = before + b"junk\n"
    root, ref = LocalFiles(tmp_path), reader(data).ref
    plan = make_plan(
        [ref],
        attempt_id="a",
        run=0,
        options=replace(OPTIONS, quarantine_ratio_max=0.2),
        cores=1,
        source="b",
        aws=Aws(),
        quarantine=root.below("quarantine"),
        work=root.below("work"),
        hashes=True,
        beginnings={0: known(len(before), as_text([(len(before), sha(before))]), rows=rows, bad=bad)},
    )
    plan.save()
    assert not plan.cuts_are_guesses
    task = partition_task(plan, 0)
    assert not list(read_partition(task, MemoryStore({"k": data}), ReadingId(task.reports, 0)))
    failures = summarise(plan).exclude
    assert [one.kind for one in failures.values()] == ([FailureKind.QUARANTINE_RATIO] if fails else [])
