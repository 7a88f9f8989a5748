"""The dashboard's scripts and styles are those of the locked npm packages."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from scripts import web_assets
from scripts.web_assets import ASSETS, MANIFEST, PACKAGES, VENDOR, differences, digest, write

LOCK = json.loads((PACKAGES / "package-lock.json").read_text())["packages"]


def test_every_committed_file_has_the_hash_of_the_manifest() -> None:
    described = json.loads((VENDOR / MANIFEST).read_text())
    hashes = {name: value for package in described for name, value in package["files"].items()}
    assert {path.name: digest(path.read_bytes()) for path in VENDOR.iterdir() if path.name != MANIFEST} == hashes


def test_the_manifest_has_the_versions_of_the_lock_and_of_the_declaration() -> None:
    described = {package["name"]: package["version"] for package in json.loads((VENDOR / MANIFEST).read_text())}
    assert described == LOCK[""]["dependencies"]
    assert described == json.loads((PACKAGES / "package.json").read_text())["dependencies"]
    assert described == {name.removeprefix("node_modules/"): one["version"] for name, one in LOCK.items() if name}


def test_the_lock_names_no_registry_and_hashes_every_package() -> None:
    assert "://" not in (PACKAGES / "package-lock.json").read_text()
    assert all(one["integrity"].startswith("sha512-") for name, one in LOCK.items() if name)


def test_every_package_comes_with_its_licence() -> None:
    for asset in ASSETS:
        assert "ermission" in (VENDOR / f"{asset.package}.LICENSE").read_text(), asset.package


def test_a_file_that_is_changed_missing_or_unknown_is_reported(tmp_path: Path) -> None:
    wanted = {"a.js": b"a", "b.js": b"b", "c.js": b"c"}
    assert sorted(differences(wanted, tmp_path / "none")) == [f"{name} is missing" for name in wanted]
    write(wanted, tmp_path / "vendor")
    assert list(differences(wanted, tmp_path / "vendor")) == []
    (tmp_path / "vendor" / "a.js").write_bytes(b"another")
    (tmp_path / "vendor" / "b.js").unlink()
    (tmp_path / "vendor" / "d.js").touch()
    assert sorted(differences(wanted, tmp_path / "vendor")) == [
        "a.js differs from its package",
        "b.js is missing",
        "d.js is in no package",
    ]


def test_a_failure_of_npm_is_reported_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "npm"
    program.write_text("#!/bin/sh\necho 'npm error EINTEGRITY' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SystemExit, match="EINTEGRITY"):
        web_assets.install(tmp_path)


@pytest.mark.slow
def test_the_committed_files_are_those_of_the_packages(tmp_path: Path) -> None:
    ping = ["npm", "ping"]
    if not shutil.which("npm") or subprocess.run(ping, cwd=tmp_path, capture_output=True, timeout=60).returncode != 0:
        pytest.skip("not applicable: npm reaches no registry")
    assert sorted(differences(web_assets.packed(web_assets.install(tmp_path)), VENDOR)) == []
