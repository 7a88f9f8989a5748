"""`penstock init`: files that work as they are, and never overwrite anything."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from penstock import App
from penstock.cli.init import settings_file
from penstock.config import SETTINGS_FILE, Audience, Settings, audience, dotted, load_settings

USAGE = 2
SRC = Path(__file__).parents[2] / "src"
NAMES = {"penstock.toml", "app.py", "test_app.py"}


def test_the_files_are_written_and_the_app_serves(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = penstock("init", "new/shop")
    assert result.exit_code == 0
    assert {path.name for path in (tmp_path / "new" / "shop").iterdir()} == {*NAMES, ".gitignore"}
    written = ("penstock.toml", "app.py", "test_app.py", ".gitignore")
    assert result.out.splitlines() == [f"new/shop/{name}" for name in written]
    assert (tmp_path / "new" / "shop" / ".gitignore").read_text() == ".penstock/\n"
    monkeypatch.chdir(tmp_path / "new" / "shop")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "app", raising=False)
    assert load_settings().app == "app:app"
    assert penstock("send", "greetings", "--body", '{"name": "Ada"}').exit_code == 0
    assert penstock("send", "greetings", "--body", "{}").exit_code == USAGE, "the app that is set checks the body"


def test_the_generated_test_passes(penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".gitignore").write_text("mine\n")
    assert set(penstock("init", "--json").document["written"]) == NAMES
    assert (tmp_path / ".gitignore").read_text() == "mine\n"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_app.py"],
        env={**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "2 passed" in run.stdout


def test_the_commented_pipeline_works(penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert penstock("init").exit_code == 0
    text = (tmp_path / "app.py").read_text()
    pipeline = text[text.index("# from penstock import") :]
    code = "\n".join(line.removeprefix("# ").removeprefix("#") for line in pipeline.splitlines())
    app = App()
    exec(compile(code, "app.py", "exec"), {"app": app})  # as after uncommenting it in an editor
    assert [(pipeline_made.name, pipeline_made.declaration.source.queue) for pipeline_made in app.pipelines] == [
        ("clicks", "clicks")
    ]
    assert "penstock run app:app clicks --available-now --source ./landing" in text
    assert 'app.announce("clicks", "./landing")' in text
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.jsonl").write_text("{}\n")
    with app:
        assert app.announce("clicks", "./landing") == 1


@pytest.mark.parametrize("name", sorted(NAMES))
def test_nothing_is_overwritten_and_the_file_in_the_way_is_named(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("mine = 1\n" if name == SETTINGS_FILE else "mine")
    result = penstock("init")
    assert (result.exit_code, result.out) == (USAGE, "")
    assert f"penstock: {name} exists already" in result.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text().startswith("mine")


def test_a_folder_that_cannot_be_created_is_a_usage_error(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    result = penstock("init", "file/inner")
    assert result.exit_code == USAGE
    assert "file/inner cannot be created" in result.err


@pytest.mark.parametrize("full", [False, True])
def test_the_settings_file_has_its_settings_with_their_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    text = settings_file(full=full)
    assert not any(tomllib.loads(text).values()), "all settings are commented out"
    lines = [line.removeprefix("# ") for line in text.splitlines() if " = " in line or line.startswith("[")]
    assert named(lines) == [
        dotted(field)
        for field in Settings.model_fields
        if (audience(field) is not Audience.HIDDEN if full else audience(field) is Audience.STARTER)
    ]
    (tmp_path / SETTINGS_FILE).write_text("\n".join(line for line in lines if not line.endswith("= ...")))
    assert load_settings() == Settings.model_construct()
    assert full or 8 <= len(named(lines)) <= 12
    for field in Settings.model_fields.values():
        assert field.description is not None
        assert field.description.endswith(".")


def named(lines: list[str]) -> list[str]:
    section, found = "", []
    for line in lines:
        if line.startswith("["):
            section = f"{line.strip('[]')}."
        else:
            found.append(section + line.split(" = ")[0])
    return found


def test_all_settings_are_written_on_request(penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert penstock("init", "--full").exit_code == 0
    assert (tmp_path / SETTINGS_FILE).read_text() == settings_file(full=True, app="app:app")
    assert penstock("init", "--aws", "--full").exit_code == USAGE
