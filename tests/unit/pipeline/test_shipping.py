"""Zip files of Penstock and of the user's modules, for executors."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.pipeline.spark.shipping import module_archive, package_archive


def imported(archive: Path, statement: str) -> str:
    """Return the output of a Python without site packages that has the archive on its path."""
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); {statement}"
    found = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip() or found.stderr


def test_penstock_can_be_imported_from_its_archive(tmp_path: Path) -> None:
    archive = package_archive(tmp_path)
    assert imported(archive, "import penstock.errors; print(penstock.errors.__file__)").startswith(str(archive))


def test_an_archive_has_the_digest_of_its_content_in_its_name(tmp_path: Path) -> None:
    first = package_archive(tmp_path / "one")
    assert (first.name, first.read_bytes()) == ((again := package_archive(tmp_path / "two")).name, again.read_bytes())
    module = tmp_path / "helpers.py"
    module.write_text("X = 1\n")
    before = module_archive(module, tmp_path)
    module.write_text("X = 2\n")
    assert module_archive(module, tmp_path) != before


def test_a_module_and_a_package_of_the_users_can_be_imported_from_their_archives(tmp_path: Path) -> None:
    (tmp_path / "shop" / "inner").mkdir(parents=True)
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "inner" / "prices.py").write_text("X = 7\n")
    (tmp_path / "shop" / "__pycache__").mkdir()
    (tmp_path / "shop" / "__pycache__" / "old.pyc").touch()
    (tmp_path / "helpers.py").write_text("X = 8\n")
    package = module_archive(tmp_path / "shop", tmp_path / "out")
    assert imported(package, "from shop.inner import prices; print(prices.X)") == "7"
    assert zipfile.ZipFile(package).namelist() == ["shop/", "shop/inner/", "shop/__init__.py", "shop/inner/prices.py"]
    assert (
        imported(module_archive(tmp_path / "helpers.py", tmp_path / "out"), "import helpers; print(helpers.X)") == "8"
    )


def test_an_archive_of_the_users_stays_as_it_is(tmp_path: Path) -> None:
    wheel = tmp_path / "shop-1.0-py3-none-any.whl"
    wheel.touch()
    assert module_archive(wheel, tmp_path / "out") == wheel


@pytest.mark.parametrize(("name", "problem"), [("nowhere.py", "does not exist"), ("notes.txt", "is none of these")])
def test_other_paths_are_refused(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigurationError, match=rf"spark.py_files names modules .*{name} {problem}"):
        module_archive(tmp_path / name, tmp_path / "out")
