"""The release check covers what the project declares, and only a tag publishes."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts import release_check

ROOT = Path(__file__).parents[3]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def jobs() -> dict[str, Any]:
    found = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert isinstance(found, dict)
    return found


def test_every_extra_is_installed_by_the_check() -> None:
    assert list(release_check._described(tag=None)) == []
    assert list(release_check._described(tag=f"v{PROJECT['version']}")) == []


@pytest.mark.parametrize("tag", ["v9.9.9", PROJECT["version"]])
def test_another_tag_is_refused(tag: str) -> None:
    (problem,) = release_check._described(tag=tag)
    assert f"the tag is {tag}" in problem


def test_an_extra_that_the_check_does_not_install_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_check, "PACKAGES", {"spark": ("pyspark",)})
    (problem,) = release_check._described(tag=None)
    assert "extras of pyproject.toml" in problem


def test_the_path_of_an_installation_has_no_java(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    environment = release_check._bare_environment(tmp_path / "venv", tmp_path / "work")
    assert set(environment) <= {"HOME", "PATH", "LANG", "TMPDIR"}
    assert not [place for place in environment["PATH"].split(":") if (Path(place) / "java").exists()]


def test_the_workflow_is_valid() -> None:
    command = [
        Path(sys.executable).parent / "check-jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
        WORKFLOW,
    ]
    checked = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0, checked.stdout


def test_only_publishing_of_a_tag_has_permissions() -> None:
    rights = {name: job.get("permissions") for name, job in jobs().items()}
    assert rights == {"check": None, "publish": {"id-token": "write"}}
    publish = jobs()["publish"]
    assert (publish["needs"], publish["if"]) == ("check", "startsWith(github.ref, 'refs/tags/v')")


def test_the_workflow_runs_every_declared_python() -> None:
    named = [
        one.rpartition(" ")[2]
        for one in PROJECT["classifiers"]
        if one.startswith("Programming Language :: Python :: 3.")
    ]
    assert jobs()["check"]["strategy"]["matrix"]["python"] == named


def test_the_release_files_name_no_download_address() -> None:
    for file in (WORKFLOW, ROOT / "scripts" / "release_check.py"):
        assert "://" not in file.read_text()
