"""The local store: read files of this machine, each in exactly the version named in its notification.

`LocalStore` describes a file, opens it in its version, and detects changes during reading. Notifications are untrusted
and may name any path, so nothing outside the store's roots is ever read, whatever links are placed on the way.

A version is modification time and size. A rewrite that keeps both (the same size within one tick of the file system's
clock, or a time set back on purpose) is not detected.

`LocalRoot` tells a missing mount from deleted files. If a mount is missing, its folder is missing or empty, and every
file below it seems deleted although none is. The same holds for a file system mounted on a folder below the root. There
an empty folder proves nothing, since people delete all files of a folder; but Linux lists the mounts, so a mount that
was listed once and no longer is must be missing.
"""

import errno
import os
import re
import stat
from types import TracebackType
from typing import NoReturn, Self

from penstock.errors import (
    DeviceFailed,
    ObjectDenied,
    ObjectGone,
    ObjectRefused,
    ObjectSuperseded,
    ObjectUnreadable,
    PartAway,
    TemporaryError,
)
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef, decode_key, uri_of

_Identity = tuple[int, int]  # device and inode
_MOUNTS = "/proc/self/mountinfo"  # see proc_pid_mountinfo(5)
_OCTAL = re.compile(rb"\\([0-7]{3})")


class LocalRoot:
    """One root, and the identity of its folder when it last held files. Thread-safe."""

    __slots__ = ("_devices", "_folder", "_mounts", "_remembers", "_seen", "_suspect")

    def __init__(self, root: bytes, *, remembers: bool = True) -> None:
        """``root`` is an absolute path; for a file, its folder is used.

        With ``remembers=False`` only a missing folder counts as unmounted. For executors, which use the folder for a
        single task and on hosts with other device numbers; the driver checks the rest.
        """
        self._folder = root if os.path.isdir(root) or not os.path.isfile(root) else os.path.dirname(root)  # noqa: PTH112, PTH113, PTH120 - bytes
        self._remembers = remembers
        self._seen: _Identity | None = None
        self._suspect = False
        self._mounts: frozenset[bytes] = frozenset()  # mounts seen below the folder; any thread may replace the set
        self._devices: set[int] = set()  # devices of files that were found; any thread may add to it
        if remembers:
            self._mounts = _mounts_below(self._folder)
            if not _is_empty(self._folder):
                self._seen = _identity(self._folder)

    def check(self) -> None:
        """Raise `TemporaryError` if the folder is missing, or is not the one that held files before."""
        found = _identity(self._folder)
        if found is None:
            self._suspect = True
            raise TemporaryError(
                f"the source folder {_shown(self._folder)} does not exist; is its file system mounted?"
            )
        if not self._remembers:
            return
        if self._seen is None and not _is_empty(self._folder):
            self._seen = found
        if self._seen is not None and found != self._seen:
            self._suspect = True
            raise TemporaryError(
                f"the source folder {_shown(self._folder)} was replaced by another folder, and files are missing in "
                "it; is its file system mounted? If it was replaced on purpose, restart the worker."
            )

    def check_missing(self, path: bytes) -> None:
        """Check whether a missing file may only be unmounted. Call it before the file is taken for deleted.

        Raises `TemporaryError` like `check`, and if the folder has been empty since this process began, as an empty
        folder may be a mount point. Raises `PartAway` if the file at ``path`` was in a file system below the folder
        that is no longer mounted.
        """
        self.check()
        if not self._remembers:
            return
        if self._seen is None:
            raise TemporaryError(
                f"the source folder {_shown(self._folder)} is empty, and was empty when this process started; is its "
                "file system mounted? If its files were deleted on purpose, put a file named .keep into it."
            )
        mounted = _mounts_below(self._folder)
        self._mounts |= mounted
        for mount in self._mounts - mounted:
            if path.startswith(mount + b"/"):
                raise PartAway(
                    f"nothing is mounted on {_shown(mount)} any more, and files are missing in it. If that is on "
                    "purpose, restart the worker."
                )

    def record_found(self, device: int | None = None) -> None:
        """Record that a file was found below the folder. So the folder is the source, even if it was replaced.

        ``device`` is the file's. If it is new, a file system may have been mounted: read the mounts again.
        """
        if self._suspect or self._seen is None:
            self._seen, self._suspect = _identity(self._folder), False
        if self._remembers and (device is None or device not in self._devices):
            self._mounts |= _mounts_below(self._folder)
            if device is not None:
                self._devices.add(device)


