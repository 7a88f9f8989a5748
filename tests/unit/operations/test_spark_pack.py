"""The archive for executors: its content, its script, and what cannot be packed."""

import platform
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.services.bare_python import bare_python

from penstock.errors import ConfigurationError, UsageError
from penstock.operations.spark import pack as module
from penstock.operations.spark.pack import OWN_PYTHON, PACKAGES, PYTHON_VARIABLE, PackRequest, distributions, pack
from penstock.pipeline.spark.requirements import FOR_LEDGER, FOR_S3, REQUIRED

SMALL = {"pipeline": ("zstandard",), "aws": ("boto3",)}
NAMED = f"python{OWN_PYTHON.replace('.', '_')}"
IMPORT = "import zstandard, sys; print(zstandard.__file__); print(sys.executable)"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pack one small package instead of all."""
    monkeypatch.setattr(module, "PACKAGES", SMALL)
    monkeypatch.chdir(tmp_path)


def unpacked(archive: str, folder: Path) -> Path:
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder


def run(folder: Path, *, path: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [folder / "bin" / "python", "-c", IMPORT],
        env={"PATH": f"{path}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def programs(folder: Path, **targets: object) -> Path:
    """Return a folder for PATH with programs that run others, or that end with an error."""
    folder.mkdir()
    for name, target in targets.items():
        program = folder / name.replace("_", ".")
        program.write_text(f'#!/bin/sh\nexec {target} "$@"\n')
        program.chmod(0o755)
    return folder


def test_the_archive_has_all_packages_that_tasks_import() -> None:
    every = {"python-ulid" if name == "ulid" else name for name in (*REQUIRED, *FOR_S3, *FOR_LEDGER)}
    packed = {name for extra in ("pipeline", "aws", "mysql") for name in PACKAGES[extra]}
    assert every <= packed
    assert distributions(PACKAGES["pipeline"]).keys() >= {"numpy", "pandas", "pyarrow", "python-dateutil", "six"}
    assert not distributions([*PACKAGES["pipeline"], *PACKAGES["aws"]]).keys() & {"pyspark", "deltalake", "pytest"}


def test_the_same_environment_gives_the_same_bytes_and_exact_versions(tmp_path: Path) -> None:
    reports = [pack(PackRequest(output=tmp_path / name)) for name in ("a.tar.gz", "b.tgz")]
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tgz").read_bytes()
    assert reports[0].packages == {"zstandard": version("zstandard")}
    assert reports[0].settings == {
        "spark.archives": f"{tmp_path}/a.tar.gz#penstock",
        "spark.pyspark.python": "./penstock/bin/python",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "b.tgz"]
    with tarfile.open(tmp_path / "a.tar.gz") as file:
        names = file.getnames()
    assert "bin/python" in names
    assert all(name == "bin/python" or name.startswith("lib/zstandard") for name in names)


def test_its_python_is_the_first_of_the_same_version_on_the_hosts_path(tmp_path: Path) -> None:
    folder = unpacked(pack(PackRequest()).file, tmp_path / "unpacked")
    bare = bare_python(tmp_path / "bare", [])
    path = programs(tmp_path / "path", **{NAMED: "false", "python3": "false", "python": bare})
    done = run(folder, path=path)
    assert done.stdout.splitlines() == [f"{folder}/lib/zstandard/__init__.py", str(bare)], done.stderr


def test_its_python_can_be_named(tmp_path: Path) -> None:
    folder = unpacked(pack(PackRequest()).file, tmp_path / "unpacked")
    bare = bare_python(tmp_path / "bare", [])
    done = run(folder, path=tmp_path, **{PYTHON_VARIABLE: str(bare)})
    assert done.stdout.splitlines()[1] == str(bare)


def test_a_host_without_that_version_gets_a_sentence(tmp_path: Path) -> None:
    folder = unpacked(pack(PackRequest()).file, tmp_path / "unpacked")
    path = programs(tmp_path / "path", **{NAMED: "false", "python3": "false", "python": "false"})
    done = run(folder, path=path)
    assert done.returncode == 127
    assert f"this host has no Python {OWN_PYTHON} on its PATH; set spark.executorEnv.{PYTHON_VARIABLE}" in done.stderr


def test_for_another_platform_pip_gets_the_same_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = version("zstandard")
    wheel(tmp_path / "wheels", "zstandard", exact, "cp313-cp313-manylinux2014_aarch64")
    wheel(tmp_path / "wheels", "zstandard", "999.0", "cp313-cp313-manylinux2014_aarch64")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    report = pack(PackRequest(platforms=["manylinux2014_aarch64"], python_version="3.13"))
    assert Path(report.file).name == "penstock-python3.13.tar.gz"
    folder = unpacked(report.file, tmp_path / "unpacked")
    assert (folder / "lib" / "zstandard.py").read_text() == f"# {exact}\n"
    assert "sys.version_info[:2] != (3, 13)" in (folder / "bin" / "python").read_text()


@pytest.mark.parametrize("tag", ["manylinux_2_17", "manylinux2014"])
def test_a_platform_takes_wheels_for_older_systems_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    exact = version("zstandard")
    wheel(tmp_path / "wheels", "zstandard", exact, f"cp313-cp313-{tag}_aarch64")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    report = pack(PackRequest(platforms=["manylinux_2_28_aarch64"], python_version="3.13"))
    assert (unpacked(report.file, tmp_path / "unpacked") / "lib" / "zstandard.py").read_text() == f"# {exact}\n"


def test_a_platform_takes_no_wheels_for_newer_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path / "wheels", "zstandard", version("zstandard"), "cp313-cp313-manylinux_2_28_aarch64")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    with pytest.raises(ConfigurationError, match=r"for Python 3\.13 on manylinux2014_aarch64: No matching"):
        pack(PackRequest(platforms=["manylinux2014_aarch64"], python_version="3.13"))


@pytest.mark.slow  # it needs PyPI, or a mirror that pip is configured for
def test_real_wheels_for_this_and_another_processor_are_packed_and_import(tmp_path: Path) -> None:
    here, there = "manylinux2014_x86_64", "manylinux2014_aarch64"
    probe = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--platform", there]
    probe += ["--only-binary", ":all:", "--dest", str(tmp_path / "probe"), f"zstandard=={version('zstandard')}"]
    if platform.machine() != "x86_64" or subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("this test needs PyPI and an x86_64 processor")
    modules = {}
    for tag in (here, there):
        report = pack(PackRequest(output=tmp_path / f"{tag}.tgz", platforms=[tag]))
        folder = unpacked(report.file, tmp_path / tag)
        compiled = next((folder / "lib" / "zstandard").glob("backend_c.*.so"))
        modules[tag] = compiled.read_bytes()[18:20]  # the processor, in ELF's header
    assert modules == {here: b"\x3e\x00", there: b"\xb7\x00"}
    bare = bare_python(tmp_path / "bare", [])
    done = run(tmp_path / here, path=tmp_path, **{PYTHON_VARIABLE: str(bare)})
    assert done.stdout.splitlines()[0] == f"{tmp_path}/{here}/lib/zstandard/__init__.py", done.stderr


def wheel(folder: Path, name: str, release: str, tags: str) -> None:
    """Write a wheel with one module."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{release}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{release}-{tags}.whl", "w") as file:
        file.writestr(f"{name}.py", f"# {release}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
        file.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: false\nTag: {tags}\n")
        file.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def test_packages_that_pip_cannot_get_are_a_sentence_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        ConfigurationError, match=r"for Python 3\.12 on win_arm64: No matching distribution found for z"
    ):
        pack(PackRequest(platforms=["win_arm64"], python_version="3.12"))
    assert list(tmp_path.iterdir()) == []


