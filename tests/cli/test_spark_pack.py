"""`penstock admin spark pack`: its text, its JSON, and mistakes in its options."""

import json
import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.permissions import obey_permissions

from penstock.operations.spark import pack as module
from penstock.operations.spark.pack import OWN_PYTHON

ZSTANDARD = version("zstandard")
UNPACK = (
    "Under spark-submit in client mode, also unpack it into the folder penstock/ of the driver's working directory "
    "and set spark.pyspark.driver.python to the Python that has Penstock."
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pack one small package instead of all."""
    monkeypatch.setattr(module, "PACKAGES", {"pipeline": ("zstandard",), "aws": ("boto3",)})
    monkeypatch.chdir(tmp_path)


def test_the_text_names_the_archive_its_packages_and_the_settings(penstock: Call, tmp_path: Path) -> None:
    ended = penstock("admin", "spark", "pack")

    archive = tmp_path / f"penstock-python{OWN_PYTHON}.tar.gz"
    assert (ended.exit_code, ended.err) == (0, "")
    first, *others = ended.out.splitlines()
    assert first.startswith(f"{archive}: ")
    assert first.endswith(f" MB, 1 package for Python {OWN_PYTHON}.")
    assert others == [
        f"Packages: zstandard {ZSTANDARD}.",
        "Settings of Spark (spark.conf in Penstock's settings, or --conf of spark-submit):",
        f"  spark.archives={archive}#penstock",
        "  spark.pyspark.python=./penstock/bin/python",
        UNPACK,
    ]
    with tarfile.open(archive) as file:
        assert {"bin/python", "lib/zstandard/__init__.py"} <= set(file.getnames())


def test_the_json_has_the_same(penstock: Call, tmp_path: Path) -> None:
    archive = tmp_path / "for-tasks.tgz"

    document = penstock("admin", "spark", "pack", "--output", archive, "--json").document

    assert document == {
        "file": str(archive),
        "bytes": archive.stat().st_size,
        "python": OWN_PYTHON,
        "packages": {"zstandard": ZSTANDARD},
        "settings": {"spark.archives": f"{archive}#penstock", "spark.pyspark.python": "./penstock/bin/python"},
    }


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (("--output", "nowhere/a.tgz"), 2, "nowhere/a.tgz must be a file in a folder that exists."),
        (("--output", "a.zip"), 2, "a.zip must end with .tar.gz or .tgz: Spark unpacks it by its name."),
        (("--extra", "redis"), 2, "--extra redis has nothing for executors; the extras are pipeline, aws."),
        (("--python-version", "three"), 2, f"--python-version three must be a version such as {OWN_PYTHON}."),
        (("--platform", ""), 2, "--platform '' must be the name of one platform."),
        (("--package", ""), 2, "--package '' must be the name of one package."),
        (("--package", "nothing-like-it"), 78, "The package nothing-like-it is not installed here, and the archive"),
        (("--platform", "nonsense"), 78, f"pip cannot get the packages for Python {OWN_PYTHON} on nonsense: "),
        (("--python-version", "3.99"), 78, "pip cannot get the packages for Python 3.99 on this platform: "),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    penstock: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    exit_code: int,
    sentence: str,
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)

    ended = penstock("admin", "spark", "pack", *arguments, "--json")

    assert ended.exit_code == exit_code
    assert ended.out == ""
    assert ended.err.startswith("penstock: ")
    assert sentence in ended.err
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_packed(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o555)

    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "admin", "spark", "pack", "--output", folder / "a.tgz", "--platform", "any"],
        env={**os.environ, "PIP_NO_INDEX": "1"},  # pip would fail, with another sentence
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=obey_permissions,
    )

    assert (ended.returncode, ended.stdout) == (78, "")
    assert ended.stderr == f"penstock: The archive {folder}/a.tgz cannot be written: Permission denied.\n"


def test_another_version_of_python_is_mentioned(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_download", lambda *_: None)

    ended = penstock("admin", "spark", "pack", "--python-version", "3.99")

    assert (ended.exit_code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == (
        f"This process is Python {OWN_PYTHON}; Spark needs the same version in driver and executors."
    )
    assert json.loads(penstock("admin", "spark", "pack", "--python-version", "3.99", "--json").out)["python"] == "3.99"
