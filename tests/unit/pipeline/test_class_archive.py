"""The archive of Spark's classes, with a Java of the test's. `tests/spark/test_start.py` has Spark and a real Java."""

import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.pipeline.spark import class_archive
from penstock.pipeline.spark.class_archive import RUN_CLASS, ClassArchive, make

CLASSES = f"java/lang/Object\n{RUN_CLASS}\n"
WRITES = """case "$*" in *-Xshare:dump*)
for option; do case $option in -XX:SharedArchiveFile=*) echo "$@" > "${option#*=}";; esac; done
esac
"""
DOES_NOT_ACCEPT = f"{WRITES}case $1 in -Xshare:on) echo 'shared class paths mismatch'; exit 1;; esac\n"
REFUSES = "echo 'Cannot have non-empty directory in paths'; exit 1\n"
DIES = "exit 0\n"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "penstock"
    folder.mkdir(parents=True, mode=0o700)
    return folder


@pytest.fixture
def java(tmp_path: Path) -> Callable[[str], Path]:
    def made(script: str) -> Path:
        program = tmp_path / "java" / "bin" / "java"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(0o755)
        return tmp_path / "java"

    return made


def archive(tmp_path: Path, conf: dict[str, str] | None = None, **environ: str) -> ClassArchive | None:
    jars = tmp_path / "jars"
    jars.mkdir(exist_ok=True)
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **environ}
    return class_archive.class_archive(tmp_path / "java", jars, conf or {}, scratch=tmp_path, environ=environ)


def found(tmp_path: Path, conf: dict[str, str] | None = None, **environ: str) -> ClassArchive:
    there = archive(tmp_path, conf, **environ)
    assert there is not None
    return there


def test_a_jvm_lists_its_classes_until_there_is_an_archive_and_then_uses_it(tmp_path: Path, cache: Path) -> None:
    of_session = found(tmp_path)
    assert of_session.java_options() == (f"-XX:DumpLoadedClassList={tmp_path / 'classes.txt'}",)
    assert of_session.file.parent == cache
    of_session.file.write_text("classes")
    of_session.file.chmod(0o600)
    assert of_session.java_options() == (f"-XX:SharedArchiveFile={of_session.file}",)


@pytest.mark.parametrize("others_write", ["file", "folder"])
def test_an_archive_that_another_user_could_have_written_is_not_used(
    tmp_path: Path, cache: Path, others_write: str
) -> None:
    of_session = found(tmp_path)
    of_session.file.write_text("classes")
    (of_session.file if others_write == "file" else cache).chmod(0o777)
    assert not of_session.is_usable()


def test_an_archive_of_another_user_is_not_used(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_session = found(tmp_path)
    of_session.file.write_text("classes")
    of_session.file.chmod(0o600)
    assert of_session.is_usable()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not of_session.is_usable()


@pytest.mark.parametrize(
    "environ",
    [
        {"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/opt/spark.jsa"},
        {"JAVA_TOOL_OPTIONS": "-Xshare:off"},
        {"XDG_CACHE_HOME": "", "HOME": ""},
    ],
)
def test_there_is_none_if_the_user_chose_otherwise_or_has_no_home(tmp_path: Path, environ: dict[str, Any]) -> None:
    assert archive(tmp_path, **environ) is None


def test_without_a_cache_folder_of_its_own_it_is_in_that_of_the_home(tmp_path: Path) -> None:
    assert found(tmp_path, XDG_CACHE_HOME="", HOME=str(tmp_path)).file.parent == tmp_path / ".cache" / "penstock"


def test_another_java_other_jars_and_another_class_path_have_another_archive(tmp_path: Path) -> None:
    files = [found(tmp_path).file]
    (tmp_path / "jars" / "a.jar").write_text("a")
    files.append(found(tmp_path).file)
    os.utime(tmp_path / "jars" / "a.jar", (1, 1))
    files.append(found(tmp_path).file)
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "release").write_text("17")
    files.append(found(tmp_path).file)
    files.append(found(tmp_path, {"spark.jars": "b.jar"}).file)
    files.append(found(tmp_path, SPARK_CONF_DIR="/etc/spark").file)
    assert len(set(files)) == len(files)
    assert found(tmp_path).file == found(tmp_path).file


