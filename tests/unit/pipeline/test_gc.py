"""Garbage collection on a real ledger in memory and a folder: the files that it deletes and those that it must keep."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conformance.publishing.batch_maker import OVER, PIPELINE
from tests.conformance.publishing.batch_maker import BatchMaker as Mill
from ulid import ULID

from penstock.errors import TemporaryError
from penstock.events import AttemptAbandoned, Bus, Event
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptState
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.maintenance.gc import CollectedGarbage, collect, is_attempt_id
from penstock.storage.local import LocalFiles


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[Mill]:
    ledger = Ledger.open("sqlite://")
    yield Mill(root=tmp_path / "clicks", ledger=ledger)
    ledger.close()


def quarantine_root(mill: Mill) -> Path:
    return mill.root.with_name("clicks_quarantine")


def work(mill: Mill, attempt_id: str) -> Path:
    """Write the plan of a run, as the driver leaves it, and return its path."""
    folder = mill.root / "_penstock" / "work" / attempt_id / "r0"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    return folder / "plan.json"


def sweep(
    mill: Mill,
    *,
    probe: Probe = no_probe,
    dry_run: bool = False,
    stragglers: bool = True,
    bus: Bus | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> CollectedGarbage:
    return collect(
        mill.ledger,
        pipeline=PIPELINE,
        roots=(LocalFiles(mill.root), LocalFiles(quarantine_root(mill))),
        work=LocalFiles(mill.root / "_penstock" / "work"),
        bus=bus or Bus(),
        probe=probe,
        dry_run=dry_run,
        stragglers=stragglers,
        stopped=stopped,
    )


def abandon(mill: Mill, attempt_id: str) -> None:
    assert mill.ledger.abandon(attempt_id, reason="test", outcome="failed", uncounted=False, unattributed=False)


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_without_a_table_nothing_is_collected(mill: Mill) -> None:
    assert sweep(mill) == CollectedGarbage(attempts=0, files=0, bytes=0, unknown=())


@pytest.mark.parametrize("stragglers", [True, False])
def test_all_files_of_an_abandoned_attempt_are_deleted(mill: Mill, stragglers: bool) -> None:
    attempt_id = mill.claim()
    files = [*mill.write(attempt_id, [1]), *mill.write(attempt_id, [1], run=1)]
    files += mill.write(attempt_id, [2], root=quarantine_root(mill))
    plan = work(mill, attempt_id)
    size_bytes = sum(file.size_bytes for file in files) + plan.stat().st_size
    abandon(mill, attempt_id)
    assert sweep(mill, stragglers=stragglers) == CollectedGarbage(attempts=1, files=4, bytes=size_bytes, unknown=())
    for root in (mill.root, quarantine_root(mill)):
        assert list((root / "data").iterdir()) == []
    assert list((mill.root / "_penstock" / "work").iterdir()) == []


@pytest.mark.parametrize("stragglers", [True, False])
def test_an_open_attempt_is_not_touched(mill: Mill, stragglers: bool) -> None:
    attempt_id = mill.claim()
    mill.write(attempt_id, [1])
    work(mill, attempt_id)
    before = files_below(mill.root)
    assert sweep(mill, stragglers=stragglers) == CollectedGarbage(attempts=0, files=0, bytes=0, unknown=())
    assert files_below(mill.root) == before


def test_an_expired_attempt_is_abandoned_before_its_files_are_deleted(mill: Mill) -> None:
    attempt_id = mill.claim(lease_seconds=OVER)
    mill.write(attempt_id, [1])
    seen: list[AttemptState] = []
    events: list[Event] = []

    def check(step: Step) -> None:
        row = mill.ledger.attempt(attempt_id)
        assert row is not None
        seen.append(row.state)
        assert step is not Step.DELETING or files_below(mill.root)

    assert sweep(mill, probe=check, bus=Bus(events.append)).files == 1
    assert seen == [AttemptState.ABANDONED, AttemptState.ABANDONED]
    assert events == [AttemptAbandoned(pipeline=PIPELINE, attempt_id=attempt_id, reason="its lease ran out")]


def test_a_collection_stopped_at_any_unit_keeps_the_files_of_batches_and_the_next_one_does_the_rest(mill: Mill) -> None:
    """It asks before each unit. An incomplete list of the batches must not make their files look like garbage."""
    kept = [mill.batch([1]), mill.batch([2])]
    assert kept
    named = files_below(mill.root / "data")
    garbage = [mill.claim() for _ in range(3)]
    for attempt_id in garbage:
        mill.write(attempt_id, [3])
        abandon(mill, attempt_id)
    asked = deleted = 0
    while deleted < 3:
        limit, calls = asked, 0

        def stopped() -> bool:
            nonlocal calls
            calls += 1
            return calls > limit  # noqa: B023 - called within this iteration

        deleted += sweep(mill, stopped=stopped).attempts
        assert named <= files_below(mill.root / "data")
        asked += 1
    assert asked > 3 + len(kept) + len(garbage), "it asks per root, attempt, batch and folder"
    assert files_below(mill.root / "data") == named


def test_a_dry_run_deletes_nothing_and_counts_the_garbage(mill: Mill) -> None:
    expired = mill.claim(lease_seconds=OVER)
    mill.write(expired, [1])
    abandoned = mill.claim()  # which abandons the expired one, as every claim does
    mill.write(abandoned, [2])
    abandon(mill, abandoned)
    late = mill.claim(lease_seconds=OVER)
    mill.write(late, [3])
    before = files_below(mill.root)

    def never(step: Step) -> None:
        raise AssertionError(step)

    collected = sweep(mill, dry_run=True, probe=never)
    assert (collected.attempts, collected.files) == (2, 2)
    assert files_below(mill.root) == before
    row = mill.ledger.attempt(late)
    assert row is not None
    assert row.state is AttemptState.OPEN


def test_only_files_that_no_batch_names_are_deleted_of_a_committed_attempt(mill: Mill) -> None:
    attempt_id = mill.claim()
    mill.write(attempt_id, [1])  # a run that was repeated
    files = mill.write(attempt_id, [1], run=1)
    mill.write(attempt_id, [1], run=1, name="straggler")
    bad = mill.write(attempt_id, [2], root=quarantine_root(mill), name="bad")
    mill.write(attempt_id, [2], root=quarantine_root(mill), name="straggler")
    work(mill, attempt_id)
    mill.commit(attempt_id, files, quarantine=bad)
    assert sweep(mill).files == 4
    assert files_below(mill.root / "data") == {f"{attempt_id}/r1/part-0.parquet"}
    assert files_below(quarantine_root(mill) / "data") == {f"{attempt_id}/r0/bad.parquet"}
    assert sweep(mill) == CollectedGarbage(attempts=0, files=0, bytes=0, unknown=())


def test_the_collection_after_an_ingest_deletes_only_the_work_folders_of_committed_attempts(mill: Mill) -> None:
    attempt_id = mill.claim()
    files = mill.write(attempt_id, [1])
    mill.write(attempt_id, [1], name="straggler")
    work(mill, attempt_id)
    mill.commit(attempt_id, files)
    assert sweep(mill, stragglers=False).files == 1
    assert len(files_below(mill.root / "data")) == 2


def test_a_file_that_a_batch_names_is_kept_even_if_its_attempt_counts_as_abandoned(mill: Mill) -> None:
    """This cannot happen unless something is broken; even then no data may be deleted."""
    attempt_id = mill.claim()
    files = mill.write(attempt_id, [1])
    mill.commit(attempt_id, files)

    class Broken(Ledger):
        def abandoned_attempts(self, pipeline: str) -> list[str]:
            return [attempt_id]

    broken = Mill(root=mill.root, ledger=Broken(mill.ledger.database))
    for stragglers in (True, False):
        sweep(broken, stragglers=stragglers)
    assert files_below(mill.root) == {files[0].path}


def test_files_of_a_late_writer_are_collected_later(mill: Mill) -> None:
    attempt_id = mill.claim()
    mill.write(attempt_id, [1])
    abandon(mill, attempt_id)
    assert sweep(mill).files == 1
    mill.write(attempt_id, [1], name="late")
    assert sweep(mill).files == 1
    assert files_below(mill.root) == set()


def test_unknown_names_are_kept_and_reported(mill: Mill, tmp_path: Path) -> None:
    stranger = str(ULID())
    (mill.root / "data" / stranger).mkdir(parents=True)
    (mill.root / "data" / stranger / "rows").write_text("")
    (mill.root / "data" / "notes").mkdir()
    (mill.root / "data" / stranger.lower()).mkdir()
    (mill.root / "data" / "readme.txt").write_text("")
    elsewhere = Mill(root=mill.root, ledger=mill.ledger, pipeline="file:///lake/other", _numbers=iter([77]))
    theirs = elsewhere.claim()
    elsewhere.write(theirs, [1])
    abandon(elsewhere, theirs)
    before = files_below(mill.root)
    assert sweep(mill).unknown == tuple(
        sorted(f"{mill.root}/data/{name}" for name in (stranger, "notes", stranger.lower(), "readme.txt", theirs))
    )
    assert files_below(mill.root) == before


def test_links_are_not_followed(mill: Mill, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "rows").write_text("")
    linked, holding = mill.claim(), mill.claim()
    mill.write(holding, [1])
    (mill.root / "data" / holding / "r0" / "folder").symlink_to(precious)
    (mill.root / "data" / holding / "r0" / "file").symlink_to(precious / "rows")
    (mill.root / "data" / linked).symlink_to(precious)
    abandon(mill, linked)
    abandon(mill, holding)
    assert sweep(mill).unknown == (f"{mill.root}/data/{linked}",)
    assert files_below(precious) == {"rows"}
    assert [path.name for path in (mill.root / "data").iterdir()] == [linked]


def test_a_data_folder_that_is_a_link_is_not_touched(mill: Mill, tmp_path: Path) -> None:
    attempt_id = mill.claim()
    mill.write(attempt_id, [1])
    abandon(mill, attempt_id)
    (mill.root / "data").rename(tmp_path / "elsewhere")
    (mill.root / "data").symlink_to(tmp_path / "elsewhere")
    assert sweep(mill) == CollectedGarbage(attempts=0, files=0, bytes=0, unknown=(f"{mill.root}/data",))
    assert len(files_below(tmp_path / "elsewhere")) == 1


def test_a_work_folder_that_is_a_link_is_not_touched(mill: Mill, tmp_path: Path) -> None:
    attempt_id = mill.claim()
    plan = work(mill, attempt_id)
    abandon(mill, attempt_id)
    plan.parents[2].rename(tmp_path / "elsewhere")
    plan.parents[2].symlink_to(tmp_path / "elsewhere")
    assert sweep(mill) == CollectedGarbage(attempts=0, files=0, bytes=0, unknown=(f"{mill.root}/_penstock/work",))
    assert len(files_below(tmp_path / "elsewhere")) == 1


@pytest.mark.parametrize("step", [Step.DELETING, Step.DELETED])
def test_the_next_collection_completes_one_that_died(mill: Mill, step: Step) -> None:
    for number in range(2):
        attempt_id = mill.claim()
        mill.write(attempt_id, [number])
        abandon(mill, attempt_id)
    reached: list[Step] = []

    class Died(BaseException):
        pass

    def die(at: Step) -> None:
        reached.append(at)
        if at is step:
            raise Died

    with pytest.raises(Died):
        sweep(mill, probe=die)
    assert len(files_below(mill.root)) == (2 if step is Step.DELETING else 1)
    sweep(mill)
    assert files_below(mill.root) == set()


def test_a_file_that_cannot_be_deleted_is_a_temporary_error(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt_id = mill.claim()
    mill.write(attempt_id, [1])
    abandon(mill, attempt_id)

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(
        TemporaryError, match=r"garbage cannot be deleted: .*part-0\.parquet cannot be used: Permission denied"
    ):
        sweep(mill)


def test_a_folder_that_cannot_be_listed_is_a_temporary_error(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt_id = mill.claim()
    mill.write(attempt_id, [1])
    abandon(mill, attempt_id)

    def refuse(path: Path) -> Iterator[os.DirEntry[str]]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(TemporaryError, match=r"garbage cannot be listed: .*data cannot be used: Permission denied"):
        sweep(mill)


@pytest.mark.parametrize("name", ["", ".", "..", "notes", "01ARZ3NDEKTSV4RRFFQ69G5FA", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ"])
def test_a_name_that_is_not_a_ulid_is_not_an_attempt_id(name: str) -> None:
    assert not is_attempt_id(name)


def test_lower_case_and_look_alike_characters_are_not_attempt_ids() -> None:
    name = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    assert is_attempt_id(name)
    assert not is_attempt_id(name.lower())
    assert not is_attempt_id(name.replace("0", "O"))
    assert not is_attempt_id(name.replace("1", "I"))