def _identity(folder: bytes) -> _Identity | None:
    try:
        status = os.stat(folder)  # noqa: PTH116 - pathlib takes no bytes
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_empty(folder: bytes) -> bool:
    """Return True if the folder is known to be empty."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def _mounts_below(folder: bytes) -> frozenset[bytes]:
    """Return the mount points below this folder; none if the system does not list them."""
    try:
        with open(_MOUNTS, "rb") as lines:  # noqa: PTH123 - a list from the kernel, not a file
            mounts = [_mount_point(line) for line in lines if not _is_automatic(line)]
    except OSError:
        return frozenset()
    prefix = folder.rstrip(b"/") + b"/"
    return frozenset(mount for mount in mounts if mount.startswith(prefix) and mount != prefix)


def _mount_point(line: bytes) -> bytes:
    return _OCTAL.sub(lambda escaped: bytes([int(escaped[1], 8)]), line.split(b" ", 5)[4])


def _is_automatic(line: bytes) -> bool:
    """Return True for an autofs entry, which mounts the actual file system only at its first use."""
    return line.partition(b" - ")[2].startswith(b"autofs ")


def _shown(folder: bytes) -> str:
    return os.fsdecode(folder).encode("utf-8", "backslashreplace").decode()


AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

# Do not wait for the other end of a FIFO, do not acquire a terminal, and do not follow a link at the end of the path.
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR})
_PROCESS_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # of this process, not of the object
_MOUNT_FAULTS = frozenset(  # of a network file system, or of the process that serves it
    {errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENODEV, errno.ESHUTDOWN}
)
_DEVICE_FAULTS = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})  # of a file's blocks, or of a whole disk
_DELETED = b" (deleted)"  # Linux's suffix for the path of an open file that was unlinked


class LocalObjectReader:
    """An open file descriptor. See `ObjectReader`."""

    __slots__ = ("_descriptor", "_offset", "_ref")

    def __init__(self, ref: ObjectRef, descriptor: int) -> None:
        self._ref = ref
        self._descriptor = descriptor  # -1 once closed
        self._offset = 0  # the position of `read`

    @property
    def ref(self) -> ObjectRef:
        return self._ref

    def read(self, size_bytes: int = -1, /) -> bytes:
        data = self.pread(self._offset, self._ref.size_bytes if size_bytes < 0 else size_bytes)
        self._offset += len(data)
        return data

    def pread(self, offset: int, length_bytes: int) -> bytes:
        wanted = min(length_bytes, self._ref.size_bytes - offset)  # the size is known: no extra call to detect the end
        if wanted <= 0:
            return b""
        try:
            data = os.pread(self._open_descriptor(), wanted, offset)
            while len(data) < wanted:
                more = os.pread(self._descriptor, wanted - len(data), offset + len(data))
                if not more:
                    raise ObjectSuperseded(
                        f"{self._ref.uri} was cut off at {offset + len(data)} bytes while it was read"
                    )
                data += more
        except OSError as error:
            _refuse(self._ref.uri, error, offset, wanted)
        return data

    def verify(self) -> None:
        try:
            status = os.fstat(self._open_descriptor())
        except OSError as error:
            _refuse(self._ref.uri, error)
        _check_version(self._ref, status)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_descriptor(self) -> int:
        if self._descriptor < 0:
            raise ValueError("the reader is closed")
        return self._descriptor


class LocalStore:
    """The files below some roots; a root may be a single file. See `ObjectStore`."""

    __slots__ = ("_prefixes", "_root_states", "_roots")

    def __init__(self, *roots: AnyPath, remembers: bool = True) -> None:
        """See `LocalRoot` for ``remembers``."""
        self._roots = tuple(os.path.realpath(os.fsencode(root)) for root in roots)
        self._root_states = {root: LocalRoot(root, remembers=remembers) for root in self._roots}
        self._prefixes = tuple(root.rstrip(b"/") + b"/" for root in self._roots)

    def contains(self, path: bytes) -> bool:
        """Return True if an absolute path is a root or below one. Only the name is compared; links are not resolved."""
        return (path.startswith(self._prefixes) or path in self._roots) and os.path.normpath(path) == path

    def describe(self, path: AnyPath) -> ObjectRef:
        """Return the current version of a file under its real path. Raises the same errors as `open`."""
        named = os.fsencode(path)
        uri = uri_of(LOCAL_BUCKET, decode_key(named))
        try:
            real = os.path.realpath(named, strict=True)
            status = os.stat(real, follow_symlinks=False)  # noqa: PTH116 - pathlib takes no bytes
        except OSError as error:
            self._refuse(uri, named, error)
        if not self.contains(real):
            raise ObjectUnreadable(f"{uri} is outside the folders that may be read")
        _check_regular(uri, status)
        return reference(real, status)

    def open(self, ref: ObjectRef) -> LocalObjectReader:
        """Open this version. The cost does not depend on its size: `openat`, `fstat` and `readlink`."""
        path = self._path(ref)
        try:
            descriptor = os.open(path, _OPEN_FLAGS)
        except OSError as error:
            self._refuse(ref.uri, path, error)
        try:
            status = os.fstat(descriptor)
            self.record_found(path, status)
            _check_regular(ref.uri, status)
            _check_path(ref.uri, path, descriptor, status)
            _check_version(ref, status)
        except BaseException:
            os.close(descriptor)
            raise
        return LocalObjectReader(ref, descriptor)

    def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
        with self.open(ref) as reader:
            data = reader.pread(offset, length_bytes)
            reader.verify()
        return data

    def check_missing(self, path: bytes) -> None:
        """Raise `TemporaryError` if a missing file may only be unmounted; see `LocalRoot.check_missing`."""
        self._root_of(path).check_missing(path)

    def record_found(self, path: bytes, status: os.stat_result) -> None:
        """Record that a file was found; see `LocalRoot.record_found`."""
        self._root_of(path).record_found(status.st_dev)

    def _refuse(self, uri: str, path: bytes, error: OSError) -> NoReturn:
        if error.errno in _NOT_THERE and self.contains(path):
            self.check_missing(path)
        _refuse(uri, error)

    def _root_of(self, path: bytes) -> LocalRoot:
        """Return the root that contains a path; the innermost if roots are nested."""
        inside = (root for root in self._roots if path == root or path.startswith(root.rstrip(b"/") + b"/"))
        return self._root_states[max(inside, key=len)]

    def _path(self, ref: ObjectRef) -> bytes:
        path = ref.key_bytes
        if ref.bucket != LOCAL_BUCKET or b"\0" in path or not self.contains(path):
            raise ObjectUnreadable(f"{ref.uri} is outside the folders that may be read")
        return path


def reference(path: bytes, status: os.stat_result) -> ObjectRef:
    """Return the reference for an absolute real path and its status."""
    return ObjectRef(bucket=LOCAL_BUCKET, key=decode_key(path), size_bytes=status.st_size, etag=etag_of(status))


def etag_of(status: os.stat_result) -> str:
    """Return a local file's version: modification time in nanoseconds (hexadecimal) and size in bytes."""
    return f"{status.st_mtime_ns:x}-{status.st_size}"