def test_java_makes_the_archive_from_the_list(cache: Path, java: Callable[[str], Path]) -> None:
    file = cache / "spark-1.jsa"
    (cache / "making-killed").mkdir()
    assert make(file, java(WRITES), "a.jar:b.jar", CLASSES.encode())
    assert file.read_text().rstrip().endswith("-cp a.jar:b.jar")
    assert sorted(path.name for path in cache.iterdir()) == ["lock", "spark-1.jsa"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_one_process_at_a_time_makes_it(cache: Path, java: Callable[[str], Path]) -> None:
    file = cache / "spark-1.jsa"
    with (cache / "lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not make(file, java(WRITES), "a.jar", CLASSES.encode())
        assert not file.exists()
    assert make(file, java(WRITES), "a.jar", CLASSES.encode())
    assert make(file, java(REFUSES), "a.jar", CLASSES.encode()), "the second one finds it made"


@pytest.mark.parametrize("script", [REFUSES, DIES, DOES_NOT_ACCEPT], ids=["refuses", "dies", "does not accept it"])
def test_a_java_that_cannot_make_it_is_not_asked_again(
    tmp_path: Path, cache: Path, java: Callable[[str], Path], script: str
) -> None:
    of_session = found(tmp_path)
    assert not make(of_session.file, java(script), "a.jar", CLASSES.encode())
    again = ClassArchive(file=of_session.file, java_home=of_session.java_home, list_file=of_session.list_file)
    assert again.java_options() == ()
    assert not list(cache.glob("making-*"))


@pytest.mark.parametrize("listed", [CLASSES, f"java/lang/Object id: 0\n{RUN_CLASS} id: 1\n"], ids=["17", "21"])
def test_a_process_beside_this_one_makes_it(
    tmp_path: Path, cache: Path, java: Callable[[str], Path], listed: str
) -> None:
    java(WRITES)
    of_session = found(tmp_path)
    of_session.list_file.write_text(listed)
    maker = of_session.make_later("a.jar")
    assert maker is not None
    of_session.list_file.unlink()  # with the scratch folder
    assert maker.wait(60) == 0
    assert of_session.is_usable()
    assert of_session.make_later("a.jar") is None


def test_a_session_that_ran_nothing_makes_none(tmp_path: Path, cache: Path) -> None:
    of_session = found(tmp_path)
    assert of_session.make_later("a.jar") is None, "no list"
    of_session.list_file.write_text("java/lang/Object\n")
    assert of_session.make_later("a.jar") is None


def test_a_disk_that_is_full_or_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_session = found(tmp_path)
    of_session.list_file.write_text(CLASSES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    assert of_session.make_later("a.jar") is None
    (tmp_path / "cache" / "penstock").rmdir()
    (tmp_path / "cache" / "penstock").write_text("no folder")
    assert of_session.make_later("a.jar") is None
    assert not of_session.is_usable()


def test_an_archive_in_a_folder_that_another_user_can_replace_is_not_used(tmp_path: Path, cache: Path) -> None:
    """Another user who renames the folder puts another one in its place, between the check and the start of the JVM."""
    of_session = found(tmp_path)
    of_session.file.write_text("classes")
    of_session.file.chmod(0o600)
    cache.parent.chmod(0o777)
    assert not of_session.is_usable()
    assert of_session.java_options() == ()
    cache.parent.chmod(0o1777)  # as /tmp: only the owner of a folder in it may rename that
    assert of_session.is_usable()


def test_an_archive_below_a_folder_of_another_user_is_not_used(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_session = found(tmp_path)
    of_session.file.write_text("classes")
    of_session.file.chmod(0o600)
    stat = Path.stat

    def stat_of_another(path: Path) -> Any:
        real = stat(path)
        other = real.st_uid + 1 if path == cache.parent else real.st_uid
        return SimpleNamespace(st_uid=other, st_mode=real.st_mode)

    monkeypatch.setattr(Path, "stat", stat_of_another)
    assert not of_session.is_usable()


def test_a_link_to_the_cache_does_not_hide_a_folder_that_others_can_replace(tmp_path: Path, cache: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    cache.parent.rename(shared / "cache")
    cache.parent.symlink_to(shared / "cache")
    of_session = found(tmp_path)
    of_session.file.write_text("classes")
    of_session.file.chmod(0o600)
    assert of_session.is_usable()
    shared.chmod(0o777)
    assert not found(tmp_path).is_usable()


@pytest.mark.parametrize(
    "script",
    [
        f"kill -{signal.SIGKILL} $$\n",
        f"exit {128 + signal.SIGTERM}\n",
        "echo 'Unable to write to shared archive file.'; exit 1\n",
        "exec sleep 60\n",
    ],
    ids=["killed", "ended by a signal", "full disk", "too slow"],
)
def test_a_java_that_could_not_finish_is_no_refusal(
    tmp_path: Path, cache: Path, java: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """As by the kernel for want of memory: the next session tries again."""
    if "sleep" in script:
        monkeypatch.setattr(class_archive, "DUMP_SECONDS_MAX", 0.2)
    of_session = found(tmp_path)
    assert not make(of_session.file, java(script), "a.jar", CLASSES.encode())
    assert of_session.java_options() != ()
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_two_projects_keep_an_archive_each(tmp_path: Path, cache: Path, java: Callable[[str], Path]) -> None:
    first, second = found(tmp_path), found(tmp_path, {"spark.jars": "b.jar"})
    assert make(first.file, java(WRITES), "a.jar", CLASSES.encode())
    assert make(second.file, java(WRITES), "a.jar:b.jar", CLASSES.encode())
    assert first.is_usable()


@pytest.mark.parametrize(("script", "suffix"), [(WRITES, ".jsa"), (REFUSES, ".refused")], ids=["made", "refused"])
def test_the_newest_archives_and_refusals_are_kept(
    cache: Path, java: Callable[[str], Path], script: str, suffix: str
) -> None:
    for age, name in enumerate("edcb"):
        (cache / f"spark-{name}{suffix}").write_text("of other jars")
        os.utime(cache / f"spark-{name}{suffix}", (1_000 - age, 1_000 - age))
    os.utime(cache / f"spark-b{suffix}", (2_000, 1))  # an old one that was read
    make(cache / "spark-a.jsa", java(script), "a.jar", CLASSES.encode())
    left = sorted(path.name for path in cache.iterdir() if path.name != "lock")
    assert left == [f"spark-{name}{suffix}" for name in "abe"]


@pytest.mark.parametrize("fault", ["file", "read-only", "full", "shared"])
def test_a_session_that_could_not_keep_an_archive_lists_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert found(tmp_path, XDG_CACHE_HOME="", HOME=str(home)).java_options() != ()
    if fault == "file":
        (home / ".cache").write_text("no folder")
    elif fault == "read-only":
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path).exists() and not mode & os.W_OK)
    elif fault == "full":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    else:
        (home / ".cache" / "penstock").mkdir(parents=True)
        (home / ".cache" / "penstock").chmod(0o1777)
    assert found(tmp_path, XDG_CACHE_HOME="", HOME=str(home)).java_options() == ()


def test_in_an_empty_home_the_folders_of_the_cache_are_created_with_the_archive(
    tmp_path: Path, java: Callable[[str], Path]
) -> None:
    """For this user alone, although a usual umask of groups would let others write there."""
    java(WRITES)
    home = tmp_path / "home"
    home.mkdir()
    of_session = found(tmp_path, XDG_CACHE_HOME="", HOME=str(home))
    assert of_session.java_options() == (f"-XX:DumpLoadedClassList={of_session.list_file}",)
    assert not list(home.iterdir())
    of_session.list_file.write_text(CLASSES)
    umask = os.umask(0o002)
    try:
        maker = of_session.make_later("a.jar")
    finally:
        os.umask(umask)
    assert maker is not None
    assert maker.wait(60) == 0
    assert of_session.is_usable()


def test_a_class_with_a_name_in_the_utf8_of_java_costs_no_session(tmp_path: Path, cache: Path) -> None:
    """Java writes characters beyond 16 bits as two surrogates, which is no UTF-8 for others."""
    of_session = found(tmp_path)
    of_session.list_file.write_bytes(b"java/lang/Object\ncom/x/\xed\xa0\xbd\xed\xb8\x80\n")
    assert of_session.make_later("a.jar") is None
