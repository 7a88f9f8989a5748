"""The local store on real files: exactly the notified version, and nothing outside the roots."""

import errno
import os
import pickle
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    DeviceFailed,
    ObjectError,
    ObjectGone,
    ObjectSuperseded,
    ObjectUnreadable,
    TemporaryError,
)
from penstock.objects.local_store import LocalObjectReader, LocalStore, etag_of, modified_at
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore

CONTENT = b"0123456789" * 100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def file(root: Path) -> Path:
    path = root / "in" / "a.jsonl"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


def touch_later(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only the count is needed


def test_describe_names_the_real_path_and_the_version(store: LocalStore, file: Path, root: Path) -> None:
    link = root / "link"
    link.symlink_to(file)
    ref = store.describe(link)
    status = file.stat()
    assert ref == ObjectRef(bucket="file", key=str(file), size_bytes=1000, etag=etag_of(status))
    assert ref.etag == f"{status.st_mtime_ns:x}-1000"
    assert ref == store.describe(file)


@pytest.mark.parametrize("seconds", [-86_400, 0, 1_600_000_000], ids=["before 1970", "1970", "2020"])
def test_the_modification_time_is_read_from_the_version(store: LocalStore, file: Path, seconds: int) -> None:
    os.utime(file, (seconds, seconds))
    assert modified_at(store.describe(file)) == seconds


def test_a_file_without_a_version_was_modified_in_1970(store: LocalStore, file: Path) -> None:
    assert modified_at(replace(store.describe(file), etag=None)) == 0


def test_reads_in_pieces_at_once_and_at_offsets(store: LocalStore, file: Path) -> None:
    with store.open(store.describe(file)) as reader:
        assert reader.read(3) == b"012"
        assert reader.pread(995, 100) == b"56789"
        assert reader.pread(1000, 1) == b""
        assert reader.pread(2000, 1) == b""
        assert reader.read(0) == b""
        assert reader.read() == CONTENT[3:]
        assert reader.read(10) == b""
        reader.verify()


def test_a_range_of_the_version_is_read(store: LocalStore, file: Path) -> None:
    typed: ObjectStore = store  # mypy checks that the local store implements the protocol
    assert typed.read_range(store.describe(file), 10, 5) == b"01234"


def test_the_store_and_references_can_be_pickled(store: LocalStore, file: Path) -> None:
    unpickled, ref = pickle.loads(pickle.dumps((store, store.describe(file))))
    assert unpickled.read_range(ref, 0, 1000) == CONTENT


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(CONTENT + b"x"),
        lambda path: path.write_bytes(CONTENT[:-1]),
        touch_later,
    ],
    ids=["longer", "shorter", "touched"],
)
def test_another_version_is_superseded(store: LocalStore, file: Path, change: Callable[[Path], Any]) -> None:
    ref = store.describe(file)
    change(file)
    with pytest.raises(ObjectSuperseded, match="announced as version"):
        store.open(ref)


def test_verify_notices_a_change_while_reading(store: LocalStore, file: Path) -> None:
    with store.open(store.describe(file)) as reader:
        reader.read(10)
        reader.verify()
        touch_later(file)
        with pytest.raises(ObjectSuperseded):
            reader.verify()


def test_a_file_truncated_while_reading_is_superseded(store: LocalStore, file: Path) -> None:
    with store.open(store.describe(file)) as reader:
        os.truncate(file, 500)
        with pytest.raises(ObjectSuperseded, match="cut off at 500 bytes"):
            reader.read()


def test_a_range_that_changed_meanwhile_is_not_returned(
    store: LocalStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = store.describe(file)
    pread = os.pread

    def read_and_touch(descriptor: int, length: int, offset: int) -> bytes:
        data = pread(descriptor, length, offset)
        touch_later(file)
        return data

    monkeypatch.setattr(os, "pread", read_and_touch)
    with pytest.raises(ObjectSuperseded):
        store.read_range(ref, 0, 10)


def test_a_file_deleted_while_it_is_opened_is_read(
    store: LocalStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = store.describe(file)
    readlink = os.readlink

    def delete_first(path: bytes) -> bytes:
        file.unlink()
        return readlink(path)

    monkeypatch.setattr(os, "readlink", delete_first)
    assert store.read_range(ref, 0, 10) == CONTENT[:10]


def test_a_file_deleted_while_open_is_read_to_the_end(store: LocalStore, file: Path) -> None:
    with store.open(store.describe(file)) as reader:
        file.unlink()
        assert reader.read() == CONTENT
        reader.verify()


def test_short_reads_are_completed(store: LocalStore, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, length, offset: whole(descriptor, min(length, 7), offset))
    assert store.read_range(store.describe(file), 3, 900) == CONTENT[3:903]


def test_a_deleted_file_raises_object_gone(store: LocalStore, file: Path) -> None:
    ref = store.describe(file)
    file.unlink()
    with pytest.raises(ObjectGone, match="No such file"):
        store.open(ref)
    with pytest.raises(ObjectGone):
        store.describe(file)


def test_a_file_whose_folder_became_a_file_raises_object_gone(store: LocalStore, file: Path) -> None:
    ref = store.describe(file)
    file.unlink()
    file.parent.rmdir()
    file.parent.write_bytes(b"")
    with pytest.raises(ObjectGone, match="Not a directory"):
        store.open(ref)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        previous = Path.cwd()
        os.chdir(path.parent)  # socket paths have at most 107 bytes
        try:
            listener.bind(path.name)
        finally:
            os.chdir(previous)


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, make_socket, lambda path: path.symlink_to("/etc/passwd")],
    ids=["folder", "fifo", "socket", "link"],
)
@pytest.mark.timeout(20)
def test_a_file_replaced_by_another_kind_is_unreadable_and_never_blocks(
    store: LocalStore, file: Path, make: Callable[[Path], Any]
) -> None:
    ref = store.describe(file)
    file.unlink()
    make(file)
    before = count_descriptors()
    with pytest.raises(ObjectUnreadable):
        store.open(ref)
    assert count_descriptors() == before


