"""A missing file is evidence only below the folder that is the source."""

import os
from pathlib import Path

import pytest

from penstock.errors import ObjectGone, PartAway, TemporaryError
from penstock.objects import local_store
from penstock.objects.local_store import LocalRoot, LocalStore
from penstock.objects.reference import ObjectRef


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "mnt"
    folder.mkdir()
    return folder


def ref_of(path: Path) -> ObjectRef:
    path.write_text("x")
    ref = LocalStore(path.parent).describe(path)
    path.unlink()
    return ref


def unmount(folder: Path) -> Path:
    away = folder.rename(folder.with_name("away"))
    folder.mkdir()
    return away


def mount(away: Path, folder: Path) -> None:
    folder.rmdir()
    away.rename(folder)


def test_a_folder_that_was_always_empty_proves_no_deletion(folder: Path) -> None:
    ref = ref_of(folder / "a")
    store = LocalStore(folder)
    for _ in range(2):
        with pytest.raises(TemporaryError, match=r"is empty, and was empty when this process started.* named \.keep"):
            store.open(ref)
    (folder / ".keep").touch()
    with pytest.raises(ObjectGone):
        store.open(ref)


def test_a_folder_that_held_files_proves_a_deletion_when_it_is_empty(folder: Path) -> None:
    ref = ref_of(folder / "a")
    (folder / "other").touch()
    store = LocalStore(folder)
    (folder / "other").unlink()
    with pytest.raises(ObjectGone):
        store.open(ref)


def test_a_mount_that_comes_after_the_start_is_the_source(folder: Path) -> None:
    ref = ref_of(folder / "a")
    (folder / "b").touch()
    there = LocalStore(folder).describe(folder / "b")
    away = unmount(folder)
    store = LocalStore(folder)
    mount(away, folder)
    store.open(there).close()
    (folder / "b").unlink()
    with pytest.raises(ObjectGone):
        store.open(ref)
    unmount(folder)
    with pytest.raises(TemporaryError, match="replaced by another folder"):
        store.open(ref)


def test_an_executor_judges_by_the_folder_s_presence_alone(folder: Path) -> None:
    ref = ref_of(folder / "a")
    (folder / "b").touch()
    store = LocalStore(folder, remembers=False)
    away = unmount(folder)
    with pytest.raises(ObjectGone):
        store.open(ref)
    away.rename(folder.with_name("elsewhere"))
    folder.rmdir()
    with pytest.raises(TemporaryError, match="does not exist"):
        store.open(ref)


def test_what_is_about_to_be_cleaned_up_may_be_the_last_file(folder: Path) -> None:
    LocalRoot(os.fsencode(folder)).check()


def test_an_automatic_mount_that_mounts_nothing_is_no_mount(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = ref_of(folder / "a")
    (folder / "b").touch()
    there = LocalStore(folder).describe(folder / "b")
    mounts = folder.parent / "mountinfo"
    monkeypatch.setattr(local_store, "_MOUNTS", str(mounts))
    automatic = f"36 35 0:41 / {folder}/d rw,relatime shared:1 - autofs systemd-1 rw\n"
    mounts.write_text(automatic + f"37 36 0:42 / {folder}/d rw,relatime shared:2 - nfs4 server:/d rw\n")
    store = LocalStore(folder)
    store.open(there).close()
    mounts.write_text(automatic)
    with pytest.raises(ObjectGone):
        store.open(ref)
    with pytest.raises(PartAway, match="nothing is mounted on"):
        store.check_missing(os.fsencode(folder / "d" / "a"))