def test_without_pip_another_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=f"it is not installed for {sys.executable}: run "):
        pack(PackRequest(python_version="3.12"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"The package nothing-like-it is not installed here, and the archive"):
        pack(PackRequest(packages=["nothing-like-it"]))


def test_an_editable_install_cannot_be_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site" / "linked-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: linked\nVersion: 1.0\n")
    (info / "RECORD").write_text("_editable_impl_linked.pth,,\nlinked-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(ConfigurationError, match=r"The files of linked 1\.0 are not in this environment"):
        pack(PackRequest(output=tmp_path / "a.tar.gz", packages=["linked"]))
    assert not list(tmp_path.glob("*a.tar.gz*"))


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (PackRequest(output=Path("a.zip")), r"--output .*/a\.zip must end with \.tar\.gz or \.tgz"),
        (PackRequest(output=Path("a,b.tgz")), "must have no comma and no # in its path"),
        (PackRequest(output=Path("nowhere/a.tgz")), "must be a file in a folder that exists"),
        (PackRequest(extras=["redis"]), "--extra redis has nothing for executors; the extras are pipeline, aws"),
        (PackRequest(python_version="3"), r"--python-version 3 must be a version such as 3\."),
        (PackRequest(python_version="4.0"), r"--python-version 4\.0 must be a version such as 3\."),
        (PackRequest(packages=[""]), r"--package '' must be the name of one package\."),
        (PackRequest(packages=["shop lib"]), r"--package 'shop lib' must be the name of one package\."),
        (PackRequest(platforms=["win_arm64", ""]), r"--platform '' must be the name of one platform\."),
    ],
)
def test_invalid_options_are_refused(request_: PackRequest, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        pack(request_)


def test_a_failed_write_leaves_the_old_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tmp_path / "a.tar.gz"
    before.write_bytes(b"the old one")
    monkeypatch.setattr(module, "_entry", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pack(PackRequest(output=before))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the old one"]
