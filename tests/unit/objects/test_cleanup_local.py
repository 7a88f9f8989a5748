"""Moves and deletions of files: exactly the processed version, whatever writers do meanwhile."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigurationError, ObjectDenied, TemporaryError
from penstock.messaging.steps import Step
from penstock.objects import cleanup_local
from penstock.objects.cleanup import ASIDE_PREFIX, CHANGED, DONE, MISSING, Cleaner, CleanupOutcome, second_name
from penstock.objects.cleanup_local import FileDeleter, FileMover
from penstock.objects.local_store import LocalStore
from penstock.objects.reference import ObjectRef

DEADLINE_SECONDS = 60.0
Make = Callable[..., Cleaner]


class Crash(BaseException):
    pass


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "in"
    (folder / "eu").mkdir(parents=True)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "done"


@pytest.fixture(params=["delete", "move"])
def make(request: pytest.FixtureRequest, source: Path, target: Path) -> Make:
    def create(probe: Callable[[Step], None] = lambda step: None) -> Cleaner:
        if request.param == "delete":
            return FileDeleter(str(source), probe=probe)
        return FileMover(str(source), str(target), probe=probe)

    return create


def put(path: Path, text: str = "one") -> ObjectRef:
    path.write_text(text)
    return LocalStore(path.parent).describe(path)


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["a.jsonl", "eu/a b\n.jsonl", "eu/\udcff"])
def test_a_cleaned_file_is_removed_and_its_neighbours_stay(make: Make, source: Path, name: str) -> None:
    ref = put(source / name)
    put(source / "eu" / "other", "two")
    assert make().clean(ref) is DONE
    assert files(source) == {"eu/other": "two"}
    assert make().clean(ref) is MISSING


def test_a_moved_file_keeps_its_path_and_its_time(source: Path, target: Path) -> None:
    ref = put(source / "eu" / "a")
    assert FileMover(str(source), str(target)).clean(ref) is DONE
    assert files(target) == {"eu/a": "one"}
    assert LocalStore(target).describe(target / "eu" / "a").etag == ref.etag


@pytest.mark.parametrize("change", ["rewritten", "replaced", "a folder", "a link"])
def test_another_version_is_left_alone(make: Make, source: Path, change: str) -> None:
    path = source / "a"
    ref = put(path)
    if change == "rewritten":
        path.write_text("another one")
    else:
        path.unlink()
        changes: dict[str, Callable[[], object]] = {
            "replaced": lambda: put(path, "other"),
            "a folder": path.mkdir,
            "a link": lambda: path.symlink_to(source / "eu"),
        }
        changes[change]()
    before = os.lstat(path)
    assert make().clean(ref) is CHANGED
    assert os.path.samestat(os.lstat(path), before)


def test_a_file_replaced_at_the_last_moment_is_put_back(
    make: Make, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer renames a newer file over the name between the last check and the rename of the cleanup."""
    path = source / "a"
    ref = put(path)
    rename = os.rename

    def rename_late(name: Any, to: Any, **where: Any) -> None:
        put(source / ".new", "newer")
        rename(source / ".new", path)
        rename(name, to, **where)

    monkeypatch.setattr(os, "rename", rename_late)
    assert make().clean(ref) is CHANGED
    assert files(source) == {"a": "newer"}