def modified_at(ref: ObjectRef) -> float:
    """Return a local file's modification time in epoch seconds, negative before 1970, from its etag; 0 without one."""
    return int((ref.etag or "0-").rpartition("-")[0], 16) / 1e9


def _check_regular(uri: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ObjectRefused(f"{uri}: {os.strerror(errno.EISDIR)}")
    if not stat.S_ISREG(status.st_mode):
        raise ObjectRefused(f"{uri} is not a regular file")


def _check_version(ref: ObjectRef, status: os.stat_result) -> None:
    if status.st_size != ref.size_bytes or etag_of(status) != ref.etag:
        raise ObjectSuperseded(f"{ref.uri} changed: announced as version {ref.etag}, now {etag_of(status)}")


def _check_path(uri: str, path: bytes, descriptor: int, status: os.stat_result) -> None:
    # A folder on the path may have become a link since the path was resolved. Checking the open descriptor leaves no
    # gap between the check and the reading.
    if _real_path(path, descriptor, status) != path:
        raise ObjectRefused(f"{uri} is reached through a link now; announce it by its real path")


def _real_path(path: bytes, descriptor: int, status: os.stat_result) -> bytes | None:
    """Return the real path of an open file that was opened as ``path``."""
    try:
        real = _proc_path(descriptor)
        return path if real == path + _DELETED else real
    except OSError:  # without /proc: resolve the name again, and check that it is still the open file
        return _resolve(path, status)


def _proc_path(descriptor: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % descriptor)  # noqa: PTH115 - pathlib takes no bytes


def _resolve(path: bytes, opened: os.stat_result) -> bytes | None:
    try:
        real = os.path.realpath(path, strict=True)
        named = os.stat(real, follow_symlinks=False)  # noqa: PTH116 - pathlib takes no bytes
    except OSError:
        return None
    return real if os.path.samestat(named, opened) else None


def _refuse(uri: str, error: OSError, offset: int = 0, length_bytes: int = 0) -> NoReturn:
    reason = f"{uri}: {error.strerror or error}"
    if error.errno in _PROCESS_FAULTS | _MOUNT_FAULTS:
        raise TemporaryError(reason) from error
    if error.errno in _NOT_THERE:
        raise ObjectGone(reason) from error
    if isinstance(error, PermissionError):
        raise ObjectDenied(reason, offset=offset, length_bytes=length_bytes) from error
    if error.errno in _DEVICE_FAULTS:
        raise DeviceFailed(reason, offset=offset, length_bytes=length_bytes) from error
    raise ObjectRefused(reason, offset=offset, length_bytes=length_bytes) from error