def test_a_link_is_not_opened(store: LocalStore, file: Path) -> None:
    ref = store.describe(file)
    file.rename(file.parent / "moved")
    file.symlink_to("moved")
    with pytest.raises(ObjectUnreadable, match="symbolic links"):
        store.open(ref)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_unreadable(store: LocalStore, file: Path) -> None:
    ref = store.describe(file)
    file.unlink()
    try:
        os.mknod(file, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("this sandbox allows no devices")
    with pytest.raises(ObjectUnreadable):
        store.open(ref)


@pytest.mark.parametrize(
    ("number", "raised"),
    [
        (errno.EACCES, ObjectUnreadable),
        (errno.EIO, ObjectUnreadable),
        (errno.ESTALE, TemporaryError),
        (errno.EMFILE, TemporaryError),
        (errno.ENOMEM, TemporaryError),
    ],
)
@pytest.mark.parametrize("call", ["open", "pread"])
def test_errors_name_the_object_and_the_reason(
    store: LocalStore, file: Path, monkeypatch: pytest.MonkeyPatch, number: int, raised: type[Exception], call: str
) -> None:
    ref = store.describe(file)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(raised) as caught:
        store.read_range(ref, 0, 10)
    assert str(caught.value) == f"{ref.uri}: {os.strerror(number)}"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "root-secret"  # the root's name is a prefix of this name
    path.mkdir()
    (path / "a.jsonl").write_bytes(CONTENT)
    return path


def test_nothing_outside_the_roots_is_read(store: LocalStore, root: Path, secret: Path, file: Path) -> None:
    outside = LocalStore(secret).describe(secret / "a.jsonl")
    for key in (
        outside.key,
        f"{root}/../root-secret/a.jsonl",
        f"{root}/in/../../root-secret/a.jsonl",
        f"/{outside.key}",
        "../root-secret/a.jsonl",
        "etc/passwd",
        f"{file}\0",
        "",
    ):
        with pytest.raises(ObjectUnreadable, match="outside the folders"):
            store.open(replace(outside, key=key))
    with pytest.raises(ObjectUnreadable, match="outside the folders"):
        store.describe(secret / "a.jsonl")


def test_a_folder_replaced_by_a_link_is_not_followed(store: LocalStore, file: Path, secret: Path) -> None:
    # Same name, size and time: only the location differs.
    ref = store.describe(file)
    status = file.stat()
    os.utime(secret / "a.jsonl", ns=(status.st_atime_ns, status.st_mtime_ns))
    file.unlink()
    file.parent.rmdir()
    file.parent.symlink_to(secret)
    before = count_descriptors()
    with pytest.raises(ObjectUnreadable, match="through a link"):
        store.open(ref)
    assert count_descriptors() == before


def test_without_proc_the_location_is_checked_by_name(
    store: LocalStore, file: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = store.describe(file)

    def no_proc(path: object) -> bytes:
        raise FileNotFoundError(errno.ENOENT, "no /proc")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.objects.local_store._proc_path", no_proc)
        assert store.read_range(ref, 0, 10) == CONTENT[:10]
        status = file.stat()
        os.utime(secret / "a.jsonl", ns=(status.st_atime_ns, status.st_mtime_ns))
        file.unlink()
        file.parent.rmdir()
        file.parent.symlink_to(secret)
        with pytest.raises(ObjectUnreadable, match="through a link"):
            store.open(ref)


def test_a_forged_version_is_not_read(store: LocalStore, file: Path) -> None:
    ref = store.describe(file)
    for forged in (replace(ref, etag=None), replace(ref, size_bytes=5), replace(ref, bucket="s3-bucket")):
        with pytest.raises(ObjectError):
            store.open(forged)


def test_a_root_may_be_a_file_or_a_link_to_a_folder(file: Path, root: Path) -> None:
    (root / "other").write_bytes(b"x")
    assert LocalStore(file).describe(file).size_bytes == 1000
    with pytest.raises(ObjectUnreadable):
        LocalStore(file).describe(root / "other")
    link = root.parent / "link"
    link.symlink_to(root)
    assert LocalStore(link).describe(link / "other").key == str(root / "other")
    assert LocalStore("/").describe(file).key == str(file)


def test_a_range_that_cannot_be_read_is_named(store: LocalStore, file: Path) -> None:
    memory = os.open("/proc/self/mem", os.O_RDONLY)  # nothing is mapped at its beginning, so reads fail with EIO
    with (
        LocalObjectReader(store.describe(file), memory) as reader,
        pytest.raises(DeviceFailed, match="error") as raised,
    ):
        reader.pread(100, 50)
    assert (raised.value.offset, raised.value.length_bytes) == (100, 50)


def test_a_closed_reader_reads_nothing(store: LocalStore, file: Path) -> None:
    reader = store.open(store.describe(file))
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.read(1)
