"""The app of a command: APP, --app, PENSTOCK_APP or penstock.toml, the same for every command."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.scene import Scene

from penstock.app.scope import options_for
from penstock.cli.apps import app_and_pipeline

USAGE = 2
SHOP = """
from penstock import App

app = App.from_config()

@app.handler("orders")
def book(order): ...

@app.object_handler("landed", source="landing", name="parse")
def parse(incoming): ...
"""
COMMANDS = [
    ["worker"],
    ["run"],
    ["admin", "monitor", "--once"],
    ["admin", "replayer"],
    ["admin", "outbox", "list"],
    ["admin", "outbox", "relay", "--once"],
    ["admin", "inbox", "forget"],
    ["admin", "cleanup"],
]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"named_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    (tmp_path / "landing").mkdir()
    return f"{name}:app"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_an_app_the_error_names_the_ways_to_name_one(penstock: Call, shop: str, command: Sequence[str]) -> None:
    result = penstock(*command)
    assert (result.exit_code, result.out) == (USAGE, "")
    for way in ("APP or --app", "PENSTOCK_APP", 'app = "shop:app"'):
        assert way in result.err


@pytest.mark.parametrize("command", [*COMMANDS, ["doctor"], ["admin", "publish"]], ids=" ".join)
def test_two_different_apps_are_an_error(penstock: Call, shop: str, command: Sequence[str]) -> None:
    result = penstock(*command, shop, "--app", "other:app")
    assert (result.exit_code, result.out) == (USAGE, "")
    assert result.err == f"penstock: APP is {shop} and --app is other:app: name one app.\n"


def test_the_same_app_named_twice_is_accepted(penstock: Call, shop: str) -> None:
    assert penstock("admin", "monitor", shop, "--app", shop, "--once").exit_code == 0


def test_the_variable_names_the_app_of_every_command(
    penstock: Call, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_APP", shop)
    assert penstock("send", "orders", "--body", "1").exit_code == 0
    assert penstock("admin", "monitor", "--once").exit_code == 0
    assert penstock("reconcile", "parse").exit_code == 0
    assert penstock("reconcile", shop, "parse").exit_code == 0
    assert penstock("dead", "list").err == "No dead letters.\n"
    assert "queue orders" in penstock("status").out
    assert penstock("admin", "cleanup", "parse").err.count(f"{shop}") == 0


def test_an_argument_takes_precedence_over_the_variable(
    penstock: Call, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_APP", "nowhere:app")
    assert penstock("admin", "monitor", shop, "--once").exit_code == 0
    assert penstock("admin", "monitor", "--app", shop, "--once").exit_code == 0
    assert "no module nowhere" in penstock("admin", "monitor", "--once").err


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (None, None, (None, None)),
        ("shop:app", None, ("shop:app", None)),
        ("shop.main:service.app", None, ("shop.main:service.app", None)),
        ("clicks", None, (None, "clicks")),
        ("s3://lake/clicks", None, (None, "s3://lake/clicks")),
        ("shop:app", "clicks", ("shop:app", "clicks")),
        ("shop", "clicks", ("shop", "clicks")),
    ],
)
def test_a_single_argument_is_the_app_if_it_has_its_form(
    first: str | None, second: str | None, names: tuple[str | None, str | None]
) -> None:
    assert app_and_pipeline(first, second) == names


def test_a_new_queue_that_the_app_does_not_serve_is_reported(
    penstock: Call, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_APP", shop)
    result = penstock("send", "oders", "--body", "1")
    assert (result.exit_code, result.out) == (0, "1 message sent to oders.\n")
    assert result.err == (
        "Warning: the queue oders is new, and the app serves no queue of that name. Did you mean orders?\n"
    )
    assert penstock("send", "oders", "--body", "1").err == "", "it exists now"
    assert penstock("send", "orders", "--body", "1").err == ""
    assert penstock("send", "mails", "--body", "1").err.endswith("the app serves no queue of that name.\n")


def test_without_an_app_only_a_likely_typo_is_reported(penstock: Call, shop: str) -> None:
    assert penstock("send", "orders", "--body", "1").err == ""
    assert penstock("send", "mails", "--body", "1").err == ""
    assert penstock("send", "oders", "--body", "1").err == "Warning: the queue oders is new. Did you mean orders?\n"


def test_a_configured_app_does_not_hide_tables_of_the_folder(
    penstock: Call, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene.at(tmp_path)
    scene.process("a.jsonl")
    monkeypatch.setenv("PENSTOCK_APP", shop)
    alone = penstock("status")
    assert str(scene.table) in alone.out, "the app has no state yet"
    penstock("send", "orders", "--body", "1")
    both = penstock("status")
    assert f"Table {scene.table}" in both.out
    assert "App (ledger" in both.out
    named = penstock("status", "--app", shop)
    assert f"Table {scene.table}" not in named.out


def test_a_configured_app_that_cannot_be_loaded_is_an_error_beside_tables_too(
    penstock: Call, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene.at(tmp_path)
    scene.process("a.jsonl")
    (tmp_path / "broken.py").write_text("import not_installed_here\n")
    monkeypatch.setenv("PENSTOCK_APP", "broken:app")
    result = penstock("status", "--check")
    assert (result.exit_code, result.out) == (2, ""), "the tables alone are well"
    assert "not_installed_here" in result.err


@pytest.mark.parametrize("command", [["status"], ["objects", "list"]], ids=" ".join)
@pytest.mark.parametrize(("text", "named"), [("broker = x", "(at line 1, column"), ("brokr = 'x'", "no setting brokr")])
def test_invalid_settings_beside_a_table_are_an_error(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Sequence[str], text: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    scene = Scene.at(tmp_path)
    scene.process("a.jsonl")
    (tmp_path / "penstock.toml").write_text(text)
    result = penstock(*command)
    assert (result.exit_code, result.out) == (78, "")
    assert result.err.startswith("penstock: penstock.toml ")
    assert named in result.err
    assert penstock(*command, "--table", scene.table).exit_code == 0


def test_hints_name_the_table_if_an_app_is_configured(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene.at(tmp_path)
    scene.process("a.jsonl")
    assert options_for(str(scene.table), here=tmp_path) == ""
    monkeypatch.setenv("PENSTOCK_APP", shop)
    assert options_for(str(scene.table), here=tmp_path) != ""
