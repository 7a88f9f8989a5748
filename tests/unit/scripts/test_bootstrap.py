import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "bootstrap.py"


@pytest.fixture(scope="module")
def bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def no_configuration(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PIP_INDEX_URL", "PIP_CERT", "UV_DEFAULT_INDEX", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")  # makes pip report that nothing is configured


def test_a_stamp_is_fresh_until_an_input_changes(bootstrap: ModuleType, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("a==1")
    stamp = bootstrap.Stamp(tmp_path / "stamp", [lock], tmp_path)
    assert not stamp.fresh()
    stamp.write()
    assert bootstrap.Stamp(tmp_path / "stamp", [lock], tmp_path).fresh()
    lock.write_text("a==2")
    assert not bootstrap.Stamp(tmp_path / "stamp", [lock], tmp_path).fresh()


def test_a_moved_environment_is_created_again(bootstrap: ModuleType, tmp_path: Path) -> None:
    bootstrap.Stamp(tmp_path / "stamp", [], tmp_path).write()
    assert not bootstrap.Stamp(tmp_path / "stamp", [], tmp_path / "elsewhere").fresh()


@pytest.mark.usefixtures("no_configuration")
def test_uv_uses_the_index_of_pip(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "UV_DEFAULT_INDEX" not in bootstrap.environment_for_uv(tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.invalid/simple")
    assert bootstrap.environment_for_uv(tmp_path)["UV_DEFAULT_INDEX"] == "https://mirror.invalid/simple"


@pytest.mark.usefixtures("no_configuration")
def test_the_configured_index_of_uv_is_kept(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.invalid/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://other.invalid/simple")
    assert bootstrap.environment_for_uv(tmp_path)["UV_DEFAULT_INDEX"] == "https://other.invalid/simple"


def test_an_old_python_is_refused(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer and .* is 3\.10: name another one"):
        bootstrap.main()


def test_a_missing_venv_module_is_reported(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SystemExit, match=r"/bin/false cannot make a virtual environment .* python3-venv"):
        bootstrap.make_environment(tmp_path / "venv")
    assert not (tmp_path / "venv").exists()