def test_two_writers_at_the_last_moment_lose_nothing(make: Make, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source / "a"
    ref = put(path)
    rename = os.rename

    def rename_late(name: Any, to: Any, **where: Any) -> None:
        path.write_text("newer")
        rename(name, to, **where)
        put(path, "newest")

    monkeypatch.setattr(os, "rename", rename_late)
    assert make().clean(ref) is CHANGED
    assert files(source) == {"a": "newest", second_name("a", ref): "newer"}


def test_a_crash_after_the_rename_is_recovered(make: Make, source: Path, target: Path) -> None:
    def die(step: Step) -> None:
        assert step is Step.SET_ASIDE
        raise Crash

    path = source / "a"
    ref = put(path)
    with pytest.raises(Crash):
        make(die).clean(ref)
    (hidden,) = files(source)
    assert hidden.startswith(ASIDE_PREFIX), "hidden files are not scanned"
    put(path, "newer")
    assert make().clean(ref) is DONE
    assert files(source) == {"a": "newer"}
    assert files(target) in ({}, {"a": "one"})


def test_a_crash_between_link_and_unlink_of_a_move_is_recovered(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = put(source / "a")
    mover = FileMover(str(source), str(target))
    link = os.link

    def die(*names: Any, **where: Any) -> None:
        link(*names, **where)
        monkeypatch.undo()
        monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(Crash))  # the file cannot be put back
        raise Crash

    monkeypatch.setattr(os, "link", die)
    with pytest.raises(Crash):
        mover.clean(ref)
    monkeypatch.undo()
    assert files(target) == {"a": "one"}
    assert mover.clean(ref) is DONE
    assert (files(source), files(target)) == ({}, {"a": "one"})


def test_a_move_never_overwrites_a_file(source: Path, target: Path) -> None:
    target.mkdir()
    put(target / "a", "another")
    ref = put(source / "a")
    assert FileMover(str(source), str(target)).clean(ref) is DONE
    assert files(target) == {"a": "another", second_name("a", ref): "one"}


def test_with_both_names_taken_the_file_stays(source: Path, target: Path) -> None:
    target.mkdir()
    ref = put(source / "a")
    for name in ("a", second_name("a", ref)):
        put(target / name, "another")
    assert FileMover(str(source), str(target)).clean(ref).outcome is CleanupOutcome.REFUSED
    assert files(source) == {"a": "one"}


def test_a_target_on_another_file_system_is_an_error_and_the_file_stays(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = put(source / "a")
    link = os.link

    def link_across_devices(name: Any, to: Any, **where: Any) -> None:
        if os.fsencode(target) in os.fsencode(to):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(name, to, **where)

    monkeypatch.setattr(os, "link", link_across_devices)
    with pytest.raises(ConfigurationError, match="different file systems"):
        FileMover(str(source), str(target)).clean(ref)
    assert files(source) == {"a": "one"}


def test_a_folder_replaced_by_a_link_is_not_followed(make: Make, source: Path, tmp_path: Path) -> None:
    ref = put(source / "eu" / "a")
    outside = tmp_path / "outside"
    (source / "eu").rename(outside)
    (source / "eu").symlink_to(outside)
    assert make().clean(ref) is MISSING
    assert files(outside) == {"a": "one"}


def test_a_file_outside_the_source_is_refused(make: Make, source: Path) -> None:
    ref = put(source.parent / "a")
    assert make().clean(ref).outcome is CleanupOutcome.REFUSED
    assert ref.etag == LocalStore(source.parent).describe(source.parent / "a").etag


def test_a_missing_source_is_a_temporary_error(make: Make, source: Path) -> None:
    ref = put(source / "a")
    source.rename(source.with_name("unmounted"))
    with pytest.raises(TemporaryError, match="does not exist"):
        make().clean(ref)


def test_a_folder_without_write_permission_is_an_error(
    make: Make, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = put(source / "a")

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", denied)  # tests may run as root, for whom no permission is missing
    with pytest.raises(ObjectDenied, match="Permission denied"):
        make().clean(ref)


def test_many_cleaners_and_a_writer_at_once_lose_no_newer_file(make: Make, source: Path) -> None:
    """Each version is written once by a rename. It either still exists or is the version to be cleaned up."""
    path = source / "a"
    ref = put(path, "0")
    done = threading.Event()
    failures: list[BaseException] = []

    def clean() -> None:
        try:
            while not done.is_set():
                make().clean(ref)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=clean, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 300):
        put(source / ".new", f"{number} is newer")
        (source / ".new").rename(path)
    done.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert not failures
    assert make().clean(ref) in (CHANGED, MISSING)
    assert "299 is newer" in files(source).values()


def test_files_of_an_unmounted_source_do_not_count_as_deleted(make: Make, source: Path) -> None:
    ref = put(source / "a")
    unmounted = source.rename(source.with_name("unmounted"))
    source.mkdir()
    for cleaner in (make(), make()):
        with pytest.raises(TemporaryError, match=r"is empty, and was empty when this process started"):
            cleaner.clean(ref)
    source.rmdir()
    unmounted.rename(source)
    assert cleaner.clean(ref) is DONE
    assert cleaner.clean(ref) is MISSING  # it was the last file


def test_a_folder_that_replaced_the_source_proves_no_deletion(make: Make, source: Path) -> None:
    ref = put(source / "a")
    cleaner = make()
    source.rename(source.with_name("unmounted"))
    source.mkdir()
    with pytest.raises(TemporaryError, match="replaced by another folder"):
        cleaner.clean(ref)


def test_a_folder_locked_by_another_cleaner_is_a_temporary_error(
    make: Make, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup_local, "LOCK_SECONDS", 0.05)
    ref = put(source / "a")
    suspended = os.open(source, os.O_RDONLY)
    try:
        fcntl.flock(suspended, fcntl.LOCK_EX)
        with pytest.raises(TemporaryError, match="another cleanup has locked its folder"):
            make().clean(ref)
    finally:
        os.close(suspended)
    assert make().clean(ref) is DONE
