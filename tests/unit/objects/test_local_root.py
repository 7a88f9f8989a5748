"""A missing file counts as deleted only while its source folder is known to be mounted."""

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
    unmounted = folder.rename(folder.with_name("unmounted"))
    folder.mkdir()
    return unmounted


def mount(unmounted: Path, folder: Path) -> None:
    folder.rmdir()
    unmounted.rename(folder)


def test_an_empty_folder_that_never_had_files_proves_no_deletion(folder: Path) -> None:
    ref = ref_of(folder / "a")
    store = LocalStore(folder)
    for _ in range(2):
        with pytest.raises(TemporaryError, match=r"is empty, and was empty when this process started.* named \.keep"):
            store.open(ref)
    (folder / ".keep").touch()
    with pytest.raises(ObjectGone):
        store.open(ref)


def test_an_empty_folder_that_had_files_proves_a_deletion(folder: Path) -> None:
    ref = ref_of(folder / "a")
    (folder / "other").touch()
    store = LocalStore(folder)
    (folder / "other").unlink()
    with pytest.raises(ObjectGone):
        store.open(ref)


def test_a_folder_mounted_after_the_start_is_the_source(folder: Path) -> None:
    ref = ref_of(folder / "a")
    (folder / "b").touch()
    existing = LocalStore(folder).describe(folder / "b")
    unmounted = unmount(folder)
    store = LocalStore(folder)
    mount(unmounted, folder)
    store.open(existing).close()
    (folder / "b").unlink()
    with pytest.raises(ObjectGone):
        store.open(ref)
    unmount(folder)
    with pytest.raises(TemporaryError, match="replaced by another folder"):
        store.open(ref)


def test_an_executor_checks_only_that_the_folder_exists(folder: Path) -> None:
    ref = ref_of(folder / "a")
    (folder / "b").touch()
    store = LocalStore(folder, remembers=False)
    unmounted = unmount(folder)
    with pytest.raises(ObjectGone):
        store.open(ref)
    unmounted.rename(folder.with_name("elsewhere"))
    folder.rmdir()
    with pytest.raises(TemporaryError, match="does not exist"):
        store.open(ref)


def test_an_empty_root_passes_the_check_of_a_cleanup(folder: Path) -> None:
    LocalRoot(os.fsencode(folder)).check()


def test_an_automount_without_a_mounted_file_system_is_unavailable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = ref_of(folder / "a")
    (folder / "b").touch()
    existing = LocalStore(folder).describe(folder / "b")
    mounts = folder.parent / "mountinfo"
    monkeypatch.setattr(local_store, "_MOUNTS", str(mounts))
    automatic = f"36 35 0:41 / {folder}/d rw,relatime shared:1 - autofs systemd-1 rw\n"
    mounts.write_text(automatic + f"37 36 0:42 / {folder}/d rw,relatime shared:2 - nfs4 server:/d rw\n")
    store = LocalStore(folder)
    store.open(existing).close()
    mounts.write_text(automatic)
    with pytest.raises(ObjectGone):
        store.open(ref)
    with pytest.raises(PartAway, match="nothing is mounted on"):
        store.check_missing(os.fsencode(folder / "d" / "a"))
