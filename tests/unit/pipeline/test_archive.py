"""Archive files: their content, lookup of one object, removal of orphaned files, and concurrent archivists."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.conformance.ledger.ledger_harness import PIPELINE, candidate, object_id_of, outcome
from tests.conformance.ledger.ledger_harness import LedgerHarness as Desk

from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING
from penstock.ledger.records import ObjectState
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import Step, no_probe
from penstock.pipeline.maintenance import archive
from penstock.pipeline.maintenance.archive import Archivist, check_retention, find_in_file, read_file
from penstock.storage.local import LocalFiles

EVERYTHING: dict[str, Any] = {"older_than_seconds": 0.0, "up_to_seq": 1_000}


@pytest.fixture
def desk() -> Iterator[Desk]:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline(PIPELINE)
    yield Desk(ledger)
    ledger.close()


@pytest.fixture
def place(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "archive")


def archivist(desk: Desk, place: LocalFiles, **fields: Any) -> Archivist:
    given: dict[str, Any] = {
        "ledger": desk.ledger,
        "pipeline": PIPELINE,
        "location": place,
        "probe": no_probe,
        "clock": SystemClock(),
    }
    return Archivist(**(given | fields))


def test_an_archived_object_is_found_with_all_its_facts(
    desk: Desk, place: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "GROUP_ROWS", 8)
    names = [f"object {number}" for number in range(100)]
    desk.process(*names)
    before = {row.object_id: row for row in desk.ledger.objects(PIPELINE)}
    timelines = {id: list(desk.ledger.attempts_of(PIPELINE, id)) for id in before}
    done = archivist(desk, place).run(**EVERYTHING)
    assert (done.objects, done.batches, done.files, done.more) == (100, 1, 1, False)
    (row,) = desk.ledger.archives.all(PIPELINE)
    assert row.uri is not None
    path = row.uri.rpartition("/")[2]
    assert row.bytes == done.bytes == (place.root / path).stat().st_size
    with pq.ParquetFile(place.root / path) as parquet:
        assert parquet.num_row_groups == 13
    everything = list(read_file(place, path))
    assert {one.row.object_id: one.row for one in everything} == before
    assert [one.uri_digest for one in everything] == sorted(one.uri_digest for one in everything)
    for one in everything[::7]:
        (found,) = find_in_file(place, path, one.uri_digest)
        assert found == one
        assert list(found.timeline) == timelines[one.row.object_id]
    assert find_in_file(place, path, b"\0" * 16) == []
    assert len(list(read_file(place, path, uri_contains="OBJECT 1"))) == 11
    with pytest.raises(FileNotFoundError):
        find_in_file(place, "other.parquet", b"\0" * 16)


def test_two_keys_with_the_same_uri_are_distinguished_by_their_ids(desk: Desk, place: LocalFiles) -> None:
    for name, key in (("one", b"/\xff"), ("other", b"/\\xff")):
        desk.ledger.commit(outcome(desk.claim([candidate(name, key=key)])))
    archivist(desk, place).run(**EVERYTHING)
    found = desk.ledger.archives.find(candidate("one", key=b"/\xff").uri)
    assert {one.object_id for one in found} == {object_id_of("one"), object_id_of("other")}


def test_a_file_holds_many_batches_and_limits_end_a_run(desk: Desk, place: LocalFiles) -> None:
    for number in range(6):
        desk.process(f"{number}/a", f"{number}/b")
    one = archivist(desk, place)
    assert one.would(**EVERYTHING, objects_max=4).files == 3
    first = one.run(**EVERYTHING, objects_max=4, files_max=1)
    assert (first.objects, first.batches, first.more) == (4, 2, True)
    second = one.run(older_than_seconds=0.0, up_to_seq=5, objects_max=4)
    assert (second.objects, second.files, second.more) == (6, 2, False)
    assert desk.ledger.progress(PIPELINE, ARCHIVING) == 5
    assert one.run(older_than_seconds=1_000.0, up_to_seq=1_000).objects == 0


def test_the_slower_of_two_archivists_deletes_its_file(desk: Desk, place: LocalFiles) -> None:
    desk.process("a")

    def run_another(step: Step) -> None:
        if step is Step.ARCHIVE_WRITTEN:
            assert archivist(desk, place).run(**EVERYTHING).objects == 1

    assert archivist(desk, place, probe=run_another).run(**EVERYTHING).objects == 0
    assert len(place.names()) == 1
    (row,) = desk.ledger.archives.all(PIPELINE)
    assert row.uri == f"{place.uri}/{place.names()[0]}"


def test_only_old_files_of_dead_archivists_are_removed(desk: Desk, place: LocalFiles) -> None:
    desk.process("a")
    archivist(desk, place).run(**EVERYTHING)
    (kept,) = place.names()
    orphan, young = "01ARZ3NDEKTSV4RRFFQ69G5FAV.parquet", "01BX5ZZKBKACTAV9WEVGEMMVRZ.parquet"
    half = f".{orphan}.4711"
    for name in (orphan, young, half, "mine.parquet", f"{orphan}.bak"):
        place.write(name, b"x")
        os.utime(place.root / name, (0, 0) if name != young else None)
    os.utime(place.root / kept, (0, 0))
    assert archivist(desk, place).run(**EVERYTHING).swept == 2
    assert sorted(place.names()) == sorted([kept, young, "mine.parquet", f"{orphan}.bak"])
    assert archivist(desk, place).run(**EVERYTHING).swept == 0


def test_a_slow_archivist_whose_file_was_removed_archives_nothing(desk: Desk, place: LocalFiles) -> None:
    desk.process("a")

    def remove_file(step: Step) -> None:
        if step is Step.ARCHIVE_WRITTEN:
            for name in place.names():
                os.utime(place.root / name, (0, 0))
            assert archivist(desk, place).run(older_than_seconds=1_000.0, up_to_seq=0).swept == 1
            place.write("01BX5ZZKBKACTAV9WEVGEMMVRZ.parquet", b"of the slow archivist")

    slow = archivist(desk, place, probe=remove_file, new_id=lambda: "01BX5ZZKBKACTAV9WEVGEMMVRZ")
    assert slow.run(**EVERYTHING).objects == 0
    assert desk.ledger.archives.all(PIPELINE) == []
    assert desk.state("a") is ObjectState.PROCESSED
    assert archivist(desk, place).run(**EVERYTHING).objects == 1


def test_the_minimum_retention() -> None:
    check_retention(15 * 86_400.0)
    with pytest.raises(UsageError, match=r"14\.9 days were asked for"):
        check_retention(14.9 * 86_400.0)
